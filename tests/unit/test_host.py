"""Whether it is certain that nothing of a start is left on this host; and what a pass makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import job, queued, run_of, started

from orchestrator import folders
from orchestrator.control.observe import observe
from orchestrator.control.ports import Ports, Snapshot
from orchestrator.core.observation import AttemptSeen, NodeSeen
from orchestrator.errors import SlurmUnreachable
from orchestrator.host import boot_id, nothing_there, pid_namespace, start_of
from orchestrator.records import StartRecord

NOW = 1_800_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = folders.attempt_dir(folders.run_dir(tmp_path, "a"), 1)
    (made / "trainers").mkdir(parents=True)
    return made


@pytest.fixture
def gone() -> tuple[int, int]:
    """A process that was, and its start time."""
    with subprocess.Popen(["sleep", "100"]) as process:
        found = process.pid, start_of(process.pid)
        process.kill()
    return found


@pytest.fixture
def child(folder: Path) -> Iterator[Any]:
    """Start a process with this environment."""
    made: list[subprocess.Popen[bytes]] = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(100)"],
                                     env=environment, stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        made[-1].stdout.readline()     # past its exec
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def left_by(folder: Path, pid: int, pid_start: int, **changes: Any) -> StartRecord:
    record = StartRecord(**{
        "number": 1, "submission_id": "s1", "job_id": "101", "restart_count": 0, "epoch": 3, "host": os.uname().nodename,
        "boot_id": boot_id(), "pid": pid, "pid_start": pid_start, "pid_namespace": pid_namespace(), "started_at": NOW,
        **changes})
    (folder / "start.json").write_text(record.to_json())
    return record


def look(folder: Path, record: StartRecord) -> str:
    return nothing_there(folder.parents[1], record)


def test_a_supervisor_that_is_gone_with_all_it_started(folder: Path, gone: tuple[int, int]) -> None:
    assert "is gone, and so is all that it started" in look(folder, left_by(folder, *gone))


def test_a_machine_that_was_started_anew_has_nothing_left(folder: Path) -> None:
    """Whatever runs under that pid today: it is another process."""
    record = left_by(folder, os.getpid(), start_of(os.getpid()), boot_id="another")
    assert "was started anew since" in look(folder, record)


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"host": "elsewhere", "boot_id": "another"}, {"boot_id": ""},
                                     {"pid_namespace": "pid:[1]"}, {"pid_namespace": ""}])
def test_of_another_host_or_container_nothing_is_certain(
        folder: Path, gone: tuple[int, int], changes: dict[str, str]) -> None:
    assert look(folder, left_by(folder, *gone, **changes)) == ""


def test_a_stopped_supervisor_is_there(folder: Path, child: Any) -> None:
    process = child()
    process.send_signal(signal.SIGSTOP)
    record = left_by(folder, process.pid, start_of(process.pid))
    assert look(folder, record) == ""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert "is gone" in look(folder, record), "a zombie is no supervisor"


@pytest.mark.parametrize(("epoch", "there"), [("3", True), ("2", True), ("", True), ("4", False)])
def test_a_trainer_that_outlived_its_supervisor_is_there(
        folder: Path, gone: tuple[int, int], child: Any, epoch: str, there: bool) -> None:
    child(ORCH_RUN_DIR=str(folder.parents[1]), ORCH_EPOCH=epoch)
    assert (look(folder, left_by(folder, *gone)) == "") == there, "a newer start is not this one's"


def test_another_runs_trainer_is_not_this_ones(folder: Path, gone: tuple[int, int], child: Any) -> None:
    child(ORCH_RUN_DIR=f"{folder.parents[1]}2", ORCH_EPOCH="3")
    assert look(folder, left_by(folder, *gone))


def test_a_registered_trainer_is_there_though_it_shows_no_environment(
        folder: Path, gone: tuple[int, int], child: Any) -> None:
    process = child()
    (folder / "trainers" / ".half-written.json").write_text("{")
    (folder / "trainers" / "h-1.json").write_text("")              # as a power cut leaves it
    entry = {"epoch": 3, "host": os.uname().nodename, "pid": process.pid, "pid_start": start_of(process.pid)}
    (folder / "trainers" / "h-2.json").write_text(json.dumps(entry))
    assert look(folder, left_by(folder, *gone)) == ""
    process.kill()
    process.wait()
    assert look(folder, left_by(folder, *gone))


# --- when a pass looks, and whom it asks ------------------------------------------------------------------------------------


class Nodes:
    """A Slurm that is asked about nodes alone."""

    def __init__(self, state: str | None) -> None:
        self.state, self.asked = state, 0

    def nodes(self, names: str) -> list[NodeSeen]:
        self.asked += 1
        if self.state is None:
            raise SlurmUnreachable("no answer")
        return [NodeSeen(name=names, state=self.state, booted_at=1.0)]


def attempt(folder: Path, slurm: Nodes, beat_ago_s: float, state: str = "RUNNING", start_at: float = NOW) -> AttemptSeen:
    now = NOW + 10_000.0
    (folder / "heartbeat").write_text(f"{now - beat_ago_s:.3f}\n")
    ports = Ports(repository=folder.parents[3], slurm=slurm, clock=lambda: now, new_id=lambda: "x")  # type: ignore[arg-type]
    snapshot = Snapshot(asked_at=now, jobs=(job(1, state, nodes="n1", start_at=start_at),))
    [found] = observe(ports, run_of(queued(1), started(1, NOW)), snapshot).attempts
    return found


@pytest.mark.parametrize(("beat_ago_s", "state", "looked"), [
    (91.0, "RUNNING", True), (89.0, "RUNNING", False), (91.0, "COMPLETING", False), (91.0, "SUSPENDED", False)])
def test_this_host_is_looked_at_when_the_heart_is_silent_and_slurm_says_running(
        folder: Path, gone: tuple[int, int], beat_ago_s: float, state: str, looked: bool) -> None:
    left_by(folder, *gone)
    slurm = Nodes("DOWN")
    assert bool(attempt(folder, slurm, beat_ago_s, state).nothing_there) == looked
    assert slurm.asked == 0


def test_a_trainer_that_still_speaks_is_no_silence(folder: Path, gone: tuple[int, int]) -> None:
    left_by(folder, *gone)
    (folder / "trainer.jsonl").write_text(json.dumps({"t": NOW + 9_950.0, "event": "progress", "step": 5}) + "\n")
    assert attempt(folder, Nodes("DOWN"), 500.0).nothing_there == ""


@pytest.mark.parametrize(("beat_ago_s", "state", "words", "asked"), [
    (301.0, "DOWN", "n1 is down", 1), (301.0, "MIXED", "", 1), (301.0, None, "", 1), (299.0, "DOWN", "", 0)])
def test_of_another_host_slurm_is_asked_after_five_minutes(
        folder: Path, beat_ago_s: float, state: str | None, words: str, asked: int) -> None:
    left_by(folder, 1, 1, host="elsewhere")
    slurm = Nodes(state)
    found = attempt(folder, slurm, beat_ago_s)
    assert (found.nothing_there, slurm.asked) == ("", asked)
    assert words in found.node_failed and bool(found.node_failed) == bool(words)


def test_of_a_supervisor_that_is_there_slurm_is_not_asked(folder: Path, child: Any) -> None:
    """Stopped, or its disk hangs: its heart is silent for long, and whatever Slurm says of the node, it lives."""
    process = child()
    left_by(folder, process.pid, start_of(process.pid))
    slurm = Nodes("DOWN")
    found = attempt(folder, slurm, 500.0)
    assert (found.nothing_there, found.node_failed, slurm.asked) == ("", "", 0)
    left_by(folder, process.pid, start_of(process.pid), pid_namespace="pid:[1]")
    assert "n1 is down" in attempt(folder, slurm, 500.0).node_failed, "another container's process of that id"


def test_what_slurm_says_of_a_later_execution_is_not_said_of_this_one(folder: Path, gone: tuple[int, int]) -> None:
    """The site requeued the job, and its supervisor has yet to begin: it must not be cancelled for its predecessor."""
    left_by(folder, *gone)
    slurm = Nodes("DOWN")
    found = attempt(folder, slurm, 500.0, start_at=NOW + 9_700.0)
    assert (found.nothing_there, found.node_failed, slurm.asked) == ("", "", 0)
