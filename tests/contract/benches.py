"""The contract's two Slurms: the simulated one, and a real private one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from simulation.slurm import Job, SimulatedSlurm

from orchestrator.cluster.daemons import until
from orchestrator.slurm.bindings import choose
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.protocol import Slurm


class Bench(Protocol):
    """A Slurm under test, and how to wait for something in it."""

    slurm: Slurm
    folder: Path

    def wait(self, condition: Callable[[], bool], at_most_s: float = 40.0) -> None: ...

    def asks_for(self, job_id: str) -> tuple[int, float, int]:
        """Memory of a node in MiB, time limit in seconds, nice value."""


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
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, machines = folder, SleepingMachines()
        self._machines = machines
        self.slurm = machines.slurm = SimulatedSlurm(machines, now=1.7e9, **settings)

    def asks_for(self, job_id: str) -> tuple[int, float, int]:
        job = self.slurm.jobs_by_id[int(job_id)]
        return job.memory_mib, job.time_s, job.nice

    def requeue(self, job_id: str) -> None:
        self.slurm.requeue(self.slurm.jobs_by_id[int(job_id)])

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
        self._cluster = cluster

    def asks_for(self, job_id: str) -> tuple[int, float, int]:
        told = self._cluster.job(int(job_id))
        hours, minutes, seconds = map(int, told["TimeLimit"].split(":"))
        return int(told["MinMemoryNode"].rstrip("M")), float((hours * 60 + minutes) * 60 + seconds), int(told["Nice"])

    def requeue(self, job_id: str) -> None:
        self._cluster.run("scontrol", "update", f"jobid={job_id}", "requeue=1")
        self._cluster.run("scontrol", "requeue", job_id)

    def wait(self, condition: Callable[[], bool], at_most_s: float = 40.0) -> None:
        assert until(condition, at_most_s), f"not within {at_most_s:g} s"


def with_pyslurm(commands: SlurmCommands) -> SlurmCommands:
    """The same Slurm read through pyslurm, where it is installed for this release: ops/slurm/pyslurm says how."""
    chosen, why_not = choose(commands)
    if why_not:
        pytest.skip(why_not)
    return chosen
