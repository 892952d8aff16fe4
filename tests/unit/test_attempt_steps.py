"""Handing a notice on, on a node other than the supervisor's; and finding the programs of steps by their environment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.attempt.notice import deliver_here
from orchestrator.attempt.processes import send
from orchestrator.attempt.steps import step_programs
from orchestrator.host import start_of


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A python that looks as if srun had started it for this attempt."""
    environment = {"ORCH_ATTEMPT_DIR": str(tmp_path), "ORCH_EPOCH": "7", "SLURM_STEP_ID": "1"}
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], env=environment,
                               stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def announce(folder: Path, *hosts: str) -> None:
    (folder / "notice.json").write_text(json.dumps({"at": 1.0, "reason": "limit", "deadline": None, "deliver": list(hosts)}))


def register(folder: Path, host: str, pid: int, epoch: int = 7) -> None:
    (folder / "trainers").mkdir(exist_ok=True)
    entry = {"pid": pid, "pid_start": start_of(pid), "host": host, "rank": 0, "epoch": epoch}
    (folder / "trainers" / f"{host}-{pid}.json").write_text(json.dumps(entry))


def test_a_steps_program_is_found_by_attempt_and_epoch(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    assert [p.pid for p in step_programs(tmp_path, 7)] == [program.pid]
    assert step_programs(tmp_path, 8) == []
    assert step_programs(tmp_path / "other", 7) == []


def test_a_registered_trainer_is_told_once_and_only_on_its_host(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    told: set[tuple[int, int]] = set()
    register(tmp_path, "n2", program.pid)
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, told) == []          # no notice yet
    announce(tmp_path, "n1")
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, told) == []          # not for this host
    announce(tmp_path, "n1", "n2")
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, told) == [program.pid]
    assert program.wait(timeout=5) == -signal.SIGTERM
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, told) == []


def test_a_program_without_registration_is_told_where_nobody_registered(
        tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    announce(tmp_path, "n2")
    register(tmp_path, "n1", 1)                                                 # a trainer elsewhere: it passes the word on
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, set()) == []
    for file in (tmp_path / "trainers").iterdir():
        file.unlink()
    assert deliver_here(tmp_path, 7, "n2", signal.SIGTERM, set()) == [program.pid]


def test_a_process_of_an_older_epoch_is_not_told(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    announce(tmp_path, "n2")
    register(tmp_path, "n2", program.pid, epoch=6)
    assert deliver_here(tmp_path, 8, "n2", signal.SIGTERM, set()) == []


def test_a_pid_that_changed_hands_gets_no_signal(program: subprocess.Popen[bytes]) -> None:
    assert not send(program.pid, start_of(program.pid) + 1, signal.SIGKILL)
    assert program.poll() is None
