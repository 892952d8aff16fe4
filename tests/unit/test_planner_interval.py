"""Intervals and waste against a second way: numeric minima, and a machine that lives through every save."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner import interval, stops
from orchestrator.planner.interval import (
    Waste,
    daly_interval_s,
    exact_interval_s,
    exact_waste,
    expected_waste,
    young_interval_s,
)
from orchestrator.planner.plan import Training, plan_interval, shape_gain

H = 3600.0
M_S = 200 * H


def minimum(cost: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search on the logarithm."""
    golden = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    c, d = b - golden * (b - a), a + golden * (b - a)
    for _ in range(90):
        if cost(math.exp(c)) < cost(math.exp(d)):
            b, d = d, c
            c = b - golden * (b - a)
        else:
            a, c = c, d
            d = a + golden * (b - a)
    return math.exp((a + b) / 2)


def lived(
    interval_s: float, *, stall_s: float, mtbi_s: float, write_s: float, restart_s: float, launches: int, seed: int,
    limit_s: float = math.inf, struck: bool = False,
) -> tuple[float, float]:
    """Waste and its standard error of a machine that trains, stalls, writes, is struck and restarts, event by event."""
    draw = random.Random(seed)
    final_s = stall_s + write_s
    pairs: list[tuple[float, float]] = []
    for _ in range(launches):
        wall_s = restart_s
        while struck and (strike := draw.expovariate(1 / mtbi_s)) < restart_s:
            wall_s += strike
        strike_s = draw.expovariate(1 / mtbi_s)
        age_s = trained_s = kept_s = 0.0
        pending: list[tuple[float, float]] = []  # when it will be durable, and the training in it
        end_s = min(strike_s, limit_s - final_s)
        while True:
            step = min(interval_s - stall_s, end_s - age_s)
            age_s, trained_s = age_s + step, trained_s + step
            if age_s >= end_s:
                break
            pending.append((age_s + stall_s + write_s, trained_s))
            age_s = min(end_s, age_s + stall_s)
            if age_s >= end_s:
                break
        if strike_s < limit_s - final_s:
            kept_s = max((trained for durable, trained in pending if durable <= strike_s), default=0.0)
            wall_s += strike_s
        else:
            kept_s, wall_s = trained_s, wall_s + limit_s
        pairs.append((kept_s, wall_s))
    kept, wall = (sum(column) for column in zip(*pairs, strict=True))
    share = kept / wall
    error = math.sqrt(sum((k - share * w) ** 2 for k, w in pairs)) / wall
    return 1 - share, error


STRESS = {"stall_s": 300.0, "mtbi_s": 20_000.0, "write_s": 1200.0, "restart_s": 900.0}


def test_exact_waste_is_what_a_machine_lives_through() -> None:
    for interval_s, seed in ((4000.0, 1), (1700.0, 2), (30_000.0, 3)):
        found, error = lived(interval_s, **STRESS, launches=4000, seed=seed)
        assert abs(exact_waste(interval_s, **STRESS) - found) < 4 * error
    found, error = lived(4000.0, **STRESS, launches=6000, seed=4, struck=True)
    restart_s = interval.struck_restart_s(900, 20_000)
    assert abs(exact_waste(4000.0, **{**STRESS, "restart_s": restart_s}) - found) < 4 * error
    assert exact_waste(4000.0, **STRESS) == pytest.approx(0.2470, abs=5e-5)


def test_exact_waste_with_a_limit_is_what_a_machine_lives_through() -> None:
    for limit_s, seed in ((6000.0, 5), (15_000.0, 6), (80_000.0, 7)):
        found, error = lived(4000.0, **STRESS, launches=4000, seed=seed, limit_s=limit_s)
        exact = stops.exact_waste_with_limit(4000.0, **STRESS, limit_s=limit_s, final_save_s=1500.0)
        assert abs(exact - found) < 4 * error, limit_s


@given(stall=st.floats(0.01, 3000), mtbi_h=st.floats(1, 1e5), restart=st.floats(0, 5000))
def test_the_exact_interval_is_the_minimum_and_lamberts(stall: float, mtbi_h: float, restart: float) -> None:
    mtbi_s = mtbi_h * H
    best_s = exact_interval_s(stall, mtbi_s)
    y, ratio = best_s / mtbi_s, stall / mtbi_s
    assert y + math.expm1(-y) == pytest.approx(ratio, rel=1e-9)  # what the minimum of (exp(y) - 1) / (y - ratio) asks
    w = y - 1 - ratio                                            # Lambert: w exp(w) = -exp(-1 - C/M)
    assert w * math.exp(w) == pytest.approx(-math.exp(-1 - ratio), rel=1e-9)
    cost = exact_waste(best_s, stall_s=stall, mtbi_s=mtbi_s, restart_s=restart)
    for factor in (0.9, 1.1):
        other_s = max(best_s * factor, stall)
        assert cost <= exact_waste(other_s, stall_s=stall, mtbi_s=mtbi_s, restart_s=restart) + 1e-12


@pytest.mark.parametrize(("stall_s", "mtbi_h", "exact_s"), [
    (5, 200, 2684.9), (300, 200, 20885.1), (300, 32, 8415.1), (300, 8, 4259.4), (1800, 8, 10819), (1800, 2, 5769)])
def test_exact_intervals_of_the_derivation(stall_s: float, mtbi_h: float, exact_s: float) -> None:
    assert exact_interval_s(stall_s, mtbi_h * H) == pytest.approx(exact_s, abs=0.5)
    found = minimum(lambda t: exact_waste(t, stall_s=stall_s, mtbi_s=mtbi_h * H, restart_s=900), stall_s * 1.01, 1e6)
    assert exact_interval_s(stall_s, mtbi_h * H) == pytest.approx(found, rel=1e-4)


def test_a_fixed_write_does_not_move_the_optimum_and_dalys_predictions_come_out() -> None:
    for write_s in (0, 300, 1200, 2400):
        found = minimum(lambda t, w=write_s: exact_waste(t, stall_s=5, mtbi_s=M_S, write_s=w, restart_s=900), 10, 1e5)
        assert found == pytest.approx(2684.9, rel=1e-4)
    # the captions of Daly's figures, in minutes, without the dump
    for mtbi_h, minutes in ((24, 116.7), (6, 56.7), (0.25, 9.1)):
        assert (daly_interval_s(300, mtbi_h * H) - 300) / 60 == pytest.approx(minutes, abs=0.1)


@pytest.mark.parametrize(("share", "formula_s", "numeric_s", "at_young", "at_best"), [
    (0.25, 2191, 2193, 0.5891, 0.5798), (0.5, 1897, 1900, 0.6815, 0.6499), (1, 1549, 1552, 0.8660, 0.7673)])
def test_stretched_writes(share: float, formula_s: float, numeric_s: float, at_young: float, at_best: float) -> None:
    def waste(t: float) -> float:
        return exact_waste(t, stall_s=5, mtbi_s=M_S, write_s=interval.stretched_write_s(t, 5, share), restart_s=900)

    best_s = interval.stretched_interval_s(5, M_S, share)
    assert best_s == pytest.approx(formula_s, abs=0.6) and minimum(waste, 10, 1e5) == pytest.approx(numeric_s, abs=1)
    assert 100 * waste(young_interval_s(5, M_S)) == pytest.approx(at_young, abs=1e-4)
    assert 100 * waste(best_s) == pytest.approx(at_best, abs=1e-4)


def test_a_write_that_slows_training() -> None:
    slow = plan_interval(Training(stall_s=5, write_s=300, mtbi_s=M_S, slowdown=0.05))
    assert slow.training.interval_s == pytest.approx(5367, abs=1) and 100 * slow.waste.total == pytest.approx(0.91, abs=0.005)
    blind = plan_interval(Training(stall_s=5, write_s=300, mtbi_s=M_S, slowdown=0.05,
                                   fixed_interval_s=young_interval_s(5, M_S)))
    assert 100 * blind.waste.total == pytest.approx(1.10, abs=0.005)


@pytest.mark.parametrize(("hours", "ratio", "graceful", "with_m_mix"), [
    (6, 5.786, 5.757, 6.483), (12, 3.176, 3.162, 3.614), (24, 1.831, 1.829, 2.084), (72, 0.922, 0.919, 1.004)])
def test_planned_stops_do_not_belong_into_m(hours: float, ratio: float, graceful: float, with_m_mix: float) -> None:
    common = {"stall_s": 5.0, "mtbi_s": M_S, "restart_s": 900.0, "limit_s": hours * H, "final_save_s": 305.0}
    best_s = young_interval_s(5, M_S)
    mixed_s = young_interval_s(5, 1 / (1 / M_S + 1 / (hours * H)))
    assert 100 * stops.frequent_stops_waste(best_s, durable_s=305, **common) == pytest.approx(ratio, abs=6e-4)
    assert 100 * stops.exact_waste_with_limit(best_s, write_s=300, **common) == pytest.approx(graceful, abs=2e-3)
    assert 100 * stops.exact_waste_with_limit(mixed_s, write_s=300, **common) == pytest.approx(with_m_mix, abs=2e-3)


def test_a_limit_that_never_comes_is_none() -> None:
    for write_s in (0.0, 300.0):
        with_limit = stops.exact_waste_with_limit(2683, stall_s=5, mtbi_s=M_S, write_s=write_s, restart_s=900, limit_s=1e10,
                                                  final_save_s=5 + write_s)
        assert with_limit == pytest.approx(exact_waste(2683, stall_s=5, mtbi_s=M_S, write_s=write_s, restart_s=900))


def test_the_interval_off_by_a_factor() -> None:
    for factor, excess in ((1.25, 0.025), (1.5, 0.083), (2, 0.25)):
        assert interval.excess_of(factor) == pytest.approx(excess, abs=1e-3)
        assert interval.excess_of(1 / factor) == pytest.approx(interval.excess_of(factor))
        best, off = (expected_waste(young_interval_s(5, M_S) * f, stall_s=5, mtbi_s=M_S, durable_s=0, restart_s=0).total
                     for f in (1, factor))
        assert off / best - 1 == pytest.approx(interval.excess_of(factor))


def test_a_whole_plan() -> None:
    plan = plan_interval(Training(stall_s=5, write_s=300, mtbi_s=M_S, limit_s=24 * H, step_s=1.2))
    assert plan.interval_steps == 2236 and not plan.overlap and plan.warnings == ()
    assert plan.training.lead_needed_s == pytest.approx(1.2 + 5 + 300 + stops.EXIT_MARGIN_S)
    parts = [getattr(plan.waste, name) for name in Waste.__dataclass_fields__]
    assert plan.waste.total == pytest.approx(sum(parts)) and all(part > 0 for part in parts)
    assert plan.waste_exact == pytest.approx(0.01829, abs=1e-5)


@pytest.mark.parametrize(("training", "words"), [
    (Training(stall_s=5, write_s=188, mtbi_s=H), "not over when the next save begins"),
    (Training(stall_s=300, mtbi_s=8 * H), "believe the exact waste"),
    (Training(stall_s=5, mtbi_s=M_S, limit_s=0.5 * H), "the only one"),
    (Training(stall_s=5, mtbi_s=M_S, limit_s=0.5 * H), "more than half of the limit"),
])
def test_warnings(training: Training, words: str) -> None:
    assert any(words in text for text in plan_interval(training).warnings)


def test_what_a_shape_gains() -> None:
    gain = shape_gain(Training(stall_s=5, mtbi_s=M_S), 0.7)
    assert 100 * gain.waste_fixed == pytest.approx(0.4954, abs=1e-4)
    assert 100 * gain.waste_schedule == pytest.approx(0.4857, abs=1e-4)
    assert gain.intervals_to_tell == 38 and [round(t / 60, 1) for t in gain.first_intervals_s] == [15.4, 19.4, 21.3]
    none = shape_gain(Training(stall_s=5, mtbi_s=M_S), 1.0)
    assert none.gain == pytest.approx(0, abs=1e-9) and none.intervals_to_tell is None
