"""The checkpoint interval T*, start of a save to start of the next, and the waste that it costs.

C is the stall, t the time until a save is usable (t = C for a synchronous one), R the restart time, M the mean time between
interruptions, all in seconds; lambda = 1 / M.
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


def exact_waste(interval_s: float, *, stall_s: float, mtbi_s: float, write_s: float = 0.0, restart_s: float = 0.0) -> float:
    """Share of wall time that trained nothing new, exponential interruptions that do not strike during the restart.

    1 - (T - C) exp(-lambda t_a) / [ (exp(lambda T) - 1) (M + R) ]: the n-th save is durable at nT + t_a and carries T - C of
    training. ``write_s`` is t_a, the asynchronous write after the stall.
    """
    assert 0 <= stall_s <= interval_s
    useful_s = (interval_s - stall_s) * math.exp(-write_s / mtbi_s) / math.expm1(interval_s / mtbi_s)
    return 1 - useful_s / (mtbi_s + restart_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """The first-order parts of the waste, eta = C/T + lambda (T/2 + t + R): which is largest decides what to buy."""

    stall: float
    rework: float
    not_yet_durable: float
    restart: float

    @property
    def total(self) -> float:
        return self.stall + self.rework + self.not_yet_durable + self.restart

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
