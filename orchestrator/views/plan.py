"""The answers of ``orch plan`` as text: what to do first, what it comes from beside it, and the formula's name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.planner.frameworks import Setting, tolerable_s
from orchestrator.planner.plan import Plan, ShapeGain, Training
from orchestrator.planner.simulate import Result, World
from orchestrator.planner.size import Size
from orchestrator.planner.stops import EXIT_MARGIN_S
from orchestrator.units import format_duration


def percent(share: float) -> str:
    """Three digits; whole numbers from ten on."""
    value = 100 * share
    if abs(value) < 1e-12:
        return "0 %"
    return f"{value:,.0f} %" if abs(value) >= 99.5 else f"{value:.3g} %"


def duration(seconds: float) -> str:
    """As everywhere, with three digits below ten seconds: stalls are often much shorter than one."""
    return f"{seconds:.3g}s" if seconds < 9.995 else format_duration(seconds)


def decimal(value: float, unit: str = "B") -> str:
    """``1.74 TB``, ``5.81 GB/s``: powers of 1000, as storage is sold."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < 1000 or prefix == "P":
            break
        value /= 1000
    return f"{value:.4g} {prefix}{unit}" if abs(value) >= 1000 else f"{value:.3g} {prefix}{unit}"


def people_count(value: float) -> str:
    """``124.45 billion``."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.5g} {name}"
    return f"{value:,.0f}"


def counted(number: int, what: str) -> str:
    """``1 interruption``, ``2 interruptions``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def usd(value: float) -> str:
    return f"{value:,.0f}"


def hours(seconds: float) -> str:
    """M as people say it: in hours, or shorter."""
    if seconds < 3600:
        return duration(seconds)
    return f"{seconds / 3600:.4g} h" if seconds < 3600 * 9999.5 else f"{seconds / 3600:,.0f} h"


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Columns two blanks apart, each ``l``eft or ``r``ight."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    return ["  ".join(cell.ljust(width) if side == "l" else cell.rjust(width)
                      for cell, width, side in zip(row, widths, align, strict=True)).rstrip() for row in rows]


def interval_lines(plan: Plan, gain: ShapeGain | None, assumed: bool, fixed: str = "as given") -> list[str]:
    """``orch plan interval``; ``assumed``: nobody gave R; ``fixed``: why the interval is another than the best, if it is."""
    training = plan.training
    steps = f" = {counted(plan.interval_steps, 'step')}" if plan.interval_steps is not None else ""
    named = fixed if training.fixed_interval_s is not None else _formula(training)
    best_s = training.young_s
    lines = [f"checkpoint every {duration(training.interval_s)}{steps}   {named}"]
    if training.fixed_interval_s is not None:
        lines.append(f"the best would be {duration(best_s)}   {_formula(training)}")
    lines += [f"with Daly's terms {duration(training.daly_s)}   {_daly(training)}",
              *([f"exactly {duration(training.exact_s)}   M [1 + C/M + W0(-exp(-1 - C/M))], Lambert's W"]
                if training.exact_s is not None else []), "",
              f"waste {percent(plan.waste_exact)} of all time, exactly; to first order {percent(plan.waste.total)}, made of"]
    durable = f"t = C + write = {duration(training.durable_s)}" if training.write_at_interval_s else "t = C"
    parts = [("stall", plan.waste.stall, "C / T"), ("rework", plan.waste.rework, "T / 2M"),
             ("not yet durable", plan.waste.not_yet_durable, f"t / M, {durable}"),
             ("restart", plan.waste.restart, f"R / M, R = {duration(training.restart_s)}{_assumed(assumed)}")]
    if training.limit_s is not None:
        parts.append(("planned stops", plan.waste.planned,
                      f"(C + write + R) at every limit of {duration(training.limit_s)}; they do not enter M"))
    lines += [f"  {row}" for row in table([(name, percent(value), formula) for name, value, formula in parts], "lrl")]
    lines += ["", f"an interruption costs {duration(plan.lost_work_mean_s)} of work on average (T/2 + t), "
                  f"{duration(plan.lost_work_max_s)} at most (T + t)",
              f"a stop must be announced {duration(training.lead_needed_s)} before it, at least   "
              f"{'step + ' if training.step_s else ''}C{' + write' if training.write_at_interval_s else ''} + "
              f"{EXIT_MARGIN_S:.0f}s for the exit"]
    lines += _gain_lines(gain, training) if gain is not None else []
    return lines + [f"warning: {text}" for text in plan.warnings]


def _formula(training: Training) -> str:
    c = f"C = {duration(training.stall_s)}"
    m = f"M = {hours(training.mtbi_s)}"
    if training.stretch is not None:
        return f"T* = sqrt(2CM / (1 + 2 phi)), {c}, {m}, the write stretched over phi = {training.stretch:g} of it"
    if training.slowdown:
        return (f"T* = sqrt(2CM), C = {duration(training.stall_s)} + {training.slowdown:g} x write = "
                f"{duration(training.effective_stall_s)}, {m}")
    return f"T* = sqrt(2CM), {c}, {m}"


def _daly(training: Training) -> str:
    if training.stretch is not None:
        return "T* (1 + x/3 + x^2/9), x = sqrt(C/2M / (1 + 2 phi))"
    return "sqrt(2CM) (1 + x/3 + x^2/9), x = sqrt(C/2M)"


def _assumed(restart: bool) -> str:
    return " (assumed)" if restart else ""


def _gain_lines(gain: ShapeGain, training: Training) -> list[str]:
    first = ", ".join(duration(value) for value in gain.first_intervals_s)
    told = (f"it takes about {counted(gain.intervals_to_tell, 'interruption')} to tell this shape from an exponential"
            if gain.intervals_to_tell is not None else "a shape of 1 is the exponential itself")
    aside = ", planned stops aside" if training.limit_s is not None else ""
    return ["", f"with a Weibull shape of {gain.shape:g}, saving by the hazard wastes {percent(gain.waste_schedule)} instead "
                f"of {percent(gain.waste_fixed)}: {percent(gain.gain)} of all time gained{aside}",
            f"  intervals after a restart {first}, then longer; {told}", "  off by default: a wrong shape costs too"]


def size_lines(size: Size) -> list[str]:
    """``orch plan size``."""
    lines = [f"checkpoint {decimal(size.size_bytes)}   S = P b, {people_count(size.params)} parameters x "
             f"{size.bytes_per_param:.4g} B",
             f"a node's share {decimal(size.per_node_bytes)}   S / {size.nodes}"]
    rows = [(name.replace("_", " "), decimal(value), percent(value / size.size_bytes))
            for name, value in size.components_bytes.items()]
    return lines + [f"  {row}" for row in table(rows, "lrr")]


def framework_lines(interval_s: float, step_s: float, steps: int, settings: Sequence[Setting]) -> list[str]:
    """``orch plan framework``."""
    low_s, high_s = tolerable_s(interval_s, 0.05)
    lines = [f"{duration(interval_s)} = {steps:,} steps of {step_s:g} s; anything from {duration(low_s)} to "
             f"{duration(high_s)} costs at most 5 % more stalls and rework"]
    for setting in settings:
        framework = setting.framework
        lines += ["", f"{framework.name}", *(f"    {line}" for line in setting.settings)]
        lines.append(f"  default: {framework.default}; asynchronous saves {framework.default_async}")
        lines.append(f"  left alone: {left_alone(setting)}")
        lines.append(f"  {framework.note}")
    return lines


def left_alone(setting: Setting) -> str:
    if setting.excess is not None and setting.default_interval_s is not None:
        return f"every {duration(setting.default_interval_s)}, {percent(setting.excess)} more stalls and rework"
    if "epoch" in setting.framework.default:
        return "as good or bad as the length of an epoch"
    return "an interruption loses everything since the start"


def simulation_lines(world: World, distribution: str, results: Sequence[Result], seed: int) -> list[str]:
    """``orch plan simulate``."""
    best = min(results, key=lambda r: r.waste)
    limit = f", limit {duration(world.limit_s)}" if world.limit_s is not None else ""
    lines = [f"{results[0].interruptions:,} interruptions in {results[0].launches:,} launches, {distribution}, M = "
             f"{hours(world.mtbi_s)}, C = {duration(world.stall_s)}, write {duration(world.write_s)}, R = "
             f"{duration(world.restart_s)}{limit}, seed {seed}", ""]
    rows: list[tuple[str, ...]] = [("POLICY", "EVERY", "WASTE", "+-", "EXACT", "")]
    for result in results:
        every = duration(result.policy.interval_s) if result.policy.interval_s is not None else "by age"
        rows.append((result.policy.name, every, f"{100 * result.waste:.4f} %", f"{100 * result.standard_error:.4f} %",
                     f"{100 * result.exact:.4f} %" if result.exact is not None else "",
                     "least" if result is best else f"{100 * (result.waste - best.waste):+.4f}"))
    return lines + table(rows, "lrrrrl")
