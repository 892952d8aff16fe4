"""The contract's two Slurms: the simulated one always, a real private one where the tests are marked ``slurm``."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from simulation.slurm import Job, SimulatedSlurm

from orchestrator.cluster.daemons import until
from orchestrator.model import JobSeen
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.protocol import Slurm

_where = importlib.util.spec_from_file_location("private_slurms", Path(__file__).parents[1] / "slurm" / "conftest.py")
assert _where is not None and _where.loader is not None
_private = importlib.util.module_from_spec(_where)
_where.loader.exec_module(_private)
make_slurm_cluster = _private.make_slurm_cluster


class Bench(Protocol):
    """A Slurm under test, and how to wait for something in it."""

    slurm: Slurm
    folder: Path

    def wait(self, condition: Callable[[], bool], at_most_s: float = 40.0) -> None: ...


class SleepingMachines:
    """Runs ``exec sleep N`` and ``exit N``, the last line of the contract's scripts."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Job, int]] = []
        self.slurm: SimulatedSlurm

    def begin(self, job: Job) -> None:
        *_, word, number = job.script.split()
        lasts_s, code = (float(number), 0) if word == "sleep" else (0.1, int(number))
        self.due.append((self.slurm.now + lasts_s, job, code))

    def terminate(self, job: Job, why: str) -> None:
        self.due = [(self.slurm.now + 0.5, other, 15) if other is job else (at, other, code) for at, other, code in self.due]

    def kill(self, job: Job) -> None:
        self.due = [one for one in self.due if one[1] is not job]


class Simulated:
    def __init__(self, folder: Path) -> None:
        self.folder, machines = folder, SleepingMachines()
        self._machines = machines
        self.slurm = machines.slurm = SimulatedSlurm(machines, now=1.7e9)

    def wait(self, condition: Callable[[], bool], at_most_s: float = 40.0) -> None:
        give_up = self.slurm.now + at_most_s
        while not condition():
            assert self.slurm.now < give_up
            now = self.slurm.now + 0.5
            for one in [one for one in self._machines.due if one[0] <= now]:
                self._machines.due.remove(one)
                self.slurm.exited(one[1], one[2])
            self.slurm.tick(now)


class Private:
    def __init__(self, folder: Path, cluster: Any) -> None:
        self.folder = folder
        self.slurm = SlurmCommands(conf=Path(cluster.environment["SLURM_CONF"]))

    def wait(self, condition: Callable[[], bool], at_most_s: float = 40.0) -> None:
        assert until(condition, at_most_s), f"not within {at_most_s:g} s"


@pytest.fixture(scope="session")
def contract_cluster(make_slurm_cluster: Callable[..., Any]) -> Any:
    return make_slurm_cluster(nodes=2, gpus=1, cpus=2)


@pytest.fixture(params=["simulated", pytest.param("private", marks=pytest.mark.slurm)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "simulated":
        yield Simulated(tmp_path)
        return
    private = Private(tmp_path, request.getfixturevalue("contract_cluster"))
    yield private
    for job in private.slurm.jobs():
        private.slurm.cancel(job.job_id)
    private.wait(lambda: all(job.end_at is not None and job.end_at <= time.time() and job.state != "COMPLETING"
                             for job in private.slurm.jobs()))


@pytest.fixture
def sbatch(bench: Bench) -> Callable[..., str]:
    """Submit a script of one command with these options; its job id."""
    def submit(command: str, **options: object) -> str:
        script = bench.folder / "script.sh"
        given = {"job-name": "contract", "output": "/dev/null", "gres": "gpu:1", **{
            name.replace("_", "-"): value for name, value in options.items()}}
        lines = [f"#SBATCH --{name}={value}" for name, value in given.items()]
        script.write_text("\n".join(["#!/bin/bash", *lines, "#SBATCH --no-requeue", command, ""]))
        return bench.slurm.submit(script, {"PATH": "/usr/bin:/bin"})
    return submit


@pytest.fixture
def look(bench: Bench) -> Callable[[str], JobSeen]:
    def look(job_id: str) -> JobSeen:
        job = bench.slurm.job(job_id)
        assert job is not None
        return job
    return look
