"""What the gate is told of the start before this one, and that no clock which somebody sets can stretch its minute."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "slurm"))
from runs import MadeRun, make_run

from orchestrator.attempt import commands, witness
from orchestrator.attempt.steady import SteadyClock
from orchestrator.attempt.take import Identity
from orchestrator.attempt.witness import Leaving, Pulse
from orchestrator.core.gate import Leave
from orchestrator.host import boot_id, start_of
from orchestrator.records import EndRecord, StartRecord
from orchestrator.sightings import JobSeen, JobSighting

HOUR_S = 3600.0


class Clocks:
    """A wall clock that can be set, and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.at, self.step_s = 1000.0, 0.0

    def wall(self) -> float:
        return 1_800_000_000.0 + self.at + self.step_s

    def monotonic(self) -> float:
        return self.at

    def wait(self, seconds: float) -> bool:
        self.at += seconds
        return True


def says(monkeypatch: pytest.MonkeyPatch, sighting: JobSighting) -> None:
    def look(job_id: str) -> JobSighting:
        return sighting
    monkeypatch.setattr(commands, "look_at_job", look)


def started(run: MadeRun, clocks: Clocks, **changes: Any) -> None:
    """A start of this run by job 9, alive: its process is this test, its heart beats, Slurm says RUNNING."""
    record = StartRecord(**{
        "number": 1, "submission_id": "s1", "job_id": "9", "restart_count": 0, "epoch": 3, "host": os.uname().nodename,
        "boot_id": boot_id(), "pid": os.getpid(), "pid_start": start_of(os.getpid()), "started_at": clocks.wall(), **changes})
    run.prepare()
    (run.folder / "start.json").write_text(record.to_json())
    (run.folder / "heartbeat").write_text(f"{clocks.wall():.3f}\n")


def leave(run: MadeRun, clocks: Clocks, me: Identity, wait: Callable[[float], bool] | None = None) -> Leaving:
    return witness.leave(run.spec, me, clock=clocks.wall, monotonic=clocks.monotonic, wait=wait or clocks.wait)


@pytest.mark.parametrize("end", [None, {"provisional": True, "notice": "signal", "notice_at": 1.0},
                                 {"exit_code": 75, "trainer": "stopped", "notice": "signal", "notice_at": 1.0}])
def test_a_requeued_job_knows_that_its_own_earlier_start_is_over(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: dict[str, Any] | None) -> None:
    clocks = Clocks()
    run = make_run(tmp_path, "a", "true")
    started(run, clocks)
    if end is not None:
        record = EndRecord(number=1, job_id="9", restart_count=0, epoch=3, ended_at=1.0, **end)
        (run.folder / "end.json").write_text(record.to_json())
    says(monkeypatch, JobSeen(job_id="9", state="RUNNING"))          # that is us
    before = clocks.at
    asked = leave(run, clocks, Identity(job_id="9", restart_count=1, host="h"))
    assert (asked.answer.leave, asked.asked_about) == (Leave.GO, 3)
    assert clocks.at == before, "nothing is waited for"


@pytest.mark.parametrize("me", [Identity(job_id="9", restart_count=0, host="h"),
                                Identity(job_id="10", restart_count=1, host="h")])
@pytest.mark.parametrize("step_s", [0.0, -HOUR_S, HOUR_S])
def test_a_live_predecessor_is_asked_about_for_a_minute_whatever_is_done_to_the_clock(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: Identity, step_s: float) -> None:
    clocks = Clocks()
    run = make_run(tmp_path, "a", "true")
    started(run, clocks)
    says(monkeypatch, JobSeen(job_id="9", state="RUNNING"))

    def wait(seconds: float) -> bool:
        clocks.step_s = step_s
        return clocks.wait(seconds)

    before = clocks.at
    asked = leave(run, clocks, me, wait)
    assert asked.answer.leave is Leave.STAND_DOWN and "still alive" in asked.answer.reason
    assert 60.0 <= clocks.at - before <= 62.0


@pytest.mark.parametrize("step_s", [0.0, -HOUR_S])
def test_a_heart_that_stands_still_grows_old_though_the_clock_was_set_back(tmp_path: Path, step_s: float) -> None:
    clocks = Clocks()
    pulse = Pulse(clocks.wall, clocks.monotonic)
    assert pulse.age_s(tmp_path) is None
    (tmp_path / "heartbeat").write_text(f"{clocks.wall() - 5.0:.3f}\n")
    assert pulse.age_s(tmp_path) == pytest.approx(5.0, abs=0.01)
    clocks.step_s = step_s
    clocks.wait(40.0)
    assert pulse.age_s(tmp_path) == pytest.approx(45.0, abs=0.01)
    (tmp_path / "heartbeat").write_text(f"{clocks.wall() - 1.0:.3f}\n")
    assert pulse.age_s(tmp_path) == pytest.approx(1.0, abs=0.01)


def test_a_checkpoint_of_an_older_start_is_no_save_after_the_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    run = make_run(tmp_path, "a", "true")
    started(run, clocks, boot_id="another")
    (run.folder / "heartbeat").unlink()
    record = EndRecord(number=1, job_id="9", restart_count=0, epoch=3, ended_at=1.0, provisional=True,
                       notice="limit", notice_at=10.0)
    (run.folder / "end.json").write_text(record.to_json())
    says(monkeypatch, JobSeen(job_id="9", state="TIMEOUT"))
    for epoch, words in ((2, "limit-unsaved"), (3, "limit-saved")):
        folder = run.run_dir / "checkpoints" / "step-00000001"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "COMPLETE").write_text(json.dumps({"step": 1, "epoch": epoch, "saved_at": 20.0, "files": {}}))
        assert words in leave(run, clocks, Identity(job_id="10", restart_count=0, host="h")).answer.reason


def test_a_predecessors_id_that_is_anothers_now_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld lost its state and counts anew: it is another run's job that has ended under the predecessor's id."""
    clocks = Clocks()
    run = make_run(tmp_path, "a", "true")
    started(run, clocks, boot_id="another")            # its heart beats
    me = Identity(job_id="10", restart_count=0, host="h")
    says(monkeypatch, JobSeen(job_id="9", state="TIMEOUT", comment="orch/1:repo-0:b:0001:s2"))
    assert leave(run, clocks, me).answer.leave is Leave.STAND_DOWN
    says(monkeypatch, JobSeen(job_id="9", state="TIMEOUT", comment="orch/1:repo-0:a:0001:s1"))
    assert leave(run, clocks, me).answer.leave is Leave.GO


def test_what_slurm_says_of_our_own_id_is_not_said_of_a_predecessor_that_had_it_before(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld lost its state and counts anew: the id under which the predecessor died is ours now."""
    clocks = Clocks()
    run = make_run(tmp_path, "a", "true")
    started(run, clocks, boot_id="another")
    (run.folder / "heartbeat").unlink()
    says(monkeypatch, JobSeen(job_id="9", state="RUNNING"))
    for me, words in (("10", "how attempt 1 ended is not known"), ("9", "vanished")):
        assert words in leave(run, clocks, Identity(job_id=me, restart_count=0, host="h")).answer.reason


def test_the_steady_clock_cannot_be_set() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks.wall, clocks.monotonic)
    began = clocks.wall()
    clocks.step_s = -HOUR_S
    clocks.wait(7.0)
    assert steady() == began + 7.0
    assert steady.of_wall(clocks.wall() + 20.0) == pytest.approx(began + 27.0)
    assert steady.to_wall(began + 27.0) == pytest.approx(clocks.wall() + 20.0)
