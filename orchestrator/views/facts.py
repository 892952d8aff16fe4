"""What views show of a run, computed once: from a ``Run``, and from what Slurm and the trainer last said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.pending import HELD_BY_UPSTREAM, as_written, met, waits_for
from orchestrator.model import Attempt, Canary, Phase, Run
from orchestrator.sightings import JobSeen
from orchestrator.states import ALLOCATED_STATES, WAITING_STATES
from orchestrator.views.reasons import job_in_words
from orchestrator.views.text import one_line

METRICS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The trainer's latest words; None: it did not say."""

    step: int | None = None
    of: int | None = None              # steps in all
    loss: float | None = None
    steps_per_s: float | None = None
    left_s: float | None = None        # until the last step at this rate, seen from ``at``
    memory_bytes: float | None = None  # of the attempt on this node
    gpu_memory_bytes: float | None = None
    at: float | None = None
    interval_s: float | None = None    # between checkpoints, as the trainer is told

    @property
    def done_at(self) -> float | None:
        """When the last step will be done, if it goes on like this."""
        return self.at + self.left_s if self.at is not None and self.left_s is not None else None

    @property
    def steps(self) -> str:
        """``41200/90000``, ``41200``, or nothing."""
        return "" if self.step is None else str(self.step) if self.of is None else f"{self.step}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A run as it is to be shown: with Slurm's jobs of it by submission id, and its trainer's progress."""

    run: Run
    jobs: dict[str, JobSeen] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    met: frozenset[str] = frozenset()  # of the runs that it waits for those that it need not wait for any more


def met_of(run: Run, others: Mapping[str, Run]) -> frozenset[str]:
    """For ``Shown.met``."""
    return frozenset(tag for tag, condition in run.spec.after_tags.items() if tag in others and met(condition, others[tag]))


def state_word(run: Run, jobs: dict[str, JobSeen] | None = None) -> str:
    """One word for a list: running, waiting, starting, held, cancelling, cancelled, finished."""
    if run.phase != Phase.ACTIVE:
        return str(run.phase)
    if run.live is not None:
        return "running"
    head = run.waiting[0] if run.waiting else None
    job = (jobs or {}).get(head.id) if head else None
    if job is not None and job.state in ALLOCATED_STATES:
        return "starting"
    return "waiting"


def idle_s(earlier: Attempt, later: Attempt) -> float | None:
    """Seconds between the end of one attempt and the start of the next."""
    return max(0.0, later.started_at - earlier.ended_at) if earlier.ended_at is not None else None


def metrics_in_words(metrics: dict[str, object], at_most: int | None = None) -> str:
    """``accuracy=0.9877 loss=0.0123``."""
    return " ".join(f"{one_line(key, 40)}={_short(value)}" for key, value in list(metrics.items())[:at_most])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(value, 16)


def why_waiting(shown: Shown) -> str:
    """What a run that neither trains nor is held waits for."""
    run = shown.run
    head = run.waiting[0] if run.waiting else None
    waits = {} if run.begun else {tag: after for tag, after in run.spec.after_tags.items() if tag not in shown.met}
    after = waits_for(waits) if waits else ""
    if head is None and run.submissions and run.submissions[-1].for_now:
        return f"Slurm takes no further job for now: {one_line(run.submissions[-1].reason)}"
    if head is None:
        return after or f"no job of it is queued yet; `orch explain {run.spec.tag}` says why"
    if head.job_id is None:
        return "whether Slurm took its job is not settled yet"
    job = shown.jobs.get(head.id)
    reason = job_in_words(run, head, shown.jobs)
    if after and (job is None or (job.state in WAITING_STATES and job.reason in ("", "Dependency"))):
        reason = after
    return f"job {head.job_id}" + (f", {reason}" if reason else "")


def run_as_json(run: Run, jobs: dict[str, JobSeen] | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """A run for programs; keys are stable."""
    said = progress or Progress()
    return {
        "tag": run.spec.tag,
        "state": state_word(run, jobs),
        "reason": run.phase_reason,
        "since": run.phase_since,
        "profile": run.spec.profile.name,
        "after": [*as_written(run.spec.after_tags), *run.spec.after_jobs],
        "campaign": run.spec.campaign,
        "step": said.step,
        "of": said.of,
        "loss": said.loss,
        "steps_per_s": said.steps_per_s,
        "left_s": said.left_s,
        "memory_bytes": said.memory_bytes,
        "gpu_memory_bytes": said.gpu_memory_bytes,
        "progress_at": said.at,
        "what": run.spec.what,
        "checkpoint_interval_s": said.interval_s,
        "metrics": run.metrics,
        "resume_proof": _proof_as_json(run),
        "jobs": [
            {"job_id": s.job_id, "attempt": s.number, "state": jobs[s.id].state if jobs and s.id in jobs else None,
             "why": jobs[s.id].reason if jobs and s.id in jobs else None,
             "waits": job_in_words(run, s, jobs) if jobs and s.id in jobs else None, "behind": s.dependency}
            for s in run.waiting],
        "attempts": [_attempt_as_json(attempt) for attempt in run.attempts],
    }


def _proof_as_json(run: Run) -> dict[str, Any] | None:
    """None: nobody asked for one, or a person has decided. The evidence is None until there is a verdict."""
    if run.canary == Canary.NONE:
        return None
    told = {} if run.canary == Canary.WANTED else run.canary_told
    keys = ("attempt", "reason", "saved_step", "first_step", "loss_before", "loss_after", "noise")
    return {"state": str(run.canary), **{key: told.get(key) for key in keys}}


def _attempt_as_json(a: Attempt) -> dict[str, Any]:
    return {
        "attempt": a.number, "job_id": a.job_id, "restart_count": a.restart_count, "epoch": a.epoch, "host": a.host,
        "started_at": a.started_at, "ended_at": a.ended_at, "ending": str(a.ending) if a.ending else None,
        "reason": a.reason, "resume_step": a.resume_step, "checkpoint_step": a.checkpoint_step,
        "last_step": a.last_step, "exit_code": a.exit_code, "lost_s": a.lost_s}


def how_to_go_on(run: Run) -> str:
    """The commands that help a held run."""
    tag = run.spec.tag
    if run.held_by == "user":
        return f"`orch release {tag}` lets it go on"
    if run.held_by == HELD_BY_UPSTREAM:
        return (f"it is queued by itself once that run goes on; `orch submit {tag} --again` takes `after:` as it is now, "
                f"`orch cancel {tag}` gives it up")
    return (f"`orch release {tag}` goes on with job.sh and resources as they were frozen; `orch submit {tag} --again` takes "
            "them as they are now")
