"""When a job may start, by Slurm's guesses: which resource it waits for, and how far off such guesses were. Pure.

Guesses enter neither M nor exposure. They are noted when a person was told of them (``estimated``), so that they can be
compared with what came of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.model import Run

CACHED_S = 60.0
# A start that is this much earlier is worth telling.
SOONER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What Slurm said at ``asked_at`` (epoch seconds, as all here). ``without``: the same request with less of one thing, and
    when that would start."""

    asked_at: float
    submission_id: str
    start_at: float                    # by sbatch --test-only
    planned_at: float | None = None    # squeue's StartTime of the job itself, by the backfill scheduler
    without: Mapping[str, float]

    def as_event(self) -> dict[str, Any]:
        return {"submission_id": self.submission_id, "start_at": self.start_at, "planned_at": self.planned_at,
                "without": dict(self.without)}


def estimates(events: Sequence[Mapping[str, Any]]) -> list[Estimate]:
    """Those in a journal, oldest first."""
    return [Estimate(asked_at=float(event["t"]), submission_id=str(event["submission_id"]), start_at=float(event["start_at"]),
                     planned_at=event.get("planned_at"), without=dict(event.get("without") or {}))
            for event in events if event["event"] == "estimated"]


def still_good(events: Sequence[Mapping[str, Any]], submission_id: str, now: float) -> Estimate | None:
    """The latest one of this submission, if it is young enough and nothing that was asked for has changed since."""
    since = [event for event in events if event["event"] in ("estimated", "update", "changed", "repointed", "resumed")]
    last = estimates(since[-1:])
    fresh = [one for one in last if one.submission_id == submission_id and 0 <= now - one.asked_at < CACHED_S]
    return fresh[0] if fresh else None


def sooner_s(one: Estimate) -> dict[str, float]:
    """What it would start sooner without, and by how much. All guesses of one moment put the job behind the same others."""
    return {what: one.start_at - at for what, at in one.without.items() if one.start_at - at > SOONER_S}


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """How much later than guessed the starts were, in seconds; below 0: sooner."""

    count: int
    median_s: float
    earliest_s: float
    latest_s: float


def misses(pairs: Iterable[tuple[float, float]]) -> Misses | None:
    """From (guessed, real) starts; None without any."""
    late = [real - guessed for guessed, real in pairs]
    return Misses(count=len(late), median_s=median(late), earliest_s=min(late), latest_s=max(late)) if late else None


def came_true(run: Run, told: Sequence[Estimate]) -> list[tuple[Estimate, float]]:
    """Guesses and the real starts of the attempts that they were about: the first start of each submission, by its record."""
    starts: dict[str, float] = {}
    for attempt in run.attempts:
        starts.setdefault(attempt.submission_id, attempt.started_at)
    return [(one, starts[one.submission_id]) for one in told if one.submission_id in starts]
