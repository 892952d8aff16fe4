"""``ops/simulate --schedules N --seed S [--jobs J]``: exit 0 if all held, else the failing schedules, shortened."""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from simulation.campaign import Campaign
from simulation.rest import settle
from simulation.schedule import Schedule, draw_schedule
from simulation.seams import seams, world_of

SHOWN_AT_MOST = 3
SHARE = 250                            # schedules that a process takes at a time: one that has a CPU to itself takes more


def run_schedule(
    schedule: Schedule, trace: Callable[[str], None] | None = None, struck: Counter[str] | None = None,
) -> str:
    """'' if everything held, else what did not; within ``seams``. Faults that struck are counted in ``struck``."""
    with world_of(schedule.seed) as world:
        try:
            campaign = Campaign(schedule, world, trace=trace)
            campaign.play()
            settle(campaign)
        except Exception as error:
            if trace is not None:
                trace(traceback.format_exc())
            return f"{type(error).__name__}: {error}"
    if struck is not None:
        struck.update(world.struck)
    return ""


def shorten(schedule: Schedule, complaint: str) -> Schedule:
    """Steps left out, then faults, as long as it still goes wrong in the same way."""
    kind = complaint.partition(":")[0]

    def still(shorter: Schedule) -> bool:
        return run_schedule(shorter).startswith(kind)

    size = max(1, len(schedule.steps) // 2)
    while True:
        at = 0
        while at < len(schedule.steps):
            shorter = replace(schedule, steps=schedule.steps[:at] + schedule.steps[at + size:])
            if still(shorter):
                schedule = shorter
            else:
                at += size
        if size == 1:
            return schedule
        size = max(1, size // 2)


Result = tuple[int, list[tuple[int, str]], Counter[str]]


def run_many(first: int, count: int, failures_at_most: int) -> Result:
    """How many were run, those that failed, and the faults that struck."""
    failed: list[tuple[int, str]] = []
    struck: Counter[str] = Counter()
    ran = 0
    with seams():
        for seed in range(first, first + count):
            complaint = run_schedule(draw_schedule(seed), struck=struck)
            ran += 1
            if complaint:
                failed.append((seed, complaint))
                if len(failed) >= failures_at_most:
                    break
    return ran, failed, struck


def run_all(first: int, count: int, jobs: int, failures_at_most: int) -> Iterator[Result]:
    """Share by share, in as many processes."""
    shares = [(first + at, min(SHARE, count - at), failures_at_most) for at in range(0, count, SHARE)]
    if jobs == 1:
        collect_rarely()
        yield from itertools.starmap(run_many, shares)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=collect_rarely) as pool:
        yield from pool.imap_unordered(_run_share, shares)


def _run_share(share: tuple[int, int, int]) -> Result:
    return run_many(*share)


def collect_rarely() -> None:
    """Nothing that was imported is ever garbage, and a schedule leaves little."""
    gc.freeze()
    gc.set_threshold(100_000)


def tell(seed: int) -> None:
    """One schedule, shortened, with all that happened in it."""
    with seams():
        schedule = draw_schedule(seed)
        complaint = run_schedule(schedule)
        if not complaint:
            print(f"seed {seed}: everything held")
            return
        schedule = shorten(schedule, complaint)
        print(f"--- seed {seed}, shortened to {len(schedule.steps)} steps; runs {schedule.runs}")
        for step in schedule.steps:
            print(f"    {step!r},")
        print(run_schedule(schedule, trace=print))


def main() -> int:
    parser = argparse.ArgumentParser(prog="ops/simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000, help="how many (default 20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: one a CPU)")
    parser.add_argument("--tell", type=int, metavar="SEED", help="run this one schedule and tell it step by step")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many failures")
    given = parser.parse_args()
    if given.tell is not None:
        tell(given.tell)
        return 0
    began = time.monotonic()
    ran, failed, struck = 0, list[tuple[int, str]](), Counter[str]()
    for count, some, counted in run_all(given.seed, given.schedules, given.jobs, given.failures):
        ran, failed, struck = ran + count, sorted(failed + some), struck + counted
        if len(failed) >= given.failures:
            break
    took_s = time.monotonic() - began
    for fault, times in sorted(struck.items()):
        print(f"{times:9}  {fault}")
    print(f"{struck.total():9}  faults in {ran} schedules from seed {given.seed} in {took_s:.1f} s "
          f"({ran / took_s:.0f} a second): {len(failed)} failed")
    for kind, count in Counter(complaint[:70] for _, complaint in failed).most_common():
        print(f"  {count:5} x {kind}")
    for seed, complaint in failed[:SHOWN_AT_MOST]:
        print(f"seed {seed}: {complaint}")
        tell(seed)
    return 1 if failed else 0
