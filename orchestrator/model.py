"""The words of orch as value types: what a run is asked to be, and what is known of it.

Everything here is frozen, imports the standard library alone (the supervisor on a compute node uses it too) and knows no
file, clock or process. Times are epoch seconds, durations seconds, sizes bytes; units stand last in names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from orchestrator.states import ENDED_STATES as ENDED_STATES

TAG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

EXIT_FINISHED = 0
EXIT_CONTINUE = 75      # EX_TEMPFAIL: stopped after a notice, to be continued
EXIT_STOOD_DOWN = 76    # nothing to do or no leave to do it; also: fenced by a newer start
EXIT_SETUP = 78         # EX_CONFIG: could not start at all

# After a graceful cancel the trainer has its lead to save, and this much more, before the job is ended by Slurm.
CANCEL_MARGIN_S = 60.0


class Ending(StrEnum):
    """How an attempt ended (DESIGN section 6). The value is what journals and people read."""

    FINISHED = "finished"
    LIMIT_SAVED = "limit-saved"
    LIMIT_UNSAVED = "limit-unsaved"
    PREEMPTED_SAVED = "preempted-saved"
    PREEMPTED_UNSAVED = "preempted-unsaved"
    NODE_FAILURE = "node-failure"
    OUT_OF_MEMORY = "out-of-memory"
    CRASH = "crash"
    HUNG = "hung"
    SETUP_FAILURE = "setup-failure"
    NO_RESULT = "no-result"
    CANCELLED = "cancelled"
    VANISHED = "vanished"


# What a queued successor may do on its own when it finds its predecessor ended like this; with all others it stands
# down and the daemon, which knows more, queues the next attempt, changed, or none.
GOES_ON = frozenset({
    Ending.LIMIT_SAVED, Ending.LIMIT_UNSAVED, Ending.PREEMPTED_SAVED, Ending.PREEMPTED_UNSAVED,
    Ending.NODE_FAILURE, Ending.VANISHED,
})
GOES_ON_WITH_PROGRESS = frozenset({Ending.CRASH, Ending.HUNG})

# Unplanned endings from which training resumes from a checkpoint: these alone are events of M.
INTERRUPTIONS = frozenset({
    Ending.LIMIT_UNSAVED, Ending.PREEMPTED_UNSAVED, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY, Ending.CRASH,
    Ending.HUNG, Ending.VANISHED,
})

# Those after which the daemon alone decides whether there is a next attempt, and `recovery: retries:` says how often.
RETRIED = frozenset({Ending.CRASH, Ending.HUNG, Ending.OUT_OF_MEMORY, Ending.SETUP_FAILURE, Ending.NO_RESULT})


class Phase(StrEnum):
    """Where a run stands. ACTIVE means: it should be queued or running."""

    ACTIVE = "active"
    HELD = "held"
    CANCELLING = "cancelling"
    ROLLING_BACK = "rolling-back"      # newer checkpoints are set aside once nothing of the run is left; then ACTIVE
    CANCELLED = "cancelled"
    FINISHED = "finished"


class After(StrEnum):
    """What a run waits for in another one: Slurm's afterok and afterany, said of all its attempts together."""

    FINISHED = "finished"
    ENDED = "ended"                    # finished, cancelled, or failed (``Run.failed``)


class Canary(StrEnum):
    """How far the proof is that a run resumes where it was stopped (``core.canary``). NONE: nobody asked for it, or it was
    decided about by hand."""

    NONE = ""
    WANTED = "wanted"
    STOPPING = "stopping"
    PROVEN = "proven"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The fixed resources of a kind of job, written in one place (orch.yaml) and nowhere else."""

    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    gres: str | None = None
    nodes: int = 1
    cpus: int = 1
    memory_bytes: int | None = None
    time_s: float = 8 * 3600.0
    lead_s: float = 300.0
    signal: str = "TERM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What orch does by itself; every field has its key, default and unit in docs/configuration.md."""

    successors_ahead: int = 1
    finish_first: bool = True
    checkpoint_interval_s: float | None = None  # None: measured and computed, between the write time and the cap
    checkpoint_at_most_s: float = 1800.0
    prior_mtbi_h: float | None = None
    checkpoints_kept: int = 3
    checkpoint_local: str = ""         # a folder on every node for the first of two levels; "": one level
    checkpoint_local_interval_s: float | None = None  # None: computed
    endings_without_progress: int = 3
    retries: Mapping[Ending, int] = field(default_factory=dict)  # of one kind; core/recovery.RULES has the defaults
    backoff_s: float = 30.0
    backoff_at_most_s: float = 1800.0
    memory_factor: float = 1.25        # after an out-of-memory, up to the largest node's
    lead_factor: float = 2.0           # after a limit without a save, up to half the limit
    exclude_node_s: float = 2 * 3600.0  # a node that failed under an attempt is left out for so long ...
    exclude_share: float = 0.25        # ... unless that were more than this share of the partition's nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What was asked for when the run was submitted; frozen then and carried by the journal's first event.

    ``after_tags`` are runs of which that must be so before the first attempt, ``after_jobs`` other people's Slurm jobs that
    must have ended. ``campaign`` is the batch that it was submitted with.
    ``environment`` is the recorded environment that every attempt gets, exactly."""

    tag: str
    repository: str                   # absolute folder of the user's repository
    python: str                       # absolute path of the Python that runs the supervisor
    profile: Profile
    script_sha256: str
    nice: int | None = None           # Slurm's, by a person's word; None: as `queue:` in orch.yaml says
    slurm: str = ""                   # the slurm.conf of the Slurm that it was submitted to; "": the system's
    interval_s: float | None = None   # job.yaml's `checkpoint:`, before orch.yaml's
    keep: int | None = None
    local: str | None = None           # "none": not for this run
    local_interval_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    env_file: str | None = None
    finished_when: str | None = None
    hung_after_s: float | None = None  # None: learnt from the run's own steps and saves
    after_tags: Mapping[str, After] = field(default_factory=dict)
    after_jobs: tuple[str, ...] = ()
    campaign: str = ""
    what: str = ""
    save_at: tuple[str, ...] = ()      # steps and times of day at which a checkpoint is saved beside the periodic ones
    prove_resume: bool = False         # stop the first attempt early, and see whether the next goes on where it was

    def policy(self, general: Policy) -> Policy:
        """orch.yaml's policy as it is now, with what job.yaml said of this run."""
        local = self._local(general)
        if self.interval_s is self.keep is self.local_interval_s is None and local == general.checkpoint_local:
            return general
        return replace(general, checkpoint_interval_s=self.interval_s or general.checkpoint_interval_s,
                       checkpoints_kept=self.keep or general.checkpoints_kept,
                       checkpoint_local=local,
                       checkpoint_local_interval_s=self.local_interval_s or general.checkpoint_local_interval_s)

    def _local(self, general: Policy) -> str:
        """Of jobs of one node only: of several, each node's copies would have to be of one step, and all of them there."""
        if self.profile.nodes > 1 or self.local == "none":
            return ""
        return self.local or general.checkpoint_local


class SubmissionState(StrEnum):
    """INTENDED -> QUEUED -> STARTED -> ENDED, or QUEUED -> DROPPED, or INTENDED -> REJECTED."""

    INTENDED = "intended"
    QUEUED = "queued"
    STARTED = "started"
    ENDED = "ended"
    DROPPED = "dropped"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One sbatch of this run, known by its id alone, never by a name."""

    id: str
    number: int
    intended_at: float
    sequence: int                      # index of its intent in the journal: what was known when it was made
    state: SubmissionState = SubmissionState.INTENDED
    job_id: str | None = None
    dependency: str = ""               # as Slurm was last asked for it
    held: bool = False                 # held in Slurm by us
    changed_sequence: int = -1         # index of the event that says what it asks for, if that was changed since
    reason: str = ""                   # why it was rejected or dropped
    for_now: bool = False              # rejected because as many jobs were submitted as may be
    queued_at: float | None = None     # Slurm gave its job id
    dropped_at: float | None = None
    stood_down_at: float | None = None  # it started, and its gate gave no leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of the run. A requeue of the same job is a new attempt."""

    number: int
    submission_id: str
    job_id: str
    restart_count: int
    epoch: int
    host: str
    started_at: float
    resume_step: int | None = None
    let_go: bool = False               # the run had been held behind the attempt before: a person let this one go on
    ended_at: float | None = None
    ended_sequence: int | None = None  # index of its ending in the journal
    ending: Ending | None = None
    reason: str = ""
    checkpoint_step: int | None = None
    last_step: int | None = None
    exit_code: int | None = None
    nodes: str = ""                    # Slurm's names, as n[1-2]
    knows_orch: bool = True            # its trainer speaks the protocol, so that a missing checkpoint means something
    trainer_at: float | None = None    # its trainer began, and loads from here to its first step
    first_step_at: float | None = None
    saved_at: float | None = None      # when its latest save was complete

    @property
    def live(self) -> bool:
        return self.ending is None

    @property
    def lost_s(self) -> float | None:
        """Lost work in seconds: training since the last complete checkpoint of this attempt, or since it began."""
        if self.ended_at is None or self.ending in (Ending.FINISHED, Ending.SETUP_FAILURE):
            return None
        return max(0.0, self.ended_at - (self.saved_at or self.first_step_at or self.started_at))

    @property
    def progressed(self) -> bool | None:
        """Whether a newer complete checkpoint came out of it; None where that is not known: its trainer keeps its own."""
        if self.checkpoint_step is None:
            return False if self.ended_at is not None and self.knows_orch else None
        return self.checkpoint_step > (self.resume_step if self.resume_step is not None else -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a person wants of a run that exists, until it is so; None: as it is."""

    sequence: int                      # index in the journal
    memory_bytes: int | None = None
    time_s: float | None = None
    nice: int | None = None
    script_sha256: str | None = None   # of jobs/TAG/job.sh as it was then
    script_taken: bool = False


_MAY_START = (SubmissionState.INTENDED, SubmissionState.QUEUED)
_OVER = (Phase.FINISHED, Phase.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """A job that has been ending for long: it keeps its node, and what waits behind it waits on."""

    submission_id: str
    job_id: str
    since: float
    nodes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Where a run goes back to. Names are of folders in ``checkpoints/``."""

    step: int
    checkpoint: str                    # where it lies: FOLDER/NAME for one that is brought back; '' in older journals
    kept: int                          # up to this step the checkpoints that there are stay
    into: str                          # where newer ones go
    apart: str = ""                    # where the chosen one is put first, for as long as it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the journal says of a run: the fold of its events."""

    spec: RunSpec
    submitted_at: float
    phase: Phase = Phase.ACTIVE
    phase_since: float = 0.0
    phase_reason: str = ""
    held_by: str = ""                  # "user", "orch", or "upstream": what it waits for cannot come by itself any more
    cancel_now: bool = False
    submissions: tuple[Submission, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    metrics: dict[str, object] = field(default_factory=dict)
    released_sequence: int = -1        # endings before it no longer count against the run
    events: int = 0
    requests: dict[str, float] = field(default_factory=dict)  # what Slurm was last asked to do, and when
    unanswered: frozenset[str] = frozenset()  # those of which nobody knows whether they arrived
    change: Change | None = None
    updated: tuple[Change, ...] = ()   # those that came true: a job that ran then may be put back into the queue
    adjusted_sequence: int = -1        # endings before it have had their consequence for memory or lead
    saves_fail: bool = False           # its trainer cannot save: a full or failing disk, as last told in `saves`
    saves_told_at: float | None = None
    saves_asked: int = 0               # checkpoints that people asked for: control.json's `save`
    lingering: tuple[Lingering, ...] = ()  # as last told in `lingers`
    rollback: Rollback | None = None   # the one that is under way
    set_aside: dict[str, int] = field(default_factory=dict)  # folders of all roll-backs: up to which step what lies
    # there and what is live are one history
    rolled_back_epoch: int = 0         # what starts up to this one saved leads to nothing to resume from
    canary: Canary = Canary.NONE
    canary_epoch: int | None = None    # of the attempt that is stopped for it
    canary_told: dict[str, object] = field(default_factory=dict)  # the latest `canary` event: the verdict and its evidence
    interval: dict[str, object] = field(default_factory=dict)  # the latest `interval` event: T* and what it came from

    @property
    def interval_s(self) -> float | None:
        """The checkpoint interval in force; None before the first."""
        value = self.interval.get("interval_s")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def local_interval_s(self) -> float | None:
        """Of saves to the node, where the run has two levels."""
        value = self.interval.get("local_interval_s")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def live(self) -> Attempt | None:
        """The attempt that runs now, as far as is known."""
        running = [attempt for attempt in self.attempts if attempt.ending is None]
        return max(running, key=lambda attempt: attempt.epoch) if running else None

    @property
    def waiting(self) -> tuple[Submission, ...]:
        """Submissions that Slurm may still start, oldest first; those whose sbatch is not settled among them."""
        return tuple([s for s in self.submissions if s.state in _MAY_START])

    @property
    def last_job_id(self) -> str | None:
        """The newest job of this run: what a dependent has to wait behind."""
        jobs = [s.job_id for s in self.submissions if s.job_id is not None and s.state != SubmissionState.DROPPED]
        return jobs[-1] if jobs else None

    @property
    def over(self) -> bool:
        """Ended for good: nothing of it will ever be queued again unless a person asks."""
        return self.phase in _OVER

    @property
    def failed(self) -> bool:
        """Held by orch, and nothing of it runs: no further attempt until a person acts."""
        return self.phase == Phase.HELD and self.held_by != "user" and self.live is None

    @property
    def begun(self) -> bool:
        """Something of it has trained since it was submitted, submitted again or released: what it waited for is past."""
        return any(a.live or (a.ended_sequence or 0) > self.released_sequence for a in self.attempts)

    def submission(self, submission_id: str) -> Submission | None:
        for submission in self.submissions:
            if submission.id == submission_id:
                return submission
        return None
