"""A shared file system whose throughput is bought with its capacity: what it must sustain, what it costs, what binds it.

Sizes and rates are decimal (MB/s = 10^6 bytes/s); GiB = 2^30 bytes for the generations that are kept, while a throughput
class of so many MB/s/TiB counts 1,000 GiB as a TiB. Prices and limits are a catalogue's, which is data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.size import kept_gib

# R of a plan: ten minutes of queue, start-up and warm-up, and reading the checkpoint as fast as the baseline writes it.
RESTART_BASE_S = 600.0
CAPACITY_AT_MOST_GIB = 10**8         # more than any that was ever ordered


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One throughput class as it can be ordered, with or without EFA."""

    throughput_class: float            # MB/s per TiB
    efa: bool
    unit_gib: int                      # capacity comes in multiples of it
    usd_per_gib_month: float
    price: str                         # "given" or "derived"
    burst_class: float | None = None   # MB/s per TiB for a while; no plan counts on it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimit:
    """What one client (node) can write, without or with EFA."""

    gbps: float
    gbps_per_server: float | None = None
    server_gib: int | None = None      # capacity of one storage server


@dataclass(frozen=True, slots=True, kw_only=True)
class Interfaces:
    """The network of an instance type."""

    gbps: float                        # without EFA, for as long as one likes
    efa_gbps: float | None = None      # None: it has no EFA
    peak_gbps: float | None = None     # for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """What can be bought, where and when it was priced."""

    name: str
    region: str
    price_date: str
    efa_above_bytes_per_s: float       # from here on EFA is needed; below it is a choice
    offers: tuple[Offer, ...]
    without_efa: ClientLimit
    with_efa: ClientLimit
    connections_gbps: dict[str, float]  # one TCP connection, by where the two ends are
    instances: dict[str, Interfaces]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """One file system that could be ordered."""

    offer: Offer
    capacity_gib: int
    set_by: str = ""                   # "generations" or "throughput": which of the two made it so large

    @property
    def baseline_bytes_per_s(self) -> float:
        return self.capacity_gib / 1000 * self.offer.throughput_class * 1e6

    @property
    def monthly_usd(self) -> float:
        return self.capacity_gib * self.offer.usd_per_gib_month

    @property
    def yearly_usd(self) -> float:
        return 12 * self.monthly_usd


def required_throughput_bytes_per_s(size_bytes: float, write_s: float) -> float:
    """W = S / t_w."""
    return size_bytes / write_s


def no_overlap_throughput_bytes_per_s(size_bytes: float, interval_s: float, stall_s: float) -> float:
    """S / (T - C): with less, one write meets the next."""
    return size_bytes / (interval_s - stall_s)


def needs_efa(catalog: Catalog, throughput_bytes_per_s: float) -> bool:
    """Strictly above the catalogue's threshold, applied to the required throughput and not to the baseline. The relative
    slack is for a rate that was computed back from the threshold itself."""
    return throughput_bytes_per_s > catalog.efa_above_bytes_per_s * (1 + 1e-12)


def shortest_write_s(catalog: Catalog, size_bytes: float) -> float:
    """A shorter write needs EFA, and the catalogue has none; 0 where it has."""
    return 0.0 if any(offer.efa for offer in catalog.offers) else size_bytes / catalog.efa_above_bytes_per_s


def smallest(offer: Offer, *, size_bytes: float, keep: int, throughput_bytes_per_s: float) -> FileSystem:
    """u ceil( max(k S, W / class) / u ): the smallest of this class that holds the generations and sustains the
    throughput."""
    kept = kept_gib(size_bytes, keep)
    fast = throughput_bytes_per_s / 1e6 / offer.throughput_class * 1000
    units = math.ceil(max(kept, fast) / offer.unit_gib * (1 - 1e-12))
    return FileSystem(offer=offer, capacity_gib=max(1, units) * offer.unit_gib,
                      set_by="generations" if kept > fast else "throughput")


def choices(catalog: Catalog, *, size_bytes: float, keep: int, throughput_bytes_per_s: float) -> list[FileSystem]:
    """One file system for each class, and with EFA too; where the throughput needs EFA those with it alone."""
    efa_only = needs_efa(catalog, throughput_bytes_per_s)
    return [smallest(offer, size_bytes=size_bytes, keep=keep, throughput_bytes_per_s=throughput_bytes_per_s)
            for offer in catalog.offers if offer.efa or not efa_only]


def every_file_system(
    catalog: Catalog, *, size_bytes: float, nodes: int, keep: int, fastest_write_s: float,
) -> Iterator[tuple[FileSystem, float]]:
    """Every file system that holds the generations and writes no faster than this, with its own write time S / baseline, or
    what all nodes together can write to it where that is less; the smallest of each class in any case. Without EFA no more
    than the threshold's rate is used, and what would be larger than can be used is left out."""
    for offer in catalog.offers:
        first = smallest(offer, size_bytes=size_bytes, keep=keep, throughput_bytes_per_s=0.0)
        for capacity_gib in _capacities_gib(first.capacity_gib, offer.unit_gib):
            system = FileSystem(offer=offer, capacity_gib=capacity_gib,
                                set_by="generations" if capacity_gib == first.capacity_gib else "throughput")
            most = _nodes_bytes_per_s(nodes, (catalog.with_efa if offer.efa else catalog.without_efa).gbps)
            if not offer.efa:
                most = min(most, catalog.efa_above_bytes_per_s)
            write_s = size_bytes / min(system.baseline_bytes_per_s, most,
                                       _nodes_bytes_per_s(nodes, client_cap_gbps(catalog, system)))
            if write_s < fastest_write_s * (1 - 1e-12) and capacity_gib > first.capacity_gib:
                break
            yield system, write_s
            if most < system.baseline_bytes_per_s:
                break                  # more of it writes no faster


def _capacities_gib(first: int, unit: int) -> Iterator[int]:
    """Every one that can be ordered; where a unit is next to nothing beside it, one after another a 500th part larger."""
    yield first
    capacity = first
    while (capacity := capacity + unit * max(1, capacity // (500 * unit))) < CAPACITY_AT_MOST_GIB:
        yield capacity


def read_s(size_bytes: float, system: FileSystem) -> float:
    """Reading a checkpoint back, as fast as the baseline."""
    return size_bytes / system.baseline_bytes_per_s


def restart_s(size_bytes: float, system: FileSystem, base_s: float = RESTART_BASE_S) -> float:
    """R = 600 s + S / baseline."""
    return base_s + read_s(size_bytes, system)


# --- what one node can write ------------------------------------------------------------------------------------------


def servers(catalog: Catalog, system: FileSystem) -> int | None:
    """Storage servers, where the catalogue says how large one is."""
    limit = catalog.with_efa if system.offer.efa else catalog.without_efa
    return math.ceil(system.capacity_gib / limit.server_gib) if limit.server_gib else None


def client_cap_gbps(catalog: Catalog, system: FileSystem, instance: Interfaces | None = None) -> float:
    """The most that one node can write: the client's limit, its connections to all servers, its own network interfaces.
    Where nobody says what goes to one server, it is what one TCP connection carries."""
    limit = catalog.with_efa if system.offer.efa else catalog.without_efa
    caps = [limit.gbps]
    count = servers(catalog, system)
    per_server = limit.gbps_per_server or (None if system.offer.efa else catalog.connections_gbps.get("default"))
    if per_server is not None and count is not None:
        caps.append(count * per_server)
    if instance is not None:
        caps.append(instance.gbps if not system.offer.efa or instance.efa_gbps is None else instance.efa_gbps)
    return min(caps)


def _nodes_bytes_per_s(nodes: int, gbps: float) -> float:
    return nodes * gbps * 1e9 / 8


def client_need_gbps(size_bytes: float, nodes: int, write_s: float) -> float:
    """8 S / (N t_w), every node writing an equal part."""
    return 8 * size_bytes / nodes / write_s / 1e9
