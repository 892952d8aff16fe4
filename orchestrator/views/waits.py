"""`orch explain`: why a job waits, and when it may start, in words. Values in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from orchestrator.core.estimates import Estimate, misses, sooner_s
from orchestrator.core.waiting import Evidence, Kind, Why
from orchestrator.units import format_duration
from orchestrator.views.reasons import why_in_words
from orchestrator.views.text import day_and_time, one_line


def waiting_lines(told: Why, seen: Evidence, zone: tzinfo | None) -> list[str]:
    """The sentence, Slurm's plan and what helps."""
    lines = [f"job {seen.job_id}: {why_in_words(told, seen)}"]
    if seen.not_before is not None and told.kind in (Kind.TURN, Kind.LATER, Kind.SITE, Kind.LIMIT, Kind.PASSING):
        at = day_and_time(seen.not_before, zone, seen.now or None)
        lines.append(f"Slurm will not start it before {at}" if seen.reason.startswith("BeginTime")
                     else f"Slurm plans to start it {at}, a guess that changes; `orch explain {seen.tag} --start` says more")
    return [*lines, *([f"what helps: {one_line(told.helps)}"] if told.helps else [])]


def estimate_lines(one: Estimate, past: Sequence[tuple[Estimate, float]], now: float, zone: tzinfo | None) -> list[str]:
    """Both of Slurm's guesses, their age, what it waits for, and what became of earlier ones."""
    age_s = now - one.asked_at
    asked = "asked just now" if age_s < 1 else f"asked {format_duration(age_s)} ago"
    lines = [f"start: {_when(one.planned_at, now, zone)} by Slurm's plan for this job"] if one.planned_at is not None else []
    lines.append(f"start: {_when(one.start_at, now, zone)} by `sbatch --test-only` with the same request, which Slurm puts "
                 f"behind all that wait, this job too ({asked})")
    sooner = sooner_s(one)
    lines += [f"       {what}: {format_duration(sooner[what])} sooner" if what in sooner else f"       {what}: no sooner"
              for what in one.without]
    if sooner:                         # both together say nothing new where one alone would do
        lines.append(f"so it would start sooner {min(sooner, key=len)}: that is what it waits for")
    elif one.without:
        lines.append("so it waits for its turn, or for what it cannot do without")
    return [*lines, *_past_lines(past)]


def _when(at: float, now: float, zone: tzinfo | None) -> str:
    return "at once" if at - now < 1 else f"about {day_and_time(at, zone, now)}, in {format_duration(round(at - now))},"


def _past_lines(past: Sequence[tuple[Estimate, float]]) -> list[str]:
    """How far off they were: of the run's attempts that started since."""
    lines = []
    for name, pairs in (
        ("`sbatch --test-only`", [(one.start_at, real) for one, real in past]),
        ("Slurm's plans", [(one.planned_at, real) for one, real in past if one.planned_at is not None]),
    ):
        missed = misses(pairs)
        if missed is not None:
            spread = "" if missed.count == 1 else f", from {_off(missed.earliest_s)} to {_off(missed.latest_s)}"
            count = "1 such guess" if missed.count == 1 else f"{missed.count} such guesses"
            lines.append(f"before: after {count} by {name} the real start came {_off(missed.median_s)}{spread}")
    return lines or ["before: no guess that was told in this repository has come true yet, so nobody knows how good they are"]


def _off(seconds: float) -> str:
    if abs(seconds) < 1:
        return "on time"
    return f"{format_duration(round(abs(seconds)))} {'later' if seconds > 0 else 'sooner'}"
