"""``orch reliability``: what all runs together say of interruptions, as text and for programs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orchestrator.planner.change import SURE
from orchestrator.planner.exposure import OWN, PLATFORM
from orchestrator.planner.pooled import TwoRates
from orchestrator.planner.record import Record
from orchestrator.planner.suspects import Suspect
from orchestrator.planner.weibull import gain_ratio, intervals_to_tell
from orchestrator.views.interval import hours, plain
from orchestrator.views.plan import counted, percent, table

NODES_SHOWN = 10
RUNS_SHOWN = 20


def reliability_json(record: Record) -> dict[str, Any]:
    fit, moved = record.shape, record.change
    return {
        "attempts": record.attempts, "exposure_h": record.hours, "exposure_node_h": record.node_hours,
        "interruptions": record.interruptions, "endings": record.endings,
        "platform": {"interruptions": record.platform.interruptions, "node_hours": record.platform.hours},
        "by_nodes": [{"nodes": n.nodes, "runs": n.runs, "exposure_h": n.hours, "interruptions": n.interruptions,
                      **_rates(n.known)} for n in record.by_nodes],
        "runs": [{"tag": r.tag, "nodes": r.nodes, "exposure_h": r.hours, "interruptions_own": r.own_interruptions,
                  "interruptions_platform": r.platform_interruptions, **_rates(r.known)} for r in record.runs],
        "change": {"detected": moved.detected, "p": moved.p, "ratio": moved.ratio, "at_share_of_running": moved.split,
                   "before": moved.before, "after": moved.after} if moved else None,
        "smallest_ratio_seen": record.ratio_seen,
        "weibull": {"shape": fit.shape, "shape95": list(fit.shape95), "mtbi_h": fit.mtbi_h,
                    "interruptions": fit.interruptions, "p_exponential": fit.p_exponential} if fit else None,
        "nodes": [{"node": s.node, "interruptions": s.interruptions, "expected": s.expected, "exposure_h": s.hours,
                   "p": s.p, "p_corrected": s.p_holm, "worse": s.worse} for s in record.suspects]}


def _rates(known: TwoRates) -> dict[str, Any]:
    return {"mtbi_h": known.mtbi_h, "mtbi95_h": list(known.mtbi95_h), "platform_per_node_h": known.platform.mean,
            "own_per_h": known.own.mean, "prior_interruptions": known.prior_weight}


def reliability_lines(record: Record) -> list[str]:
    """The whole, densest first."""
    lines = [f"{counted(record.interruptions, 'interruption')} in {hours(record.hours)} of running "
             f"({plain(record.node_hours)} node-hours), {counted(record.attempts, 'attempt')}",
             "", *_ending_lines(record), "", *_nodes_lines(record)]
    if len(record.runs) > 1:
        lines += ["", *_run_lines(record)]
    lines += ["", change_line(record), shape_line(record)]
    return [*lines, "", *_suspect_lines(record.suspects)] if record.suspects else lines


def in_m(ending: str) -> str:
    """What such an attempt is to M."""
    return "platform's" if ending in PLATFORM else "run's own" if ending in OWN else "exposure only"


def _ending_lines(record: Record) -> list[str]:
    most = max(record.endings.values(), default=1)
    rows: list[tuple[str, ...]] = [("ENDING", "ATTEMPTS", "", "IN M")]
    for ending, count in record.endings.items():
        rows.append((ending, str(count), "#" * max(1, round(20 * count / most)), in_m(ending)))
    return table(rows, "lrll")


def _nodes_lines(record: Record) -> list[str]:
    """M with its 95 % interval drawn on a common logarithmic scale."""
    spans = [(n.known.mtbi95_h[0], n.known.mtbi95_h[1]) for n in record.by_nodes]
    low_h, high_h = min(a for a, _ in spans), max(b for _, b in spans)
    rows: list[tuple[str, ...]] = [("NODES", "RUNS", "RAN", "INTERRUPTIONS", "M", "95 %", "PLATFORM", "")]
    for entry in record.by_nodes:
        known = entry.known
        low, high = known.mtbi95_h
        rows.append((str(entry.nodes), str(entry.runs), hours(entry.hours), str(entry.interruptions),
                     hours(known.mtbi_h), f"{hours(low)} to {hours(high)}",
                     percent(known.nodes * known.platform.mean / known.rate_per_h),
                     span(low, known.mtbi_h, high, low_h, high_h)))
    weight = record.by_nodes[0].known.prior_weight
    return [*table(rows, "rrrrrrrl"), f"M = 1 / (nodes x platform's rate per node-hour + own rate per hour), priors worth "
            f"{weight:.3g} interruptions; platform: its share of the rate"]


def span(low: float, middle: float, high: float, least: float, most: float, width: int = 24) -> str:
    """``---o------`` on a logarithmic scale from ``least`` to ``most``."""
    def place(value: float) -> int:
        share = math.log(value / least) / math.log(most / least) if most > least else 0.5
        return round(min(1.0, max(0.0, share)) * (width - 1))

    cells = [" "] * width
    for index in range(place(low), place(high) + 1):
        cells[index] = "-"
    cells[place(middle)] = "o"
    return "".join(cells).rstrip()


def _run_lines(record: Record) -> list[str]:
    rows: list[tuple[str, ...]] = [("RUN", "NODES", "RAN", "PLATFORM", "OWN", "M", "95 %")]
    for run in sorted(record.runs, key=lambda run: -run.hours)[:RUNS_SHOWN]:
        low, high = run.known.mtbi95_h
        rows.append((run.tag, str(run.nodes), hours(run.hours), str(run.platform_interruptions),
                     str(run.own_interruptions), hours(run.known.mtbi_h), f"{hours(low)} to {hours(high)}"))
    more = len(record.runs) - RUNS_SHOWN
    return table(rows, "lrrrrrr") + ([f"and {more} that ran less; --json has all"] if more > 0 else [])


def change_line(record: Record) -> str:
    if record.change is None:
        return "change of the rate: too few interruptions to say (four are the least)"
    smallest = f"halves would have to differ {record.ratio_seen:.2g}-fold to be seen" if record.ratio_seen else ""
    if not record.change.detected:
        return f"change of the rate: none to be seen (p = {record.change.p:.2g}); {smallest}"
    ratio = record.change.ratio
    how = f"{ratio:.2g} times the rate before" if ratio is not None else "none before or none after"
    return (f"change of the rate: yes (p = {record.change.p:.2g}), likeliest after {percent(record.change.split)} of "
            f"all running: {record.change.before} before, {record.change.after} after, {how}")


def shape_line(record: Record) -> str:
    fit = record.shape
    if fit is None:
        return "shape of the intervals: too few interruptions to say, or all alike (three that differ are the least)"
    words = (f"shape of the intervals: Weibull {fit.shape:.2g} (95 %: {fit.shape95[0]:.2g} to {fit.shape95[1]:.2g}), "
             f"p = {fit.p_exponential:.2g} against an exponential")
    if fit.p_exponential >= SURE:
        return f"{words}: save at a fixed interval"
    gain = 1 - gain_ratio(fit.shape) if fit.shape < 1 else 0.0
    return (f"{words}: saving by the hazard would gain {percent(gain)} of stalls and rework; it takes about "
            f"{intervals_to_tell(fit.shape)} interruptions to tell such a shape")


def _suspect_lines(suspects: Sequence[Suspect]) -> list[str]:
    rows: list[tuple[str, ...]] = [("NODE", "RAN", "INTERRUPTIONS", "EXPECTED", "P", "WITH ALL NODES", "")]
    for suspect in suspects[:NODES_SHOWN]:
        rows.append((suspect.node, hours(suspect.hours), str(suspect.interruptions), plain(suspect.expected),
                     f"{suspect.p:.2g}", f"{suspect.p_holm:.2g}", "worse than chance" if suspect.worse else ""))
    more = f", {len(suspects) - NODES_SHOWN} more not shown" if len(suspects) > NODES_SHOWN else ""
    return [*table(rows, "lrrrrrl"), "node failures, vanished, crashes and hung trainers at attempts with that node; p "
            f"corrected for all nodes (Holm){more}"]
