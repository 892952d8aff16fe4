"""Trainings of real frameworks on a real Slurm, interrupted on purpose: preempted, and killed without warning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repositories import Repository, make_repository
from seen import attempt_dir, processes_of, read, run_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

ORCH_YAML = """\
profiles:
  default: {partition: low, cpus: 2, memory: 1500M, time: 10m, lead: 20s}
checkpoint: {interval: 1s}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""


@contextmanager
def watched(slurm: PrivateSlurm, folder: Path) -> Iterator[Repository]:
    """A repository with its daemon, which leaves no process behind."""
    made = make_repository(folder, slurm, ORCH_YAML)
    daemon = made.daemon()
    yield made
    daemon.terminate()
    assert daemon.wait(timeout=30) == 0
    assert processes_of(made.folder / "runs") == []


def digest_outside_orch(trainer: Path, steps: int, folder: Path) -> str:
    """The weights' digest of the same training without orch, where its callback does nothing."""
    folder.mkdir()
    subprocess.run([sys.executable, trainer, str(steps), "0"], cwd=folder, check=True, timeout=240, capture_output=True,
                   env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(trainer.parents[3])})
    assert not (folder / "checkpoints").exists()
    return (folder / "digest").read_text()


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in this node's memory."""
    with tempfile.TemporaryDirectory(prefix="orch-test-", dir="/dev/shm") as folder:
        yield Path(folder)


def saved_in_background(made: Repository, tag: str, number: int) -> None:
    """Training went on before a checkpoint was usable."""
    found = saves(made, tag, number)
    assert found and all(line["background"] for line in found)
    assert any(line["stall_s"] < line["durable_s"] for line in found), found


def lines(made: Repository, tag: str, number: int) -> list[dict[str, Any]]:
    """What this attempt's trainer said."""
    path = attempt_dir(made, tag, number) / "trainer.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def saves(made: Repository, tag: str, number: int) -> list[dict[str, Any]]:
    return [line for line in lines(made, tag, number) if line["event"] == "saved"]


def supervisor(made: Repository, tag: str, number: int, event: str) -> list[dict[str, Any]]:
    path = attempt_dir(made, tag, number) / "supervisor.jsonl"
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in told if line["event"] == event]


def wait_until_it_trains(made: Repository, tag: str, number: int) -> None:
    """Until this attempt has saved, and would hear of a preemption."""
    made.until(lambda: saves(made, tag, number) and supervisor(made, tag, number, "notice_step"),
               f"attempt {number} of {tag} to save")


def preempt(made: Repository, tag: str, number: int) -> None:
    """A job of higher priority wants this attempt's node."""
    wait_until_it_trains(made, tag, number)
    job_id = read(attempt_dir(made, tag, number) / "start.json")["job_id"]
    node = made.slurm.job(int(job_id))["NodeList"]
    made.slurm.submit("sleep 1", "--partition=high", f"--nodelist={node}", "--exclusive", "--mem=100")
    _followed(made, tag, number)


def give_notice(made: Repository, tag: str, number: int) -> None:
    """A stop signal to this attempt's batch process alone, as Slurm sends it before a limit."""
    wait_until_it_trains(made, tag, number)
    made.slurm.run("scancel", "--batch", "--signal=TERM", read(attempt_dir(made, tag, number) / "start.json")["job_id"])
    _followed(made, tag, number)


def kill_trainer(made: Repository, tag: str, number: int, *, rank: int = 0) -> None:
    """SIGKILL to the process of this rank."""
    wait_until_it_trains(made, tag, number)
    for path in (attempt_dir(made, tag, number) / "trainers").glob("*.json"):
        if read(path)["rank"] == rank:
            os.kill(read(path)["pid"], signal.SIGKILL)


def interrupt(made: Repository, tag: str, *ways: Callable[[Repository, str, int], None]) -> list[dict[str, Any]]:
    """Each attempt in its way, then on faster; the run's attempts once it has finished by itself."""
    for number, way in enumerate(ways, 1):
        way(made, tag, number)
        _followed(made, tag, number)
    (run_dir(made, tag) / "hurry").touch()
    made.until(lambda: made.status(tag)["state"] in ("finished", "held"), f"{tag} to finish", 240)
    status = made.status(tag)
    assert status["state"] == "finished", status
    attempts: list[dict[str, Any]] = status["attempts"]
    return attempts


def measured_is_shown(made: Repository, tag: str) -> None:
    """C, t, S, step time and R are in `orch status TAG`, and T* comes from them."""
    said = " ".join(made.orch("status", tag).split())
    measured = said.partition("measured (median")[2]
    for name in ("C ", "write ", "durable ", "step ", "R ", "size "):
        assert f" {name}" in measured, said
    assert [e for e in made.journal(tag) if e["event"] == "interval" and e["stall_s"]], "T* is computed from this C"


def _followed(made: Repository, tag: str, number: int) -> None:
    made.until(lambda: len(made.status(tag)["attempts"]) > number, f"attempt {number} of {tag} to be followed")
