"""The simulated campaign in the ordinary test run; ``ORCH_SCHEDULES=20000`` makes it the full one (also: ops/simulate)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulation.campaign import Campaign
from simulation.run import run_schedule
from simulation.schedule import READS, SUBMITS, Faults, Schedule, Step, draw_schedule
from simulation.seams import seams, world_of

from orchestrator import folders
from orchestrator.journal import read

ROOT = Path(__file__).parents[2]
SCHEDULES = int(os.environ.get("ORCH_SCHEDULES", "600"))
ONE_RUN = (("a", ()),)


@pytest.mark.slow
def test_all_invariants_hold_in_every_schedule() -> None:
    """In processes of its own: the simulation puts itself under the production code's disk, locks and clocks. They take what
    CPUs are free: beside it run tests on a real Slurm, whose time is not simulated."""
    ran = subprocess.run(
        ["nice", "-n", "10", sys.executable, "-m", "simulation", "--schedules", str(SCHEDULES),
         "--seed", os.environ.get("ORCH_SEED", "0")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
    *_, told = (line for line in ran.stdout.splitlines() if "schedules from seed" in line)
    assert f" in {SCHEDULES} schedules" in told
    for fault in ("A killed between two instructions", "sbatch lost", "sbatch done, its reply lost", "sbatch delayed",
                  "sbatch doubled", "squeue: no answer", "squeue: an answer from a minute ago", "job vanished",
                  "journal line torn", "clock stepped", "node down, its processes live on", "gate asked at an odd moment",
                  "supervisor stopped between its gate and its start", "person: cancel", "person: hold",
                  "person: release", "person: rolls back", "resume stopping", "resume proven",
                  "person: edits orch.yaml", "person: edits job.sh", "person: edits recovery", "person: edits the profile",
                  "person: hold of all", "person: cancel of all", "no room for more jobs", "scancel and scontrol refused",
                  "epilog hangs"):
        assert f"  {fault}\n" in ran.stdout, f"{fault}: never struck"


def test_a_seed_tells_one_story() -> None:
    assert draw_schedule(7) == draw_schedule(7)
    assert draw_schedule(7) != draw_schedule(8)


def test_a_schedule_can_be_typed_in_as_it_is_told() -> None:
    schedule = draw_schedule(3)
    assert eval(repr(schedule.steps), {"Faults": Faults}) == schedule.steps
    told = repr([draw_schedule(seed) for seed in range(300)])
    assert all(repr(fault) in told for fault in (*READS, *SUBMITS))


@pytest.fixture
def play() -> Iterator[Callable[..., list[str]]]:
    """Run these steps for a run called a; the names of the events that its journal then has."""
    def run(seed: int, *steps: Step) -> list[str]:
        with seams(), world_of(seed) as world:
            Campaign(Schedule(seed, ONE_RUN, steps), world).play()
            return [event["event"] for event in read(folders.run_dir(world.repository, "a"))[0]]
    yield run


def held(*steps: Step) -> str:
    """'' if every invariant held, and the run came to rest when the faults stopped."""
    with seams():
        return run_schedule(Schedule(0, ONE_RUN, steps))


def test_an_sbatch_is_lost_only_when_a_squeue_a_minute_after_it_did_not_know_it(play: Callable[..., list[str]]) -> None:
    """squeue answered 20 s after the intent; the daemon was stopped for 45 s before it judged by the answer (a laptop that
    sleeps). Meanwhile the job had arrived, and waits for a node."""
    events = play(42, ("node", "n1", True), ("node", "n2", True), ("cli", "submit", "a", Faults(submits="delayed")),
                  ("advance", 20.0), ("pass", "A", Faults(meanwhile=("advance", 45.0))))
    assert "lost" not in events


def test_a_squeue_from_a_minute_ago_drops_no_waiting_job(play: Callable[..., list[str]]) -> None:
    """Two jobs of one run wait at once until the next pass cancels the stray; the gate keeps it from training."""
    events = play(0, ("cli", "submit", "a", Faults()), ("pass", "B", Faults(reads="stale")))
    assert "dropped" not in events


def test_a_stray_of_a_run_that_is_over_is_cancelled() -> None:
    """Held in Slurm, dropped by an old squeue while the run was cancelled: the job waited for ever."""
    assert held(("cli", "submit", "a", Faults()), ("cli", "hold", "a", Faults()),
                ("cli", "cancel", "a", Faults(reads="stale"))) == ""


@pytest.mark.parametrize("what", ["cancel-now", "cancel", "hold"])
@pytest.mark.parametrize("after_s", [0.0, 70.0])
def test_nobody_elses_job_is_touched_when_slurm_has_lost_its_state_and_counts_anew(what: str, after_s: float) -> None:
    """The number of a's job was b's by then, and `orch cancel a` ended b's."""
    with seams():
        assert run_schedule(Schedule(0, (("a", ()), ("b", ())), (
            ("cli", "submit", "a", Faults()), ("advance", 20.0), ("pass", "A", Faults()), ("forget", True, True),
            ("cli", "submit", "b", Faults()), ("advance", after_s), ("cli", what, "a", Faults()), ("advance", 130.0),
            ("pass", "A", Faults())))) == ""


def test_nothing_begins_behind_a_run_that_is_being_rolled_back() -> None:
    """It had finished, and its end record said so until the roll-back was done."""
    with seams():
        assert run_schedule(Schedule(9687, (("a", ()), ("b", ("a",))), (
            ("cli", "submit", "a", Faults()), ("cli", "submit", "b", Faults(reads="silent")), ("advance", 400.0),
            ("pass", "A", Faults()), ("advance", 175.0), ("back", "b", 7, Faults()),
            ("back", "a", 0, Faults(kill=3)), ("pass", "B", Faults(kill=2)), ("advance", 3.0)))) == ""


INSTANTS = range(25)                   # more than any of these passes has


def test_a_job_that_was_over_when_it_was_read_back_is_no_setup_failure(play: Callable[..., list[str]]) -> None:
    """The machine slept between sbatch and the look at its job, which had trained meanwhile: its folder, looked at before,
    knew nothing of that, and the run was held."""
    for at in INSTANTS:
        assert "held" not in play(0, ("cli", "submit", "a", Faults()), ("vanish", 0, False), ("advance", 70.0),
                                  ("pass", "A", Faults(meanwhile=("advance", 130.0), at=at)))


def test_a_submission_that_was_given_up_and_trained_all_the_same_is_noted() -> None:
    """Slurm had forgotten its job, and its supervisor was stopped until the daemon had looked and not yet written. What was
    given up was never looked at again: the run finished, and its attempts stood down one after another because of that."""
    for at in INSTANTS:
        assert held(("policy", 60.0, 0, 3), ("cli", "submit", "a", Faults()), ("vanish", 0, True), ("stop", 0, 200.0),
                    ("advance", 70.0), ("pass", "A", Faults(meanwhile=("advance", 400.0), at=at))) == ""
