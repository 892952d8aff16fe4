"""``orch plan run``: the plan of a real run, from what it has shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.completion import complete_run
from orchestrator.cli.plan_options import (
    DURATION,
    KEEP,
    Count,
    Duration,
    Number,
    answer,
    catalog_option,
    json_option,
    require_m_above_c,
)
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.planner.plan import Plan
    from orchestrator.planner.storage import Catalog
    from orchestrator.views.plan_run import Value


class Size(Duration):
    """Bytes from ``1.7T``; powers of 1024, as orch writes sizes everywhere."""

    name = "size"

    def parse(self, text: str) -> float:
        from orchestrator.units import parse_size_bytes

        size_bytes = parse_size_bytes(text)
        if not 0 < size_bytes < 1e16:
            raise ValueError(f"{text} is not a checkpoint's size (write for example 36G)")
        return float(size_bytes)


@click.command(name="run")
@click.argument("tag", shell_complete=complete_run)
@click.option("--stall", "stall_s", type=DURATION, metavar="5s", help="C, in place of what was measured.")
@click.option("--write", "write_s", type=DURATION, metavar="5m", help="The write after it, in place of what was measured.")
@click.option("--restart", "restart_s", type=DURATION, metavar="15m", help="R, in place of what was measured.")
@click.option("--mtbi", "mtbi_s", type=DURATION, metavar="200h", help="M, in place of what was counted.")
@click.option("--step-time", "step_s", type=DURATION, metavar="1.2s", help="Of one step, in place of what was measured.")
@click.option("--size", "size_bytes", type=Size(), metavar="1.6T", help="Of a checkpoint, in place of what was measured.")
@click.option("--keep", type=KEEP, metavar="N", help="Generations that stay.", show_default="the run's and one being written")
@click.option("--gpu-hourly-usd", "usd_per_h", type=Number("USD", 1e9, "142.416"), metavar="USD",
              help="Price of an hour of a node's GPUs: adds the trade-off against storage.")
@click.option("--gpus-per-node", type=Count("GPUs", 1, 10_000), default="8", show_default=True, metavar="N",
              help="GPUs of a node, for the GPU hours that stand still.")
@catalog_option
@json_option
def run_command(
    tag: str, keep: int | None, usd_per_h: float | None, gpus_per_node: int, catalog: Path | None, as_json: bool,
    **given: float | None,
) -> None:
    """All of it for a real run, from its measured stall, write, restart, step and size and its counted M; says for each value
    whether it was measured, given or assumed.

    \b
    orch plan run resnet-a
    orch plan run resnet-a --restart 10m --json
    """
    from orchestrator.cli.context import open_ports
    from orchestrator.cli.plan_files import read_catalog
    from orchestrator.control.look import look_at
    from orchestrator.views.plan_json import interval_json
    from orchestrator.views.plan_run import best_plan, plan_in_force, run_lines, values_json, values_of

    ports, _ = open_ports(any_config=True)
    seen = look_at(ports, tag)
    values = values_of(seen.run, seen.setting, given)
    require_m_above_c(values["mtbi_s"].value or 0.0, values["stall_s"].value or 0.0, "the stall of")
    best = best_plan(values)
    in_force = plan_in_force(values, seen.run.interval_s)
    kept = keep or seen.run.spec.policy(ports.policy).checkpoints_kept + 1
    data: dict[str, Any] = {"tag": tag, "inputs": values_json(values), "keep": kept, "interval": interval_json(best),
                            "in_force": interval_json(in_force) if in_force else None}
    lines = run_lines(seen.run, values, best, in_force)
    for more_data, more_lines in (_storage(values, best, kept, usd_per_h, gpus_per_node, read_catalog(catalog)),
                                  _copies(values), _settings(values, best)):
        data |= more_data
        lines += more_lines
    answer(data, lines, as_json)


Part = tuple[dict[str, Any], list[str]]


def _storage(
    values: dict[str, Value], best: Plan, keep: int, usd_per_h: float | None, gpus_per_node: int, catalog: Catalog,
) -> Part:
    """Size, shared storage, two levels, and the trade-off where a price is given."""
    from orchestrator.planner import levels, tradeoff
    from orchestrator.planner.size import Size as Whole
    from orchestrator.planner.storage import shortest_write_s
    from orchestrator.views import plan_json as to_json
    from orchestrator.views import plan_storage as to_text

    size_bytes, nodes = values["size_bytes"].value, int(values["nodes"].value or 1)
    if not size_bytes:
        return {"size": None, "storage": None, "levels": None, "tradeoff": None}, [
            "", "no save has been measured yet, so its size is unknown: --size, or wait for the first one"]
    size = Whole(params=0, nodes=nodes, components_bytes={"whole": size_bytes})
    synchronous = not best.training.write_s
    write_s = best.training.stall_s if synchronous else best.training.write_s
    job = tradeoff.Job(size_bytes=size_bytes, nodes=nodes, mtbi_s=best.training.mtbi_s, keep=keep,
                       stall_s=None if synchronous else best.training.stall_s, price_usd_per_h=usd_per_h or 0.0,
                       gpus_per_price=gpus_per_node, gpus_per_node=gpus_per_node)
    priced = tradeoff.priced(catalog, job, write_s)
    if not priced:
        raise UserError("--catalog: nothing in it writes as fast as this run does")
    cheapest = tradeoff.cheapest(priced)
    options = levels.options(catalog, levels.Local(stall_s=best.training.stall_s, durable_s=best.training.stall_s + 30,
                                                   restart_s=300.0),
                             size_bytes=size_bytes, nodes=nodes, keep=keep, shared_stall_s=0.0, mtbi_s=best.training.mtbi_s,
                             shared_share=0.05, fastest_write_s=min(30.0, write_s))
    data: dict[str, Any] = {
        "size": {"size_bytes": size_bytes, "size_per_node_bytes": size.per_node_bytes},
        "storage": to_json.storage_json(size_bytes / write_s, priced, cheapest),
        "levels": to_json.levels_json(levels.cheapest(options), options, 5) if nodes > 1 else None, "tradeoff": None}
    lines = to_text.run_storage_lines(size_bytes, size.per_node_bytes, write_s, keep, cheapest, catalog)
    if nodes > 1:
        lines.append(to_text.run_levels_line(levels.cheapest(options)))
    if usd_per_h is not None:
        low_s = max(min(30.0, write_s), shortest_write_s(catalog, size_bytes))
        high_s = max(1200.0, write_s, low_s)
        plans = tradeoff.candidates(catalog, job, low_s, high_s)
        chosen, stop_only = tradeoff.best(plans), tradeoff.best(plans, lambda plan: plan.stop_only_usd)
        rows = tradeoff.rows(catalog, job, tradeoff.write_times_s(low_s, high_s))
        flat_s = tradeoff.flat_region_s(plans)
        data["tradeoff"] = to_json.tradeoff_json(rows, chosen, stop_only, flat_s)
        lines.append(to_text.run_tradeoff_line(chosen, flat_s))
    return data, lines


def _copies(values: dict[str, Value]) -> Part:
    """Local copies on several nodes: F = 2, made again within an hour."""
    from orchestrator.planner import replication
    from orchestrator.views.plan import percent
    from orchestrator.views.plan_json import replication_json
    from orchestrator.views.plan_run import ASSUMED_REBUILD_S

    nodes = int(values["nodes"].value or 1)
    if nodes < 2:
        return {"replication": None}, []
    p = replication.window_probability(ASSUMED_REBUILD_S, (values["mtbi_s"].value or 1.0) * nodes)
    fixed, exact, approx = (replication.loss_fixed_group(p, 2), replication.loss_random_exact(p, 2, nodes),
                            replication.loss_random_approx(p, 2, nodes))
    allowed = replication.allowed_factors(nodes, nodes, 1)
    return {"replication": replication_json(fixed, exact, approx, allowed)}, [
        f"two copies of local shards, when a node fails: lost with {percent(fixed)} in fixed groups, {percent(exact)} at "
        "random (made again within 1h, assumed)"]


def _settings(values: dict[str, Value], best: Plan) -> Part:
    from orchestrator.planner.frameworks import settings_for
    from orchestrator.views.plan_json import framework_json
    from orchestrator.views.plan_run import framework_rows

    step_s = values["step_s"].value
    if not step_s or best.interval_steps is None:
        return {"framework": None}, []
    settings = settings_for(best.training.interval_s, step_s, asynchronous=bool(best.training.write_s))
    return {"framework": framework_json(best.training.interval_s, best.interval_steps, settings)}, [
        "", "as settings, where the interval is not orch's to set:", *framework_rows(settings)]


COMMANDS = (run_command,)
