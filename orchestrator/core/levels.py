"""The intervals of a run that saves on two levels: often to its node, seldom to the shared folder. Pure.

Of all interruptions the share q needs the shared copy: those after which the next attempt ran on another node. It is counted
from this run's own, beginning with a prior of one in two that is worth two interruptions. The mathematics is the planner's
(docs/planning.md 8): each level has its own M, M / (1 - q) and M / q, and the shared level's C is what its save costs more.
Where that is so little that the shared level's interval would be no longer than the node's (or a cap holds both), copies on
the node are of no use: every save goes to the shared folder, at the T* of one level.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.measures import Measured, Spread
from orchestrator.model import INTERRUPTIONS, Policy, Run
from orchestrator.planner.exposure import planned
from orchestrator.planner.interval import Choice, Waste, choose_interval, expected_waste

# Until a local save has been measured; and never as seldom as a shared one, or it would not come to be measured.
FIRST_LOCAL_S, FIRST_SHARE = 60.0, 0.25
RESOLUTION_S = 0.001
_PRIOR_ELSEWHERE, _PRIOR = 1.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Both choices, and what they cost together once both are measured."""

    local: Choice
    shared: Choice | None              # None: as with one level
    elsewhere: float                   # q
    waste: Waste | None = None
    all_shared: bool = False           # the node's interval would be no shorter, so that no save goes there


def elsewhere_share(run: Run) -> float:
    """q, the share of interruptions after which a local copy was out of reach."""
    pairs = [(a, b) for a, b in zip(run.attempts, run.attempts[1:], strict=False)
             if a.ending in INTERRUPTIONS and not planned(run, a)]
    moved = sum(a.host != b.host for a, b in pairs)
    return (_PRIOR_ELSEWHERE + moved) / (_PRIOR + len(pairs))


def levels(
    run: Run, measured: Measured, policy: Policy, *, mtbi_s: float, restart_s: float, segment_s: float,
) -> Levels | None:
    """None where the run has one level. ``mtbi_s`` is M of the whole run."""
    if not policy.checkpoint_local:
        return None
    q = elsewhere_share(run)
    local = _local(measured, policy, q, mtbi_s=mtbi_s)
    shared = _shared(measured, policy, q, mtbi_s=mtbi_s, segment_s=segment_s)
    if shared is not None and shared.interval_s <= local.interval_s:
        return Levels(local=local, shared=None, elsewhere=q, all_shared=True)
    return Levels(local=local, shared=shared, elsewhere=q,
                  waste=_waste(measured, q, local, shared, mtbi_s=mtbi_s, restart_s=restart_s))


def _local(measured: Measured, policy: Policy, q: float, *, mtbi_s: float) -> Choice:
    at_most_s = policy.checkpoint_interval_s or policy.checkpoint_at_most_s
    stall, durable = measured.local_stall_s, measured.local_durable_s
    if policy.checkpoint_local_interval_s is not None:
        fixed_s = policy.checkpoint_local_interval_s
        return Choice(interval_s=fixed_s, optimum_s=fixed_s, bound="fixed by `checkpoint: local_interval`")
    if stall is None:
        return Choice(interval_s=min(FIRST_LOCAL_S, FIRST_SHARE * at_most_s), optimum_s=0.0,
                      bound="first save, C is not measured yet")
    return choose_interval(
        stall_s=max(stall.median, RESOLUTION_S), mtbi_s=mtbi_s / (1 - q), at_most_s=at_most_s, segment_s=None,
        durable_s=durable.median if durable else stall.median)


def extra_stall_s(measured: Measured) -> Spread | None:
    """C of the shared level: what its save costs more than one to the node. None until both are measured."""
    cost, local = measured.cost_s, measured.local_stall_s
    if cost is None or local is None:
        return None
    low, median, high = (max(value - local.median, RESOLUTION_S) for value in (cost.low, cost.median, cost.high))
    return Spread(median=median, low=low, high=high, count=min(cost.count, local.count))


def _shared(measured: Measured, policy: Policy, q: float, *, mtbi_s: float, segment_s: float) -> Choice | None:
    """None while it is fixed by hand or not measured: then it is chosen as with one level."""
    extra = extra_stall_s(measured)
    if policy.checkpoint_interval_s is not None or measured.cost_s is None or extra is None:
        return None
    return choose_interval(
        stall_s=extra.median, mtbi_s=mtbi_s / q, durable_s=(measured.durable_s or measured.cost_s).median,
        at_most_s=policy.checkpoint_at_most_s, segment_s=segment_s)


def _waste(
    measured: Measured, q: float, local: Choice, shared: Choice | None, *, mtbi_s: float, restart_s: float,
) -> Waste | None:
    if shared is None or measured.local_stall_s is None or measured.cost_s is None:
        return None
    stall_s, cost_s = measured.local_stall_s.median, measured.cost_s.median
    near = expected_waste(local.interval_s, stall_s=stall_s, mtbi_s=mtbi_s / (1 - q), restart_s=restart_s,
                          durable_s=(measured.local_durable_s or measured.local_stall_s).median)
    far = expected_waste(shared.interval_s, stall_s=max(0.0, cost_s - stall_s), mtbi_s=mtbi_s / q, restart_s=restart_s,
                         durable_s=(measured.durable_s or measured.cost_s).median)
    return Waste(stall=near.stall + far.stall, rework=near.rework + far.rework, restart=near.restart + far.restart,
                 not_yet_durable=near.not_yet_durable + far.not_yet_durable)
