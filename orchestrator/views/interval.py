"""M and T* for people: two lines in ``orch status TAG``, the sum worked out in ``orch explain TAG --interval``. Pure."""

from __future__ import annotations

from orchestrator.core.measures import Measured, Spread
from orchestrator.core.reliability import Restarts, Setting, counts
from orchestrator.model import Run
from orchestrator.planner.pooled import Counted, Rate, TwoRates
from orchestrator.units import format_duration, format_size


def hours(value_h: float) -> str:
    """M to three digits, in hours; shorter ones as minutes and seconds."""
    if value_h < 1:
        return format_duration(3600 * value_h)
    return f"{plain(value_h)} h"


def plain(value: float) -> str:
    """Three digits or whole numbers, never a power of ten."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def interval_lines(setting: Setting, restarts: Restarts, in_force_s: float | None) -> list[str]:
    """What is known of M and T*, and what was measured."""
    known, measured = setting.known, setting.measured
    lines = [f"{mtbi(known)}: {counted(known)}"]
    steps = f" = {in_force_s / measured.step_s.median:,.0f} steps" if in_force_s and measured.step_s else ""
    if in_force_s is not None:
        lines.append(f"checkpoint every {format_duration(in_force_s)}{steps}; {_bound(setting)}")
    if setting.levels is not None:
        local, elsewhere = setting.levels.local, setting.levels.elsewhere
        lines.append("no save goes to the node: its interval would be no shorter" if setting.levels.all_shared else
                     f"to the node every {format_duration(local.interval_s)} ({local.bound}); {percent(elsewhere)} of the "
                     "interruptions are taken to need the shared one")
    if setting.waste is not None:
        first, exact = percent(setting.waste.total), setting.waste_exact
        whole = first if exact is None or percent(exact) == first else f"{percent(exact)}, to first order {first}"
        lines.append(f"expected waste {whole}: stalls {percent(setting.waste.stall)}, rework "
                     f"{percent(setting.waste.rework)}, not yet durable {percent(setting.waste.not_yet_durable)}, restarts "
                     + (percent(setting.waste.restart) if restarts.whole_s else "not measured yet"))
    if setting.lead_needed_s is not None and setting.lead_needed_s > setting.lead_s:
        lines.append(f"warning: a final save takes up to {format_duration(setting.lead_needed_s)} (step, save, 10s for the "
                     f"exit), longer than the lead of {format_duration(setting.lead_s)}: lengthen `lead` in the profile, or "
                     "the limit cuts it short")
    return lines + measured_lines(measured, restarts)


def mtbi(known: TwoRates) -> str:
    """M with its interval, as every command names it."""
    low, high = known.mtbi95_h
    return f"M {hours(known.mtbi_h)} (95 %: {hours(low)} to {hours(high)})"


def counted(known: TwoRates) -> str:
    """What M was counted from, and how much of it nobody counted."""
    platform, own = known.platform_counted, known.own_counted
    return (f"{own.interruptions} interruption{'s' if own.interruptions != 1 else ''} of its own in {hours(own.hours)}, "
            f"{platform.interruptions} of the platform in {plain(platform.hours)} node-hours of all runs, a prior worth "
            f"{known.prior_weight:.3g} ({percent(known.prior_share)} of the rate)")


def _bound(setting: Setting) -> str:
    choice = setting.choice
    if choice.bound == "optimum":
        return f"T* = {format_duration(choice.optimum_s)}, bound by nothing"
    if not choice.optimum_s:
        return choice.bound
    words = {"cap": "the cap `checkpoint: at_most` binds", "segment": "the time limit less the lead binds",
             "write time": "the write time binds"}.get(choice.bound, choice.bound)
    return f"T* = {format_duration(choice.optimum_s)}, {words}"


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def measured_lines(measured: Measured, restarts: Restarts) -> list[str]:
    parts = [("C", measured.stall_s), ("to the node", measured.local_stall_s),
             ("first save", measured.first_stall_s), ("write", measured.write_s),
             ("durable", measured.durable_s), ("step", measured.step_s), ("R", restarts.whole_s),
             ("of it queue", restarts.queue_s), ("start-up", restarts.start_s), ("load", restarts.load_s)]
    words = [f"{name} {_seconds(value)}" for name, value in parts if value is not None]
    if measured.slowdown is not None:
        words.append(f"steps {100 * measured.slowdown.median:+.2g} % slower while one is written ({measured.slowdown.count})")
    if measured.size_bytes is not None:
        words.append(f"size {format_size(measured.size_bytes.median)}")
    return [f"measured (median, 10 to 90 %, n): {', '.join(words)}"] if words else ["nothing measured yet"]


def _seconds(value: Spread) -> str:
    return f"{value.median:.3g} s ({value.low:.3g}-{value.high:.3g}, {value.count})"


def worked_out(run: Run, setting: Setting, restarts: Restarts, in_force_s: float | None) -> list[str]:
    """What is so, and behind it the sum, step by step."""
    choice, measured = setting.choice, setting.measured
    lines = [*interval_lines(setting, restarts, in_force_s), "", *_attempts(run), *_rates(setting.known)]
    if measured.stall_s is not None:
        slowed = ""
        if measured.slowdown is not None and measured.cost_s is not None:
            slowed = (f"with sigma = {measured.slowdown.median:.3g} while one is written, C + sigma (t - C) = "
                      f"{measured.cost_s.median:.4g} s; ")
        lines.append(f"C = {measured.stall_s.median:.4g} s, median of {measured.stall_s.count} saves; {slowed}"
                     f"T* = sqrt(2 C M) with Daly's terms = {choice.optimum_s:.6g} s")
    if setting.waste is not None and (setting.levels is None or setting.levels.all_shared):
        waste = setting.waste
        lines.append(f"waste = C/T + T/2M + t/M + R/M = {waste.stall:.3g} + {waste.rework:.3g} + {waste.not_yet_durable:.3g} "
                     f"+ {waste.restart:.3g} = {waste.total:.3g} at T = {choice.interval_s:.6g} s, "
                     f"exactly {setting.waste_exact or 0.0:.3g}")
    lines.append(f"chosen {choice.interval_s:.6g} s ({choice.bound}); in force "
                 + (f"{in_force_s:.6g} s" if in_force_s is not None else "nothing yet")
                 + ("" if choice.bound.startswith("fixed") else
                    "; it changes when that makes stalls and rework more than 1 % smaller"))
    return lines


def _attempts(run: Run) -> list[str]:
    """How each kind of ending entered M."""
    kinds: dict[str, list[int]] = {}
    for attempt in run.attempts:
        kinds.setdefault(f"{attempt.ending or 'runs'}, counts as {counts(run, attempt)}", []).append(attempt.number)
    return [f"attempt{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:20]))}"
            f"{f' and {len(numbers) - 20} more' if len(numbers) > 20 else ''}: {kind}" for kind, numbers in kinds.items()]


def _rates(known: TwoRates) -> list[str]:
    """M, from the counts on."""
    on = known.nodes * known.platform.mean
    low, high = known.mtbi95_h
    nodes = f"{known.nodes} node{'s' if known.nodes != 1 else ''}"
    return [
        _posterior("platform, all runs", "node-hours", known.platform_counted, known.platform_prior, known.platform)
        + f" per node-hour, on {nodes} {on:.6g} per hour",
        _posterior("own, live attempt until now", "hours", known.own_counted, known.own_prior, known.own) + " per hour",
        "each of them E[rate] = (a + n) / (b + E): a prior Gamma(a, b), and n interruptions counted in E",
        f"M = 1 / ({on:.6g} + {known.own.mean:.6g}) = {known.mtbi_h:,.6g} h; 95 % by the sum of both rates: {low:,.6g} to "
        f"{high:,.6g} h"]


def _posterior(name: str, unit: str, seen: Counted, prior: Rate, after: Rate) -> str:
    return (f"{name}: ({prior.shape:.4g} + {seen.interruptions}) / ({prior.hours:,.6g} + {seen.hours:,.6g} {unit}) = "
            f"{after.mean:.4g}")
