"""What the trainer measured: stall C, write time, durable time, size, step time, from its own lines. Pure.

Medians and spreads over the latest saves; an attempt's first save is kept apart, because it is slower (folders are made,
caches are cold) and would spoil a median of three.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SAMPLES_AT_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with the 10th and 90th percentile of ``count`` samples."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """None: not measured yet."""

    stall_s: Spread | None = None      # C: training stands still
    write_s: Spread | None = None      # t_w: writing
    durable_s: Spread | None = None    # t: from the start of a save until it is usable
    size_bytes: Spread | None = None
    step_s: Spread | None = None
    first_stall_s: Spread | None = None  # of an attempt's first save


def measure(attempts: Iterable[Sequence[dict[str, Any]]]) -> Measured:
    """From the ``trainer.jsonl`` lines of attempts, oldest attempt first."""
    lines = [line for attempt in attempts for line in attempt]
    if not lines:
        return Measured()
    saves = [line for line in lines if line["event"] == "saved"]
    first, later = [s for s in saves if s.get("first")], [s for s in saves if not s.get("first")]
    usual = later or first             # a first save is better than nothing
    rates = [line.get("steps_per_s") for line in lines if line["event"] == "progress"]
    return Measured(
        stall_s=_spread(usual, "stall_s"), write_s=_spread(usual, "write_s"), durable_s=_spread(usual, "durable_s"),
        size_bytes=_spread(usual, "size_bytes"), first_stall_s=_spread(first, "stall_s"),
        step_s=spread([1 / rate for rate in rates if isinstance(rate, (int, float)) and rate > 0]))


def _spread(lines: Sequence[dict[str, Any]], key: str) -> Spread | None:
    return spread([line[key] for line in lines if isinstance(line.get(key), (int, float))])


def spread(values: Sequence[float]) -> Spread | None:
    """Of the latest samples; None without any."""
    if not values:
        return None
    latest = sorted(values[-SAMPLES_AT_MOST:])
    last = len(latest) - 1
    return Spread(median=statistics.median(latest), low=latest[round(0.1 * last)], high=latest[round(0.9 * last)],
                  count=len(latest))
