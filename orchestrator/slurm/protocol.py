"""What orch asks of a Slurm, as a protocol; ``commands`` obeys it, and so does the simulated one in the tests.

Asking returns facts or raises ``SlurmUnreachable``; a job that Slurm does not know is simply not in the answer. Acting
raises ``SubmissionRejected`` with Slurm's own words when Slurm says no, and ``SlurmUnreachable`` when nobody can say whether
it was done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.core.observation import NodeSeen
from orchestrator.sightings import Execution, JobSeen, QueuedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """What one node offers in one partition."""

    node: str
    partition: str
    default: bool
    cpus: int
    memory_bytes: int
    gres: str
    state: str
    time_limit_s: float | None         # the partition's; None: no limit
    reason: str = ""                   # why it was taken out of service, by whoever did


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """How a Slurm is set up, as far as orch minds."""

    version: str                       # slurmctld's, as 25.11.2
    cluster: str                       # its ClusterName
    accounting: bool                   # it keeps accounts of ended jobs in a database
    min_job_age_s: float               # slurmctld forgets an ended job after this; 0: never


class Slurm(Protocol):
    """A Slurm, real or simulated."""

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        """All jobs of this user that Slurm still knows, in every state, whose comment begins with one of these; one call."""

    def job(self, job_id: str) -> JobSeen | None:
        """One job, None if Slurm does not know it."""

    def queue(self) -> list[QueuedJob]:
        """Everybody's jobs that run or wait, as far as this Slurm shows them; one call."""

    def offers(self) -> list[NodeOffer]:
        """All nodes of all partitions."""

    def nodes(self, names: str) -> list[NodeSeen]:
        """These nodes, named as Slurm does (``n7``, ``n[1-3,5]``); none if it does not know one of them."""

    def executions(self, job_ids: Collection[str]) -> list[Execution]:
        """What accounting keeps of these jobs, all executions of each; one call. Raises NoAccounting where there is none."""

    def site(self) -> Site:
        """How it is set up; one call."""

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        """sbatch with exactly this environment; the job id."""

    def estimate(self, script: str) -> float:
        """When Slurm guesses that this script's job would start if it were submitted now, in epoch seconds. Nothing is
        submitted. Raises SubmissionRejected where it could not."""

    # A job that has ended, or for all but cancel started, since it was looked at is no error: nothing is changed then (but
    # the time limit of one that has just started).

    def cancel(self, job_id: str) -> None: ...

    def stop(self, job_id: str) -> None:
        """SIGTERM to its batch process alone."""

    def set_dependency(self, job_id: str, dependency: str) -> None: ...

    def hold(self, job_id: str) -> None: ...

    def release(self, job_id: str) -> None: ...

    def change(self, job_id: str, *, memory_bytes: int | None = None, time_s: float | None = None,
               nice: int | None = None) -> None:
        """What a waiting job asks for; None: as it is. A nice value lets a held job go."""

    def top(self, job_id: str) -> None:
        """Before all other waiting jobs of its user, where the site lets users do that."""
