"""Monte Carlo of checkpointing: many launches at once, each as a row of arrays. Needs numpy (extra ``science``), which is
imported when a simulation runs; the random generator is an argument, so equal seeds give equal answers.

A launch runs until an interruption at age Y, or until its limit less the final save. What it has saved by then is kept: the
n-th interval's training once its save is durable, at end + t_a. The waste is 1 - kept / wall time, a ratio of two sums over
independent launches, whose standard error is that of the ratio estimator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.planner import interval, stops, weibull

if TYPE_CHECKING:
    import numpy as np

AT_ONCE = 8_000                        # launches in one set of arrays: fits the caches


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What happens to a training: interruptions of a Weibull shape (1: exponential) and mean M, in seconds."""

    mtbi_s: float
    stall_s: float
    write_s: float = 0.0
    restart_s: float = 0.0
    shape: float = 1.0
    limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When to save: every ``interval_s``, or by a schedule that follows the hazard."""

    name: str
    interval_s: float | None = None
    schedule: weibull.Schedule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The waste of one policy, with its standard error."""

    policy: Policy
    waste: float
    standard_error: float
    launches: int
    interruptions: int
    exact: float | None                # where a formula or a sum over the survival function gives it


def policy_named(name: str, world: World) -> Policy:
    """``young``, ``daly``, ``exact``, or ``weibull`` with the world's shape. Raises KeyError."""
    fixed = {"young": interval.young_interval_s, "daly": interval.daly_interval_s, "exact": interval.exact_interval_s}
    if name == "weibull":
        return Policy(name=name, schedule=weibull.hazard_schedule(world.shape, world.stall_s, world.mtbi_s))
    return Policy(name=name, interval_s=fixed[name](world.stall_s, world.mtbi_s))


def simulate(world: World, policy: Policy, *, trials: int, rng: np.random.Generator) -> Result:
    """``trials`` launches under this policy."""
    kept_s = wall_s = 0.0
    squares = [0.0, 0.0, 0.0]          # kept^2, kept x wall, wall^2
    interruptions = done = 0
    while done < trials:
        count = min(AT_ONCE, trials - done)
        kept, wall, struck = _launches(world, policy, count, rng)
        kept_s, wall_s = kept_s + float(kept.sum()), wall_s + float(wall.sum())
        squares = [a + float(b) for a, b in zip(squares, (kept @ kept, kept @ wall, wall @ wall), strict=True)]
        interruptions, done = interruptions + struck, done + count
    share = kept_s / wall_s
    variance = max(0.0, squares[0] - 2 * share * squares[1] + share * share * squares[2])
    return Result(policy=policy, waste=1 - share, standard_error=math.sqrt(variance) / wall_s, launches=trials,
                  interruptions=interruptions, exact=exact_waste(world, policy))


def _launches(world: World, policy: Policy, count: int, rng: np.random.Generator) -> tuple[Any, Any, int]:
    """Training kept and wall time of each launch, and how many were interrupted."""
    import numpy as np

    ages = rng.standard_exponential(count)
    if world.shape != 1:
        np.power(ages, 1 / world.shape, out=ages)
    ages *= weibull.scale_s(world.shape, world.mtbi_s)
    numbers, ends = _intervals_by(np, policy, np.maximum(ages - world.write_s, 0.0))
    kept = ends - world.stall_s * numbers
    if world.limit_s is None:
        return kept, ages + world.restart_s, count
    final_s = stops.final_save_s(world.stall_s, world.write_s)
    running_s = world.limit_s - final_s
    reached = ages >= running_s
    kept = np.where(reached, _trained_s(policy, world.stall_s, running_s), kept)
    wall = np.where(reached, running_s + final_s, ages) + world.restart_s
    return kept, wall, count - int(np.count_nonzero(reached))


def _intervals_by(np: Any, policy: Policy, ages: Any) -> tuple[Any, Any]:
    """How many intervals have ended by these ages, and when the last of them did."""
    if policy.schedule is None:
        assert policy.interval_s is not None
        numbers = np.floor(ages * (1 / policy.interval_s))
        return numbers, numbers * policy.interval_s
    power = (policy.schedule.shape + 1) / 2
    numbers = np.floor(policy.schedule.density * ages**power)
    return numbers, (numbers * (1 / policy.schedule.density)) ** (1 / power)


def _trained_s(policy: Policy, stall_s: float, age_s: float) -> float:
    """All training by this age, that of the interval under way among it."""
    number, end_s = (float(value) for value in _intervals_by(math, policy, age_s))
    next_s = policy.interval_s or (policy.schedule.next_end_s(end_s) - end_s if policy.schedule else 0.0)
    return end_s - number * stall_s + min(age_s - end_s, next_s - stall_s)


def exact_waste(world: World, policy: Policy) -> float | None:
    """The closed form for exponential interruptions, the sum over the survival function for others; None for a limit with
    either a schedule or another shape."""
    common = {"stall_s": world.stall_s, "mtbi_s": world.mtbi_s, "write_s": world.write_s, "restart_s": world.restart_s}
    if world.limit_s is not None:
        if policy.interval_s is None or world.shape != 1:
            return None
        return stops.exact_waste_with_limit(policy.interval_s, limit_s=world.limit_s, final_save_s=stops.final_save_s(
            world.stall_s, world.write_s), **common)
    if policy.schedule is not None:
        return weibull.schedule_waste(policy.schedule, shape=world.shape, **common)
    assert policy.interval_s is not None
    if world.shape == 1:
        return interval.exact_waste(policy.interval_s, **common)
    return weibull.fixed_waste(policy.interval_s, shape=world.shape, **common)
