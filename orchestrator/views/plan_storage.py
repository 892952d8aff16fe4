"""File systems and what they cost, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.planner.levels import Local, Option
from orchestrator.planner.size import Size
from orchestrator.planner.storage import Catalog, FileSystem, required_throughput_bytes_per_s
from orchestrator.planner.tradeoff import FLAT, Plan, Priced
from orchestrator.views.plan import decimal, duration, people_count, percent, table, usd


def catalog_line(catalog: Catalog) -> str:
    derived = " (* derived, look them up)" if any(o.price == "derived" for o in catalog.offers) else ""
    return f"{catalog.name}; {catalog.region}, prices of {catalog.price_date}{derived}"


def _of(size: Size) -> str:
    return f"{decimal(size.size_bytes)} ({people_count(size.params)} parameters x {size.bytes_per_param:.4g} B)"


def named(system: FileSystem) -> str:
    efa = " with EFA" if system.offer.efa else ""
    return f"{system.offer.throughput_class:g} MB/s/TiB{efa}, {system.capacity_gib:,} GiB"


def storage_lines(catalog: Catalog, size: Size, choices: Sequence[Priced], best: Priced) -> list[str]:
    """``orch plan storage``."""
    plan = best.plan
    kind = "asynchronously" if plan.job.stall_s is not None else "synchronously"
    required = required_throughput_bytes_per_s(size.size_bytes, plan.write_s)
    lines = [f"{_of(size)} written {kind} in {duration(plan.write_s)}: {decimal(required, 'B/s')}   W = S / t_w",
             catalog_line(catalog), ""]
    rows: list[tuple[str, ...]] = [("MB/s/TiB", "EFA", "GiB", "SET BY", "BASELINE", "USD/MONTH", "R", "WASTE", "")]
    for choice in sorted(choices, key=lambda c: c.plan.system.monthly_usd):
        system = choice.plan.system
        rows.append((
            f"{system.offer.throughput_class:g}", "yes" if system.offer.efa else "no", f"{system.capacity_gib:,}",
            system.set_by, decimal(system.baseline_bytes_per_s, "B/s"),
            usd(system.monthly_usd) + ("*" if system.offer.price == "derived" else ""),
            duration(choice.plan.restart_s), percent(choice.plan.waste.total),
            ", ".join(["cheapest"] * (choice is best) + ["one node cannot write so fast"] * choice.client_limited)))
    lines += table(rows, "rlrlrrrrl")
    lines += ["", f"a node writes {decimal(1e9 * best.client_needs_gbps, 'bit/s')}   8 S / (N t_w); to the cheapest it can "
                  f"write {decimal(1e9 * best.client_cap_gbps, 'bit/s')}",
              f"capacity holds {plan.job.keep} generations and sustains W; T* = {duration(plan.interval_s)}, "
              "R = 10m + S / baseline, waste to first order"]
    if all(choice.plan.system.offer.efa for choice in choices):
        lines.append(f"above {decimal(catalog.efa_above_bytes_per_s, 'B/s')} EFA is needed, which only creation can choose")
    if best.client_limited:
        lines.append("warning: whatever is bought, one node cannot write its part in that time")
    return lines


def tradeoff_lines(
    catalog: Catalog, size: Size, rows: Sequence[Plan], best: Plan, stop_only: Plan, flat_s: tuple[float, float],
) -> list[str]:
    """``orch plan tradeoff``."""
    job = best.job
    lines = [f"{_of(size)} on {job.nodes} nodes that cost {usd(job.usd_per_year)} USD a year",
             catalog_line(catalog), ""]
    cells: list[tuple[str, ...]] = [
        ("STALL", "WRITE", "T*", "STANDING GPU h", "STANDING", "LOST WORK", "STORAGE", "TOTAL", "FILE SYSTEM")]
    cells += [_plan_row(plan) for plan in rows]
    lines += table(cells, "rrrrrrrrl")
    lines += ["", f"best: {_named(best)}, {usd(best.total_usd)} USD a year, saves every "
                  f"{duration(best.interval_s)}, waste {percent(best.waste.total)}",
              f"as good, within {percent(FLAT)}: writes of {duration(flat_s[0])} to {duration(flat_s[1])}",
              f"counting standing GPUs and storage alone: {_named(stop_only)}, {usd(stop_only.stop_only_usd)} USD a year",
              f"standing C/T, lost work (T/2 + t + R)/M{' and planned stops' if job.limit_s is not None else ''} of the "
              "GPUs' price, R = 10m + S / baseline; storage the cheapest"]
    return lines


def _named(plan: Plan) -> str:
    return f"a write of {duration(plan.write_s)} ({named(plan.system)})"


def _plan_row(plan: Plan) -> tuple[str, ...]:
    return (duration(plan.stall_s), duration(plan.write_s), duration(plan.interval_s),
            usd(plan.stopped_gpu_hours), usd(plan.stopped_usd), usd(plan.lost_work_usd), usd(plan.storage_usd),
            usd(plan.total_usd), named(plan.system) + (", one node cannot write so fast" if plan.client_limited else ""))


def levels_lines(
    catalog: Catalog, size: Size, local: Local, options: Sequence[Option], best: Option, shared_share: float,
    usd_per_year: float | None,
) -> list[str]:
    """``orch plan levels``."""
    two = best.levels
    lines = [f"{_of(size)}; local saves every {duration(two.local_interval_s)}   sqrt(2 C1 M / (1-q)), "
             f"q = {percent(shared_share)}",
             f"to shared storage every {duration(two.shared_interval_s)}, a multiple of it and no shorter than the "
             f"write of {duration(best.write_s)}",
             f"waste {percent(two.waste)}: {percent(two.local.total)} local, {percent(two.shared.total)} shared; "
             f"{percent(best.alone.total)} with this file system alone", catalog_line(catalog), ""]
    rows: list[tuple[str, ...]] = [("FILE SYSTEM", "USD/MONTH", "WRITE", "TO SHARED", "WASTE", "ALONE", "")]
    shown = [*options[:8], *([best] if best not in options[:8] else [])]
    rows += [(named(o.system), usd(o.system.monthly_usd) + ("*" if o.system.offer.price == "derived" else ""),
              duration(o.write_s), duration(o.levels.shared_interval_s), percent(o.levels.waste),
              percent(o.alone.total), "cheapest" if o is best else "") for o in shown]
    lines += table(rows, "lrrrrrl")
    what = "with the GPU time that it wastes" if usd_per_year is not None else "to rent"
    lines += ["", f"cheapest {what}; C1 = {duration(local.stall_s)}, t1 = {duration(local.durable_s)}, "
                  f"R1 = {duration(local.restart_s)}"]
    return lines


def run_storage_lines(
    size_bytes: float, per_node_bytes: float, write_s: float, keep: int, best: Priced, catalog: Catalog,
) -> list[str]:
    """For a real run: what its saves need, in two lines."""
    system = best.plan.system
    note = "; one node could not write so fast" if best.client_limited else ""
    return ["", f"a checkpoint of {decimal(size_bytes)} ({decimal(per_node_bytes)} a node) in {duration(write_s)}: "
                f"{decimal(size_bytes / write_s, 'B/s')}, {keep} of them {decimal(keep * size_bytes)}",
            f"cheapest of {catalog.name}, {catalog.price_date}: {named(system)}, {usd(system.monthly_usd)} USD a month{note}"]


def run_levels_line(best: Option) -> str:
    """Two levels for a real run, in one line."""
    two = best.levels
    return (f"with local copies and 5 % of interruptions needing the shared one (assumed): every "
            f"{duration(two.local_interval_s)} locally, {duration(two.shared_interval_s)} to "
            f"{named(best.system)}, waste {percent(two.waste)}")


def run_tradeoff_line(best: Plan, flat_s: tuple[float, float]) -> str:
    """The best write time for a real run, in one line."""
    return (f"best with the GPUs' price: {_named(best)}, {usd(best.total_usd)} USD a year; as good from "
            f"{duration(flat_s[0])} to {duration(flat_s[1])}")
