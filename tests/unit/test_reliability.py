"""M and T* of a run: what counts, what is measured, when the interval changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import SPEC, attempt_seen, ended, event, job, queued, run_of, seen, started
from hypothesis import given
from hypothesis import strategies as st
from test_decide import settle

from orchestrator.core.measures import Measured, Spread, measure
from orchestrator.core.news import begun, news
from orchestrator.core.reliability import Setting, reliability, restarts, worth_changing
from orchestrator.core.reliability import setting as setting_among
from orchestrator.model import INTERRUPTIONS, Ending, Policy, Run
from orchestrator.planner import exposure
from orchestrator.planner.pooled import NOTHING_COUNTED, Counted, TwoRates, priors
from orchestrator.views.interval import interval_lines, worked_out

AUTO = Policy()
ALONE = NOTHING_COUNTED                # of other runs
H = 3600.0


def setting(run: Run, found: Measured, policy: Policy, now: float) -> Setting:
    """Of a run that is the first."""
    return setting_among(run, found, ALONE, policy, now)


def took(seconds: float, count: int = 9) -> Spread:
    return Spread(median=seconds, low=seconds, high=seconds, count=count)


def measured(stall_s: float, durable_s: float | None = None) -> Measured:
    return Measured(stall_s=took(stall_s), durable_s=took(durable_s or stall_s), write_s=took(durable_s or stall_s))


def history(*endings: str, hours: float = 10.0) -> Run:
    story: list[Any] = []
    for number, ending in enumerate(endings, 1):
        begin = (number - 1) * hours * H
        story += [queued(number), started(number, begin), ended(number, ending, begin + hours * H)]
    return run_of(*story)


@pytest.mark.parametrize(("ending", "events", "hours"), [
    *[(str(e), 1, 10) for e in sorted(INTERRUPTIONS)],
    ("finished", 0, 10), ("limit-saved", 0, 10), ("preempted-saved", 0, 10), ("cancelled", 0, 10),
    ("setup-failure", 0, 0), ("no-result", 0, 0)])
def test_what_counts(ending: str, events: int, hours: float) -> None:
    known = reliability(history(ending), ALONE, AUTO, 1e9)
    assert known.platform_counted.interruptions + known.own_counted.interruptions == events
    assert known.own_counted.hours == known.platform_counted.hours == hours


def test_every_ending_is_in_the_table() -> None:
    assert len(INTERRUPTIONS) + 6 == len(Ending)


def test_the_live_attempt_is_exposure_until_now() -> None:
    run = run_of(queued(1), started(1, 0.0))
    limit_h = SPEC.profile.time_s / H
    for now_h, hours in ((limit_h / 2, limit_h / 2), (limit_h, limit_h), (1000, limit_h)):  # nobody noted how it ended
        assert reliability(run, ALONE, AUTO, now_h * H).own_counted.hours == pytest.approx(hours)


def test_what_other_runs_showed_of_the_platform_counts_for_this_one() -> None:
    """A node's failure under any run, never another run's crash."""
    run, others = history("crash"), Counted(interruptions=7, hours=900.0)
    alone, among = (reliability(run, seen, AUTO, 1e9) for seen in (ALONE, others))
    assert among.own == alone.own and among.platform_counted == Counted(interruptions=7, hours=910)
    assert among.mtbi_h < alone.mtbi_h and among.prior_share < alone.prior_share


def test_a_run_without_any_history_has_the_prior_alone() -> None:
    known = reliability(run_of(), ALONE, AUTO, 0.0)
    assert known.prior_share == 1 and known.mtbi_h == pytest.approx(1 / sum(prior.mean for prior in priors(1)))
    low, high = known.mtbi95_h
    assert 0 < low < known.mtbi_h < high


def lived(tag: str, nodes: int, phi: float, rho: float, hours: float, rng: np.random.Generator) -> Run:
    """A run that was interrupted at these rates per node-hour and per hour; its last attempt runs."""
    spec, story, at_h = replace(SPEC, tag=tag, profile=replace(SPEC.profile, nodes=nodes, time_s=1e9)), [], 0.0
    for number in range(1, 10_000):
        story += [queued(number), started(number, at_h * H)]
        at_h += rng.exponential(1 / (nodes * phi + rho))
        if at_h > hours:
            break
        platform = rng.random() < nodes * phi / (nodes * phi + rho)
        story += [ended(number, "node-failure" if platform else "crash", at_h * H)]
    return run_of(*story, spec=spec)


def known_of_first(runs: list[Run], now: float) -> TwoRates:
    others = exposure.platform(stretch for run in runs[1:] for stretch in exposure.exposed(run, now))
    return reliability(runs[0], others, AUTO, now)


@pytest.mark.slow
def test_the_interval_that_a_run_is_told_covers_95_percent() -> None:
    """Truths from the prior; runs that live through them, are folded from their events, and are counted as a pass does."""
    rng, nodes, hours, truths = np.random.default_rng(11), 8, 300.0, 600
    platform, own = priors(nodes)
    held = 0
    for _ in range(truths):
        phi = rng.gamma(platform.shape) / platform.hours
        rhos = rng.gamma(own.shape, size=4) / own.hours
        low_h, high_h = known_of_first(
            [lived(f"r{i}", nodes, phi, rho, hours, rng) for i, rho in enumerate(rhos)], hours * H).mtbi95_h
        held += low_h <= 1 / (nodes * phi + rhos[0]) <= high_h
    assert held / truths == pytest.approx(0.95, abs=0.02)


def test_what_other_runs_go_through_seldom_reaches_this_runs_trainer() -> None:
    """Twenty runs on eight nodes for fifty days, a pass every ten minutes, M counted anew in each, from the prior down to a
    quarter of it: T* is written a few times."""
    rng, policy = np.random.default_rng(3), replace(AUTO, checkpoint_at_most_s=1e6)
    passes, present, told = 50 * 24 * 6, None, list[float]()
    failures = np.sort(rng.integers(0, passes, 20 * 8 * 1200 // 500))  # a node fails every 500 hours
    run = run_of(queued(1), started(1, 0.0), spec=replace(SPEC, profile=replace(SPEC.profile, nodes=8, time_s=1e9)))
    for number in range(passes):
        hours = number / 6
        others = Counted(interruptions=int(np.searchsorted(failures, number)), hours=19 * 8 * hours)
        wanted = setting_among(run, measured(0.5), others, policy, hours * H)
        if worth_changing(present, wanted):
            present = wanted.choice.interval_s
            told.append(wanted.known.mtbi_h)
    assert 2 <= len(told) <= 5 and told[-1] < told[0] / 2, told


def test_the_row_of_four_interruptions_in_800_hours() -> None:
    """1/E[lambda] = 176 h and T* = 42.0 min at C = 5 s, on 32 nodes."""
    spec = replace(SPEC, profile=replace(SPEC.profile, nodes=32, time_s=1e6, lead_s=60))
    story: list[Any] = []
    for number in range(1, 5):
        story += [queued(number), started(number, (number - 1) * 200 * H), ended(number, "crash", number * 200 * H)]
    wide = replace(AUTO, checkpoint_at_most_s=1e6)
    found = setting(run_of(*story, spec=spec), measured(5.0), wide, 1e9)
    assert found.known.mtbi_h == pytest.approx(176, abs=0.6)
    assert found.choice.interval_s / 60 == pytest.approx(42.0, abs=0.1) and found.choice.bound == "optimum"


def test_until_c_is_measured_the_first_save_comes_early() -> None:
    assert setting(run_of(), Measured(), AUTO, 0.0).choice.interval_s == 300
    short = replace(SPEC, profile=replace(SPEC.profile, time_s=120, lead_s=20))
    assert setting(run_of(spec=short), Measured(), AUTO, 0.0).choice.interval_s == 50


@pytest.mark.parametrize(("stall_s", "durable_s", "bound"), [
    (5, 5, "cap"), (0.01, 0.02, "optimum"), (0.01, 2000, "write time")])
def test_what_binds_is_said(stall_s: float, durable_s: float, bound: str) -> None:
    found = setting(run_of(), measured(stall_s, durable_s), AUTO, 0.0)
    assert found.choice.bound == bound
    words = " ".join(interval_lines(found, restarts(run_of()), found.choice.interval_s))
    assert {"cap": "at_most", "optimum": "bound by nothing", "write time": "write time binds"}[bound] in words


@pytest.mark.parametrize(("durable_s", "step_s", "needed"), [
    (40.0, 10.0, None), (41.0, 10.0, "1m01s"), (20.0, 400.0, "7m10s")])
def test_a_lead_that_no_final_save_fits_into_is_said(durable_s: float, step_s: float, needed: str | None) -> None:
    """The profile's is a minute; the notice may come in the middle of a step."""
    found = setting(run_of(), replace(measured(1.0, durable_s), step_s=took(step_s)), AUTO, 0.0)
    said = [line for line in interval_lines(found, restarts(run_of()), 300.0) if line.startswith("warning")]
    assert len(said) == (needed is not None)
    assert needed is None or f"takes up to {needed} (step, save, 10s for the exit), longer than the lead of 1m" in said[0]


def test_a_waste_that_is_not_small_is_told_exactly() -> None:
    """The first order counts the stall twice, and may come to more than all time."""
    often = replace(AUTO, prior_mtbi_h=0.01)
    for stall_s, durable_s, policy in ((10.0, 60.0, often), (10.0, 60.0, replace(often, checkpoint_interval_s=5.0))):
        found = setting(run_of(), measured(stall_s, durable_s), policy, 0.0)
        assert found.waste is not None and found.waste_exact is not None and found.waste.total > found.waste_exact
        assert 0 < found.waste_exact <= 1
        words = " ".join(interval_lines(found, restarts(run_of()), 60.0))
        assert f"expected waste {100 * found.waste_exact:.0f} %, to first order {100 * found.waste.total:.0f} %: " in words


def test_an_interval_by_hand_is_a_command() -> None:
    fixed = replace(AUTO, checkpoint_interval_s=77.0)
    assert worth_changing(300.0, setting(run_of(), measured(5.0), fixed, 0.0))
    assert not worth_changing(77.0, setting(run_of(), measured(5.0), fixed, 0.0))


@given(present=st.floats(1, 1800), stall=st.floats(0.001, 1.0))
def test_it_never_swings(present: float, stall: float) -> None:
    """Taking the new interval and asking again changes nothing; within 15 % of the optimum nothing is changed at all."""
    wanted = setting(run_of(), measured(stall), AUTO, 0.0)
    assert not worth_changing(wanted.choice.interval_s, wanted)
    if 0.87 * wanted.choice.interval_s < present < 1.15 * wanted.choice.interval_s and wanted.choice.bound == "optimum":
        assert not worth_changing(present, wanted)
    sure = setting(run_of(), Measured(stall_s=took(stall, 10_000), durable_s=took(stall, 10_000)), AUTO, 0.0)
    if sure.choice.bound == "optimum" and not 0.8 < present / sure.choice.interval_s < 1.25:
        assert worth_changing(present, sure)


def test_noise_in_c_is_no_reason() -> None:
    """Medians of a few saves that swing by a third, as seen on a busy machine: one change, then none."""
    present: float | None = None
    changes = 0
    for stall_s in (0.009, 0.013, 0.009, 0.012, 0.010, 0.013):
        few = Spread(median=stall_s, low=0.006, high=0.02, count=12)
        wanted = setting(run_of(), Measured(stall_s=few, durable_s=few), AUTO, 0.0)
        if worth_changing(present, wanted):
            present, changes = wanted.choice.interval_s, changes + 1
    assert changes == 1


def test_after_an_ending_the_journal_says_from_what() -> None:
    run = settle(run_of(queued(1), started(1, 0.0)), seen(job(1, "RUNNING"), measured=measured(0.05)), 10.0, AUTO)
    before = dict(run.interval)
    run = settle(run_of(queued(1), started(1, 0.0), event("interval", 10.0, **{k: v for k, v in before.items() if k != "t"}),
                        ended(1, "node-failure", 3600.0)), seen(measured=measured(0.05)), 3700.0, AUTO)
    counted = [found["platform"]["interruptions"] for found in (before, run.interval)]  # type: ignore[index]
    assert counted == [0, 1] and run.interval["own"]["hours"] == 1.0  # type: ignore[index]
    assert run.interval["stall_s"] == 0.05 and run.interval["saves"] == 9
    assert run.interval["mtbi_h"] < before["mtbi_h"]  # type: ignore[operator]


def test_lines_are_measured_and_the_first_save_is_kept_apart() -> None:
    lines = [{"event": "saved", "stall_s": 9.0, "write_s": 9.0, "durable_s": 9.0, "size_bytes": 10, "first": True},
             *({"event": "saved", "stall_s": s, "write_s": s, "durable_s": s, "size_bytes": 10} for s in (1.0, 2.0, 3.0)),
             {"event": "progress", "steps_per_s": 4.0}, {"event": "progress", "steps_per_s": None}]
    found = measure([lines])
    assert found.stall_s == Spread(median=2.0, low=1.0, high=3.0, count=3)
    assert found.first_stall_s is not None and found.first_stall_s.median == 9.0
    assert found.step_s is not None and found.step_s.median == 0.25
    only_first = measure([lines[:1]])
    assert only_first.stall_s is not None and only_first.stall_s.median == 9.0
    assert measure([]) == Measured()


def test_restarts_are_split() -> None:
    run = run_of(queued(1), started(1, 0), ended(1, "crash", 100, first_step_at=5),
                 queued(2), started(2, 103), ended(2, "crash", 200, trainer_at=104, first_step_at=110))
    found = restarts(run)
    parts = (found.whole_s, found.queue_s, found.start_s, found.load_s)
    assert [part.median for part in parts if part is not None] == [10, 3, 1, 6]


def test_a_restart_is_known_from_the_first_step_behind_it() -> None:
    """The journal gets that step with the attempt's end, which may be days away."""
    run = run_of(queued(1), started(1, 0), ended(1, "crash", 100, first_step_at=5), queued(2), started(2, 103))
    assert restarts(run).whole_s is None
    loading, training = (begun(run, seen(attempts=(attempt_seen(2, trainer_at=104.0, first_step_at=at),)))
                         for at in (None, 110.0))
    assert restarts(loading).whole_s is None and restarts(begun(run, seen())).whole_s is None
    assert restarts(training).whole_s == Spread(median=10, low=10, high=10, count=1)
    told = attempt_seen(2, trainer_at=104.0, first_step_at=110.0)
    facts = news(run, seen(job(2, "RUNNING"), attempts=(told,)), AUTO, 120.0)
    assert [fact["restart_s"] for fact in facts if fact["event"] == "interval"] == [10]


@pytest.mark.parametrize(("ending", "counted"), [
    ("limit-saved", True), ("out-of-memory", True), ("cancelled", False), ("setup-failure", False), ("no-result", False)])
def test_waiting_for_a_person_is_no_restart_time(ending: str, counted: bool) -> None:
    run = run_of(queued(1), started(1, 0), ended(1, ending, 100, first_step_at=5),
                 queued(2), started(2, 90_000), ended(2, "finished", 90_200, trainer_at=90_001, first_step_at=90_002))
    assert (restarts(run).whole_s is not None) == counted


def test_a_night_in_which_a_run_was_held_is_no_restart_time() -> None:
    crashed = [queued(1), started(1, 0), ended(1, "crash", 100, first_step_at=5)]
    again = [queued(2, 30_000), started(2, 30_001), ended(2, "crash", 30_100, trainer_at=30_002, first_step_at=30_003),
             queued(3), started(3, 30_104), ended(3, "finished", 30_200, trainer_at=30_105, first_step_at=30_107)]
    held = [event("held", 101, by="orch", reason="no progress"), event("released", 29_000)]
    whole = restarts(run_of(*crashed, *held, *again)).whole_s
    assert whole == Spread(median=7, low=7, high=7, count=1)
    assert restarts(run_of(*crashed, *again)).whole_s == Spread(median=14_955, low=7, high=29_903, count=2)
    begin, start, end, queued_ahead, successor, last = again
    noted_late = run_of(*crashed, *held, begin, start, queued_ahead, successor, end, last)
    assert restarts(noted_late).whole_s == whole, "one pass notes the successor's start first, then the end before it"


def test_the_sum_is_worked_out() -> None:
    run = history("crash", "limit-saved", "setup-failure")
    found = setting(run, measured(0.5), AUTO, 1e9)
    text = "\n".join(worked_out(run, found, restarts(run), 300.0))
    for words in ("attempt 1: crash, counts as the run's own interruption", "limit-saved, counts as exposure only",
                  "setup-failure, counts as nothing", "(1.03 + 0) / (4,384 + 20 node-hours) = 0.0002338 per node-hour",
                  "(0.2904 + 1) / (137 + 20 hours) = 0.008219 per hour", "E[rate] = (a + n) / (b + E)"):
        assert words in text
    assert f"M = 1 / ({found.known.platform.mean:.6g} + {found.known.own.mean:.6g}) = {found.known.mtbi_h:.6g} h" in text
    assert found.waste is not None and "waste = C/T + T/2M + t/M + R/M = 0.000766 + 0.000766 + " in text
    assert f"= {found.waste.total:.3g} at T = {found.choice.interval_s:.6g} s" in text
    assert f", exactly {found.waste_exact:.3g}\n" in text
    assert f"expected waste {100 * found.waste.total:.2g} %: stalls" in text
    assert "it changes when" in text
    by_hand = replace(AUTO, checkpoint_interval_s=60.0)
    assert "it changes when" not in "".join(worked_out(run, setting(run, measured(0.5), by_hand, 1e9), restarts(run), 60.0))


def test_the_event_holds_all_that_m_was_computed_from() -> None:
    told = setting_among(history("crash"), measured(0.5), Counted(interruptions=2, hours=5000.0), AUTO, 1e9).as_event()
    platform, own = told["platform"], told["own"]
    rate = (told["nodes"] * (platform["prior"]["interruptions"] + platform["interruptions"])
            / (platform["prior"]["node_hours"] + platform["node_hours"])
            + (own["prior"]["interruptions"] + own["interruptions"]) / (own["prior"]["hours"] + own["hours"]))
    assert told["mtbi_h"] == pytest.approx(1 / rate, rel=1e-5)


def test_the_slowdown_of_a_write_counts_in_c() -> None:
    """C = 5 s, t_a = 300 s, sigma = 5 %: 5 s become 20 s and T* doubles (docs/planning.md 3); noise below zero is none."""
    def saves(*slowdowns: float | None) -> Measured:
        return measure([[{"event": "saved", "stall_s": 5.0, "durable_s": 305.0, "background": True, "slowdown": s}
                         for s in slowdowns]])

    found = saves(0.02, 0.05, 0.3, None)
    assert found.slowdown is not None and found.slowdown.median == 0.05
    assert found.stall_s is not None and found.stall_s.median == 5.0
    assert found.cost_s is not None and found.cost_s.median == 20.0
    slowed, unslowed = (setting(run_of(), m, replace(AUTO, checkpoint_at_most_s=1e6, prior_mtbi_h=1.0), 0.0)
                        for m in (found, saves(None)))
    assert slowed.choice.optimum_s / unslowed.choice.optimum_s == pytest.approx(2.0, rel=0.03)
    assert slowed.waste is not None and unslowed.waste is not None and slowed.waste.stall > unslowed.waste.stall
    assert slowed.as_event()["slowdown"] == 0.05 and slowed.as_event()["cost_s"] == 20.0
    assert saves(-0.1, -0.05, 0.0).cost_s == Spread(median=5.0, low=5.0, high=5.0, count=3)
