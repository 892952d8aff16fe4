"""Which node is interrupted more often than chance allows?

Nobody knows which of a job's nodes broke it, so each of them is a suspect. If all nodes were alike, an interruption would
fall on an attempt in proportion to its node-hours, so the count at attempts with node i is Binomial(n, E_i / E): E_i the
node-hours of all attempts that node i was in, E those of all attempts. A node that was in every attempt cannot be told
apart, and its p is 1. Holm's step-down correction makes the chance that any good node is accused at most 5 %, whatever
nodes have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.planner.change import SURE, binomial_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One attempt: its nodes, how long it ran, whether it ended in an interruption that a node may be to blame for."""

    nodes: tuple[str, ...]
    hours: float
    interrupted: bool

    @property
    def node_hours(self) -> float:
        return len(self.nodes) * self.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """What speaks against a node."""

    node: str
    interruptions: int
    hours: float                       # that the node itself ran
    expected: float                    # interruptions, if it were like all others
    p: float                           # of as many or more, if it were
    p_holm: float                      # with all nodes that were looked at
    worse: bool


def suspects(stretches: Iterable[Stretch]) -> list[Suspect]:
    """Every node, the most suspicious first."""
    stretches = [s for s in stretches if s.hours > 0 and s.nodes]
    whole = sum(s.node_hours for s in stretches)
    n = sum(s.interrupted for s in stretches)
    together: dict[str, float] = {}
    hours: dict[str, float] = {}
    counts: dict[str, int] = {}
    for stretch in stretches:
        for node in set(stretch.nodes):
            together[node] = together.get(node, 0.0) + stretch.node_hours
            hours[node] = hours.get(node, 0.0) + stretch.hours
            counts[node] = counts.get(node, 0) + stretch.interrupted
    p = {node: binomial_tail(counts[node], n, min(1.0, together[node] / whole)) for node in together}
    holm = _holm(p)
    found = [Suspect(node=node, interruptions=counts[node], hours=hours[node], expected=n * together[node] / whole,
                     p=p[node], p_holm=holm[node], worse=holm[node] < SURE) for node in together]
    return sorted(found, key=lambda s: (s.p, s.node))


def _holm(p: Mapping[str, float]) -> dict[str, float]:
    """Each p times the number of those that are not smaller, never falling."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, value * (len(p) - rank)))
        adjusted[name] = highest
    return adjusted
