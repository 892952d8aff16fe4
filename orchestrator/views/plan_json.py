"""The answers of ``orch plan`` for programs. Keys are stable; units stand last in them; shares are of 1. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.planner.frameworks import Setting
from orchestrator.planner.levels import Option
from orchestrator.planner.plan import Plan, ShapeGain
from orchestrator.planner.simulate import Result
from orchestrator.planner.size import Size
from orchestrator.planner.storage import FileSystem
from orchestrator.planner.tradeoff import Plan as YearlyPlan
from orchestrator.planner.tradeoff import Priced


def interval_json(plan: Plan, gain: ShapeGain | None = None) -> dict[str, Any]:
    parts, training = plan.waste, plan.training
    data: dict[str, Any] = {
        "interval_s": training.interval_s, "interval_steps": plan.interval_steps, "interval_daly_s": training.daly_s,
        "waste": parts.total, "waste_exact": plan.waste_exact,
        "waste_parts": {"stall": parts.stall, "rework": parts.rework, "not_yet_durable": parts.not_yet_durable,
                        "restart": parts.restart, "planned": parts.planned},
        "lost_work_mean_s": plan.lost_work_mean_s, "lost_work_max_s": plan.lost_work_max_s, "overlap": plan.overlap,
        "lead_needed_s": training.lead_needed_s, "warnings": list(plan.warnings)}
    if gain is not None:
        data["weibull"] = {"shape": gain.shape, "waste": gain.waste_schedule, "waste_fixed": gain.waste_fixed,
                           "gain": gain.gain, "interruptions_to_tell": gain.intervals_to_tell,
                           "first_intervals_s": list(gain.first_intervals_s)}
    return data


def size_json(size: Size) -> dict[str, Any]:
    return {"size_bytes": size.size_bytes, "size_per_node_bytes": size.per_node_bytes,
            "bytes_per_param": size.bytes_per_param, "components": size.components_bytes}


def replication_json(fixed: float, exact: float, approx: float, allowed: Sequence[int]) -> dict[str, Any]:
    return {"loss_fixed_group": fixed, "loss_random_exact": exact, "loss_random_approx": approx,
            "allowed_factors": list(allowed)}


def framework_json(interval_s: float, steps: int, settings: Sequence[Setting]) -> dict[str, Any]:
    return {"interval_s": interval_s, "interval_steps": steps, "frameworks": [
        {"framework": s.framework.name, "settings": list(s.settings), "default": s.framework.default,
         "default_async": s.framework.default_async, "default_interval_s": s.default_interval_s,
         "lost_by_default": s.excess, "note": s.framework.note} for s in settings]}


def simulation_json(distribution: str, trials: int, seed: int, results: Sequence[Result]) -> dict[str, Any]:
    return {"distribution": distribution, "trials": trials, "seed": seed, "policies": [
        {"policy": r.policy.name, "interval_s": r.policy.interval_s, "waste": r.waste, "standard_error": r.standard_error,
         "exact": r.exact, "interruptions": r.interruptions} for r in results]}


def storage_json(required_bytes_per_s: float, choices: Sequence[Priced], best: Priced) -> dict[str, Any]:
    return {"required_throughput_bytes_per_s": required_bytes_per_s, "choices": [_choice(c) for c in choices],
            "cheapest": _choice(best)}


def _choice(choice: Priced) -> dict[str, Any]:
    return {**_system(choice.plan.system), "waste": choice.plan.waste.total, "restart_s": choice.plan.restart_s,
            "client_limited": choice.client_limited}


def _system(system: FileSystem) -> dict[str, Any]:
    number = system.offer.throughput_class
    return {"class": int(number) if number == int(number) else number, "efa": system.offer.efa,
            "capacity_gib": system.capacity_gib, "baseline_bytes_per_s": system.baseline_bytes_per_s,
            "monthly_usd": system.monthly_usd, "set_by": system.set_by}


def tradeoff_json(
    rows: Sequence[YearlyPlan], best: YearlyPlan, stop_only: YearlyPlan, flat_s: tuple[float, float],
) -> dict[str, Any]:
    return {"rows": [_row(plan) for plan in rows], "optimum": optimum_json(best),
            "optimum_stop_only": {**optimum_json(stop_only), "total_usd": stop_only.stop_only_usd},
            "flat_region": list(flat_s)}


def _row(plan: YearlyPlan) -> dict[str, Any]:
    return {"stall_s": plan.stall_s, "write_s": plan.write_s, "stopped_gpu_hours": plan.stopped_gpu_hours,
            "stopped_usd": plan.stopped_usd, "storage_usd": plan.storage_usd, "lost_work_usd": plan.lost_work_usd,
            "total_usd": plan.total_usd}


def optimum_json(plan: YearlyPlan) -> dict[str, Any]:
    return {**_row(plan), **_system(plan.system), "interval_s": plan.interval_s, "waste": plan.waste.total}


def levels_json(best: Option, options: Sequence[Option], at_most: int = 20) -> dict[str, Any]:
    two = best.levels
    return {"local_interval_s": two.local_interval_s, "shared_interval_s": two.shared_interval_s, "waste": two.waste,
            "waste_shared_only": best.alone.total, "waste_parts": {"local": two.local.total, "shared": two.shared.total},
            "cheapest": _option(best), "choices": [_option(option) for option in options[:at_most]]}


def _option(option: Option) -> dict[str, Any]:
    return {**_system(option.system), "write_s": option.write_s, "local_interval_s": option.levels.local_interval_s,
            "shared_interval_s": option.levels.shared_interval_s, "waste": option.levels.waste,
            "waste_shared_only": option.alone.total}
