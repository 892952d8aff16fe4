"""What Slurm says of jobs, as values: that it knows one, that it does not, that it did not answer. Three facts, three types.

Frozen, and imports nothing; times are epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """Slurm knows the job. ``state`` is Slurm's own long word (RUNNING, NODE_FAIL, ...), kept as it is."""

    job_id: str
    state: str
    reason: str = ""
    comment: str = ""
    name: str = ""
    nodes: str = ""
    dependency: str = ""
    gres: str = ""                     # what it asked for a node (TresPerNode)
    start_at: float | None = None      # a guess while the job is pending: never enters exposure
    end_at: float | None = None        # a guess while it runs
    restart_count: int = 0
    exit_code: str = ""                # "CODE:SIGNAL", or "" if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a job as accounting keeps it: a requeue begins another under the same id, and an id may have been
    another job's before slurmctld lost its state. A state that is no end says nothing: accounts lag, and may for ever.
    UNKNOWN: it ended, and nobody knows how."""

    job_id: str
    state: str
    submitted_at: float
    start_at: float | None = None
    end_at: float | None = None
    nodes: str = ""
    exit_code: str = ""                # "CODE:SIGNAL", or "" if unknown

    @property
    def as_seen(self) -> JobSeen:
        return JobSeen(job_id=self.job_id, state=self.state, nodes=self.nodes, start_at=self.start_at, end_at=self.end_at,
                       exit_code=self.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that runs or waits, whoever's it is, as the whole queue is listed. Ids are text: ``9_[2-10%2]``, ``8+1``."""

    job_id: str
    user: str
    partition: str
    state: str
    priority: int
    reason: str = ""
    nodes: str = ""
    dependency: str = ""
    start_at: float | None = None      # a guess while it waits
    end_at: float | None = None        # when its limit strikes, while it runs
    name: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class JobGone:
    """Slurm answered, and does not know the job (any more)."""


@dataclass(frozen=True, slots=True)
class SlurmSilent:
    """Slurm did not answer. Evidence of nothing."""

    message: str = ""


JobSighting = JobSeen | JobGone | SlurmSilent
