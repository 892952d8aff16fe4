"""What one pass sees of a run: facts, "unknown" among them. Made by ``control.observe``, read by ``news`` and ``decide``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.measures import Measured
from orchestrator.core.pending import Upstream
from orchestrator.planner.pooled import NOTHING_COUNTED, Counted
from orchestrator.records import EndRecord, StartRecord, StoodDown
from orchestrator.sightings import JobGone, JobSeen, JobSighting, SlurmSilent


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """One node as slurmctld knows it."""

    name: str
    state: str                         # Slurm's word with its flags: IDLE, DOWN+NOT_RESPONDING, mixed*
    booted_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One attempt's folder."""

    start: StartRecord
    end: EndRecord | None = None
    heartbeat_at: float | None = None
    saved_after_notice: bool = False
    saved_at: float | None = None      # when its latest save was complete, by its trainer's word
    has_saved_shared: bool = False     # to the shared folder, by its trainer's word
    # its latest save that failed, where none of its level has been complete since: which step, why
    save_failed: tuple[int | None, str] | None = None
    last_step: int | None = None       # the latest step that its trainer spoke of
    trainer_at: float | None = None    # its START
    first_step_at: float | None = None
    heard_at: float | None = None      # its trainer's latest line
    knows_orch: bool = False           # its trainer wrote lines at all
    nothing_there: str = ""            # as in core.endings.Evidence: looked into only while Slurm calls a silent one running
    node_failed: str = ""
    accounted: JobSeen | None = None   # how this execution ended, by accounting: looked up only where Slurm has forgotten it


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """``control.json``: what the running trainer re-reads."""

    seq: int
    interval_s: float
    stop: str | None = None
    save: int = 0
    local_interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that is known from outside the journal. ``jobs`` holds those of this run that Slurm knows, by
    submission id; with ``silent`` set, nothing is known of any job."""

    silent: str | None = None
    asked_at: float | None = None      # when Slurm was asked: its answer may be acted on much later
    jobs: dict[str, JobSeen] = field(default_factory=dict)
    attempts: tuple[AttemptSeen, ...] = ()
    stood_down: tuple[StoodDown, ...] = ()
    checkpoint_step: int | None = None
    metrics: dict[str, object] | None = None
    upstream: tuple[Upstream, ...] = ()
    control: Control | None = None
    memory_at_most_bytes: int | None = None   # of the largest node; asked only when an ending makes it matter
    partition_nodes: int | None = None        # how many there are; asked only then too
    measured: Measured = field(default_factory=Measured)
    others: Counted = NOTHING_COUNTED         # the platform's interruptions and node-hours of all other runs
    lines: Mapping[int, Sequence[dict[str, Any]]] = field(default_factory=dict)  # by attempt; only while a canary needs them

    def job(self, submission_id: str) -> JobSighting:
        if self.silent is not None:
            return SlurmSilent(self.silent)
        return self.jobs.get(submission_id, JobGone())
