"""M, the mean time between interruptions, from what was counted: two rates, each a Gamma posterior over censored exposure.

n interruptions in E hours of running, the open interval included, have the likelihood lambda^n exp(-lambda E). With a prior
Gamma(a, b) the rate is Gamma(a + n, b + E), and E[lambda] = (a + n) / (b + E). The expected waste is linear in lambda, so the
Bayes interval uses 1 / E[lambda], neither E[M] nor a median.

A run on N nodes is interrupted at the rate N phi + rho: phi is the platform's for each node-hour, which all runs share, rho
the run's own for each of its running hours. Which of the two an interruption belongs to is seen from its ending
(``exposure``), so both posteriors are Gammas: phi ~ Gamma(a_p + n_p, b_p + node-hours of all runs), rho ~ Gamma(a_o + n_r,
b_o + hours of this run). Their sum has no closed form; its distribution function is Lugannani and Rice's saddlepoint
formula (1980), which for two Gammas needs the root of a quadratic. Its 95 % intervals hold 94.4 to 95.5 %; between the tails
it is off by up to 0.05 where a shape is far below 1.

The prior of the whole, a = 1.32 and b = 137 h at 32 nodes, matches six published interruption records scaled to 32 nodes
(31.6, 92, 178, 198, 197, 781 h; sd of ln M 1.05): all of the literature is worth about 1.3 interruptions. It is split as the
419 unexpected interruptions of Llama 3's training were: 78 % hardware. At 32 nodes both parts have the same scale, and their
sum is that prior again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.planner.gamma import gamma_quantile

PRIOR_SHAPE = 1.32
PRIOR_HOURS_AT_32_NODES = 137.0
PRIOR_NODES = 32
PLATFORM_SHARE = 0.78
_FAR = 1e-13                           # as near to its pole as the saddlepoint may come


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Interruptions of one kind, and the exposure in which they came: node-hours for the platform, hours for a run."""

    interruptions: int = 0
    hours: float = 0.0

    def __add__(self, other: Counted) -> Counted:
        return Counted(interruptions=self.interruptions + other.interruptions, hours=self.hours + other.hours)

    def __sub__(self, part: Counted) -> Counted:
        """The rest; what a sum of floats lost is nothing."""
        return Counted(interruptions=self.interruptions - part.interruptions, hours=max(0.0, self.hours - part.hours))


NOTHING_COUNTED = Counted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Gamma(shape, hours) of a rate."""

    shape: float
    hours: float

    @property
    def mean(self) -> float:
        return self.shape / self.hours

    def after(self, counted: Counted) -> Rate:
        """The posterior."""
        return Rate(shape=self.shape + counted.interruptions, hours=self.hours + counted.hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRates:
    """What is known of a run's rate of interruptions: its own per hour, and the platform's per node-hour."""

    nodes: int
    platform_prior: Rate
    own_prior: Rate
    platform_counted: Counted          # over all runs
    own_counted: Counted               # of this run

    @property
    def platform(self) -> Rate:
        """The posterior of phi."""
        return self.platform_prior.after(self.platform_counted)

    @property
    def own(self) -> Rate:
        """The posterior of rho."""
        return self.own_prior.after(self.own_counted)

    @property
    def rate_per_h(self) -> float:
        """E[lambda] = N E[phi] + E[rho]."""
        return self.nodes * self.platform.mean + self.own.mean

    @property
    def mtbi_h(self) -> float:
        """1 / E[lambda]: the M to plan with, since the waste is linear in lambda."""
        return 1 / self.rate_per_h

    @property
    def mtbi95_h(self) -> tuple[float, float]:
        """The central 95 % interval of M."""
        return 1 / self.rate_quantile(0.975), 1 / self.rate_quantile(0.025)

    def rate_quantile(self, probability: float) -> float:
        return sum_quantile(probability, (self.platform.shape, self.nodes / self.platform.hours),
                            (self.own.shape, 1 / self.own.hours))

    @property
    def prior_weight(self) -> float:
        """How many interruptions both priors are worth together."""
        return self.platform_prior.shape + self.own_prior.shape

    @property
    def prior_share(self) -> float:
        """The share of E[lambda] that comes from the priors' interruptions, not from counted ones: 1 before the first."""
        of_priors = self.nodes * self.platform_prior.shape / self.platform.hours + self.own_prior.shape / self.own.hours
        return of_priors / self.rate_per_h


def two_rates(nodes: int, *, platform: Counted, own: Counted, prior_mtbi_h: float | None = None) -> TwoRates:
    """``platform``: of all runs together; ``own``: of this run alone. ``prior_mtbi_h``: the M of a run on so many nodes
    before anything was seen, in place of the literature's."""
    assert nodes >= 1
    platform_prior, own_prior = priors(nodes, prior_mtbi_h)
    return TwoRates(nodes=nodes, platform_prior=platform_prior, own_prior=own_prior, platform_counted=platform,
                    own_counted=own)


def priors(nodes: int, prior_mtbi_h: float | None = None) -> tuple[Rate, Rate]:
    """Of the platform, per node-hour, and of the run, per hour."""
    platform = Rate(shape=PLATFORM_SHARE * PRIOR_SHAPE, hours=PRIOR_HOURS_AT_32_NODES * PRIOR_NODES)
    own = Rate(shape=(1 - PLATFORM_SHARE) * PRIOR_SHAPE, hours=PRIOR_HOURS_AT_32_NODES)
    if prior_mtbi_h is None:
        return platform, own
    stretch = prior_mtbi_h * (nodes * platform.mean + own.mean)
    return Rate(shape=platform.shape, hours=platform.hours * stretch), Rate(shape=own.shape, hours=own.hours * stretch)


# --- the sum of two Gamma variables, each as (shape, scale) -----------------------------------------------------------

Part = tuple[float, float]


def sum_cdf(z: float, first: Part, second: Part) -> float:
    """P(X + Y <= z), by Lugannani and Rice: Phi(w) + phi(w) (1/w - 1/u) at the saddlepoint s, where K'(s) = z."""
    (a, b), (c, d) = first, second
    s = _saddlepoint(z, first, second)
    near_b, near_d = 1 - b * s, 1 - d * s
    if min(near_b, near_d) <= _FAR:
        return 1.0
    cumulant = -a * math.log(near_b) - c * math.log(near_d)
    second_derivative = a * (b / near_b) ** 2 + c * (d / near_d) ** 2
    w = math.copysign(math.sqrt(max(0.0, 2 * (s * z - cumulant))), s)
    u = s * math.sqrt(second_derivative)
    if abs(w) < 1e-4:                  # at the mean, where the formula is 1/w - 1/u of two zeros
        third = 2 * (a * b**3 + c * d**3)
        return 0.5 + third / (6 * math.sqrt(2 * math.pi * second_derivative**3))
    value = math.erfc(-w / math.sqrt(2)) / 2 + math.exp(-w * w / 2) / math.sqrt(2 * math.pi) * (1 / w - 1 / u)
    return min(1.0, max(0.0, value))


def _saddlepoint(z: float, first: Part, second: Part) -> float:
    """The root below both poles of a b / (1 - b s) + c d / (1 - d s) = z, a quadratic in s."""
    (a, b), (c, d) = first, second
    two, one, none = z * b * d, b * d * (a + c) - z * (b + d), z - a * b - c * d
    root = math.sqrt(max(0.0, one * one - 4 * two * none))
    return 2 * none / (root - one) if one < 0 else -(one + root) / (2 * two)


def sum_quantile(probability: float, first: Part, second: Part) -> float:
    """z with P(X + Y <= z) = probability, to ten digits."""
    assert 0 < probability < 1
    if abs(first[1] - second[1]) <= 1e-9 * first[1]:  # equal scales: the sum is a Gamma itself
        return first[1] * gamma_quantile(first[0] + second[0], probability)
    mean = first[0] * first[1] + second[0] * second[1]
    low, high = -1.0, 1.0              # of ln(z / mean)
    while sum_cdf(mean * math.exp(low), first, second) > probability:
        low *= 2
    while sum_cdf(mean * math.exp(high), first, second) < probability:
        high *= 2
    while high - low > 1e-10:
        middle = (low + high) / 2
        if sum_cdf(mean * math.exp(middle), first, second) < probability:
            low = middle
        else:
            high = middle
    return mean * math.exp((low + high) / 2)
