"""M, the mean time between interruptions, from what was observed: a Gamma posterior over censored exposure.

n interruptions in E hours of running, the open interval included, have the likelihood lambda^n exp(-lambda E). With a
prior Gamma(a, b) the rate is Gamma(a + n, b + E): E[lambda] = (a + n) / (b + E), and the 95 % interval of M is one over its
quantiles. The expected waste is linear in lambda, so the Bayes interval uses 1 / E[lambda], neither E[M] nor a median.

The default prior, a = 1.32 and b = 137 h at 32 nodes, matches six published interruption records scaled to 32 nodes (31.6,
92, 178, 198, 197, 781 h; sd of ln M 1.05): all of the literature is worth about 1.3 interruptions. Rates add up over nodes,
so b is scaled by 32 / nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planner.gamma import gamma_quantile

PRIOR_SHAPE = 1.32
PRIOR_HOURS_AT_32_NODES = 137.0
PRIOR_NODES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Gamma(shape, hours) of the rate per running hour: ``shape`` interruptions in ``hours``."""

    shape: float = PRIOR_SHAPE
    hours: float = PRIOR_HOURS_AT_32_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What is known of a run's rate of interruptions."""

    interruptions: int
    exposure_h: float
    prior: Prior

    @property
    def rate_per_h(self) -> float:
        """E[lambda]."""
        return (self.prior.shape + self.interruptions) / (self.prior.hours + self.exposure_h)

    @property
    def mtbi_h(self) -> float:
        """1 / E[lambda]: the M to plan with."""
        return 1 / self.rate_per_h

    @property
    def mtbi95_h(self) -> tuple[float, float]:
        """The central 95 % interval of M."""
        shape, hours = self.prior.shape + self.interruptions, self.prior.hours + self.exposure_h
        return hours / gamma_quantile(shape, 0.975), hours / gamma_quantile(shape, 0.025)


def prior_for(nodes: int, prior_mtbi_h: float | None = None) -> Prior:
    """The prior of a run on so many nodes; ``prior_mtbi_h`` (setting ``reliability: prior_mtbi``) is its 1 / E[lambda]."""
    assert nodes >= 1
    if prior_mtbi_h is not None:
        return Prior(hours=PRIOR_SHAPE * prior_mtbi_h)
    return Prior(hours=PRIOR_HOURS_AT_32_NODES * PRIOR_NODES / nodes)
