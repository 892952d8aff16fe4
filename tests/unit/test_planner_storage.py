"""Storage, money, copies and two levels: the derivation's tables, and brute force where there is no table."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.plan_files import read_catalog
from orchestrator.planner import frameworks, levels, replication, storage, tradeoff
from orchestrator.planner.gamma import gamma_cdf
from orchestrator.planner.interval import excess_of
from orchestrator.planner.mtbi import assumed_interval95_h, at_least_h, record_interval95_h
from orchestrator.planner.size import layout, size_of_bytes_per_param, size_of_layout
from orchestrator.planner.tradeoff import Job

CATALOG = read_catalog(None)
SIZE = 124.45e9 * 14
M_S = 200 * 3600.0
ASYNC = Job(size_bytes=SIZE, nodes=32, mtbi_s=M_S, keep=4, price_usd_per_h=142.416, gpus_per_price=8, stall_s=5.0)
SYNC = replace(ASYNC, stall_s=None)


@pytest.mark.parametrize(("price", "best_usd", "best", "next_usd", "next_best"), [
    (1.0, 261_001, (1000, 7200, 242), 261_747, (500, 9600, 363)), (0.5, 147_374, (500, 7200, 484), 150_457, (500, 9600, 363)),
    (0.25, 88_375, (500, 7200, 484), 89_900, (250, 9600, 726))])
def test_the_best_configurations(
    price: float, best_usd: float, best: tuple[int, ...], next_usd: float, next_best: tuple[int, ...],
) -> None:
    job = replace(ASYNC, price_usd_per_h=142.416 * price)
    plans = sorted(tradeoff.candidates(CATALOG, job, 30, 1200), key=lambda p: p.total_usd)
    kinds: list[tuple[float, int, int, int]] = []
    for plan in plans:
        kind = (plan.system.offer.throughput_class, plan.system.capacity_gib, round(plan.write_s), round(plan.total_usd))
        if kind not in kinds:
            kinds.append(kind)
    assert kinds[0] == (*best, best_usd) and kinds[1] == (*next_best, next_usd)


def test_the_articles_own_plans_priced_the_same_way() -> None:
    totals = [tradeoff.cheapest_for(CATALOG, ASYNC, write_s).total_usd for write_s in (300, 1200)]
    assert totals == pytest.approx([264_020, 320_673], abs=4)
    assert tradeoff.flat_region_s(tradeoff.candidates(CATALOG, ASYNC, 30, 1200)) == pytest.approx((242, 484), abs=0.1)


@pytest.mark.parametrize("job", [ASYNC, SYNC, replace(ASYNC, keep=9), replace(ASYNC, limit_s=86_400.0),
                                 replace(SYNC, mtbi_s=M_S / 10), replace(ASYNC, mtbi_s=M_S / 100),
                                 replace(ASYNC, nodes=1, price_usd_per_h=1e4)],
                         ids=["async", "sync", "keep", "limit", "short", "write longer than T*", "one node"])
def test_no_write_time_on_a_fine_grid_is_better_than_the_best_candidate(job: Job) -> None:
    best = tradeoff.best(tradeoff.candidates(CATALOG, job, 30, 1200)).total_usd
    grid = [30 + 0.5 * i for i in range(2341)]
    least = min(tradeoff.cheapest_for(CATALOG, job, write_s).total_usd for write_s in grid)
    assert best <= least + 1e-6 and least < best * 1.02


def test_small_units_make_no_more_plans_than_can_be_told_apart() -> None:
    """Other file systems than FSx come in GiB."""
    fine = replace(CATALOG, efa_above_bytes_per_s=1e11, offers=tuple(
        replace(offer, unit_gib=1) for offer in CATALOG.offers if not offer.efa))
    plans = tradeoff.candidates(fine, ASYNC, 30, 1200)
    assert len(plans) < 10_000
    least = min(tradeoff.cheapest_for(fine, ASYNC, 30 + 2.0 * i).total_usd for i in range(586))
    assert tradeoff.best(plans).total_usd < 1.001 * least


def test_no_write_meets_the_next() -> None:
    """Where sqrt(2 C M) is shorter than a save takes to be written, C + write is best."""
    short = tradeoff.cheapest_for(CATALOG, replace(ASYNC, mtbi_s=7200.0), 600)
    assert short.interval_s == 605 and short.waste.rework == pytest.approx(605 / 14_400)
    assert tradeoff.cheapest_for(CATALOG, replace(ASYNC, mtbi_s=7200.0), 60).interval_s == pytest.approx(268, abs=0.5)


def test_parts_of_a_plan_add_up() -> None:
    plan = tradeoff.cheapest_for(CATALOG, replace(ASYNC, limit_s=86_400.0), 300)
    assert plan.total_usd == pytest.approx(plan.stopped_usd + plan.lost_work_usd + plan.storage_usd)
    assert plan.waste.planned > 0
    assert plan.total_usd - plan.storage_usd == pytest.approx(39_922_053 * plan.waste.total, rel=1e-6)


def test_the_write_time_by_calculus() -> None:
    """358 s for on-demand prices at 500 MB/s/TiB, where a MB/s costs 8.16 USD a year."""
    found = tradeoff.write_time_by_calculus_s(size_bytes=SIZE, usd_per_bytes_per_s_year=8.16 / 1e6, mtbi_s=M_S,
                                              usd_per_year=ASYNC.usd_per_year)
    assert found == pytest.approx(358, abs=0.5)


@settings(max_examples=40)
@given(st.floats(1e9, 1e13), st.floats(20, 5000), st.integers(2, 30))
def test_a_file_system_holds_and_sustains_and_one_unit_less_does_not(size: float, write_s: float, keep: int) -> None:
    required = size / write_s
    for system in storage.choices(CATALOG, size_bytes=size, keep=keep, throughput_bytes_per_s=required):
        unit = system.offer.unit_gib
        assert system.capacity_gib % unit == 0 and system.capacity_gib * 2**30 >= keep * size * (1 - 1e-9)
        assert system.baseline_bytes_per_s >= required * (1 - 1e-9)
        less = replace(system, capacity_gib=system.capacity_gib - unit)
        assert less.capacity_gib == 0 or less.baseline_bytes_per_s < required or less.capacity_gib * 2**30 < keep * size
        assert system.offer.efa or not storage.needs_efa(CATALOG, required)


def test_what_one_node_can_write() -> None:
    choices = tradeoff.priced(CATALOG, replace(ASYNC, nodes=1), 300)  # one node: 46 Gbit/s through 5 servers of 5
    narrow = {c.plan.system.offer.throughput_class: c for c in choices if not c.plan.system.offer.efa}
    assert narrow[500].client_limited and not narrow[250].client_limited and not tradeoff.cheapest(choices).client_limited
    small = storage.client_cap_gbps(CATALOG, narrow[125].plan.system, CATALOG.instances["c6in.2xlarge"])
    assert small == 12.5
    one = replace(ASYNC, nodes=1)                # a plan that one node can write is taken, though others were cheaper
    assert tradeoff.cheapest_for(CATALOG, one, 300).system.offer.throughput_class == 250
    plans = tradeoff.candidates(CATALOG, replace(one, price_usd_per_h=1e4), 30, 1200)
    best = tradeoff.best(plans)
    assert not best.client_limited and storage.client_need_gbps(SIZE, 1, best.write_s) <= storage.client_cap_gbps(
        CATALOG, best.system) * (1 + 1e-9)
    assert tradeoff.cheapest_for(CATALOG, one, 1).client_limited
    per_connection = replace(CATALOG, without_efa=replace(CATALOG.without_efa, gbps_per_server=None),
                             connections_gbps={"default": 2.0})
    assert storage.client_cap_gbps(per_connection, narrow[500].plan.system) == 5 * 2.0


@pytest.mark.parametrize(("share", "rate", "extra_s", "t1", "t2", "waste", "alone"), [
    (0.05, 6.0, 0, 2753, 2753, 0.4252, 0.5374), (0.05, 1.8, 0, 2753, 2753, 0.4346, 0.7256),
    (0.05, 0.9, 0, 2753, 2753, 0.4481, 0.9945), (0.20, 0.9, 0, 3000, 3000, 0.5366, 0.9945),
    (0.05, 0.9, 5, 2753, 13765, 0.5227, 0.9945)])
def test_two_levels(
    share: float, rate: float, extra_s: float, t1: float, t2: float, waste: float, alone: float,
) -> None:
    write_s = SIZE / (rate * 1e9)
    local = levels.Local(stall_s=5, durable_s=35, restart_s=300)
    shared = levels.Shared(stall_s=extra_s, write_s=write_s, restart_s=600 + write_s)
    found = levels.two_levels(local, shared, mtbi_s=M_S, shared_share=share)
    assert (found.local_interval_s, found.shared_interval_s) == pytest.approx((t1, t2), abs=0.5)
    assert 100 * found.waste == pytest.approx(waste, abs=6e-5)
    assert 100 * levels.shared_only(5, write_s, 600 + write_s, M_S).total == pytest.approx(alone, abs=6e-5)


@pytest.mark.parametrize(("share", "rate", "simulated"), [(0.05, 6.0, 0.4237), (0.05, 0.9, 0.4471), (0.2, 0.9, 0.5340)])
def test_two_levels_lived_through(share: float, rate: float, simulated: float) -> None:
    """Local saves every T1; of the interruptions a share loses them too and goes back to the last shared one."""
    import numpy as np

    write_s = SIZE / (rate * 1e9)
    local = levels.Local(stall_s=5, durable_s=35, restart_s=300)
    shared = levels.Shared(stall_s=0, write_s=write_s, restart_s=600 + write_s)
    two = levels.two_levels(local, shared, mtbi_s=M_S, shared_share=share)
    rng = np.random.default_rng(1)
    ages = rng.exponential(M_S, 400_000)
    deep = rng.random(400_000) < share
    interval_s = two.local_interval_s
    durable_s = np.where(deep, write_s, 30.0)
    kept = np.floor(np.maximum(ages - durable_s, 0) / interval_s) * (interval_s - 5)
    wall = ages + np.where(deep, 600 + write_s, 300.0)
    found = 1 - kept.sum() / wall.sum()
    error = float(np.sqrt(((kept - (1 - found) * wall) ** 2).sum()) / wall.sum())
    assert abs(100 * found - simulated) < 100 * 4 * error + 1e-3
    assert 100 * found == pytest.approx(100 * two.waste, abs=0.005)  # the first order counts the stall twice


def test_the_cheapest_behind_local_copies() -> None:
    options = levels.options(CATALOG, levels.Local(stall_s=5, durable_s=35, restart_s=300), size_bytes=SIZE, nodes=32, keep=4,
                             shared_stall_s=0, mtbi_s=M_S, shared_share=0.05)
    assert levels.cheapest(options).system.monthly_usd == pytest.approx(1044)
    assert options == sorted(options, key=lambda o: (o.system.monthly_usd, o.levels.waste))
    assert levels.cheapest(options, 1e12).levels.waste == min(o.levels.waste for o in options)  # GPU time is all that counts


def test_copies_by_counting_every_pattern() -> None:
    """Five nodes, one failed: all patterns of the four others."""
    p = 0.3
    for factor in (1, 2, 3, 4, 5):
        exact = sum(p ** sum(pattern) * (1 - p) ** (4 - sum(pattern))
                    for pattern in itertools.product((0, 1), repeat=4) if sum(pattern) >= factor - 1)
        assert replication.loss_random_exact(p, factor, 5) == pytest.approx(exact)
        assert replication.loss_fixed_group(p, factor) == pytest.approx(p ** (factor - 1))
    drawn = random.Random(1)
    lost = sum(sum(drawn.random() < 0.02 for _ in range(31)) >= 1 for _ in range(20_000)) / 20_000
    assert replication.loss_random_exact(0.02, 2, 32) == pytest.approx(lost, abs=0.015)
    assert replication.loss_random_exact(1e-9, 3, 32) == pytest.approx(replication.loss_random_approx(1e-9, 3, 32), rel=1e-6)


def test_records_of_interruptions() -> None:
    low, high = record_interval95_h(1296, 466)
    assert low < 1296 / 466 < high and (low, high) == pytest.approx((2.540, 3.052), abs=2e-3)
    # Garwood's bounds are the rates at which as many or more, as few or less, have 2.5 %
    low, high = record_interval95_h(100, 3)
    assert gamma_cdf(3, 100 / high) == pytest.approx(0.025) and gamma_cdf(4, 100 / low) == pytest.approx(0.975)
    assert at_least_h(300) == pytest.approx(300 / 2.9957, rel=1e-4)
    low, high = assumed_interval95_h(100)
    assert low < 50 and high > 1000


def test_sizes_with_frozen_parts() -> None:
    size = size_of_layout(70e9, layout(moments="bf16"), nodes=16, frozen_params=10e9)
    assert size.size_bytes == 60e9 * 10 + 10e9 * 2 and size.components_bytes["frozen_weights"] == 20e9
    assert size.bytes_per_param == pytest.approx(620 / 70) and size.per_node_bytes == 620e9 / 16
    assert size_of_bytes_per_param(70e9, 10, frozen_params=10e9).size_bytes == size.size_bytes


def test_defaults_of_frameworks() -> None:
    found = {s.framework.name: s for s in frameworks.settings_for(2700, 1.2, asynchronous=True)}
    assert found["TorchTitan"].excess == pytest.approx(excess_of(600 / 2700)) and found["Megatron-LM"].excess is None
    assert "--save-interval 2250" in found["Megatron-LM"].settings and "save_steps=2250" in found["HF Trainer"].settings
    assert not any("async" in line for s in frameworks.settings_for(2700, 1.2, asynchronous=False) for line in s.settings)
    low, high = frameworks.tolerable_s(2700, 0.05)
    assert [excess_of(end / 2700) for end in (low, high)] == pytest.approx([0.05, 0.05]) and low < 2700 < high
