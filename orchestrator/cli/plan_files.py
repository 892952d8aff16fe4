"""The files that ``orch plan`` reads: storage catalogues and plan.yaml. Every complaint names file, line and key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator import catalog as shipped
from orchestrator.cli.plan_options import FORMATS, FROZEN_PARAMS, NODES_AT_MOST, PARAMS, RANGE, Duration, size_of
from orchestrator.config.document import Document, Quantity
from orchestrator.errors import UserError
from orchestrator.planner.plan import Training
from orchestrator.planner.report import Wanted
from orchestrator.planner.size import Size
from orchestrator.planner.storage import Catalog, ClientLimit, Interfaces, Offer, shortest_write_s
from orchestrator.planner.tradeoff import Job
from orchestrator.units import format_duration

T = TypeVar("T")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class OfferFile(_Strict, frozen=True):
    """``classes[]: without_efa:`` and ``with_efa:``."""

    unit_gib: int
    usd_per_gib_month: float
    price: str = "given"


class ClassFile(_Strict, frozen=True):
    """``classes[]:``."""

    throughput: float = msgspec.field(name="class")
    burst: float | None = None
    without_efa: OfferFile | None = None
    with_efa: OfferFile | None = None


class LimitFile(_Strict, frozen=True):
    """``client: without_efa:`` and ``with_efa:``."""

    gbps: float
    gbps_per_server: float | None = None
    server_gib: int | None = None


class ClientFile(_Strict, frozen=True):
    """``client:``."""

    without_efa: LimitFile
    with_efa: LimitFile


class InstanceFile(_Strict, frozen=True):
    """``instances: TYPE:``."""

    gbps: float
    efa_gbps: float | None = None
    peak_gbps: float | None = None


class CatalogFile(_Strict, frozen=True):
    """A storage catalogue."""

    name: str
    region: str
    price_date: str
    efa_above_gb_per_s: float
    classes: list[ClassFile]
    client: ClientFile
    connections: dict[str, float] = {}
    instances: dict[str, InstanceFile] = {}


def read_catalog(path: Path | None) -> Catalog:
    """The user's own, or the one that is shipped. Raises ConfigError."""
    document = Document(path or shipped.DEFAULT)
    file = document.convert(CatalogFile)
    offers: list[Offer] = []
    for index, entry in enumerate(file.classes):
        _positive(document, f"classes[{index}].class", entry.throughput)
        _each_positive(document, f"classes[{index}]", burst=entry.burst)
        for efa, offer in ((False, entry.without_efa), (True, entry.with_efa)):
            if offer is not None:
                offers.append(_offer(document, f"classes[{index}].{'with_efa' if efa else 'without_efa'}", entry, offer, efa))
    if not offers:
        raise document.error("classes", "offers nothing", "write at least one class with `without_efa:` or `with_efa:`")
    return Catalog(
        name=file.name, region=file.region, price_date=file.price_date,
        efa_above_bytes_per_s=_positive(document, "efa_above_gb_per_s", file.efa_above_gb_per_s) * 1e9, offers=tuple(offers),
        without_efa=_limit(document, "client.without_efa", file.client.without_efa),
        with_efa=_limit(document, "client.with_efa", file.client.with_efa),
        connections_gbps={name: _positive(document, f"connections.{name}", gbps) for name, gbps in file.connections.items()},
        instances={name: _interfaces(document, f"instances.{name}", entry) for name, entry in file.instances.items()})


def _offer(document: Document, key: str, entry: ClassFile, offer: OfferFile, efa: bool) -> Offer:
    if offer.price not in ("given", "derived"):
        raise document.error(f"{key}.price", f'"{offer.price}" is not known', "write given or derived")
    _positive(document, f"{key}.usd_per_gib_month", offer.usd_per_gib_month)
    return Offer(throughput_class=entry.throughput, efa=efa, burst_class=entry.burst, price=offer.price,
                 unit_gib=int(_positive(document, f"{key}.unit_gib", offer.unit_gib)),
                 usd_per_gib_month=offer.usd_per_gib_month)


def _limit(document: Document, key: str, file: LimitFile) -> ClientLimit:
    _each_positive(document, key, gbps=file.gbps, gbps_per_server=file.gbps_per_server, server_gib=file.server_gib)
    return ClientLimit(gbps=file.gbps, gbps_per_server=file.gbps_per_server, server_gib=file.server_gib)


def _interfaces(document: Document, key: str, file: InstanceFile) -> Interfaces:
    _each_positive(document, key, gbps=file.gbps, efa_gbps=file.efa_gbps, peak_gbps=file.peak_gbps)
    return Interfaces(gbps=file.gbps, efa_gbps=file.efa_gbps, peak_gbps=file.peak_gbps)


def _each_positive(document: Document, key: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None:
            _positive(document, f"{key}.{name}", value)


def _positive(document: Document, key: str, value: float) -> float:
    if not 0 < value < 1e12:
        raise document.error(key, f"{value:g} is not possible", "write a number above 0")
    return value


class PlanFile(_Strict, frozen=True):
    """plan.yaml: the words of the options of ``orch plan``, with underscores. Numbers need units as there."""

    params: Quantity
    nodes: int
    mtbi: Quantity
    title: str = ""
    bytes_per_param: float | None = None
    weights: str | None = None
    master: str | None = None
    moments: str | None = None
    frozen_params: Quantity | None = None
    mode: str = "async"
    stall: Quantity | None = None
    write: Quantity | None = None
    interval: Quantity | None = None
    restart: Quantity | None = None
    limit: Quantity | None = None
    step_time: Quantity | None = None
    keep: int = 4
    gpu_hourly_usd: float | None = None
    gpus_per_price: int = 8
    gpus_per_node: int = 8
    write_range: str = "30s:20m"
    catalog: str | None = None


def read_plan(path: Path) -> Wanted:
    """plan.yaml, checked. Raises ConfigError naming file, line and key."""
    document = Document(path)
    file = document.convert(PlanFile)
    if file.mode not in ("async", "sync"):
        raise document.error("mode", f'"{file.mode}" is not known', "write async or sync")
    for key, value, least in (("nodes", file.nodes, 1), ("keep", file.keep, 2), ("gpus_per_price", file.gpus_per_price, 1),
                              ("gpus_per_node", file.gpus_per_node, 1)):
        if not least <= value <= NODES_AT_MOST:
            raise document.error(key, f"{value} is not from {least} to {NODES_AT_MOST:,}", f"write {least} or more")
    times = {key: _time_s(document, key, getattr(file, key)) for key in (
        "mtbi", "stall", "write", "interval", "restart", "limit", "step_time")}
    mtbi_s, stall_s = times["mtbi"], times["stall"]
    assert mtbi_s is not None
    if file.mode == "sync" and stall_s is not None:
        raise document.error("stall", "a synchronous save stands still for as long as it writes", "leave stall out")
    if file.mode == "async" and stall_s is None:
        stall_s = 5.0
    range_s = _refusing(document, "write_range", lambda: RANGE.parse_range(file.write_range))
    longest_s = max(range_s[1], times["write"] or 0.0) if file.mode == "sync" else stall_s or 0.0
    if mtbi_s < longest_s:
        raise document.error("mtbi", f"M is below the stall of {format_duration(longest_s)}", "write M of the whole training")
    size = _size(document, file)
    price = _positive(document, "gpu_hourly_usd", file.gpu_hourly_usd) if file.gpu_hourly_usd is not None else None
    job = Job(size_bytes=size.size_bytes, nodes=file.nodes, mtbi_s=mtbi_s, keep=file.keep, price_usd_per_h=price or 0.0,
              gpus_per_price=file.gpus_per_price, gpus_per_node=file.gpus_per_node, stall_s=stall_s, limit_s=times["limit"])
    final_save_s = (stall_s or 0.0) + max(range_s[1], times["write"] or 0.0)
    if job.limit_s is not None and job.limit_s <= final_save_s:
        raise document.error("limit", f"leaves no room for a final save, which takes up to {format_duration(final_save_s)}",
                             "write a longer limit, or a write_range that ends earlier")
    _check_today(document, times["interval"], stall_s, times["write"])
    bought = read_catalog(path.parent / file.catalog if file.catalog else None)
    _check_efa(document, shortest_write_s(bought, size.size_bytes), write_range=range_s[0], write=times["write"])
    training = Training(stall_s=stall_s or range_s[0], mtbi_s=mtbi_s, restart_s=times["restart"] or 900.0,
                        limit_s=times["limit"], step_s=times["step_time"])
    return Wanted(
        title=file.title or ("Checkpoints" if path.stem == "plan" else f"Checkpoints of {path.stem}"),
        size=size, job=job, training=training,
        catalog=bought, write_range_s=range_s,
        today_interval_s=times["interval"], today_write_s=times["write"], restart_given=times["restart"] is not None,
        priced=price is not None)


def _check_today(document: Document, interval_s: float | None, stall_s: float | None, write_s: float | None) -> None:
    """An interval of today is one in which something is trained, and written before the next save."""
    busy_s = max(stall_s or 0.0, write_s or 0.0)
    if interval_s is not None and interval_s <= busy_s:
        raise document.error("interval",
                             f"{format_duration(interval_s)} is no longer than a save of {format_duration(busy_s)}",
                             "write from the start of a save to the start of the next")


def _check_efa(document: Document, shortest_s: float, **writes_s: float | None) -> None:
    for key, write_s in writes_s.items():
        if write_s is not None and write_s < shortest_s:
            raise document.error(key, f"{format_duration(write_s)} takes EFA, and the catalogue has none",
                                 f"write {format_duration(math.ceil(shortest_s))} or longer")


def _time_s(document: Document, key: str, value: Quantity | None) -> float | None:
    if value is None:
        return None
    return _refusing(document, key, lambda: Duration().parse(document.written(key)))


def _size(document: Document, file: PlanFile) -> Size:
    params = _refusing(document, "params", lambda: PARAMS.parse(document.written("params")))
    frozen = _refusing(document, "frozen_params", lambda: FROZEN_PARAMS.parse(document.written("frozen_params"))) \
        if file.frozen_params is not None else None
    for key in ("weights", "master", "moments"):
        if getattr(file, key) is not None and getattr(file, key) not in FORMATS:
            raise document.error(key, f'"{getattr(file, key)}" is no format', f"write one of {', '.join(FORMATS)}")
    if file.bytes_per_param is not None:
        _positive(document, "bytes_per_param", file.bytes_per_param)
    try:
        return size_of(params, file.bytes_per_param, file.weights, file.master, file.moments, frozen, file.nodes)
    except UserError as error:
        raise document.error("params", error.message, error.hint) from None


def _refusing(document: Document, key: str, parse: Callable[[], T]) -> T:
    """What that gives, or its ValueError with file, line and key."""
    try:
        return parse()
    except ValueError as error:
        raise document.error(key, str(error), "") from None
