"""M and T* of a run: counted from its attempts and from what other runs showed of the platform, chosen from what was
measured. Pure; what counts and the mathematics are the planner's (``exposure``, ``pooled``, ``interval``).

M is computed again after every ending and the interval after every measured save; a new interval is taken only when it
makes the part of the waste that the interval decides more than 1 % smaller, which takes an M that is a third larger or
smaller: so it never swings to and fro, and another run's interruption seldom reaches this run's trainer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.core.levels import FIRST_LOCAL_S, Levels, extra_stall_s, levels
from orchestrator.core.measures import Measured, Spread, spread
from orchestrator.model import GOES_ON, INTERRUPTIONS, Attempt, Policy, Run
from orchestrator.planner import exposure
from orchestrator.planner.interval import (
    Choice,
    Waste,
    choose_interval,
    daly_interval_s,
    exact_waste,
    excess_of,
    expected_waste,
)
from orchestrator.planner.pooled import Counted, Rate, TwoRates, two_rates
from orchestrator.planner.stops import lead_needed_s

# Until a save has been measured: soon enough to learn C, late enough to be past the start.
FIRST_INTERVAL_S = 300.0
WORTH_A_CHANGE = 0.01


def reliability(run: Run, others: Counted, policy: Policy, now: float) -> TwoRates:
    """What is known of this run's rate of interruptions at this moment. ``others``: the platform's interruptions and the
    node-hours of all other runs."""
    mine = exposure.exposed(run, now)
    return two_rates(run.spec.profile.nodes, platform=others + exposure.platform(mine),
                     own=exposure.own(mine, run.spec.tag), prior_mtbi_h=policy.prior_mtbi_h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """R, from an ending to the first new step of the next attempt, and its parts."""

    whole_s: Spread | None = None
    queue_s: Spread | None = None      # until the next attempt was taken
    start_s: Spread | None = None      # from there to the trainer's START: the script, Python, imports
    load_s: Spread | None = None       # from there to its first step: reading the checkpoint


def restarts(run: Run) -> Restarts:
    """Of all attempts that were followed by another, planned stops among them. After a cancel, a setup failure, an attempt
    without a result, or one at which the run was held it waited for a person, and that time is none of R."""
    if len(run.attempts) < 2:
        return Restarts()
    pairs = [(a, b) for a, b in zip(run.attempts, run.attempts[1:], strict=False)
             if a.ended_at is not None and b.first_step_at is not None and a.ending in INTERRUPTIONS | GOES_ON
             and not b.let_go]
    return Restarts(
        whole_s=spread([_between(a.ended_at, b.first_step_at) for a, b in pairs]),
        queue_s=spread([_between(a.ended_at, b.started_at) for a, b in pairs]),
        start_s=spread([_between(b.started_at, b.trainer_at) for _, b in pairs if b.trainer_at is not None]),
        load_s=spread([_between(b.trainer_at, b.first_step_at) for _, b in pairs if b.trainer_at is not None]))


def _between(begin: float | None, end: float | None) -> float:
    return max(0.0, (end or 0.0) - (begin or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An interval and all that it was computed from."""

    choice: Choice
    known: TwoRates
    measured: Measured
    restart_s: float
    waste: Waste | None                # None while C is not known
    lead_s: float                      # the notice before the limit that this run's next submission gets
    levels: Levels | None = None       # of a run that saves to its node too; `choice` is then the shared level's

    @property
    def waste_exact(self) -> float | None:
        """Of one level: the sum that ``waste`` is the first order of, and never more than all. None while C is not known."""
        cost, durable, every_s = self.measured.cost_s, self.measured.durable_s, self.choice.interval_s
        if cost is None or (self.levels is not None and not self.levels.all_shared):
            return None
        return exact_waste(
            every_s, stall_s=min(_at_least(cost.median), every_s), mtbi_s=self.known.mtbi_h * 3600, restart_s=self.restart_s,
            write_s=max(0.0, durable.median - cost.median) if durable else 0.0)

    @property
    def lead_needed_s(self) -> float | None:
        """What a final save takes, one of the slowest tenth after one of the slowest steps; None: none was measured."""
        step, durable = self.measured.step_s, self.measured.durable_s
        return lead_needed_s(step_s=step.high if step else 0.0, stall_s=durable.high, write_s=0.0) if durable else None

    def as_event(self) -> dict[str, Any]:
        """For the journal: numbers, each with its unit, and where they come from."""
        low_h, high_h = self.known.mtbi95_h
        stall, durable, write = self.measured.stall_s, self.measured.durable_s, self.measured.write_s
        slowdown, cost = self.measured.slowdown, self.measured.cost_s
        return {
            "interval_s": round(self.choice.interval_s, 3), "optimum_s": round(self.choice.optimum_s, 3),
            "bound": self.choice.bound, "mtbi_h": round(self.known.mtbi_h, 4),
            "mtbi95_h": [round(low_h, 4), round(high_h, 4)], "nodes": self.known.nodes,
            "platform": _part("node_hours", self.known.platform_counted, self.known.platform_prior),
            "own": _part("hours", self.known.own_counted, self.known.own_prior),
            "stall_s": stall.median if stall else None, "saves": stall.count if stall else 0,
            "durable_s": durable.median if durable else None, "write_s": write.median if write else None,
            **({"slowdown": round(slowdown.median, 4), "cost_s": cost.median} if slowdown and cost else {}),
            **(self._local() if self.levels is not None else {}),
            "restart_s": round(self.restart_s, 3),
            "waste": {**{k: round(v, 8) for k, v in asdict(self.waste).items()}, "total": round(self.waste.total, 8)}
            if self.waste else None}

    def _local(self) -> dict[str, Any]:
        assert self.levels is not None
        stall, local = self.measured.local_stall_s, self.levels.local
        return {"local_interval_s": round(local.interval_s, 3), "local_bound": local.bound,
                "local_stall_s": stall.median if stall else None, "elsewhere": round(self.levels.elsewhere, 4)}


def _part(unit: str, counted: Counted, prior: Rate) -> dict[str, Any]:
    """One of the two rates: (prior + interruptions) / (prior's exposure + exposure)."""
    return {"interruptions": counted.interruptions, unit: round(counted.hours, 6),
            "prior": {"interruptions": round(prior.shape, 6), unit: round(prior.hours, 6)}}


def setting(run: Run, measured: Measured, others: Counted, policy: Policy, now: float) -> Setting:
    """The interval that this run should have now."""
    known = reliability(run, others, policy, now)
    restart = restarts(run).whole_s
    restart_s = restart.median if restart else 0.0
    segment_s = max(1.0, run.spec.profile.time_s - run.spec.profile.lead_s)
    if policy.checkpoint_interval_s is not None:
        fixed = policy.checkpoint_interval_s
        choice = Choice(interval_s=fixed, optimum_s=_optimum_s(measured, known), bound="fixed by `checkpoint: interval`")
    elif measured.cost_s is None:
        first_s = min(FIRST_INTERVAL_S, policy.checkpoint_at_most_s, segment_s / 2)
        choice = Choice(interval_s=first_s, optimum_s=0.0, bound="first save, C is not measured yet")
    else:
        choice = choose_interval(
            stall_s=_at_least(measured.cost_s.median), mtbi_s=known.mtbi_h * 3600,
            durable_s=measured.durable_s.median if measured.durable_s else measured.cost_s.median,
            at_most_s=policy.checkpoint_at_most_s, segment_s=segment_s)
    both = levels(run, measured, policy, mtbi_s=known.mtbi_h * 3600, restart_s=restart_s, segment_s=segment_s)
    if both is not None and both.shared is not None:
        choice = both.shared
    waste = both.waste if both is not None else None
    return Setting(choice=choice, known=known, measured=measured, restart_s=restart_s, levels=both,
                   lead_s=run.spec.profile.lead_s,
                   waste=waste or waste_of(choice.interval_s, measured, known, restart_s))


def waste_of(interval_s: float, measured: Measured, known: TwoRates, restart_s: float) -> Waste | None:
    if measured.cost_s is None:
        return None
    durable = measured.durable_s or measured.cost_s
    return expected_waste(interval_s, stall_s=_at_least(measured.cost_s.median), mtbi_s=known.mtbi_h * 3600,
                          durable_s=durable.median, restart_s=restart_s)


def worth_changing(present_s: float | None, wanted: Setting, present_local_s: float | None = None) -> bool:
    """Whether the new intervals are to be taken. Without a measured C there is only the first one; a fixed one is a
    command."""
    both, mtbi_s = wanted.levels, wanted.known.mtbi_h * 3600
    if both is not None and _local_worth_changing(present_local_s, wanted, both, mtbi_s):
        return True
    if present_s is None or wanted.choice.bound.startswith("fixed"):
        return present_s != wanted.choice.interval_s
    if both is not None and both.shared is not None:
        return _better(present_s, wanted.choice, extra_stall_s(wanted.measured), mtbi_s / both.elsewhere)
    return _better(present_s, wanted.choice, wanted.measured.cost_s, mtbi_s)


def _local_worth_changing(present_s: float | None, wanted: Setting, both: Levels, mtbi_s: float) -> bool:
    local, stall = both.local, wanted.measured.local_stall_s
    if present_s is None or local.bound.startswith("fixed"):
        return present_s != local.interval_s
    if both.all_shared:                # what goes to the node meanwhile costs and helps nobody
        return present_s < min(local.interval_s, wanted.choice.interval_s)
    if stall is None:
        return excess_of(present_s / local.interval_s) > WORTH_A_CHANGE
    return _better(present_s, local, stall, mtbi_s / (1 - both.elsewhere))


def _better(present_s: float, choice: Choice, stall: Spread | None, mtbi_s: float) -> bool:
    """Whether it makes stalls and rework so much smaller, the C being what is kindest to the present interval."""
    if stall is None:
        return False
    if present_s > choice.interval_s and choice.bound in ("cap", "segment"):
        return True                    # a bound is a promise, whatever it costs
    likely_s = _most_favourable_stall_s(present_s, stall, mtbi_s)
    old, new = (expected_waste(interval_s, stall_s=likely_s, mtbi_s=mtbi_s, durable_s=0.0, restart_s=0.0).of_interval
                for interval_s in (present_s, choice.interval_s))
    return old - new > WORTH_A_CHANGE * old


def _most_favourable_stall_s(present_s: float, stall: Spread, mtbi_s: float) -> float:
    """The C within two standard errors of the measured median that speaks most for the present interval, which is the optimum
    at C = T^2 / 2M: noise in C must not make the interval swing. (Standard error of a median: 1.25 sigma / sqrt(n); sigma
    from the 10 to 90 % range, and never less than half of C, since few saves say little.)"""
    sigma = max((stall.high - stall.low) / 2.56, 0.5 * stall.median)
    two_errors = 2 * 1.25 * sigma / stall.count ** 0.5
    low, high = _at_least(stall.median - two_errors), _at_least(stall.median + two_errors)
    return min(max(present_s ** 2 / (2 * mtbi_s), low), high)


def _optimum_s(measured: Measured, known: TwoRates) -> float:
    return daly_interval_s(_at_least(measured.cost_s.median), known.mtbi_h * 3600) if measured.cost_s else 0.0


def _at_least(stall_s: float) -> float:
    """A clock's resolution: a stall of zero would ask for an interval of zero."""
    return max(stall_s, 0.001)


def interval_in_force_s(run: Run, policy: Policy) -> float:
    """What a trainer is to be told now."""
    return run.interval_s or policy.checkpoint_interval_s or FIRST_INTERVAL_S


def local_interval_in_force_s(run: Run, policy: Policy) -> float | None:
    """The same of the local level; None where there is none."""
    if not policy.checkpoint_local:
        return None
    return run.local_interval_s or policy.checkpoint_local_interval_s or FIRST_LOCAL_S


def counts(run: Run, attempt: Attempt) -> str:
    """How an attempt entered M, in words."""
    if exposure.planned(run, attempt):
        return "exposure only: orch stopped it"
    if attempt.ending in exposure.PLATFORM:
        return "the platform's interruption"
    if attempt.ending in exposure.OWN:
        return "the run's own interruption"
    return "nothing" if attempt.ending in exposure.NO_EXPOSURE else "exposure only"
