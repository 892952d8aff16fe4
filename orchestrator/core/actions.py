"""What can be done about a run, as values: ``decide`` gives them and ``control.act`` does them. Each carries, in ``why``, the
sentence that ``orch explain`` prints."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.observation import Control


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAttempt:
    """sbatch one more attempt, behind these jobs."""

    behind: tuple[str, ...]
    nice: bool                         # a new run steps back behind the successors of those under way
    exclude: tuple[str, ...] = ()      # nodes that failed under this run of late
    delay_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    job_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob:
    """Hold a waiting job in Slurm; it keeps its place."""

    submission_id: str
    job_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob:
    submission_id: str
    job_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repoint:
    """Change what a waiting job waits behind."""

    submission_id: str
    job_id: str
    dependency: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Take a waiting job back, unless it starts first: held, so that it cannot start any more, looked at, and cancelled."""

    submission_id: str
    job_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJob:
    """Change what a waiting job asks for; it keeps its id, its place and its dependencies."""

    submission_id: str
    job_id: str
    memory_bytes: int | None
    time_s: float | None
    nice: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeScript:
    """Take jobs/TAG/job.sh anew, if it is still the one that was meant."""

    sha256: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Give notice to a running attempt, as before a limit: it saves, and its successor goes on."""

    job_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteControl:
    control: Control
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepApart:
    """Put the checkpoint that a run goes back to where no trainer's retention removes it: what still trains may save once
    more, and keep only its newest."""

    checkpoint: str                    # its path in checkpoints/
    into: str                          # a folder there
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Put the checkpoints that are newer than this step where nobody resumes from them."""

    newer_than_step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do, and why. Said by ``orch explain``; acting on it does nothing."""

    why: str


Action = (QueueAttempt | CancelJob | PauseJob | ResumeJob | Repoint | Withdraw | ChangeJob | TakeScript | WriteControl
          | StopJob | KeepApart | SetAside | Wait)
