"""``orch plan storage``, ``tradeoff`` and ``levels``: which file system, at what price."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.plan_options import (
    DURATION,
    RANGE,
    Count,
    Number,
    Share,
    answer,
    catalog_option,
    json_option,
    keep_option,
    mode_option,
    mtbi_option,
    nodes_option,
    require_m_above_c,
    require_write_within,
    size_of,
    size_options,
    write_of,
)
from orchestrator.errors import UserError
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.planner.storage import Catalog, Interfaces

NO_EFA = "no file system of this catalogue sustains that without EFA, and it has none with EFA"
USD = Number("USD", 1e9, "142.416")
GPUS = Count("GPUs", 1, 10_000)


@click.command()
@size_options
@nodes_option
@mode_option
@click.option("--stall", "stall_s", type=DURATION, metavar="5s",
              help="C of an asynchronous save; a synchronous one stands still for as long as it writes.", show_default="5s")
@click.option("--write", "write_s", type=DURATION, metavar="5m", help="How long a save may take to be written.")
@mtbi_option
@keep_option
@click.option("--class", "throughput_class", type=Number("MB/s/TiB", 1e6, "125"), metavar="N",
              help="This throughput class alone, in MB/s for each TiB.")
@click.option("--instance", metavar="TYPE", help="The nodes' type, whose network is checked too.")
@catalog_option
@json_option
def storage(
    params: float, bytes_per_param: float | None, weights: str | None, master: str | None, moments: str | None,
    frozen_params: float | None, nodes: int, mode: str, stall_s: float | None, write_s: float | None, mtbi_s: float,
    keep: int, throughput_class: float | None, instance: str | None, catalog: Path | None, as_json: bool,
) -> None:
    """Which shared file system writes a checkpoint in that time and holds the generations, and what each costs.

    \b
    orch plan storage --params 124.45e9 --nodes 32 --write 5m --mtbi 200h
    orch plan storage --params 124.45e9 --nodes 32 --mode sync --write 60s --mtbi 200h --keep 4 --json
    """
    from orchestrator.cli.plan_files import read_catalog
    from orchestrator.planner import tradeoff as money
    from orchestrator.planner.interval import young_interval_s
    from orchestrator.planner.storage import required_throughput_bytes_per_s
    from orchestrator.views.plan_json import storage_json
    from orchestrator.views.plan_storage import storage_lines

    size = size_of(params, bytes_per_param, weights, master, moments, frozen_params, nodes)
    stall_s, write_s = write_of(mode, stall_s, write_s)
    require_m_above_c(mtbi_s, stall_s or write_s, "--stall" if stall_s else "--write")
    if stall_s is not None:
        best_s = young_interval_s(stall_s, mtbi_s)
        require_write_within(best_s, write_s, f"write --write {format_duration(math.floor(best_s))} or less")
    bought = _catalog(read_catalog(catalog), throughput_class)
    job = money.Job(size_bytes=size.size_bytes, nodes=nodes, mtbi_s=mtbi_s, keep=keep, stall_s=stall_s)
    choices = money.priced(bought, job, write_s, _instance(bought, instance))
    if not choices:
        raise UserError(f"--write: {NO_EFA}", hint=f"write --write {_at_least(bought, size.size_bytes)} or longer")
    required = required_throughput_bytes_per_s(size.size_bytes, write_s)
    best = money.cheapest(choices)
    answer(storage_json(required, choices, best), storage_lines(bought, size, choices, best), as_json)


def _catalog(catalog: Catalog, throughput_class: float | None) -> Catalog:
    """With that class alone."""
    from dataclasses import replace

    if throughput_class is None:
        return catalog
    offers = tuple(offer for offer in catalog.offers if offer.throughput_class == throughput_class)
    if not offers:
        known = sorted({offer.throughput_class for offer in catalog.offers})
        raise UserError(f"--class: {catalog.name} has no throughput class {throughput_class:g}",
                        hint=f"there are {', '.join(f'{c:g}' for c in known)} (MB/s for each TiB)")
    return replace(catalog, offers=offers)


def _at_least(catalog: Catalog, size_bytes: float) -> str:
    from orchestrator.planner.storage import shortest_write_s

    return format_duration(math.ceil(shortest_write_s(catalog, size_bytes)))


def _instance(catalog: Catalog, name: str | None) -> Interfaces | None:
    import difflib

    if name is None or name in catalog.instances:
        return catalog.instances[name] if name is not None else None
    near = difflib.get_close_matches(name, catalog.instances, 1)
    raise UserError(f'--instance: the catalogue knows no "{name}"', hint=f'did you mean "{near[0]}"?' if near else
                    f"it knows {', '.join(catalog.instances) or 'none'}; add yours to a catalogue of your own (--catalog)")


@click.command()
@size_options
@nodes_option
@mtbi_option
@keep_option
@mode_option
@click.option("--stall", "stall_s", type=DURATION, metavar="5s", help="C of an asynchronous save.", show_default="5s")
@click.option("--gpu-hourly-usd", "usd_per_h", type=USD, required=True, metavar="USD",
              help="Price of an hour of --gpus-per-price GPUs.")
@click.option("--gpus-per-price", type=GPUS, default=8, show_default=True, metavar="N", help="GPUs that this price is for.")
@click.option("--gpus-per-node", type=GPUS, default=8, show_default=True, metavar="N", help="GPUs of a node.")
@click.option("--limit", "limit_s", type=DURATION, metavar="24h", help="Time limit of one launch, which ends with a save.")
@click.option("--write-range", type=RANGE, default="30s:20m", show_default=True, metavar="A:B",
              help="Write times to compare.")
@catalog_option
@json_option
def tradeoff(
    params: float, bytes_per_param: float | None, weights: str | None, master: str | None, moments: str | None,
    frozen_params: float | None, nodes: int, mtbi_s: float, keep: int, mode: str, stall_s: float | None, usd_per_h: float,
    gpus_per_price: int, gpus_per_node: int, limit_s: float | None, write_range: tuple[float, float], catalog: Path | None,
    as_json: bool,
) -> None:
    """Fast storage against lost GPU time, in money a year; the best plan, and the region in which others are as good.

    \b
    orch plan tradeoff --params 124.45e9 --nodes 32 --mtbi 200h --mode sync --gpu-hourly-usd 142.416
    orch plan tradeoff --params 124.45e9 --nodes 32 --mtbi 200h --stall 5s --gpu-hourly-usd 142.416 --write-range 1m:30m
    """
    from orchestrator.cli.plan_files import read_catalog
    from orchestrator.planner import tradeoff as money
    from orchestrator.planner.storage import shortest_write_s
    from orchestrator.views.plan_json import tradeoff_json
    from orchestrator.views.plan_storage import tradeoff_lines

    size = size_of(params, bytes_per_param, weights, master, moments, frozen_params, nodes)
    if mode == "sync" and stall_s is not None:
        raise UserError("--stall: a synchronous save stands still for as long as it writes", hint="leave --stall out")
    stall_s = (stall_s or 5.0) if mode == "async" else None
    low_s, high_s = write_range
    require_m_above_c(mtbi_s, stall_s or high_s, "--stall" if stall_s else "--write-range's end")
    bought = read_catalog(catalog)
    job = money.Job(size_bytes=size.size_bytes, nodes=nodes, mtbi_s=mtbi_s, keep=keep, price_usd_per_h=usd_per_h,
                    gpus_per_price=gpus_per_price, gpus_per_node=gpus_per_node, stall_s=stall_s, limit_s=limit_s)
    if limit_s is not None and limit_s <= (stall_s or 0.0) + high_s:
        raise UserError(f"--limit: {format_duration(limit_s)} has no room for a final save of {format_duration(high_s)}",
                        hint="write a longer limit, or a --write-range that ends earlier")
    if low_s < shortest_write_s(bought, size.size_bytes):
        raise UserError(f"--write-range: {format_duration(low_s)}: {NO_EFA}",
                        hint=f"begin it with {_at_least(bought, size.size_bytes)} or later")
    rows = money.rows(bought, job, money.write_times_s(low_s, high_s))
    plans = money.candidates(bought, job, low_s, high_s)
    best, stop_only = money.best(plans), money.best(plans, lambda plan: plan.stop_only_usd)
    flat_s = money.flat_region_s(plans)
    answer(tradeoff_json(rows, best, stop_only, flat_s), tradeoff_lines(bought, size, rows, best, stop_only, flat_s), as_json)


@click.command()
@size_options
@nodes_option
@mtbi_option
@keep_option
@click.option("--shared-share", type=Share(), default="5%", show_default=True, metavar="5%",
              help="Of all interruptions, those that need the shared copy; measure it.")
@click.option("--stall", "stall_s", type=DURATION, default="5s", show_default=True, metavar="5s", help="C of a local save.")
@click.option("--local-write", "local_write_s", type=DURATION, default="30s", show_default=True, metavar="30s",
              help="Until a local save and its replicas are usable, after the stall.")
@click.option("--local-restart", "local_restart_s", type=DURATION, default="5m", show_default=True, metavar="5m",
              help="R from a local copy.")
@click.option("--shared-stall", "shared_stall_s", type=DURATION, metavar="5s",
              help="Extra stall of a save that goes to shared storage too.", show_default="none, one snapshot feeds both")
@click.option("--gpu-hourly-usd", "usd_per_h", type=USD, metavar="USD",
              help="Price of an hour of a node's GPUs: the cheapest is then that of GPU time and storage together.")
@catalog_option
@json_option
def levels(
    params: float, bytes_per_param: float | None, weights: str | None, master: str | None, moments: str | None,
    frozen_params: float | None, nodes: int, mtbi_s: float, keep: int, shared_share: float, stall_s: float,
    local_write_s: float, local_restart_s: float, shared_stall_s: float | None, usd_per_h: float | None, catalog: Path | None,
    as_json: bool,
) -> None:
    """Two levels, local disks with replicas and shared storage: both intervals, the waste, the cheapest file system.

    \b
    orch plan levels --params 124.45e9 --nodes 32 --mtbi 200h --shared-share 5%
    orch plan levels --params 124.45e9 --nodes 32 --mtbi 200h --gpu-hourly-usd 142.416 --json
    """
    from orchestrator.cli.plan_files import read_catalog
    from orchestrator.planner import levels as two
    from orchestrator.planner.tradeoff import HOURS_PER_YEAR
    from orchestrator.views.plan_json import levels_json
    from orchestrator.views.plan_storage import levels_lines

    size = size_of(params, bytes_per_param, weights, master, moments, frozen_params, nodes)
    require_m_above_c(mtbi_s, stall_s)
    bought = read_catalog(catalog)
    local = two.Local(stall_s=stall_s, durable_s=stall_s + local_write_s, restart_s=local_restart_s)
    options = two.options(bought, local, size_bytes=size.size_bytes, nodes=nodes, keep=keep,
                          shared_stall_s=shared_stall_s or 0.0, mtbi_s=mtbi_s, shared_share=shared_share)
    usd_per_year = HOURS_PER_YEAR * nodes * usd_per_h if usd_per_h is not None else None
    best = two.cheapest(options, usd_per_year)
    require_write_within(best.levels.local_interval_s, local_write_s,
                         "local copies are usable in seconds: write --local-write 30s", "--local-write")
    answer(levels_json(best, options), levels_lines(bought, size, local, options, best, shared_share, usd_per_year), as_json)


COMMANDS = (storage, tradeoff, levels)
