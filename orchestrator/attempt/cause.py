"""Why an attempt was told to end: a pure deduction from what was heard and when."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.sightings import JobSeen, JobSighting

# Slurm's --signal=B:TERM@N comes up to 60 s early (its own manual; 46 s were measured).
EARLY_AT_MOST_S = 65.0
# The notice step hears of a preemption at once, the batch process only when the grace is over.
TOGETHER_S = 2.0


@dataclass(slots=True, kw_only=True)
class Heard:
    """What has been heard, each with its time; None: not heard."""

    timer_at: float | None = None      # lead seconds before the deadline
    own_at: float | None = None        # a stop signal to the supervisor
    step_at: float | None = None       # a TERM to the notice step
    step_died_at: float | None = None  # its client went away without our doing: at scancel it gets a TERM too
    control: str | None = None         # control.json's `stop`

    def first_at(self) -> float | None:
        times = [t for t in (self.timer_at, self.own_at, self.step_at) if t is not None]
        return min(times) if times else None

    @property
    def both(self) -> bool:
        """Everything in the job was signalled at once: scancel, the limit itself, or the end of a grace."""
        step = self.step_at if self.step_at is not None else self.step_died_at
        return self.own_at is not None and step is not None and abs(self.own_at - step) <= TOGETHER_S


def near_deadline(at: float, deadline: float | None, lead_s: float) -> bool:
    return deadline is not None and at >= deadline - lead_s - EARLY_AT_MOST_S


def first_reason(heard: Heard, deadline: float | None, lead_s: float) -> str:
    """The reason as it looks at the first sign, when there is no time to ask anybody."""
    if heard.timer_at is not None:
        return "limit"
    if heard.control:
        return "cancel"
    if heard.own_at is not None:
        return "limit" if near_deadline(heard.own_at, deadline, lead_s) else "signal"
    return "preempt"


def settled_reason(heard: Heard, deadline: float | None, lead_s: float, job: JobSighting | None) -> str:
    """The reason once two seconds have passed; ``job`` is asked of Slurm only when both were signalled."""
    if heard.control:
        return "cancel"
    if heard.timer_at is not None:
        return "limit"
    state = job.state if isinstance(job, JobSeen) else ""
    if state == "PREEMPTED":
        return "preempt"
    if state == "CANCELLED":
        return "signal"
    if state in ("TIMEOUT", "DEADLINE"):
        return "limit"
    if heard.step_at is not None and not heard.both:
        return "preempt"
    at = heard.first_at()
    if heard.both:
        return "limit" if at is not None and deadline is not None and at >= deadline else "signal"
    return "limit" if at is not None and near_deadline(at, deadline, lead_s) else "signal"
