"""Replicas of checkpoint shards on other nodes: how likely a shard is lost although it has copies, and which numbers of
copies a launcher accepts.

One node A has failed. Within the rebuild window each other node fails with p = window / (its mean time between failures).
With F copies of every shard, F - 1 of them are elsewhere.
"""

from __future__ import annotations

import math


def window_probability(rebuild_h: float, node_mtbi_h: float) -> float:
    """p, to first order: window / mean interval."""
    return min(1.0, rebuild_h / node_mtbi_h)


def loss_fixed_group(probability: float, factor: int) -> float:
    """A's shard is lost when all F - 1 others of its fixed group fail too: p^(F-1)."""
    return probability ** (factor - 1)


def loss_random_exact(probability: float, factor: int, nodes: int) -> float:
    """With copies spread over random nodes any F - 1 failures among the others lose some shard: the binomial tail
    P(Bin(N - 1, p) >= F - 1); for F = 2 it is 1 - (1 - p)^(N-1)."""
    others = nodes - 1
    if probability >= 1 or factor == 1:
        return 1.0
    if factor == 2:
        return -math.expm1(others * math.log1p(-probability))
    least, odds = factor - 1, probability / (1 - probability)
    if least <= others * probability:  # the likely part is the tail: what is left out is summed
        return 1.0 - math.fsum(_chance(k, others, probability) for k in range(least))
    total, term = 0.0, _chance(least, others, probability)
    for k in range(least, others + 1):
        total += term
        term *= (others - k) / (k + 1) * odds
        if term <= 1e-17 * total:
            break
    return min(1.0, total)


def _chance(count: int, trials: int, probability: float) -> float:
    """P(Bin = count), by logarithms: neither the coefficient nor the power need fit a float."""
    return math.exp(math.log(math.comb(trials, count)) + count * math.log(probability)
                    + (trials - count) * math.log1p(-probability))


def loss_random_approx(probability: float, factor: int, nodes: int) -> float:
    """First order: C(N - 1, F - 1) p^(F-1)."""
    ways = math.comb(nodes - 1, factor - 1)
    if ways < 1e300:
        return float(min(1.0, ways * probability ** (factor - 1)))
    return math.exp(min(0.0, math.log(ways) + (factor - 1) * math.log(probability)))


def allowed_factors(nodes: int, ranks: int, jump: int) -> list[int]:
    """F from 1 to the number of nodes for which ranks are divisible by J F (the rule of NVRx and Megatron-LM; J is the
    distance between ranks of a group, by default the GPUs of a node)."""
    return [factor for factor in range(1, nodes + 1) if ranks % (jump * factor) == 0]


def copies_bytes(per_node_bytes: float, factor: int, generations: int) -> float:
    """What one node's disks must hold."""
    return per_node_bytes * factor * generations
