"""Saves in the background and on two levels, across attempts on a real Slurm. Both runs go beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import MadeRun, make_run

from orchestrator.checkpoints import complete_checkpoints, damage

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[MadeRun, MadeRun]]:
    """Two attempts each, the second after the first has ended."""
    base = tmp_path_factory.mktemp("saves")
    asked = {"background": {"interval_s": 1.0},
             "levels": {"local_dir": str(base / "node"), "local_interval_s": 1.0, "time_limit_s": 600.0}}
    made = {}
    for name, changes in asked.items():
        first = make_run(base / name, name, f"exec PY TRAINERS/saves.py {name}", **changes)
        made[name] = (first, first.next())
    for turn in (0, 1):
        for pair in made.values():
            pair[turn].submit(slurm_cluster.environment, "--mem=100", "--cpus-per-task=1")
        for pair in made.values():
            slurm_cluster.wait_for(int(pair[turn].job_id), "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", timeout_s=150)
    return made


def test_a_write_in_the_background_is_complete_before_the_attempt_ends(runs: dict[str, tuple[MadeRun, MadeRun]]) -> None:
    first, second = runs["background"]
    end, lines = first.end(), first.lines("trainer.jsonl")
    assert end is not None
    assert (end.notice, end.saved_after_notice, end.exit_code) == ("limit", True, 75), first.out()
    saved = [line for line in lines if line["event"] == "saved"]
    assert all(line["durable_s"] >= 1.5 for line in saved)
    assert all(line["stall_s"] < 0.5 for line in saved), "training goes on meanwhile"
    assert [line["event"] for line in lines][-2:] == ["saved", "stopped"]
    assert any(line["event"] == "save_waits" for line in lines)
    kept = complete_checkpoints(first.run_dir / "checkpoints")
    assert kept[-1].step >= lines[-1]["step"]
    assert [damage(one.path) for one in kept] == [""] * len(kept)
    assert f"resumed at {end.checkpoint_step} from" in second.out()
    assert not list((first.run_dir / "checkpoints").glob(".tmp-*"))


def test_after_a_crash_the_nodes_own_copy_is_resumed_from(runs: dict[str, tuple[MadeRun, MadeRun]]) -> None:
    first, second = runs["levels"]
    end = first.end()
    assert end is not None
    assert end.signal == 9, first.out()
    assert not complete_checkpoints(first.run_dir / "checkpoints"), "the shared level's interval is an hour"
    assert end.checkpoint_step is not None
    assert 20 < end.checkpoint_step <= 40
    assert f"resumed at {end.checkpoint_step} from {first.spec.local_dir}" in second.out()
    assert second.out().splitlines()[-1].startswith("FINISHED attempt=2")
    assert list(Path(first.spec.local_dir).iterdir()) == [], "nothing stays on the node when the run is finished"
