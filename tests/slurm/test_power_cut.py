"""The power goes: every process of a private cluster, of its jobs and of the daemon killed; then all is started again.

Slurm alone would call the dead jobs RUNNING for many minutes; nobody lays a hand on the trainings all the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH_YAML, Repository, make_repository

from orchestrator import cluster
from orchestrator.cluster.processes import Role
from orchestrator.host import all_pids, environment_of

pytestmark = pytest.mark.slow

DIGITS = Path(__file__).parents[2] / "jobs" / "digits"
WORK_S = 8.0                       # CPU seconds of a training: long enough that the cut, after about five, comes in time
TAGS = ("north", "south")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Census(threading.Thread):
    """The epochs of the trainers that live, counted again and again."""

    def __init__(self, run_dirs: list[Path]) -> None:
        super().__init__(daemon=True)
        self.most = dict.fromkeys(map(str, run_dirs), 0)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            seen = [environment for pid in all_pids() if _trains(pid) and (environment := environment_of(pid))]
            for run_dir in self.most:
                living = sum(environment.get("ORCH_RUN_DIR") == run_dir for environment in seen)
                self.most[run_dir] = max(self.most[run_dir], living)


def _trains(pid: int) -> bool:
    try:
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _same_sums() -> dict[str, str]:
    """Of the environment, what jobs get too: OPENBLAS_CORETYPE, say, makes other sums."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _undisturbed(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    folder.mkdir()
    return subprocess.Popen([sys.executable, DIGITS / "train.py", "--steps", str(steps)], cwd=folder,
                            env=_same_sums() | ONE_THREAD, stdout=subprocess.DEVNULL)


def _steps(folder: Path) -> int:
    """So many that a training takes WORK_S of a processor here."""
    spent_s = []
    for steps in (1, 200):
        before = os.times()
        assert _undisturbed(folder / f"speed{steps}", steps).wait() == 0
        after = os.times()
        spent_s.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return max(500, round(WORK_S * 199 / (spent_s[1] - spent_s[0])))


def _saves(repository: Repository, tag: str) -> int:
    lines = repository.folder / "runs" / tag / "attempts" / "0001" / "trainer.jsonl"
    return lines.read_text().count('"saved"') if lines.exists() else 0


def _wait_saved(slurm: Any) -> None:
    """slurmctld brings its jobs to the disk within five seconds of a change; a job that is held for ever is one."""
    now = time.time()
    slurm.submit("true", "--hold", "--mem=1")
    jobs = slurm.folder / "state" / "job_state"
    slurm.wait_until(lambda: jobs.exists() and jobs.stat().st_mtime > now, 20, "slurmctld saved its jobs")


def test_after_a_power_cut_training_resumes_by_itself_and_ends_the_same(
    make_slurm_cluster: Callable[..., Any], tmp_path: Path,
) -> None:
    slurm = make_slurm_cluster(nodes=2, cpus=2, gpus=0, preemption=False)
    repository = make_repository(tmp_path / "repository", slurm, ORCH_YAML.replace("memory: 100M", "memory: 300M"))
    steps = _steps(tmp_path)
    for tag in TAGS:
        repository.job(tag, script=f"#!/bin/bash\nexec {sys.executable} {DIGITS}/train.py --steps {steps}\n", **ONE_THREAD)
    census = Census([repository.folder / "runs" / tag for tag in TAGS])
    census.start()
    for tag in TAGS:
        repository.orch("submit", tag)
    daemon = repository.daemon()
    try:
        repository.until(lambda: all(_saves(repository, tag) for tag in TAGS), "a save of each")
        _wait_saved(slurm)
        daemon.kill()
        daemon.wait()
        cluster.kill(slurm.folder)
        assert slurm.processes() == []

        repository.orch("cluster", "up", "--folder", str(slurm.folder))
        daemon = repository.daemon()
        alone = _undisturbed(tmp_path / "alone", steps)
        for tag in TAGS:
            repository.until(lambda tag=tag: len(repository.status(tag)["attempts"]) > 1, f"{tag} to go on", 60)
        for tag in TAGS:
            repository.until(lambda tag=tag: repository.status(tag)["state"] == "finished", f"{tag} to finish")
    finally:
        census.over.set()
        daemon.terminate()
        daemon.wait(timeout=30)
    assert alone.wait(timeout=60) == 0
    right = json.loads((tmp_path / "alone" / "result.json").read_text())["metrics"]
    census.join()
    for tag in TAGS:
        _went_on_and_ended_as(repository, tag, right)
    assert set(census.most.values()) == {1}, "two trainers of a run lived at once"


def _went_on_and_ended_as(repository: Repository, tag: str, right: dict[str, Any]) -> None:
    run = repository.status(tag)
    first, second = run["attempts"]
    assert [first["ending"], second["ending"]] == ["node-failure", "finished"]
    assert second["resume_step"] == first["checkpoint_step"] > 0
    assert all(earlier["epoch"] < later["epoch"] for earlier, later in pairwise(run["attempts"]))
    assert run["metrics"] == right
    assert [e["event"] for e in repository.journal(tag) if e["event"] in ("held", "released", "lost")] == []


def test_a_node_that_was_drained_by_hand_is_still_drained_after_a_power_cut(make_slurm_cluster: Callable[..., Any]) -> None:
    slurm = make_slurm_cluster(nodes=2, cpus=2, gpus=0, preemption=False)
    job = slurm.submit("sleep 1000", "--no-requeue", "--nodelist=n1", "--mem=100")
    slurm.wait_for(job, "RUNNING")
    cluster.set_node(slurm.folder, "n1", "drain", "a fan is broken")
    _wait_saved(slurm)
    nodes = slurm.folder / "state" / "node_state"
    slurm.wait_until(lambda: b"a fan is broken" in nodes.read_bytes(), 20, "slurmctld saved its nodes")
    cluster.kill(slurm.folder)
    cluster.up(slurm.spec)
    assert slurm.job(job)["JobState"] == "NODE_FAIL"
    n1, n2 = cluster.status(slurm.folder).nodes
    assert (n1.state, n1.reason, n2.state) == ("drained", "a fan is broken", "idle")


def test_up_tells_slurm_of_the_one_node_that_died_with_its_jobs(make_slurm_cluster: Callable[..., Any]) -> None:
    slurm = make_slurm_cluster(nodes=2, cpus=2, gpus=0, preemption=False)
    jobs = {name: slurm.submit("sleep 1000", "--no-requeue", f"--nodelist={name}", "--mem=100") for name in ("n1", "n2")}
    for job in jobs.values():
        slurm.wait_for(job, "RUNNING")
    slurm.wait_until(lambda: {m.node for m in slurm.processes() if m.role is Role.JOB} == {"n1", "n2"}, 10, "both jobs")
    cluster.stop_node(slurm.folder, "n1", kill_jobs=True)
    cluster.stop_node(slurm.folder, "n2", kill_jobs=False)
    assert set(cluster.up(slurm.spec).started) == {"slurmd-n1", "slurmd-n2"}
    assert [slurm.job(job)["JobState"] for job in jobs.values()] == ["NODE_FAIL", "RUNNING"]
