"""Interruptions that become rarer (or more frequent) with the time since the last restart: Weibull intervals of shape k
and mean M.

Hazard h(u) = (k/s) (u/s)^(k-1) at age u, s = M / Gamma(1 + 1/k). The cost rate at age u is C/T + h T/2, so T(u) = sqrt(2
C / h), and save frequency goes with the square root of the hazard (Ling, Mi, Lin, IEEE TC 50(7), 2001). Any fixed T costs
C/T + T/2M to first order whatever the shape, so sqrt(2 C M) stays right while M is right (docs/planning.md 5).

The age is the job's, since its own restart; shapes of single nodes do not apply to a job of many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SHAPE_AT_LEAST, SHAPE_AT_MOST = 0.05, 20.0
_SURVIVAL_ENDS = 1e-17                 # terms below it change no digit
_TERMS = 2000
_POINTS = 2000
_CHI2_95 = 3.841                       # of one degree of freedom
_SMALL_SAMPLE = 2.4                    # a likelihood ratio over 1 + 2.4/n is chi-square from n = 3 on (by simulation)
_Z_SHAPE = (1.96 + 0.84) * 0.78        # 5 %, power 80 %; 0.78 / sqrt(n) is the standard error of ln k


def scale_s(shape: float, mtbi_s: float) -> float:
    """s = M / Gamma(1 + 1/k)."""
    return mtbi_s / math.gamma(1 + 1 / shape)


def survival(age_s: float, shape: float, mtbi_s: float) -> float:
    """P(Y > age) = exp(-(u/s)^k)."""
    return math.exp(-((age_s / scale_s(shape, mtbi_s)) ** shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Saves as often as the hazard says: the n-th interval since the restart ends at (n / A)^(2/(k+1)), with
    A = sqrt(k s^-k / 2C) 2/(k+1), which avoids the infinite hazard at age 0."""

    shape: float
    density: float                     # A

    def end_s(self, number: float) -> float:
        """Age at which the n-th interval ends."""
        return float((number / self.density) ** (2 / (self.shape + 1)))

    def next_end_s(self, age_s: float) -> float:
        """Age at which an interval that begins at this age ends: ( u^((k+1)/2) + 1/A )^(2/(k+1))."""
        power = (self.shape + 1) / 2
        return float((age_s**power + 1 / self.density) ** (1 / power))

    def interval_s(self, age_s: float) -> float:
        """Until the next save, at this age."""
        return self.next_end_s(age_s) - age_s


def hazard_schedule(shape: float, stall_s: float, mtbi_s: float) -> Schedule:
    assert shape > 0 and stall_s > 0
    density = math.sqrt(shape * scale_s(shape, mtbi_s) ** -shape / (2 * stall_s)) * 2 / (shape + 1)
    return Schedule(shape=shape, density=density)


def gain_ratio(shape: float) -> float:
    """The interval's part of the waste with that schedule over the same with the best fixed interval:
    Gamma((k+1)/2k) / sqrt(Gamma(1/k)); 0.886 at k = 0.5, 1 at k = 1."""
    return math.exp(math.lgamma((shape + 1) / (2 * shape)) - math.lgamma(1 / shape) / 2)


def intervals_to_tell(shape: float) -> int:
    """About how many interruptions tell this shape from 1 (5 %, power 80 %): ((1.96 + 0.84) 0.78 / ln k)^2. Raises ValueError
    for 1 itself, which no number of them tells."""
    if shape == 1:
        raise ValueError("a shape of 1 is the exponential itself")
    return math.ceil((_Z_SHAPE / math.log(shape)) ** 2)


# --- the exact waste: sums over the survival function -----------------------------------------------------------------


def fixed_waste(
    interval_s: float, *, shape: float, stall_s: float, mtbi_s: float, write_s: float = 0.0, restart_s: float = 0.0,
) -> float:
    """1 - (T - C) sum_n P(Y > nT + t_a) / (M + R): every durable save carries T - C of training."""
    return _waste(lambda n: n * interval_s, shape=shape, stall_s=stall_s, mtbi_s=mtbi_s, write_s=write_s, restart_s=restart_s)


def schedule_waste(
    schedule: Schedule, *, shape: float, stall_s: float, mtbi_s: float, write_s: float = 0.0, restart_s: float = 0.0,
) -> float:
    """The same for that schedule, whose shape may be another than the true one. An interval shorter than C trains nothing."""
    return _waste(schedule.end_s, shape=shape, stall_s=stall_s, mtbi_s=mtbi_s, write_s=write_s, restart_s=restart_s)


def _waste(
    end_s: Callable[[float], float], *, shape: float, stall_s: float, mtbi_s: float, write_s: float, restart_s: float,
) -> float:
    """Term by term to the 2,000th, and from there, where terms hardly change, as an integral over their number."""
    scale = scale_s(shape, mtbi_s)

    def reached(number: float) -> float:
        return math.exp(-(((end_s(number) + write_s) / scale) ** shape))

    def kept_s(number: float) -> float:
        return max(0.0, end_s(number) - end_s(number - 1) - stall_s) * reached(number)

    total_s = 0.0
    for number in range(1, _TERMS + 1):
        total_s += kept_s(number)
        if reached(number) < _SURVIVAL_ENDS:
            return 1 - total_s / (mtbi_s + restart_s)
    last = 2.0 * _TERMS
    while reached(last) >= _SURVIVAL_ENDS:
        last *= 2
    return 1 - (total_s + _integral(kept_s, _TERMS + 0.5, last)) / (mtbi_s + restart_s)


def _integral(value: Callable[[float], float], low: float, high: float) -> float:
    """By Simpson's rule on the logarithm of the variable."""
    step = math.log(high / low) / _POINTS
    points = (low * math.exp(index * step) for index in range(_POINTS + 1))
    weights = (1 if index in (0, _POINTS) else 4 if index % 2 else 2 for index in range(_POINTS + 1))
    return math.fsum(w * x * value(x) for w, x in zip(weights, points, strict=True)) * step / 3


# --- from data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The likeliest Weibull, and whether it says more than an exponential."""

    shape: float
    mtbi_h: float
    interruptions: int
    shape95: tuple[float, float]       # the shapes that a likelihood ratio does not refuse
    p_exponential: float               # of the likelihood ratio, if the truth were exponential


def fit(ended_h: Sequence[float], censored_h: Sequence[float] = ()) -> Fit | None:
    """Maximum likelihood of intervals that ended in an interruption, and of others that did not (planned stops, the live
    attempt). None with fewer than three interruptions, or where they are all alike.

    The shape solves sum t^k ln t / sum t^k - 1/k = mean of ln t over the ended ones (sums over all); the likelihood ratio
    against k = 1, over 1 + 2.4/n, is taken for chi-square with one degree of freedom.
    """
    ended = [t for t in ended_h if t > 0]
    everything = ended + [t for t in censored_h if t > 0]
    n = len(ended)
    if n < 3 or max(ended) - min(ended) <= 1e-9 * max(ended):
        return None
    longest = max(everything)
    logs = [math.log(t / longest) for t in everything]
    mean_log = sum(logs[:n]) / n
    shape = _root(lambda k: _moment(k, logs) - 1 / k - mean_log)
    fitted, exponential = (_log_likelihood(k, logs, n, mean_log) for k in (shape, 1.0))
    few = 1 + _SMALL_SAMPLE / n
    ratio = max(0.0, 2 * (fitted - exponential)) / few
    scale_h = longest * (sum(math.exp(shape * x) for x in logs) / n) ** (1 / shape)

    def refused(k: float) -> float:
        return 2 * (fitted - _log_likelihood(k, logs, n, mean_log)) / few - _CHI2_95

    return Fit(shape=shape, mtbi_h=scale_h * math.gamma(1 + 1 / shape), interruptions=n,
               shape95=(_root(lambda k: -refused(k), SHAPE_AT_LEAST, shape), _root(refused, shape, SHAPE_AT_MOST)),
               p_exponential=math.erfc(math.sqrt(ratio / 2)))


def _moment(shape: float, logs: Sequence[float]) -> float:
    """sum t^k ln t / sum t^k, of t relative to the longest."""
    powers = [math.exp(shape * x) for x in logs]
    return sum(p * x for p, x in zip(powers, logs, strict=True)) / sum(powers)


def _log_likelihood(shape: float, logs: Sequence[float], n: int, mean_log: float) -> float:
    """At the likeliest scale: n [ ln k + k mean(ln t) - ln(sum t^k / n) - 1 ] less what does not depend on k."""
    return n * (math.log(shape) + shape * mean_log - math.log(sum(math.exp(shape * x) for x in logs) / n) - 1)


def _root(rising: Callable[[float], float], low: float = SHAPE_AT_LEAST, high: float = SHAPE_AT_MOST) -> float:
    """The shape in this range at which the function, which rises with it, is 0; an end of the range where it is none."""
    if rising(low) > 0 or rising(high) < 0:
        return low if rising(low) > 0 else high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
