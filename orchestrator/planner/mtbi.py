"""M on another number of nodes, and how well a published record knows it.

Interruptions of a job come from each of its nodes independently, so rates add up: M = M0 N0 / N.
"""

from __future__ import annotations

import math

from orchestrator.planner.gamma import gamma_quantile
from orchestrator.planner.pooled import PRIOR_SHAPE


def rescaled_mtbi(mtbi: float, nodes: int, to_nodes: int) -> float:
    """M0 N0 / N, in the unit that M0 has."""
    return mtbi * nodes / to_nodes


def mtbi_of_record_h(period_h: float, interruptions: int) -> float:
    """Period over count: the estimate of a record that ends at any time."""
    return period_h / interruptions


def record_interval95_h(period_h: float, interruptions: int) -> tuple[float, float]:
    """The exact 95 % interval of M from a Poisson count (Garwood 1936): E / Gamma quantiles of n + 1 and n. Needs n >= 1."""
    assert interruptions >= 1
    return period_h / gamma_quantile(interruptions + 1, 0.975), period_h / gamma_quantile(interruptions, 0.025)


def at_least_h(period_h: float) -> float:
    """The one-sided 95 % bound of M after a period without any interruption: E / ln 20."""
    return period_h / math.log(20)


def assumed_interval95_h(mtbi_h: float, interruptions: float = PRIOR_SHAPE) -> tuple[float, float]:
    """The 95 % interval of an M of which nobody knows how many interruptions it comes from: it is taken to be worth as
    many as the prior of ``pooled`` (1.32; docs/planning.md 6), so the rate is Gamma(a, a M)."""
    total_h = interruptions * mtbi_h
    return total_h / gamma_quantile(interruptions, 0.975), total_h / gamma_quantile(interruptions, 0.025)
