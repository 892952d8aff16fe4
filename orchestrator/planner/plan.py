"""A whole answer for one training: the interval, what it costs and why, what it loses, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.planner import interval, stops, weibull
from orchestrator.planner.interval import Waste

EXACT_MATTERS = 0.01                   # C/M from which the first order is visibly off
FIRST_ORDER_OFF = 1.1                  # ... or it is so many times the exact one, since t or R is not small against M
ASSUMED_RESTART_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a plan starts from, in seconds. ``write_s`` is the asynchronous write after the stall, 0 for a synchronous
    save."""

    stall_s: float
    mtbi_s: float
    write_s: float = 0.0
    restart_s: float = ASSUMED_RESTART_S
    limit_s: float | None = None       # of one launch; it ends with a save
    step_s: float | None = None
    slowdown: float = 0.0              # share by which training slows while a write goes on
    stretch: float | None = None       # the write is stretched over this share of the interval, instead of ``write_s``
    fixed_interval_s: float | None = None

    @property
    def effective_stall_s(self) -> float:
        """C, with what a write costs that slows training."""
        return interval.slowed_stall_s(self.stall_s, self.write_s, self.slowdown)

    @property
    def young_s(self) -> float:
        """sqrt(2 C M), or its form for a stretched write."""
        if self.stretch is not None:
            return interval.stretched_interval_s(self.stall_s, self.mtbi_s, self.stretch)
        return interval.young_interval_s(self.effective_stall_s, self.mtbi_s)

    @property
    def daly_s(self) -> float:
        """With Daly's terms; those of a stretched write are of C / (1 + 2 phi), which has the same first term."""
        spread = 1 + 2 * self.stretch if self.stretch is not None else 1.0
        return interval.daly_interval_s(self.effective_stall_s / spread, self.mtbi_s)

    @property
    def exact_s(self) -> float | None:
        """The minimum of the exact waste; None of a stretched write, which has no closed form."""
        return interval.exact_interval_s(self.effective_stall_s, self.mtbi_s) if self.stretch is None else None

    @property
    def interval_s(self) -> float:
        return self.fixed_interval_s if self.fixed_interval_s is not None else self.young_s

    @property
    def write_at_interval_s(self) -> float:
        """t_a at that interval."""
        if self.stretch is not None:
            return interval.stretched_write_s(self.interval_s, self.stall_s, self.stretch)
        return self.write_s

    @property
    def durable_s(self) -> float:
        """t, from the start of a save until it is usable."""
        return self.stall_s + self.write_at_interval_s

    @property
    def final_save_s(self) -> float:
        return stops.final_save_s(self.stall_s, self.write_at_interval_s)

    @property
    def lead_needed_s(self) -> float:
        return stops.lead_needed_s(step_s=self.step_s or 0.0, stall_s=self.stall_s, write_s=self.write_at_interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    training: Training
    waste: Waste                       # first order, in parts
    waste_exact: float
    lost_work_mean_s: float
    lost_work_max_s: float
    overlap: bool
    warnings: tuple[str, ...]

    @property
    def interval_steps(self) -> int | None:
        step_s = self.training.step_s
        return max(1, round(self.training.interval_s / step_s)) if step_s is not None else None


def plan_interval(training: Training) -> Plan:
    """Everything that follows from those values. The interval must not be shorter than the stall."""
    first_order = interval.expected_waste(
        training.interval_s, stall_s=training.effective_stall_s, mtbi_s=training.mtbi_s, durable_s=training.durable_s,
        restart_s=training.restart_s)
    waste = replace(first_order, planned=_planned(training))
    overlap = training.interval_s - training.stall_s < training.write_at_interval_s * (1 - 1e-12)
    exact = exact_waste(training)
    return Plan(
        training=training, waste=waste, waste_exact=exact, lost_work_mean_s=training.interval_s / 2 + training.durable_s,
        lost_work_max_s=training.interval_s + training.durable_s, overlap=overlap,
        warnings=tuple(_warnings(training, overlap, waste.total, exact)))


def exact_waste(training: Training) -> float:
    """Of exponential interruptions, with planned stops if there is a limit."""
    stall_s = min(training.effective_stall_s, training.interval_s)
    if training.limit_s is None:
        return interval.exact_waste(training.interval_s, stall_s=stall_s, mtbi_s=training.mtbi_s,
                                    write_s=training.write_at_interval_s, restart_s=training.restart_s)
    return stops.exact_waste_with_limit(
        training.interval_s, stall_s=stall_s, mtbi_s=training.mtbi_s, write_s=training.write_at_interval_s,
        restart_s=training.restart_s, limit_s=training.limit_s, final_save_s=training.final_save_s)


def _planned(training: Training) -> float:
    if training.limit_s is None:
        return 0.0
    return stops.planned_waste(limit_s=training.limit_s, mtbi_s=training.mtbi_s, final_save_s=training.final_save_s,
                               restart_s=training.restart_s)


def _warnings(training: Training, overlap: bool, first_order: float, exact: float) -> list[str]:
    found: list[str] = []
    ratio = training.effective_stall_s / training.mtbi_s
    if overlap:
        shortest_s = interval.shortest_interval_s(training.stall_s, training.write_at_interval_s)
        found.append(f"a write is not over when the next save begins: the shortest interval without overlap, and the best "
                     f"one then, is C + write = {shortest_s:.6g} s")
    if ratio > EXACT_MATTERS or first_order > FIRST_ORDER_OFF * exact:
        why = f"C is {100 * ratio:.2g} % of M: " if ratio > EXACT_MATTERS else ""
        found.append(f"{why}the first order ({100 * first_order:,.2f} %) is off, believe the exact waste "
                     f"({100 * exact:.4g} %)")
    if training.step_s is not None and training.step_s > training.interval_s:
        found.append(f"a step of {training.step_s:.6g} s is longer than the interval: saves are a step apart, or more")
    if training.limit_s is not None and training.interval_s > training.limit_s - training.lead_needed_s:
        found.append("the interval is longer than the limit less the lead: the save before the limit is the only one")
    if training.limit_s is not None and training.restart_s + training.lead_needed_s > training.limit_s / 2:
        found.append("restart and final save take more than half of the limit: a longer limit buys more than any interval")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeGain:
    """What saving by the hazard of a Weibull shape would gain; off by default, since a wrong shape costs too."""

    shape: float
    waste_fixed: float                 # at the plan's interval
    waste_schedule: float
    gain: float                        # their difference, a share of GPU time
    intervals_to_tell: int | None      # how many interruptions tell the shape from 1; None: it is 1
    first_intervals_s: tuple[float, ...]


def shape_gain(training: Training, shape: float) -> ShapeGain:
    """By the sums over the survival function, without planned stops."""
    schedule = weibull.hazard_schedule(shape, training.effective_stall_s, training.mtbi_s)
    write_s, stall_s = training.write_at_interval_s, training.effective_stall_s
    fixed = weibull.fixed_waste(training.interval_s, shape=shape, stall_s=stall_s, mtbi_s=training.mtbi_s, write_s=write_s,
                                restart_s=training.restart_s)
    by_hazard = weibull.schedule_waste(schedule, shape=shape, stall_s=stall_s, mtbi_s=training.mtbi_s, write_s=write_s,
                                       restart_s=training.restart_s)
    ends_s = [0.0, *(schedule.end_s(n) for n in (1, 2, 3))]
    return ShapeGain(
        shape=shape, waste_fixed=fixed, waste_schedule=by_hazard, gain=fixed - by_hazard,
        intervals_to_tell=weibull.intervals_to_tell(shape) if shape != 1 else None,
        first_intervals_s=tuple(b - a for a, b in pairwise(ends_s)))
