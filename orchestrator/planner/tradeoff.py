"""Fast storage against lost GPU time, in money a year.

A faster file system costs more and makes the stall, or the time until a save is usable, shorter. Its price moves in
steps, so the best plan is one of the file systems that can be ordered, written at its own full rate; between them lies a
flat region in which other reasons may decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from orchestrator.planner import storage
from orchestrator.planner.interval import Waste, expected_waste, shortest_interval_s, young_interval_s
from orchestrator.planner.stops import planned_waste
from orchestrator.planner.storage import Catalog, FileSystem, Interfaces

HOURS_PER_YEAR = 8760.0
FLAT = 0.02                            # a plan within this of the best one is as good: prices and M are less certain

# Write times for a table that people read, within the range that was asked for.
ROUND_S = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200, 10800, 14400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, on what, at which price."""

    size_bytes: float
    nodes: int
    mtbi_s: float
    keep: int
    price_usd_per_h: float = 0.0       # of ``gpus_per_price`` GPUs together
    gpus_per_price: int = 8
    gpus_per_node: int = 8
    stall_s: float | None = None       # None: synchronous, the stall is the write
    restart_base_s: float = storage.RESTART_BASE_S
    limit_s: float | None = None       # of one launch: every planned stop costs its final save and a restart

    @property
    def gpu_hours_per_year(self) -> float:
        return HOURS_PER_YEAR * self.nodes * self.gpus_per_node

    @property
    def usd_per_year(self) -> float:
        return self.gpu_hours_per_year / self.gpus_per_price * self.price_usd_per_h


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One write time with the file system that gives it, and what it costs in a year."""

    job: Job
    write_s: float
    system: FileSystem
    client_limited: bool = False       # one node cannot write its part so fast

    @property
    def stall_s(self) -> float:
        return self.write_s if self.job.stall_s is None else self.job.stall_s

    @property
    def interval_s(self) -> float:
        """sqrt(2 C M), no shorter than a write and its stall."""
        free_s = young_interval_s(self.stall_s, self.job.mtbi_s)
        return free_s if self.job.stall_s is None else max(free_s, shortest_interval_s(self.stall_s, self.write_s))

    @property
    def restart_s(self) -> float:
        return storage.restart_s(self.job.size_bytes, self.system, self.job.restart_base_s)

    @property
    def waste(self) -> Waste:
        """First order, with t = C + t_w, or t = C = t_w for a synchronous save, which is what a final save takes too."""
        durable_s = self.write_s if self.job.stall_s is None else self.stall_s + self.write_s
        found = expected_waste(self.interval_s, stall_s=self.stall_s, mtbi_s=self.job.mtbi_s, durable_s=durable_s,
                               restart_s=self.restart_s)
        if self.job.limit_s is None:
            return found
        return replace(found, planned=planned_waste(limit_s=self.job.limit_s, mtbi_s=self.job.mtbi_s,
                                                    final_save_s=durable_s, restart_s=self.restart_s))

    @property
    def stopped_gpu_hours(self) -> float:
        """GPU hours a year in which training stands still for saves: C / T."""
        return self.job.gpu_hours_per_year * self.waste.stall

    @property
    def stopped_usd(self) -> float:
        return self.job.usd_per_year * self.waste.stall

    @property
    def lost_work_usd(self) -> float:
        """What interruptions cost, rework, what was not durable yet, restarts; and planned stops."""
        return self.job.usd_per_year * (self.waste.total - self.waste.stall)

    @property
    def storage_usd(self) -> float:
        return self.system.yearly_usd

    @property
    def stop_only_usd(self) -> float:
        return self.stopped_usd + self.storage_usd

    @property
    def total_usd(self) -> float:
        return self.stop_only_usd + self.lost_work_usd


def cheapest_for(catalog: Catalog, job: Job, write_s: float) -> Plan:
    """The cheapest file system that writes in this time, of those that a node can write to so fast as far as there are any.
    Where several cost the same, the one that reads back faster."""
    found = cheapest(priced(catalog, job, write_s))
    return replace(found.plan, client_limited=found.client_limited)


def write_times_s(low_s: float, high_s: float) -> list[float]:
    """The ends of the range and the round numbers between."""
    return [low_s, *(float(t) for t in ROUND_S if low_s < t < high_s), *([high_s] if high_s > low_s else [])]


def rows(catalog: Catalog, job: Job, times_s: Iterable[float]) -> list[Plan]:
    return [cheapest_for(catalog, job, write_s) for write_s in times_s]


def candidates(catalog: Catalog, job: Job, low_s: float, high_s: float) -> list[Plan]:
    """Every plan among which the best one of this range is: with the file system fixed, both costs fall with the write
    time, so each is used at its own full rate (or at the range's fast end)."""
    systems = storage.every_file_system(
        catalog, size_bytes=job.size_bytes, nodes=job.nodes, keep=job.keep, fastest_write_s=low_s)
    plans = [Plan(job=job, write_s=write_s, system=system) for system, write_s in systems
             if low_s * (1 - 1e-12) <= write_s <= high_s]
    return [*plans, cheapest_for(catalog, job, low_s), cheapest_for(catalog, job, high_s)]


def best(plans: Iterable[Plan], cost: Callable[[Plan], float] = lambda plan: plan.total_usd) -> Plan:
    """The cheapest that can be had."""
    return min(plans, key=lambda plan: (plan.client_limited, cost(plan), plan.write_s))


def flat_region_s(plans: Iterable[Plan], within: float = FLAT) -> tuple[float, float]:
    """The shortest and the longest write time of plans that cost within this share of the best."""
    plans = list(plans)
    chosen = best(plans)
    most_usd = chosen.total_usd * (1 + within)
    times_s = [plan.write_s for plan in plans if plan.total_usd <= most_usd and plan.client_limited == chosen.client_limited]
    return min(times_s), max(times_s)


def write_time_by_calculus_s(
    *, size_bytes: float, usd_per_bytes_per_s_year: float, usd_per_year: float, mtbi_s: float,
) -> float:
    """t_w = sqrt( K S / (2 G / M) ) where storage costs K for each byte/s and year, and t_w stands in the waste twice,
    before a save is durable and when it is read back (docs/planning.md 3)."""
    per_s = usd_per_year / mtbi_s
    return float((usd_per_bytes_per_s_year * size_bytes / (2 * per_s)) ** 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One file system for a write time that is asked for, what a node then has to write and what it can at most."""

    plan: Plan
    client_needs_gbps: float
    client_cap_gbps: float

    @property
    def client_limited(self) -> bool:
        return self.client_needs_gbps > self.client_cap_gbps


def priced(catalog: Catalog, job: Job, write_s: float, instance: Interfaces | None = None) -> list[Priced]:
    """Every class that can be ordered for it. Empty where the throughput needs EFA and the catalogue has none."""
    need_gbps = storage.client_need_gbps(job.size_bytes, job.nodes, write_s)
    systems = storage.choices(catalog, size_bytes=job.size_bytes, keep=job.keep,
                              throughput_bytes_per_s=job.size_bytes / write_s)
    return [Priced(plan=Plan(job=job, write_s=write_s, system=system), client_needs_gbps=need_gbps,
                   client_cap_gbps=storage.client_cap_gbps(catalog, system, instance)) for system in systems]


def cheapest(choices: Iterable[Priced]) -> Priced:
    """Of those that a node can write to, as far as there are any."""
    return min(choices, key=lambda c: (c.client_limited, c.plan.system.monthly_usd, -c.plan.system.baseline_bytes_per_s))
