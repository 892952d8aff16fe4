"""``orch save`` waits for the save that was begun for its request, whatever the node's clock says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import POLICY, run_of, started
from simulation.slurm import SimulatedSlurm
from test_withdraw import Still

from orchestrator.control.ports import Ports
from orchestrator.control.requests import wait_for_save
from orchestrator.errors import Refused, StorageError, TimedOut
from orchestrator.folders import attempt_dir, run_dir

BEHIND_S, AHEAD_S = 0.0, 9000.0        # the trainer's clock; here it is 1000


def wait(tmp_path: Path, *lines: dict[str, Any], clock: float = BEHIND_S) -> dict[str, object]:
    ports = Ports(repository=tmp_path, slurm=SimulatedSlurm(Still(), nodes=("n1",), now=1000.0), policy=POLICY,
                  clock=lambda: 1000.0, new_id=lambda: "id")
    attempt = run_of(started(1, 10)).attempts[0]
    folder = attempt_dir(run_dir(tmp_path, "a"), attempt.number)
    folder.mkdir(parents=True)
    (folder / "trainer.jsonl").write_text("".join(
        json.dumps({"t": clock + number, **line}) + "\n" for number, line in enumerate(lines)))
    return wait_for_save(ports, "a", attempt, 2, timeout_s=0.0, sleep=lambda seconds: None, monotonic=lambda: 0.0)


def saving(step: int, request: int | None) -> dict[str, Any]:
    return {"event": "saving", "step": step, "request": request}


def saved(step: int) -> dict[str, Any]:
    return {"event": "saved", "step": step}


@pytest.mark.parametrize("clock", [BEHIND_S, AHEAD_S])
def test_the_save_that_was_begun_for_it_is_the_answer(tmp_path: Path, clock: float) -> None:
    told = wait(tmp_path, saving(10, 1), saved(10), saving(20, 2), saved(20), saving(30, 2), saved(30), clock=clock)
    assert told["step"] == 20


@pytest.mark.parametrize("clock", [BEHIND_S, AHEAD_S])
@pytest.mark.parametrize("before", [[], [saving(10, None), saved(10)], [saving(10, 1), saved(10)], [saving(10, 2)]])
def test_an_earlier_save_or_one_that_is_being_written_is_none(tmp_path: Path, clock: float, before: list[Any]) -> None:
    with pytest.raises(TimedOut):
        wait(tmp_path, {"event": "progress", "step": 1}, *before, clock=clock)


def test_a_failed_one_and_an_end_without_it_are_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not save step 20: disk full"):
        wait(tmp_path / "failed", saving(20, 2), {"event": "save_failed", "step": 20, "error": "disk full"})
    with pytest.raises(Refused, match="ended before it saved"):
        wait(tmp_path / "ended", saving(10, 1), saved(10), {"event": "stopped", "step": 12})
