"""Has the rate of interruptions changed, and which change could be seen at all? Counts are Poisson (docs/planning.md 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.planner.gamma import gamma_cdf, gamma_quantile

_Z = 1.96 + 0.84                       # 5 % on both sides, power 80 %
SURE = 0.05


def events_against_known(ratio: float) -> float:
    """Events expected at the old, known rate until a rate ``ratio`` times as high is seen: z^2 / [4 (sqrt(ratio) - 1)^2]."""
    return _Z**2 / (4 * (math.sqrt(ratio) - 1) ** 2)


def events_in_each_period(ratio: float) -> float:
    """The same in each of two equal periods that are compared: z^2 / [2 (sqrt(ratio) - 1)^2]."""
    return _Z**2 / (2 * (math.sqrt(ratio) - 1) ** 2)


def ratio_seen(events: float) -> float:
    """The smallest ratio of rates that two halves of a record with so many events in all would show: the inverse of that."""
    return (1 + _Z / math.sqrt(events)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A window watched against a known M: the count that alarms (one side 2.5 %), and the M that it catches with 80 %."""

    count: int
    caught_mtbi_h: float


def alarm_worse(hours: float, mtbi_h: float) -> Alarm:
    """P(N >= k) = gamma_cdf(k, mean), so the smallest k with at most 2.5 %."""
    count = 1
    while gamma_cdf(count, hours / mtbi_h) > SURE / 2:
        count += 1
    return Alarm(count=count, caught_mtbi_h=hours / gamma_quantile(count, 0.8))


def alarm_better(hours: float, mtbi_h: float) -> Alarm | None:
    """The largest k with P(N <= k) of at most 2.5 %; None where even no event at all would be no surprise."""
    count = -1
    while 1 - gamma_cdf(count + 2, hours / mtbi_h) <= SURE / 2:
        count += 1
    return Alarm(count=count, caught_mtbi_h=hours / gamma_quantile(count + 1, 0.2)) if count >= 0 else None


def binomial_tail(count: int, trials: int, share: float) -> float:
    """P(X >= count) for X ~ Binomial(trials, share)."""
    if share <= 0 or share >= 1:
        return 1.0 if count <= 0 or share >= 1 else 0.0
    log_p, log_q = math.log(share), math.log1p(-share)
    total = math.lgamma(trials + 1)
    terms = (math.exp(total - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q)
             for k in range(max(0, count), trials + 1))
    return min(1.0, math.fsum(terms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Whether the rate is one and the same along the exposure, and where it would have changed."""

    p: float                           # of a deviation as large as this, if it is one and the same
    split: float                       # share of the exposure at which two rates fit best
    before: int
    after: int

    @property
    def detected(self) -> bool:
        return self.p < SURE

    @property
    def ratio(self) -> float | None:
        """Rate after over rate before; None where one side has no event."""
        if self.before == 0 or self.after == 0 or not 0 < self.split < 1:
            return None
        return (self.after / (1 - self.split)) / (self.before / self.split)


def change(positions: Sequence[float]) -> Change | None:
    """``positions``: of each interruption, the share of all exposure that came before it. With one rate these are
    uniform, which Kolmogorov's test decides (p with Stephens' correction for few events); no moment of change has to be
    guessed, so nothing is tested many times. None with fewer than four events."""
    places = sorted(positions)
    n = len(places)
    if n < 4:
        return None
    distance = max(max((i + 1) / n - x, x - i / n) for i, x in enumerate(places))
    root = math.sqrt(n)
    split, before = _best_split(places)
    return Change(p=_kolmogorov((root + 0.12 + 0.11 / root) * distance), split=split, before=before, after=n - before)


def _kolmogorov(x: float) -> float:
    """P(K > x)."""
    if x < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * math.fsum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101))))


def _best_split(places: Sequence[float]) -> tuple[float, int]:
    """Where two constant rates are likeliest, and how many events come before; not within a tenth of the ends."""
    n = len(places)
    best = (-math.inf, 0.5, n // 2)
    for index, place in enumerate(places):
        for before in (index, index + 1):  # the event itself after or before the split
            if 0.1 <= place <= 0.9:
                likelihood = _entropy(before, n, place) + _entropy(n - before, n, 1 - place)
                best = max(best, (likelihood, place, before))
    return best[1], best[2]


def _entropy(count: int, total: int, share: float) -> float:
    return count * math.log(count / total / share) if count else 0.0
