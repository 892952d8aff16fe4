"""What a report of one training shows: the best plan, today's, and the curves between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.planner import interval, tradeoff
from orchestrator.planner.frameworks import tolerable_s
from orchestrator.planner.plan import Plan as IntervalPlan
from orchestrator.planner.plan import Training, exact_waste, plan_interval
from orchestrator.planner.size import Size
from orchestrator.planner.storage import Catalog
from orchestrator.planner.tradeoff import Job, Plan

TOLERATED = 0.05                       # more stalls and rework than at the optimum: the flat region of the interval
_POINTS = 160

Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a report is asked of: plan.yaml, as values."""

    title: str
    size: Size
    job: Job
    training: Training                 # its write and restart are replaced by those of the file system that is best
    catalog: Catalog
    write_range_s: tuple[float, float]
    today_interval_s: float | None
    today_write_s: float | None
    restart_given: bool
    priced: bool                       # a price of GPU time is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the page draws."""

    wanted: Wanted
    best: Plan                         # the file system and write time
    today: Plan | None
    plan: IntervalPlan                 # the interval at that write time
    today_plan: IntervalPlan | None
    flat_write_s: tuple[float, float]
    flat_interval_s: tuple[float, float]
    waste_by_interval: Curve
    today_by_interval: Curve           # with today's file system; empty where that is the best one
    stall_by_interval: Curve
    rework_by_interval: Curve
    by_write: Sequence[Plan]
    stacked: Sequence[Plan]            # a few write times for the cost stack, the best and today's among them


def report(wanted: Wanted) -> Report:
    """The best plan is that of GPU time and storage together where GPU time has a price; else of the write time that is
    given, or of the middle of the range."""
    low_s, high_s = wanted.write_range_s
    plans = tradeoff.candidates(wanted.catalog, wanted.job, low_s, high_s)
    today = tradeoff.cheapest_for(wanted.catalog, wanted.job, wanted.today_write_s) if wanted.today_write_s else None
    best = tradeoff.best(plans) if wanted.priced else today or tradeoff.cheapest_for(
        wanted.catalog, wanted.job, math.sqrt(low_s * high_s))
    training = training_with(wanted, best)
    found = plan_interval(training)
    ends_s = [training.interval_s / 8, training.interval_s * 8, wanted.today_interval_s or training.interval_s]
    times_s = _between(max(min(ends_s), 1.02 * training.effective_stall_s), max(ends_s))
    return Report(
        wanted=wanted, best=best, today=today, plan=found, today_plan=_today(wanted, today or best),
        flat_write_s=tradeoff.flat_region_s(plans) if wanted.priced else (best.write_s, best.write_s),
        flat_interval_s=tolerable_s(training.interval_s, TOLERATED),
        waste_by_interval=[(t, exact_waste(replace(training, fixed_interval_s=t))) for t in times_s],
        today_by_interval=_today_curve(wanted, best, today, times_s),
        stall_by_interval=[(t, training.effective_stall_s / t) for t in times_s],
        rework_by_interval=[(t, t / (2 * training.mtbi_s)) for t in times_s],
        by_write=tradeoff.rows(wanted.catalog, wanted.job, _between(low_s, high_s)),
        stacked=_stacked(wanted, best, today))


def _today_curve(wanted: Wanted, best: Plan, today: Plan | None, times_s: Sequence[float]) -> Curve:
    if today is None or abs(today.write_s / best.write_s - 1) < 0.02:
        return []
    training = training_with(wanted, today)
    return [(t, exact_waste(replace(training, fixed_interval_s=t))) for t in times_s]


def training_with(wanted: Wanted, plan: Plan) -> Training:
    """The training as it would be with that file system."""
    restart_s = wanted.training.restart_s if wanted.restart_given else plan.restart_s
    write_s = 0.0 if wanted.job.stall_s is None else plan.write_s
    found = replace(wanted.training, stall_s=plan.stall_s, write_s=write_s, restart_s=restart_s, fixed_interval_s=None)
    shortest_s = interval.shortest_interval_s(found.stall_s, found.write_s)
    return found if found.young_s >= shortest_s else replace(found, fixed_interval_s=shortest_s)


def _today(wanted: Wanted, plan: Plan) -> IntervalPlan | None:
    """The plan at today's interval, with today's write where it is known."""
    training = training_with(wanted, plan)
    if wanted.today_interval_s is None or wanted.today_interval_s <= training.effective_stall_s:
        return None
    return plan_interval(replace(training, fixed_interval_s=wanted.today_interval_s))


def _stacked(wanted: Wanted, best: Plan, today: Plan | None) -> list[Plan]:
    low_s, high_s = wanted.write_range_s
    round_s = [t for t in tradeoff.write_times_s(low_s, high_s) if not 0.8 < t / best.write_s < 1.25]
    every = max(1, math.ceil(len(round_s) / 6))
    plans = [*tradeoff.rows(wanted.catalog, wanted.job, round_s[::every]), best]
    if today is not None and all(abs(plan.write_s / today.write_s - 1) > 0.02 for plan in plans):
        plans.append(today)
    return sorted(plans, key=lambda plan: plan.write_s)


def _between(low: float, high: float) -> list[float]:
    """Evenly on a logarithmic scale, the ends among them."""
    return [low * (high / low) ** (index / (_POINTS - 1)) for index in range(_POINTS)]
