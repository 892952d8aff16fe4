"""``orch plan simulate``: policies against distributions, by Monte Carlo."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from orchestrator.cli.plan_options import (
    DURATION,
    Count,
    Duration,
    answer,
    json_option,
    mtbi_option,
    require_m_above_c,
    require_write_within,
)
from orchestrator.errors import UserError
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.planner.simulate import Policy, World


@click.command()
@click.option("--policy", "policies", default="young,daly,weibull", show_default=True, metavar="P,...",
              help="young, daly, exact, weibull (by the hazard of the true shape), weibull:K (of another), fixed:30m.")
@click.option("--distribution", default="exponential", show_default=True, metavar="D",
              help="Of the time between interruptions: exponential, or weibull:K.")
@mtbi_option
@click.option("--stall", "stall_s", type=DURATION, default="5s", show_default=True, metavar="5s",
              help="C, how long training stands still for a save.")
@click.option("--write", "write_s", type=DURATION, metavar="5m", help="How long it is written after the stall.")
@click.option("--restart", "restart_s", type=DURATION, default="15m", show_default=True, metavar="15m",
              help="R, from an interruption to the first new step.")
@click.option("--limit", "limit_s", type=DURATION, metavar="24h", help="Time limit of one launch, which ends with a save.")
@click.option("--trials", type=Count("launches", 100, 10**9), default="2000000", show_default=True, metavar="N",
              help="Launches to simulate.")
@click.option("--seed", type=Count("seeds", 0, 2**63 - 1), default="0", show_default=True, metavar="S",
              help="Equal seeds give equal answers.")
@json_option
def simulate(
    policies: str, distribution: str, mtbi_s: float, stall_s: float, write_s: float | None, restart_s: float,
    limit_s: float | None, trials: int, seed: int, as_json: bool,
) -> None:
    """What policies waste, by simulating many launches, with standard errors and the exact value where there is one.

    \b
    orch plan simulate --mtbi 200h --distribution weibull:0.7 --trials 100000
    orch plan simulate --mtbi 32h --stall 5m --policy young,exact,fixed:30m --trials 100000 --json
    """
    from orchestrator.planner.interval import young_interval_s
    from orchestrator.planner.simulate import World
    from orchestrator.planner.simulate import simulate as run
    from orchestrator.views.plan import simulation_lines
    from orchestrator.views.plan_json import simulation_json

    try:
        import numpy as np
    except ImportError:
        raise UserError("orch plan simulate needs numpy", hint="pip install 'orch-slurm[science]'") from None
    require_m_above_c(mtbi_s, stall_s)
    if limit_s is not None and limit_s <= stall_s + (write_s or 0.0):
        raise UserError(f"--limit: {format_duration(limit_s)} has no room for a final save", hint="write for example 24h")
    world = World(mtbi_s=mtbi_s, stall_s=stall_s, write_s=write_s or 0.0, restart_s=restart_s,
                  shape=_shape("--distribution", distribution), limit_s=limit_s)
    chosen = [_policy(name.strip(), world) for name in policies.split(",")]
    for policy in chosen:
        require_write_within(policy.interval_s or young_interval_s(stall_s, mtbi_s), world.write_s,
                             f"with the policy {policy.name}; write a shorter one, or --policy fixed:"
                             f"{format_duration(math.ceil(stall_s + world.write_s))}")
    # the same interruptions for every policy, so that differences are of policies
    results = [run(world, policy, trials=trials, rng=np.random.default_rng(seed)) for policy in chosen]
    answer(simulation_json(distribution, trials, seed, results), simulation_lines(world, distribution, results, seed),
           as_json)


def _shape(option: str, text: str) -> float:
    name, _, number = text.partition(":")
    if name == "exponential" and not number:
        return 1.0
    try:
        shape = float(number) if name == "weibull" else 0.0
    except ValueError:
        shape = 0.0
    if not 0.1 <= shape <= 10:
        exponential = "exponential, or " if option == "--distribution" else ""
        raise UserError(f'{option}: "{text}" is not known',
                        hint=f"write {exponential}weibull:0.7 with a shape from 0.1 to 10")
    return shape


def _policy(name: str, world: World) -> Policy:
    from orchestrator.planner import simulate as simulation
    from orchestrator.planner.weibull import hazard_schedule

    kind, _, value = name.partition(":")
    if kind == "weibull" and value:
        schedule = hazard_schedule(_shape("--policy", name), world.stall_s, world.mtbi_s)
        return simulation.Policy(name=name, schedule=schedule)
    if kind == "fixed" and value:
        try:
            interval_s = Duration().parse(value)
        except ValueError as error:
            raise UserError(f"--policy: fixed: {error}") from None
        if interval_s <= world.stall_s:
            raise UserError(f"--policy: {name} is no longer than the stall of {format_duration(world.stall_s)}",
                            hint="nothing would be trained")
        return simulation.Policy(name=name, interval_s=interval_s)
    if name not in ("young", "daly", "exact", "weibull"):
        raise UserError(f'--policy: "{name}" is not known',
                        hint="write some of young, daly, exact, weibull, weibull:0.7, fixed:30m")
    return simulation.policy_named(name, world)


COMMANDS = (simulate,)
