"""The numbers of the literature and of the derivations come out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.gamma import gamma_cdf, gamma_quantile
from orchestrator.planner.interval import choose_interval, daly_interval_s, exact_waste, expected_waste, young_interval_s
from orchestrator.planner.pooled import NOTHING_COUNTED, Counted, priors, two_rates

H = 3600.0


@pytest.mark.parametrize(("stall_s", "mtbi_h", "young_s", "daly_s", "waste_young", "waste_daly"), [
    (5, 200, 2683.3, 2684.9, 0.004966, 0.004966),
    (300, 200, 20784.6, 20885.1, 0.029803, 0.029803),
    (300, 32, 8313.8, 8415.0, 0.077654, 0.077649),
    (300, 8, 4156.9, 4259.3, 0.16366, 0.16362),
    (1800, 8, 10182, 10818, 0.33454, 0.33399),
    (1800, 2, 5091, 5762, 0.6048, 0.6011),
])
def test_young_daly_and_the_exact_waste(
    stall_s: float, mtbi_h: float, young_s: float, daly_s: float, waste_young: float, waste_daly: float,
) -> None:
    mtbi_s = mtbi_h * H
    assert young_interval_s(stall_s, mtbi_s) == pytest.approx(young_s, abs=0.5)
    assert daly_interval_s(stall_s, mtbi_s) == pytest.approx(daly_s, abs=0.5)
    for interval_s, waste in ((young_s, waste_young), (daly_s, waste_daly)):
        found = exact_waste(interval_s, stall_s=stall_s, mtbi_s=mtbi_s, restart_s=900)
        assert found == pytest.approx(waste, abs=6e-5 if waste > 0.5 else 6e-6)


@pytest.mark.parametrize(("stall_s", "mtbi_h", "write_s", "first_order", "exact"), [
    (5, 200, 0, 0.004984, 0.004966), (60, 200, 0, 0.014243, 0.014087), (300, 200, 0, 0.030534, 0.029803),
    (5, 200, 300, 0.005400, 0.005380), (5, 32, 0, 0.017173, 0.016968),
])
def test_first_order_and_exact_waste(
    stall_s: float, mtbi_h: float, write_s: float, first_order: float, exact: float,
) -> None:
    interval_s = young_interval_s(stall_s, mtbi_h * H)
    parts = expected_waste(interval_s, stall_s=stall_s, mtbi_s=mtbi_h * H, durable_s=stall_s + write_s, restart_s=900)
    assert parts.total == pytest.approx(first_order, abs=6e-7 * 10)
    assert exact_waste(interval_s, stall_s=stall_s, mtbi_s=mtbi_h * H, write_s=write_s, restart_s=900) == pytest.approx(
        exact, abs=6e-7 * 10)


@pytest.mark.parametrize(("interruptions", "hours", "mtbi_h", "low_h", "high_h", "minutes"), [
    (0, 0, 104, 32, 1911, 32.2),
    (0, 500, 482, 147, 8895, 69.4),
    (1, 200, 145, 55, 964, 38.1),
    (4, 800, 176, 88, 519, 42.0),
    (10, 2000, 189, 114, 374, 43.4),
    (20, 4000, 194, 132, 312, 44.0),
])
def test_m_and_its_interval_and_t(
    interruptions: int, hours: float, mtbi_h: float, low_h: float, high_h: float, minutes: float,
) -> None:
    known = two_rates(32, platform=Counted(hours=32 * hours), own=Counted(interruptions=interruptions, hours=hours))
    assert known.mtbi_h == pytest.approx(mtbi_h, abs=0.6)
    low, high = known.mtbi95_h
    assert low == pytest.approx(low_h, abs=0.51) and high == pytest.approx(high_h, rel=3e-3)
    assert young_interval_s(5, known.mtbi_h * H) / 60 == pytest.approx(minutes, abs=0.1)


def test_the_prior_is_scaled_by_nodes_or_set() -> None:
    """At 32 nodes both parts are one Gamma(1.32, 137 h), the literature's; fewer nodes have less of the platform's."""
    platform, own = priors(32)
    assert platform.shape + own.shape == pytest.approx(1.32) and platform.hours / 32 == own.hours == 137
    of = {nodes: two_rates(nodes, platform=NOTHING_COUNTED, own=NOTHING_COUNTED) for nodes in (1, 16, 32)}
    assert of[32].mtbi_h == pytest.approx(137 / 1.32) and of[1].own == of[32].own
    assert of[16].rate_per_h - of[1].rate_per_h == pytest.approx(15 * platform.mean)
    for nodes, hours in ((1, 50.0), (64, 10.0)):
        known = two_rates(nodes, platform=NOTHING_COUNTED, own=NOTHING_COUNTED, prior_mtbi_h=hours)
        assert known.mtbi_h == pytest.approx(hours) and known.prior_weight == pytest.approx(1.32)


@given(st.floats(0.5, 500), st.floats(0.001, 0.999))
def test_quantile_and_distribution_are_inverse(shape: float, probability: float) -> None:
    assert gamma_cdf(shape, gamma_quantile(shape, probability)) == pytest.approx(probability, abs=1e-9)


@given(st.floats(0.001, 50))
def test_shape_one_is_the_exponential(x: float) -> None:
    assert gamma_cdf(1, x) == pytest.approx(1 - math.exp(-x), abs=1e-12)


@given(stall=st.floats(0.001, 600), mtbi=st.floats(60, 1e7), durable=st.floats(0.001, 2000), cap=st.floats(10, 1e5),
       segment=st.none() | st.floats(10, 1e5))
def test_the_choice_is_the_best_within_its_bounds(
    stall: float, mtbi: float, durable: float, cap: float, segment: float | None,
) -> None:
    choice = choose_interval(stall_s=stall, mtbi_s=mtbi, durable_s=durable, at_most_s=cap, segment_s=segment)
    upper = min(cap, segment if segment is not None else cap)
    assert choice.interval_s >= durable
    assert choice.interval_s <= max(upper, durable)
    if choice.bound == "optimum":
        assert choice.interval_s == choice.optimum_s
    elif choice.bound in ("cap", "segment"):
        assert choice.interval_s == upper < choice.optimum_s
    else:
        assert choice.interval_s == durable


def test_daly_is_near_the_exact_optimum() -> None:
    for stall_s, mtbi_s in ((5, 720000), (300, 28800), (1800, 28800)):
        best = daly_interval_s(stall_s, mtbi_s)
        around = [exact_waste(best * factor, stall_s=stall_s, mtbi_s=mtbi_s) for factor in (0.97, 1.0, 1.03)]
        assert around[1] <= min(around) + 1e-9
