"""The checkpoint interval T*, start of a save to start of the next, and the waste that it costs.

C is the stall, t_a the write that goes on after it (0 for a synchronous save), t = C + t_a the time until a save is usable, R
the restart time, M the mean time between interruptions, all in seconds; lambda = 1 / M. Planned stops, which lose no
work, are in ``stops``; interruptions that come more or less often with age in ``weibull``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def young_interval_s(stall_s: float, mtbi_s: float) -> float:
    """sqrt(2 C M) (Young 1974, DOI 10.1145/361147.361115)."""
    return math.sqrt(2 * stall_s * mtbi_s)


def daly_interval_s(stall_s: float, mtbi_s: float) -> float:
    """sqrt(2 C M) (1 + x/3 + x^2/9) with x = sqrt(C / 2M) for C < 2M, else M + C (Daly 2006, DOI
    10.1016/j.future.2004.11.016, there written without the dump: tau = T - C)."""
    if stall_s >= 2 * mtbi_s:
        return mtbi_s + stall_s
    x = math.sqrt(stall_s / (2 * mtbi_s))
    return young_interval_s(stall_s, mtbi_s) * (1 + x / 3 + x * x / 9)


def exact_interval_s(stall_s: float, mtbi_s: float) -> float:
    """T that minimises the exact waste: M [ 1 + C/M + W0(-exp(-1 - C/M)) ] (Lambert W; docs/planning.md 2). Neither R nor
    a fixed write time moves it. With y = T/M it is the root of y + exp(-y) - 1 = C/M, found by Newton's method from
    Daly's value, which keeps the digits that W0 loses near its branch point."""
    ratio = stall_s / mtbi_s
    y = daly_interval_s(stall_s, mtbi_s) / mtbi_s
    for _ in range(20):
        step = (y + math.expm1(-y) - ratio) / -math.expm1(-y)
        y -= step
        if abs(step) <= 1e-12 * y:
            break
    return y * mtbi_s


def exact_waste(interval_s: float, *, stall_s: float, mtbi_s: float, write_s: float = 0.0, restart_s: float = 0.0) -> float:
    """Share of wall time that trained nothing new, exponential interruptions that do not strike during the restart.

    1 - (T - C) exp(-lambda t_a) / [ (exp(lambda T) - 1) (M + R) ]: the n-th save is durable at nT + t_a and carries T - C of
    training. ``write_s`` is t_a, the asynchronous write after the stall. Where interruptions strike during the restart
    too, and it starts over, give ``struck_restart_s`` as R.
    """
    assert 0 <= stall_s <= interval_s
    if interval_s > 700 * mtbi_s:
        return 1.0                     # no interruption leaves time for a save
    useful_s = (interval_s - stall_s) * math.exp(-write_s / mtbi_s) / math.expm1(interval_s / mtbi_s)
    return 1 - useful_s / (mtbi_s + restart_s)


def struck_restart_s(restart_s: float, mtbi_s: float) -> float:
    """The mean of a restart that needs R without an interruption and starts over after one: M (exp(lambda R) - 1), so that
    M + R becomes M exp(lambda R) (docs/planning.md 1)."""
    return mtbi_s * math.expm1(min(restart_s / mtbi_s, 700.0))


def excess_of(factor: float) -> float:
    """What an interval off the optimum by this factor r costs, as a share of the part of the waste that the interval decides:
    (r + 1/r) / 2 - 1 (from C/T + T/2M)."""
    return (factor + 1 / factor) / 2 - 1


# --- saves that are written while training goes on --------------------------------------------------------------------


def shortest_interval_s(stall_s: float, write_s: float) -> float:
    """C + t_a: from here on one write is over before the next begins. The waste is convex in T, so this is the best T
    where the optimum is shorter (docs/planning.md 3)."""
    return stall_s + write_s


def stretched_interval_s(stall_s: float, mtbi_s: float, share: float) -> float:
    """T* of a write that is stretched over this share phi of the interval: sqrt(2 C M / (1 + 2 phi)) (docs/planning.md 3)."""
    assert 0 <= share <= 1
    return young_interval_s(stall_s, mtbi_s) / math.sqrt(1 + 2 * share)


def stretched_write_s(interval_s: float, stall_s: float, share: float) -> float:
    """t_a = phi (T - C)."""
    return share * (interval_s - stall_s)


def slowed_stall_s(stall_s: float, write_s: float, slowdown: float) -> float:
    """C of a write that slows training by this share sigma while it lasts: C + sigma t_a, to be put into T* and into the
    waste (docs/planning.md 3)."""
    assert 0 <= slowdown < 1
    return stall_s + slowdown * write_s


# --- the first order, in parts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """The first-order parts of the waste, eta = C/T + lambda (T/2 + t + R) + lambda_p (C_p + R_p): which is largest
    decides what to buy. The last term is that of planned stops."""

    stall: float
    rework: float
    not_yet_durable: float
    restart: float
    planned: float = 0.0

    @property
    def total(self) -> float:
        return self.stall + self.rework + self.not_yet_durable + self.restart + self.planned

    @property
    def of_interval(self) -> float:
        """The part that the interval decides."""
        return self.stall + self.rework


def expected_waste(interval_s: float, *, stall_s: float, mtbi_s: float, durable_s: float, restart_s: float) -> Waste:
    """First order; ``durable_s`` is t, from the start of a save until it is usable."""
    return Waste(stall=stall_s / interval_s, rework=interval_s / (2 * mtbi_s), not_yet_durable=durable_s / mtbi_s,
                 restart=restart_s / mtbi_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An interval, and what it was held back by."""

    interval_s: float
    optimum_s: float                   # T* before any bound
    bound: str                         # "optimum", "write time", "cap", "segment"


def choose_interval(*, stall_s: float, mtbi_s: float, durable_s: float, at_most_s: float, segment_s: float | None) -> Choice:
    """T* by Daly, held between t (a save ends before the next begins) and the smaller of the cap ``checkpoint: at_most`` and
    the segment, the time limit less the lead (a longer interval would never come to its first save). The write time gives
    way to neither: overlapping writes are worse than a long interval."""
    optimum_s = daly_interval_s(stall_s, mtbi_s)
    upper_s, upper = at_most_s, "cap"
    if segment_s is not None and segment_s < upper_s:
        upper_s, upper = segment_s, "segment"
    if optimum_s > upper_s and upper_s >= durable_s:
        return Choice(interval_s=upper_s, optimum_s=optimum_s, bound=upper)
    if optimum_s < durable_s or upper_s < durable_s:
        return Choice(interval_s=durable_s, optimum_s=optimum_s, bound="write time")
    return Choice(interval_s=optimum_s, optimum_s=optimum_s, bound="optimum")
