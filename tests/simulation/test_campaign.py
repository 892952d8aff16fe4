"""The simulated campaign in the ordinary test run; ``ORCH_SCHEDULES=20000`` makes it the full one (also: ops/simulate)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulation.campaign import Campaign, Schedule, Step, draw_schedule, run_schedule, workplace
from simulation.world import World, world_of

from orchestrator import folders
from orchestrator.journal import read

ROOT = Path(__file__).parents[2]
SCHEDULES = int(os.environ.get("ORCH_SCHEDULES", "600"))


@pytest.mark.slow
def test_all_invariants_hold_in_every_schedule() -> None:
    """In a process of its own: the simulation puts itself under os.fsync, locks and clocks."""
    ran = subprocess.run(
        [sys.executable, "-m", "simulation", "--schedules", str(SCHEDULES), "--seed", os.environ.get("ORCH_SEED", "0")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]


def test_a_seed_tells_one_story() -> None:
    assert draw_schedule(7) == draw_schedule(7)
    assert draw_schedule(7) != draw_schedule(8)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Run these steps for a run called a; the names of the events that its journal then has."""
    def run(seed: int, *steps: Step) -> list[str]:
        with workplace() as root, world_of(World(repository=root / "repo", seed=seed)) as world:
            Campaign(Schedule(seed, (("a", ()),), steps), world).play()
            return [event["event"] for event in read(folders.run_dir(world.repository, "a"))[0]]
    yield run


def test_an_sbatch_is_lost_only_when_a_squeue_a_minute_after_it_did_not_know_it(play: Callable[..., list[str]]) -> None:
    """squeue answered 20 s after the intent; the daemon was stopped for 45 s before it judged by the answer (a laptop that
    sleeps). Meanwhile the job had arrived, and waits for a node."""
    down: list[Step] = [("node", "n1", True), ("node", "n2", True)]
    events = play(42, *down, ("cli", "submit", "a", None, False, "", "delayed"), ("advance", 20.0),
                  ("pass", "A", None, False, "", "", ("advance", 45.0)))
    assert "lost" not in events


def test_a_squeue_from_a_minute_ago_drops_no_waiting_job(play: Callable[..., list[str]]) -> None:
    """Two jobs of one run wait at once until the next pass cancels the stray; the gate keeps it from training."""
    events = play(0, ("cli", "submit", "a", None, False, "", ""), ("pass", "B", None, False, "stale", "", None))
    assert "dropped" not in events


def test_a_stray_of_a_run_that_is_over_is_cancelled() -> None:
    """Seed 104776: held in Slurm, dropped by an old squeue while the run was cancelled; the job waits for ever."""
    steps: tuple[Step, ...] = tuple(
        ("cli", what, "a", None, False, reads, "") for what, reads in (("submit", ""), ("hold", ""), ("cancel", "stale")))
    with workplace() as root:
        assert run_schedule(Schedule(0, (("a", ()),), steps), root) == ""
