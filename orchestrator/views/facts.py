"""What views show of a run, computed once: from a ``Run``, and from what Slurm and the trainer last said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.model import Attempt, JobSeen, Phase, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The trainer's latest words."""

    step: int | None = None
    loss: float | None = None
    steps_per_s: float | None = None
    at: float | None = None
    interval_s: float | None = None    # between checkpoints, as the trainer is told


def state_word(run: Run, jobs: dict[str, JobSeen] | None = None) -> str:
    """One word for a list: running, waiting, starting, held, cancelling, cancelled, finished."""
    if run.phase != Phase.ACTIVE:
        return str(run.phase)
    if run.live is not None:
        return "running"
    head = run.waiting[0] if run.waiting else None
    job = (jobs or {}).get(head.id) if head else None
    if job is not None and job.state not in ("PENDING",):
        return "starting"
    return "waiting"


def idle_s(earlier: Attempt, later: Attempt) -> float | None:
    """Seconds between the end of one attempt and the start of the next."""
    return max(0.0, later.started_at - earlier.ended_at) if earlier.ended_at is not None else None


def run_as_json(run: Run, jobs: dict[str, JobSeen] | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """A run for programs; keys are stable."""
    return {
        "tag": run.spec.tag,
        "state": state_word(run, jobs),
        "reason": run.phase_reason,
        "since": run.phase_since,
        "profile": run.spec.profile.name,
        "after": [*run.spec.after_tags, *run.spec.after_jobs],
        "step": progress.step if progress else None,
        "loss": progress.loss if progress else None,
        "what": run.spec.what,
        "checkpoint_interval_s": progress.interval_s if progress else None,
        "metrics": run.metrics,
        "jobs": [
            {"job_id": s.job_id, "attempt": s.number, "state": jobs[s.id].state if jobs and s.id in jobs else None,
             "why": jobs[s.id].reason if jobs and s.id in jobs else None, "behind": s.dependency}
            for s in run.waiting],
        "attempts": [
            {"attempt": a.number, "job_id": a.job_id, "restart_count": a.restart_count, "epoch": a.epoch, "host": a.host,
             "started_at": a.started_at, "ended_at": a.ended_at, "ending": str(a.ending) if a.ending else None,
             "reason": a.reason, "resume_step": a.resume_step, "checkpoint_step": a.checkpoint_step,
             "last_step": a.last_step, "exit_code": a.exit_code, "lost_s": a.lost_s}
            for a in run.attempts],
    }


def how_to_go_on(run: Run) -> str:
    """The commands that help a held run."""
    tag = run.spec.tag
    if run.held_by == "user":
        return f"`orch release {tag}` lets it go on"
    return (f"`orch release {tag}` goes on with job.sh and resources as they were frozen; `orch submit {tag} --again` takes "
            "them as they are now")
