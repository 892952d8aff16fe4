"""``orch plan run TAG``: a real run's values, each with where it comes from, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.measures import Measured, Spread
from orchestrator.core.reliability import Setting, restarts
from orchestrator.model import Run
from orchestrator.planner.frameworks import Setting as FrameworkSetting
from orchestrator.planner.interval import shortest_interval_s
from orchestrator.planner.plan import ASSUMED_RESTART_S, Plan, Training, plan_interval
from orchestrator.planner.pooled import TwoRates
from orchestrator.units import format_size
from orchestrator.views.interval import hours, plain
from orchestrator.views.plan import counted, duration, interval_lines, percent, table

ASSUMED_STALL_S = 5.0
ASSUMED_REBUILD_S = 3600.0
SYNCHRONOUS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of a plan. ``source``: measured, given (on the line or in orch.yaml) or assumed."""

    value: float | None
    source: str
    detail: str = ""


def values_of(run: Run, setting: Setting, given: Mapping[str, float | None]) -> dict[str, Value]:
    """From what was measured, unless it is given on the line; what is neither is assumed, or stays unknown (None)."""
    measured, known, profile = setting.measured, setting.known, run.spec.profile
    stall, durable = measured.stall_s, measured.durable_s
    after_stall = _after(stall, durable)
    found = {
        "stall_s": _of(stall, ASSUMED_STALL_S, "save"),
        "write_s": Value(value=after_stall, source="measured", detail="durable less stall") if after_stall is not None
        else Value(value=0.0, source="assumed", detail="a synchronous save"),
        "slowdown": _slowdown(measured),
        "restart_s": _of(restarts(run).whole_s, ASSUMED_RESTART_S, "restart"),
        "mtbi_s": _mtbi(known),
        "step_s": _of(measured.step_s, None, "reading"),
        "size_bytes": _of(measured.size_bytes, None, "save", format_size),
        "nodes": Value(value=profile.nodes, source="given", detail=f"profile {profile.name}"),
        "limit_s": Value(value=profile.time_s, source="given", detail=f"profile {profile.name}"),
        "lead_s": Value(value=profile.lead_s, source="given", detail=f"profile {profile.name}")}
    for name, value in given.items():
        if value is not None:
            found[name] = Value(value=value, source="given", detail="on the line")
    return found


def _slowdown(measured: Measured) -> Value:
    """Sigma, as it enters the T* that the running trainer is told."""
    after_s = _after(measured.stall_s, measured.durable_s)
    if measured.slowdown is None or measured.cost_s is None or measured.stall_s is None or not after_s:
        return Value(value=0.0, source="assumed", detail="steps are as fast while a save is written")
    sigma = max(0.0, measured.cost_s.median - measured.stall_s.median) / after_s
    return Value(value=sigma, source="measured", detail=f"median of {counted(measured.slowdown.count, 'save')}")


def _mtbi(known: TwoRates) -> Value:
    """Measured where counted interruptions make most of the rate; else assumed."""
    low_h, high_h = known.mtbi95_h
    own, platform = known.own_counted, known.platform_counted
    record = (f"{own.interruptions} own in {hours(own.hours)}, {platform.interruptions} of the platform in "
              f"{plain(platform.hours)} node-hours; 95 % {hours(low_h)} to {hours(high_h)}")
    prior = f"a prior of {known.prior_weight:.3g} interruptions' weight"
    if known.prior_share < 0.5:
        return Value(value=known.mtbi_h * 3600, source="measured", detail=f"with {prior}: {record}")
    return Value(value=known.mtbi_h * 3600, source="assumed",
                 detail=f"{percent(known.prior_share)} of the rate is {prior}: {record}")


def _after(stall: Spread | None, durable: Spread | None) -> float | None:
    """The write that went on after the stall; a hair of it is a rename, and the save a synchronous one."""
    if stall is None or durable is None:
        return None
    after_s = durable.median - stall.median
    return after_s if after_s > SYNCHRONOUS * stall.median else 0.0


def _of(spread: Spread | None, assumed: float | None, what: str, text: Callable[[float], str] = duration) -> Value:
    if spread is not None:
        return Value(value=spread.median, source="measured",
                     detail=f"median of {counted(spread.count, what)}, {text(spread.low)} to {text(spread.high)}")
    return Value(value=assumed, source="assumed" if assumed is not None else "unknown", detail="not measured yet")


def training_of(values: Mapping[str, Value], interval_s: float | None = None) -> Training:
    """The plan's starting point; a stall of zero would ask for an interval of zero, so a clock's resolution stands in."""
    def value(name: str) -> float:
        return values[name].value or 0.0

    stall_s = max(value("stall_s"), 0.001)
    training = Training(stall_s=stall_s, mtbi_s=value("mtbi_s"), write_s=value("write_s"), restart_s=value("restart_s"),
                        slowdown=value("slowdown") if value("write_s") else 0.0, limit_s=value("limit_s"),
                        step_s=values["step_s"].value, fixed_interval_s=interval_s)
    return replace(training, limit_s=None) if value("limit_s") <= training.final_save_s else training


def best_plan(values: Mapping[str, Value]) -> Plan:
    """sqrt(2 C M), or the shortest interval without overlapping writes."""
    free = training_of(values)
    shortest_s = shortest_interval_s(free.stall_s, free.write_s)
    return plan_interval(free if free.young_s >= shortest_s else training_of(values, shortest_s))


def values_json(values: Mapping[str, Value]) -> dict[str, Any]:
    return {name: {"value": value.value, "source": value.source, "detail": value.detail} for name, value in values.items()}


_NAMES = {"stall_s": "C, stall", "write_s": "write after it", "slowdown": "slower meanwhile", "restart_s": "R, restart",
          "mtbi_s": "M", "step_s": "step", "size_bytes": "size", "nodes": "nodes", "limit_s": "limit", "lead_s": "lead"}


def run_lines(run: Run, values: Mapping[str, Value], best: Plan, in_force: Plan | None) -> list[str]:
    """The values, and the interval; what else follows comes after it."""
    rows = [(_NAMES[name], _shown(name, value.value), value.source, value.detail) for name, value in values.items()]
    lines = [f"{run.spec.tag}, from what it has shown so far", *(f"  {row}" for row in table(rows, "lrll")), ""]
    lines += interval_lines(best, None, values["restart_s"].source == "assumed", "C + write, so that no write meets the next")
    if in_force is not None:
        now_s, extra = in_force.training.interval_s, in_force.waste_exact - best.waste_exact
        costs = ("while the save before is still being written" if in_force.overlap else
                 f"which wastes {percent(in_force.waste_exact)}, {percent(max(0.0, extra))} more")
        lines.append(f"in force: every {duration(now_s)}, {costs}; "
                     f"`orch explain {run.spec.tag} --interval` says what binds it")
    lead_s = values["lead_s"].value or 0.0
    if lead_s < best.training.lead_needed_s:
        lines.append(f"warning: the lead of {duration(lead_s)} is shorter than a final save needs")
    return lines


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "slowdown":
        return percent(value)
    if name == "nodes":
        return f"{value:g}"
    if name == "size_bytes":
        return format_size(value)
    if name == "mtbi_s":
        return hours(value / 3600)
    return duration(value)


def framework_rows(settings: Sequence[FrameworkSetting]) -> list[str]:
    """One line each."""
    rows = [(s.framework.name, " ".join(s.settings)) for s in settings]
    return [f"  {row}" for row in table(rows, "ll")]


def plan_in_force(values: Mapping[str, Value], interval_s: float | None) -> Plan | None:
    """The same at the interval that the run has now; None before the first, or where it is not longer than the stall."""
    training = training_of(values, interval_s)
    if interval_s is None or interval_s <= training.effective_stall_s:
        return None
    return plan_interval(training)
