"""``ops/simulate --schedules N --seed S [--jobs 2]``: exit 0 if all held, else the failing schedules, shortened."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import time
from collections import Counter

from simulation.campaign import draw_schedule, run_schedule, shorten, workplace

SHOWN_AT_MOST = 3


def run_many(first: int, count: int, stride: int, failures_at_most: int) -> list[tuple[int, str]]:
    failed: list[tuple[int, str]] = []
    gc.freeze()
    gc.set_threshold(100_000)
    with workplace() as root:
        for seed in range(first, first + count * stride, stride):
            complaint = run_schedule(draw_schedule(seed), root)
            if complaint:
                failed.append((seed, complaint))
                if len(failed) >= failures_at_most:
                    break
    return failed


def tell(seed: int) -> None:
    """One schedule, shortened, with all that happened in it."""
    with workplace() as root:
        schedule = draw_schedule(seed)
        complaint = run_schedule(schedule, root)
        if not complaint:
            print(f"seed {seed}: everything held")
            return
        schedule = shorten(schedule, root, complaint)
        print(f"--- seed {seed}, shortened to {len(schedule.steps)} steps; runs {schedule.runs}")
        print(run_schedule(schedule, root, trace=print))


def main() -> int:
    parser = argparse.ArgumentParser(prog="ops/simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000, help="how many (default 20000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--tell", type=int, metavar="SEED", help="run this one schedule and tell it step by step")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many failures a process")
    given = parser.parse_args()
    if given.tell is not None:
        tell(given.tell)
        return 0
    began = time.monotonic()
    shares = [(given.seed + job, -(-(given.schedules - job) // given.jobs), given.jobs, given.failures)
              for job in range(given.jobs)]
    if given.jobs == 1:
        results = [run_many(*shares[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            results = pool.starmap(run_many, shares)
    failed = sorted(one for result in results for one in result)
    print(f"{given.schedules} schedules from seed {given.seed}: {len(failed)} failed; {time.monotonic() - began:.1f} s")
    for kind, count in Counter(complaint[:70] for _, complaint in failed).most_common():
        print(f"  {count:5} x {kind}")
    for seed, complaint in failed[:SHOWN_AT_MOST]:
        print(f"seed {seed}: {complaint}")
        tell(seed)
    return 1 if failed else 0
