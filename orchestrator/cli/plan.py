"""``orch plan``: how often to save, how large, how fast, how many copies; each answer from what is given on the line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from orchestrator.cli import plan_report, plan_run, plan_simulate, plan_storage
from orchestrator.cli.plan_options import (
    DURATION,
    NODES,
    Count,
    Number,
    Share,
    answer,
    json_option,
    mode_option,
    mtbi_option,
    require_m_above_c,
    require_write_within,
    size_of,
    size_options,
)
from orchestrator.errors import Refused, UserError
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.planner.plan import Training


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def plan() -> None:
    """What checkpoint interval, storage and replication a training should have, what it costs and what is lost.

    \b
    orch plan interval --stall 5s --mtbi 200h --write 5m
    orch plan run resnet-a
    """


@plan.command()
@click.option("--stall", "stall_s", type=DURATION, required=True, metavar="5s",
              help="C, how long training stands still for a save.")
@mtbi_option
@click.option("--write", "write_s", type=DURATION, metavar="5m",
              help="How long an asynchronous save is written after the stall; without it saves are synchronous.")
@click.option("--restart", "restart_s", type=DURATION, metavar="15m",
              help="R, from an interruption to the first new step.", show_default="15m")
@click.option("--limit", "limit_s", type=DURATION, metavar="8h", help="Time limit of one launch, which ends with a save.")
@click.option("--lead", "lead_s", type=DURATION, metavar="5m", help="Notice before that limit; refused if it is too short.")
@click.option("--step-time", "step_s", type=DURATION, metavar="1.2s", help="Of one training step.")
@click.option("--interval", "interval_s", type=DURATION, metavar="30m", help="Judge this interval instead of the best one.")
@click.option("--slowdown", type=Share(), metavar="5%", help="How much slower training is while a save is written.")
@click.option("--stretch", type=Share(whole=True), metavar="50%",
              help="The write is stretched over this share of the interval, in place of --write.")
@click.option("--weibull-shape", "shape", type=Number("in a shape", 10, "0.7"), metavar="K",
              help="Say what saving by the hazard of this shape would gain.")
@json_option
def interval(
    stall_s: float, mtbi_s: float, write_s: float | None, restart_s: float | None, limit_s: float | None,
    lead_s: float | None, step_s: float | None, interval_s: float | None, slowdown: float | None, stretch: float | None,
    shape: float | None, as_json: bool,
) -> None:
    """How often to save: sqrt(2 C M) and its refinements, what that wastes and why, what an interruption loses.

    \b
    orch plan interval --stall 5s --mtbi 200h
    orch plan interval --stall 5s --write 5m --mtbi 200h --limit 24h --step-time 1.2s
    """
    from orchestrator.planner.plan import ASSUMED_RESTART_S, Training, plan_interval, shape_gain
    from orchestrator.views.plan import interval_lines
    from orchestrator.views.plan_json import interval_json

    if shape is not None and shape < 0.1:
        raise UserError(f"--weibull-shape: {shape:g} is below any that was seen", hint="write 0.5 to 0.8, or 1 for none")
    training = Training(
        stall_s=stall_s, mtbi_s=mtbi_s, write_s=write_s or 0.0, restart_s=restart_s or ASSUMED_RESTART_S, limit_s=limit_s,
        step_s=step_s, slowdown=slowdown or 0.0, stretch=stretch, fixed_interval_s=interval_s)
    _check(training, write_s, lead_s)
    found = plan_interval(training)
    gain = shape_gain(training, shape) if shape is not None else None
    answer(interval_json(found, gain), interval_lines(found, gain, restart_s is None), as_json)


def _check(training: Training, write_s: float | None, lead_s: float | None) -> None:
    """What cannot be planned, each in one line."""
    require_m_above_c(training.mtbi_s, training.effective_stall_s)
    if training.stretch is not None and (write_s is not None or training.slowdown):
        raise UserError("--stretch: says how long the write takes", hint="leave --write and --slowdown out")
    if training.slowdown and write_s is None:
        raise UserError("--slowdown: nothing is written while training goes on", hint="write it with --write 5m")
    if training.interval_s <= training.stall_s:
        raise UserError(f"--interval: {format_duration(training.interval_s)} is no longer than --stall "
                        f"{format_duration(training.stall_s)}, so nothing would be trained",
                        hint=f"the best one is {format_duration(training.young_s)}")
    shortest_s = math.ceil(training.stall_s + training.write_s)
    require_write_within(training.interval_s, training.write_s,
                         f"write --interval {format_duration(shortest_s)} or longer, or buy a faster write")
    if lead_s is not None and training.limit_s is None:
        raise UserError("--lead: there is no --limit that it is a notice of", hint="write --limit 8h with it")
    if training.limit_s is None:
        return
    if training.lead_needed_s >= training.limit_s:
        raise UserError(f"--limit: {format_duration(training.limit_s)} has no room for a final save, which needs "
                        f"{format_duration(training.lead_needed_s)}", hint="write a longer limit, for example 8h")
    if lead_s is not None and lead_s >= training.limit_s:
        raise UserError(f"--lead: {format_duration(lead_s)} is not shorter than --limit {format_duration(training.limit_s)}")
    if lead_s is not None and lead_s < training.lead_needed_s:
        raise Refused(f"--lead: {format_duration(lead_s)} is too short for a final save: step, stall, write and exit take "
                      f"{format_duration(training.lead_needed_s)}", hint="a longer lead, a faster write, or a last save to "
                      "local disks with replicas (`orch plan levels`)")


@plan.command()
@size_options
@click.option("--nodes", type=NODES, default=1, show_default=True, metavar="N", help="Nodes that write an equal part each.")
@json_option
def size(
    params: float, bytes_per_param: float | None, weights: str | None, master: str | None, moments: str | None,
    frozen_params: float | None, nodes: int, as_json: bool,
) -> None:
    """How large a checkpoint is, and what it is made of.

    \b
    orch plan size --params 124.45e9 --bytes-per-param 14 --nodes 32
    orch plan size --params 70B --weights bf16 --master fp32 --moments bf16 --nodes 16
    """
    from orchestrator.views.plan import size_lines
    from orchestrator.views.plan_json import size_json

    found = size_of(params, bytes_per_param, weights, master, moments, frozen_params, nodes)
    answer(size_json(found), size_lines(found), as_json)


@plan.command()
@click.option("--mtbi", "mtbi_s", type=DURATION, metavar="7.9h", help="A mean time between interruptions as published.")
@click.option("--period", "period_s", type=DURATION, metavar="54d", help="Or the period in which --interruptions came.")
@click.option("--interruptions", type=Count("interruptions", 0, 10**9), metavar="N",
              help="How many in --period; beside --mtbi how many it comes from.")
@click.option("--nodes", type=NODES, required=True, metavar="N", help="Nodes of that training.")
@click.option("--to-nodes", type=NODES, required=True, metavar="N", help="Nodes of yours.")
@json_option
def mtbi(
    mtbi_s: float | None, period_s: float | None, interruptions: int | None, nodes: int, to_nodes: int, as_json: bool,
) -> None:
    """M on another number of nodes, with what its record knows of it: rates add up over nodes, M = M0 N0 / N.

    \b
    orch plan mtbi --mtbi 7.9h --nodes 128 --to-nodes 32
    orch plan mtbi --period 54d --interruptions 466 --nodes 2048 --to-nodes 32
    """
    from orchestrator.planner import mtbi as record
    from orchestrator.planner.pooled import PRIOR_SHAPE
    from orchestrator.views.plan import counted, hours

    if (mtbi_s is None) == (period_s is None):
        raise UserError("write either --mtbi or --period with --interruptions")
    if interruptions == 0:
        bound_h = record.at_least_h((period_s or mtbi_s or 0.0) / 3600) * nodes / to_nodes
        raise UserError(f"--interruptions: a period without any says only that M is longer than "
                        f"{hours(3600 * bound_h)} on {counted(to_nodes, 'node')} (95 %)",
                        hint="plan with that bound as --mtbi, or wait for the first one")
    if period_s is not None:
        if interruptions is None:
            raise UserError("--interruptions is missing", hint="how many there were in --period")
        found_h = record.mtbi_of_record_h(period_s / 3600, interruptions)
        low_h, high_h = record.record_interval95_h(period_s / 3600, interruptions)
    else:
        assert mtbi_s is not None
        found_h, weight = mtbi_s / 3600, interruptions or PRIOR_SHAPE
        low_h, high_h = (record.record_interval95_h(found_h * interruptions, interruptions) if interruptions
                         else record.assumed_interval95_h(found_h, weight))
    scaled = [record.rescaled_mtbi(value, nodes, to_nodes) for value in (found_h, low_h, high_h)]
    known = (f"from {interruptions} interruptions, Garwood's interval" if interruptions else
             f"nobody says from how many interruptions, so it is taken to be worth {PRIOR_SHAPE:g}, as orch's prior is")
    answer({"mtbi_h": scaled[0], "interval95_h": scaled[1:]},
           [f"M = {hours(3600 * scaled[0])} on {counted(to_nodes, 'node')}   M0 N0 / N, M0 = {hours(3600 * found_h)} on "
            f"{counted(nodes, 'node')}",
            f"95 %: {hours(3600 * scaled[1])} to {hours(3600 * scaled[2])}   {known}"], as_json)


@plan.command()
@click.option("--nodes", type=NODES, required=True, metavar="N", help="Nodes of the training.")
@click.option("--factor", type=Count("copies", 1, 1000), required=True, metavar="F", help="Copies of every shard.")
@click.option("--node-mtbi", "node_mtbi_s", type=DURATION, required=True, metavar="6400h",
              help="Mean time between failures of one node: M times the nodes.")
@click.option("--rebuild", "rebuild_s", type=DURATION, required=True, metavar="1h", help="Until a lost copy is made again.")
@click.option("--ranks", type=Count("ranks", 1, 10**8), metavar="N", help="Ranks in all.", show_default="one a node")
@click.option("--jump", type=Count("ranks", 1, 10**6), metavar="J",
              help="Distance between the ranks of a group.", show_default="ranks of a node")
@json_option
def replication(
    nodes: int, factor: int, node_mtbi_s: float, rebuild_s: float, ranks: int | None, jump: int | None, as_json: bool,
) -> None:
    """How likely a shard of a local checkpoint is lost although it has copies, and which numbers of copies are possible.

    \b
    orch plan replication --nodes 32 --factor 2 --node-mtbi 6400h --rebuild 1h
    orch plan replication --nodes 32 --factor 4 --node-mtbi 6400h --rebuild 1h --ranks 256 --jump 8
    """
    from orchestrator.planner import replication as copies
    from orchestrator.views.plan import percent
    from orchestrator.views.plan_json import replication_json

    ranks = ranks or nodes * (jump or 1)
    jump = jump or max(1, ranks // nodes)
    allowed = copies.allowed_factors(nodes, ranks, jump)
    if factor > nodes:
        raise UserError(f"--factor: {factor} copies do not fit on {nodes} nodes", hint="one node holds one copy")
    if factor not in allowed:
        raise UserError(f"--factor: {ranks} ranks do not divide by jump {jump} x factor {factor} = {jump * factor}",
                        hint=f"write --factor {', '.join(str(f) for f in allowed)}" if allowed else
                        f"{ranks} ranks do not divide by --jump {jump} either: write the ranks of a node")
    p = copies.window_probability(rebuild_s / 3600, node_mtbi_s / 3600)
    fixed, exact, approx = (copies.loss_fixed_group(p, factor), copies.loss_random_exact(p, factor, nodes),
                            copies.loss_random_approx(p, factor, nodes))
    lines = [f"one node has failed; another fails before the copies are made again with p = {percent(p)}   rebuild / M",
             f"its shard is lost with {percent(fixed)} in fixed groups   p^(F-1), F = {factor}",
             f"  or with {percent(exact)} where copies are spread at random   P(Bin({nodes - 1}, p) >= {factor - 1})",
             f"  to first order {percent(approx)}   C({nodes - 1},{factor - 1}) p^{factor - 1}",
             f"possible numbers of copies: {', '.join(str(f) for f in allowed)}   ranks {ranks} divide by jump {jump} x F"]
    answer(replication_json(fixed, exact, approx, allowed), lines, as_json)


@plan.command()
@click.option("--interval", "interval_s", type=DURATION, required=True, metavar="45m", help="Between checkpoints.")
@click.option("--step-time", "step_s", type=DURATION, required=True, metavar="1.2s", help="Of one training step.")
@mode_option
@json_option
def framework(interval_s: float, step_s: float, mode: str, as_json: bool) -> None:
    """The settings of Megatron-LM, Megatron Bridge, TorchTitan, HF Trainer and Lightning, and what their defaults cost.

    \b
    orch plan framework --interval 45m --step-time 1.2s
    orch plan framework --interval 30m --step-time 900ms --mode sync --json
    """
    from orchestrator.planner.frameworks import settings_for, steps_of
    from orchestrator.views.plan import framework_lines
    from orchestrator.views.plan_json import framework_json

    if step_s > interval_s:
        raise UserError(f"--step-time: {format_duration(step_s)} is longer than --interval {format_duration(interval_s)}",
                        hint="a save can only be made between two steps")
    steps = steps_of(interval_s, step_s)
    found = settings_for(interval_s, step_s, asynchronous=mode == "async")
    answer(framework_json(interval_s, steps, found), framework_lines(interval_s, step_s, steps, found), as_json)


for module in (plan_storage, plan_run, plan_simulate, plan_report):
    for command in module.COMMANDS:
        plan.add_command(command)
