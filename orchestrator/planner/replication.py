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
    if factor == 2:
        return -math.expm1(others * math.log1p(-probability)) if probability < 1 else 1.0
    return min(1.0, math.fsum(math.comb(others, k) * probability**k * (1 - probability) ** (others - k)
                              for k in range(factor - 1, others + 1)))


def loss_random_approx(probability: float, factor: int, nodes: int) -> float:
    """First order: C(N - 1, F - 1) p^(F-1)."""
    return min(1.0, math.comb(nodes - 1, factor - 1) * probability ** (factor - 1))


def allowed_factors(nodes: int, ranks: int, jump: int) -> list[int]:
    """F from 1 to the number of nodes for which ranks are divisible by J F (the rule of NVRx and Megatron-LM; J is the
    distance between ranks of a group, by default the GPUs of a node)."""
    return [factor for factor in range(1, nodes + 1) if ranks % (jump * factor) == 0]


def copies_bytes(per_node_bytes: float, factor: int, generations: int) -> float:
    """What one node's disks must hold."""
    return per_node_bytes * factor * generations
