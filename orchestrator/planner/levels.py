"""Two levels of checkpoints: often to local disks with replicas, less often to shared storage.

Of all interruptions the share 1 - q recovers from a local or replicated copy, and q needs the shared one (correlated
outages, bugs that poison local copies; measure it). First order, with C2 the EXTRA stall of a save that goes to shared
storage too:

    eta = C1/T1 + C2/T2 + (1-q) lambda (T1/2 + t1 + R1) + q lambda (T2/2 + t2 + R2)

T1* = sqrt(2 C1 M / (1-q)), T2* = sqrt(2 C2 M / q), no shorter than the shared write and a multiple of T1
(docs/planning.md 8; the sum over levels of sqrt(2 lambda_l C_l) in Benoit et al., IEEE TC 66(7), 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.planner import storage
from orchestrator.planner.interval import Waste, expected_waste, shortest_interval_s, young_interval_s
from orchestrator.planner.storage import Catalog, FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The first level: C1, the time until a local save is usable t1, and the restart from it R1."""

    stall_s: float
    durable_s: float
    restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The second: the extra stall C2, the write to shared storage after the stall, and the restart from it R2."""

    stall_s: float
    write_s: float
    restart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Both intervals and what they cost."""

    local_interval_s: float
    shared_interval_s: float
    local: Waste                       # of the interruptions that recover locally
    shared: Waste

    @property
    def waste(self) -> float:
        return self.local.total + self.shared.total


def two_levels(local: Local, shared: Shared, *, mtbi_s: float, shared_share: float) -> Levels:
    """The best pair of intervals, T2 a multiple of T1."""
    assert 0 < shared_share < 1
    local_mtbi_s, shared_mtbi_s = mtbi_s / (1 - shared_share), mtbi_s / shared_share
    local_interval_s = young_interval_s(local.stall_s, local_mtbi_s)
    wanted_s = max(young_interval_s(shared.stall_s, shared_mtbi_s), shortest_interval_s(local.stall_s, shared.write_s))
    times = max(1, math.ceil(wanted_s / local_interval_s * (1 - 1e-12)))
    shared_interval_s = times * local_interval_s
    return Levels(
        local_interval_s=local_interval_s, shared_interval_s=shared_interval_s,
        local=expected_waste(local_interval_s, stall_s=local.stall_s, mtbi_s=local_mtbi_s, durable_s=local.durable_s,
                             restart_s=local.restart_s),
        shared=expected_waste(shared_interval_s, stall_s=shared.stall_s, mtbi_s=shared_mtbi_s,
                              durable_s=local.stall_s + shared.stall_s + shared.write_s, restart_s=shared.restart_s))


def shared_only(stall_s: float, write_s: float, restart_s: float, mtbi_s: float) -> Waste:
    """What one level costs, with the same stall and the shared write after it; its interval is no shorter than the write."""
    interval_s = max(young_interval_s(stall_s, mtbi_s), shortest_interval_s(stall_s, write_s))
    return expected_waste(interval_s, stall_s=stall_s, mtbi_s=mtbi_s, durable_s=stall_s + write_s, restart_s=restart_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A shared file system behind local copies, and on its own."""

    system: FileSystem
    write_s: float
    levels: Levels
    alone: Waste


def options(
    catalog: Catalog, local: Local, *, size_bytes: float, nodes: int, keep: int, shared_stall_s: float, mtbi_s: float,
    shared_share: float, restart_base_s: float = storage.RESTART_BASE_S, fastest_write_s: float = 30.0,
) -> list[Option]:
    """Every shared file system that holds the generations, each drained at its own full rate, the cheapest first."""
    found: list[Option] = []
    for system, write_s in storage.every_file_system(
            catalog, size_bytes=size_bytes, nodes=nodes, keep=keep, fastest_write_s=fastest_write_s):
        restart_s = storage.restart_s(size_bytes, system, restart_base_s)
        shared = Shared(stall_s=shared_stall_s, write_s=write_s, restart_s=restart_s)
        found.append(Option(
            system=system, write_s=write_s,
            levels=two_levels(local, shared, mtbi_s=mtbi_s, shared_share=shared_share),
            alone=shared_only(local.stall_s, write_s, restart_s, mtbi_s)))
    return sorted(found, key=lambda option: (option.system.monthly_usd, option.levels.waste))


def cheapest(options: Iterable[Option], usd_per_year: float | None = None) -> Option:
    """The one that costs least in a year with the GPU time that it wastes; without a price of GPU time the cheapest to
    rent."""
    return min(options, key=lambda o: (o.system.yearly_usd + (usd_per_year or 0.0) * o.levels.waste, o.levels.waste))
