"""The simulator agrees with the exact formulas within its own error bars, and equal seeds give equal answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from orchestrator.planner.simulate import AT_ONCE, Policy, World, policy_named, simulate
from orchestrator.planner.weibull import hazard_schedule

H = 3600.0
WORLD = World(mtbi_s=200 * H, stall_s=5, write_s=300, restart_s=900)
ROUGH = World(mtbi_s=8 * H, stall_s=600, restart_s=900)


@pytest.mark.parametrize("world", [
    WORLD, replace(WORLD, shape=0.7), replace(WORLD, shape=0.5, write_s=0), replace(WORLD, shape=1.5), ROUGH,
    replace(ROUGH, shape=0.5), replace(WORLD, limit_s=24 * H), replace(WORLD, limit_s=1 * H), replace(WORLD, limit_s=1000.0)],
    ids=["exponential", "0.7", "0.5", "1.5", "rough", "rough 0.5", "a day's limit", "an hour's", "shorter than T"])
@pytest.mark.parametrize("name", ["young", "exact", "weibull"])
def test_it_agrees_with_the_exact_value(world: World, name: str) -> None:
    policy = policy_named(name, world)
    found = simulate(world, policy, trials=60_000, rng=np.random.default_rng(1))
    if found.exact is None:  # a limit with a schedule; at shape 1 it is sqrt(2CM) again
        found = replace(found, exact=simulate(world, policy_named("young", world), trials=60_000,
                                              rng=np.random.default_rng(1)).exact)
    assert found.exact is not None and abs(found.waste - found.exact) < 4 * found.standard_error
    assert 0 < found.standard_error < 0.01 and found.launches == 60_000
    assert (found.interruptions == 60_000) == (world.limit_s is None)


def test_error_bars_are_as_wide_as_they_say() -> None:
    policy = policy_named("young", WORLD)
    found = [simulate(WORLD, policy, trials=2000, rng=np.random.default_rng(seed)) for seed in range(60)]
    spread = float(np.std([f.waste for f in found], ddof=1))
    assert found[0].standard_error == pytest.approx(spread, rel=0.35)


def test_equal_seeds_equal_answers_and_others_not() -> None:
    world = replace(WORLD, shape=0.7)
    policy = policy_named("weibull", world)
    first, again, other = (simulate(world, policy, trials=AT_ONCE + 7, rng=np.random.default_rng(seed)).waste
                           for seed in (5, 5, 6))
    assert first == again != other


def test_a_shape_that_is_wrong_costs() -> None:
    world = replace(WORLD, shape=1.0)
    right, wrong = (simulate(world, Policy(name="", schedule=hazard_schedule(k, 5, world.mtbi_s)), trials=60_000,
                             rng=np.random.default_rng(2)).waste for k in (1.0, 0.5))
    assert wrong > right


def test_unknown_names() -> None:
    with pytest.raises(KeyError):
        policy_named("oldest", WORLD)
