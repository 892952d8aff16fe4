"""M from the platform's rate and the run's own, changes of it, and bad nodes: against draws and against counting."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from builders import SPEC, ended, queued, run_of, started
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.model import INTERRUPTIONS, Ending
from orchestrator.planner import exposure
from orchestrator.planner.change import (
    alarm_better,
    alarm_worse,
    binomial_tail,
    change,
    events_against_known,
    events_in_each_period,
    ratio_seen,
)
from orchestrator.planner.pooled import Counted, priors, sum_quantile, two_rates
from orchestrator.planner.record import record_of
from orchestrator.planner.suspects import Stretch, suspects

H = 3600.0


@pytest.mark.parametrize(("first", "second"), [
    ((1.03, 1.0), (0.29, 1.0)), ((1.03, 1.0), (0.29, 3.0)), ((11.0, 1.0), (0.29, 3.0)), ((4.0, 1.0), (0.29, 1e4)),
    ((51.0, 1.0), (10.3, 0.01)), ((0.3, 1.0), (0.3, 100.0)), ((1.0, 1e-6), (2.0, 1e-6))])
def test_the_sum_of_two_gammas_against_draws(first: tuple[float, float], second: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.gamma(first[0], first[1], 200_000) + rng.gamma(second[0], second[1], 200_000)
    for probability, error in ((0.025, 0.008), (0.2, 0.06), (0.5, 0.06), (0.8, 0.03), (0.975, 0.008)):
        # the formula's own error: small in the tails, which are what it is for, larger between where a shape is far below 1
        at = sum_quantile(probability, first, second)
        assert float((drawn < at).mean()) == pytest.approx(probability, abs=error)


@given(st.floats(0.3, 60), st.floats(0.3, 60), st.floats(1e-3, 1e3))
@settings(max_examples=40)
def test_quantiles_rise_and_equal_scales_are_one_gamma(a: float, c: float, scale: float) -> None:
    quantiles = [sum_quantile(p, (a, 1.0), (c, scale)) for p in (0.025, 0.3, 0.7, 0.975)]
    assert quantiles == sorted(quantiles) and quantiles[0] > 0
    same = sum_quantile(0.9, (a, 2.0), (c, 2.0))
    assert same == pytest.approx(sum_quantile(0.9, (a, 2.0), (c, 2.0 * (1 + 1e-6))), rel=6e-3)


def test_the_priors_share_falls_as_interruptions_are_counted() -> None:
    def share(interruptions: int, hours: float) -> float:
        return two_rates(32, platform=Counted(hours=32 * hours),
                         own=Counted(interruptions=interruptions, hours=hours)).prior_share

    assert share(0, 0) == share(0, 500) == 1.0
    assert share(1, 200) == pytest.approx(1.32 / 2.32) and share(4, 800) == pytest.approx(1.32 / 5.32)


def test_each_part_is_counted_where_it_belongs() -> None:
    known = two_rates(4, platform=Counted(interruptions=10, hours=5000), own=Counted(interruptions=2, hours=300))
    platform, own = priors(4)
    assert known.rate_per_h == pytest.approx(4 * (platform.shape + 10) / (platform.hours + 5000)
                                             + (own.shape + 2) / (own.hours + 300))
    more = two_rates(8, platform=Counted(interruptions=10, hours=5000), own=Counted(interruptions=2, hours=300))
    assert more.rate_per_h - known.rate_per_h == pytest.approx(4 * known.platform.mean)


def coverage(truths: list[tuple[float, float]], nodes: int, runs: int, hours: float, rng: np.random.Generator) -> float:
    """How often the 95 % interval of the first run's M holds the true one; the platform is pooled over all runs."""
    held = 0
    for phi, rho in truths:
        platform = Counted(interruptions=int(rng.poisson(phi * nodes * runs * hours)), hours=nodes * runs * hours)
        known = two_rates(nodes, platform=platform, own=Counted(interruptions=int(rng.poisson(rho * hours)), hours=hours))
        low, high = known.mtbi95_h
        held += low <= 1 / (nodes * phi + rho) <= high
    return held / len(truths)


@pytest.mark.slow
def test_the_interval_of_the_sum_covers_95_percent() -> None:
    """Truths from the prior (then it must be 95), and fixed ones. A run whose own rate is ten times the prior's mean is far
    from it: there the interval is too sure until the run itself has told more than the prior."""
    rng = np.random.default_rng(7)
    platform, own = priors(8)
    drawn = [(rng.gamma(platform.shape) / platform.hours, rng.gamma(own.shape) / own.hours) for _ in range(500)]
    for runs, hours in ((1, 50.0), (20, 2000.0)):
        assert coverage(drawn, 8, runs, hours, rng) == pytest.approx(0.95, abs=0.025)
    for phi, rho in ((1 / 6400, 1 / 1000), (1 / 20_000, 1 / 300)):
        assert coverage([(phi, rho)] * 250, 8, 10, 1000.0, rng) > 0.92
    assert coverage([(1 / 2000, 1 / 50)] * 250, 8, 10, 1000.0, rng) > 0.85


# --- from runs ----------------------------------------------------------------------------------------------------------


def history(tag: str, nodes: int, *story: tuple[float, str, str], begin: float = 0.0) -> object:
    spec = replace(SPEC, tag=tag, profile=replace(SPEC.profile, nodes=nodes, time_s=100 * H))
    events: list[object] = []
    at = begin
    for number, (hours, ending, where) in enumerate(story, 1):
        events += [queued(number), {**started(number, at), "host": where}]
        at += hours * H
        events += [ended(number, ending, at)] if ending else []
    return run_of(*events, spec=spec)  # type: ignore[arg-type]


def test_every_interruption_is_the_platforms_or_the_runs_own() -> None:
    assert exposure.PLATFORM | exposure.OWN == INTERRUPTIONS and not exposure.PLATFORM & exposure.OWN
    assert exposure.NODE_SUSPECTED <= INTERRUPTIONS


def test_exposure_is_censored_and_pooled() -> None:
    runs = [history("a", 2, (10, "node-failure", "n1"), (5, "setup-failure", "n1"), (20, "limit-saved", "n1"), (3, "", "n1")),
            history("b", 4, (7, "crash", "n2"), (1, "out-of-memory", "n2"))]
    stretches = [s for run in runs for s in exposure.exposed(run, 40 * H)]  # type: ignore[arg-type]
    assert exposure.platform(stretches) == Counted(interruptions=1, hours=2 * (10 + 20 + 5) + 4 * 8)
    assert exposure.own(stretches, "a") == Counted(interruptions=0, hours=35)
    assert exposure.own(stretches, "b") == Counted(interruptions=2, hours=8)
    assert exposure.intervals_h(stretches) == ([10, 7, 1], [20, 5])
    record = record_of(stretches)
    assert record.interruptions == 3 and record.endings["runs"] == 1 and record.change is None
    assert [(n.nodes, n.runs, n.interruptions) for n in record.by_nodes] == [(2, 1, 1), (4, 1, 2)]


@pytest.mark.parametrize(("text", "names"), [
    ("n1", ("n1",)), ("n[1-3,07],m1", ("n1", "n2", "n3", "n07", "m1")), ("gpu-a[09-11]", ("gpu-a09", "gpu-a10", "gpu-a11")),
    ("rack[1-2]-ib", ("rack1-ib", "rack2-ib")), ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")), ("", ())])
def test_names_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert exposure.node_names(text) == names


def test_a_larger_run_that_begins_later_is_no_change() -> None:
    """Four times the nodes, four times the interruptions an hour: the same platform."""
    small = history("s", 1, *[(100, "node-failure", "n1")] * 12)
    large = history("l", 12, *[(100 / 12, "node-failure", "n2")] * 12, begin=1200 * H)
    stretches = [s for run in (small, large) for s in exposure.exposed(run, 1e9)]  # type: ignore[arg-type]
    record = record_of(stretches)
    assert record.change is not None and not record.change.detected
    by_hours = exposure.positions(stretches, {"s": 1.0, "l": 1.0})
    naive = change(by_hours)
    assert naive is not None and naive.detected


# --- change -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "known", "each"), [(1.5, 38.8, 77.7), (2, 11.4, 22.9), (3, 3.7, 7.3), (4, 2.0, 3.9)])
def test_what_can_be_detected(ratio: float, known: float, each: float) -> None:
    assert events_against_known(ratio) == pytest.approx(known, abs=0.06)
    assert events_in_each_period(ratio) == pytest.approx(each, abs=0.11)
    assert ratio_seen(2 * events_in_each_period(ratio)) == pytest.approx(ratio)


@pytest.mark.parametrize(("hours", "count", "caught_h"), [(500, 7, 55), (1000, 11, 73), (2000, 18, 93), (8760, 58, 136)])
def test_alarms_against_a_known_m(hours: float, count: int, caught_h: float) -> None:
    alarm = alarm_worse(hours, 200)
    assert alarm.count == count and alarm.caught_mtbi_h == pytest.approx(caught_h, abs=0.6)
    better = alarm_better(2000, 200)
    assert better is not None and better.caught_mtbi_h == pytest.approx(871, abs=0.6) and alarm_better(500, 200) is None


def test_a_steady_rate_alarms_in_one_of_twenty_and_a_change_is_seen() -> None:
    rng = np.random.default_rng(3)
    for n in (5, 20):
        found = [change(list(rng.random(n))) for _ in range(400)]
        assert sum(f is not None and f.detected for f in found) / 400 == pytest.approx(0.05, abs=0.035)
    halves = [change([*(rng.random(6) / 2), *(0.5 + rng.random(24) / 2)]) for _ in range(100)]
    assert sum(f is not None and f.detected for f in halves) / 100 > 0.8
    seen = change([0.05 * i for i in range(1, 4)] + [0.5 + 0.02 * i for i in range(25)])
    assert seen is not None and seen.detected and seen.ratio is not None and seen.ratio > 3
    assert change([0.1, 0.5, 0.9]) is None
    nothing_after = change([0.01 * i for i in range(1, 20)])
    assert nothing_after is not None and nothing_after.detected


@given(st.integers(0, 12), st.integers(1, 12), st.floats(0.01, 0.99))
def test_binomial_tails_by_adding_up(count: int, trials: int, share: float) -> None:
    exact = sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count, trials + 1))
    assert binomial_tail(count, trials, share) == pytest.approx(exact, abs=1e-12)


def test_binomial_tails_at_the_ends() -> None:
    assert binomial_tail(0, 5, 0.0) == 1 and binomial_tail(1, 5, 0.0) == 0 and binomial_tail(5, 5, 1.0) == 1


# --- nodes --------------------------------------------------------------------------------------------------------------


def test_p_of_a_node_by_counting_every_outcome() -> None:
    """Three attempts of one node each, hours 1, 2 and 5, four interruptions thrown onto hours: node c with three or more."""
    stretches = [Stretch(nodes=("a",), hours=2, interrupted=True),
                 *[Stretch(nodes=("c",), hours=1 / 3, interrupted=True)] * 3,
                 Stretch(nodes=("b",), hours=5, interrupted=False)]
    shares = {"a": 2 / 8, "b": 5 / 8, "c": 1 / 8}
    p = sum(math.prod(shares[node] for node in thrown) for thrown in itertools.product("abc", repeat=4)
            if thrown.count("c") >= 3)
    first = suspects(stretches)[0]
    assert (first.node, first.interruptions, first.expected) == ("c", 3, pytest.approx(0.5))
    assert first.p == pytest.approx(p) and first.p_holm == pytest.approx(3 * p) and first.worse


def test_a_node_that_was_in_everything_cannot_be_told() -> None:
    found = suspects([Stretch(nodes=("a", "b"), hours=1, interrupted=True)] * 9)
    assert [s.p for s in found] == [1, 1] and not any(s.worse for s in found)


@pytest.mark.slow
def test_good_nodes_are_rarely_accused_and_a_bad_one_is_found() -> None:
    rng = np.random.default_rng(11)

    def accused(bad: str, factor: float) -> tuple[bool, bool]:
        stretches = []
        for _ in range(150):
            nodes = tuple(f"n{i}" for i in rng.choice(20, 2, replace=False))
            rate = sum(factor if node == bad else 1.0 for node in nodes) / 200
            life = rng.exponential(1 / rate)
            stretches.append(Stretch(nodes=nodes, hours=min(life, 24.0), interrupted=life < 24))
        worse = {s.node for s in suspects(stretches) if s.worse}
        return bad in worse, bool(worse - {bad})

    steady = [accused("", 1.0) for _ in range(100)]
    assert sum(others for _, others in steady) / 100 <= 0.1
    bad = [accused("n3", 12.0) for _ in range(40)]
    assert sum(found for found, _ in bad) / 40 > 0.7


def test_endings_have_words() -> None:
    assert {str(e) for e in exposure.PLATFORM} == {"node-failure", "vanished", "preempted-unsaved"}
    assert Ending.SETUP_FAILURE in exposure.NO_EXPOSURE
