"""What the trainer measured: stall C, write time, durable time, size, step time, from its own lines. Pure.

Medians and spreads over the latest saves; an attempt's first save is kept apart, because it is slower (folders are made,
caches are cold) and would spoil a median of three.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model import Attempt

SAMPLES_AT_MOST = 50
SLOWDOWN_AT_MOST = 1.0             # steps that stand still


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
    slowdown: Spread | None = None     # sigma: the share by which steps are slower while a save is written beside them
    local_stall_s: Spread | None = None  # C and t of saves to the node, the first of two levels; the others are of shared
    local_durable_s: Spread | None = None
    slowed_stall_s: Spread | None = None  # C + sigma (t - C), where sigma was measured

    @property
    def cost_s(self) -> Spread | None:
        """What a save costs, to be put into T* and into the waste (docs/planning.md 3)."""
        return self.slowed_stall_s or self.stall_s


def measure(attempts: Iterable[Sequence[dict[str, Any]]]) -> Measured:
    """From the ``trainer.jsonl`` lines of attempts, oldest attempt first."""
    lines = [line for attempt in attempts for line in attempt if line["event"] in ("saved", "progress")]
    if not lines:
        return Measured()
    saved = [line for line in lines if line["event"] == "saved"]
    local = [line for line in saved if line.get("level") == "local"]
    saves = [line for line in saved if line.get("level") != "local"]
    first, later = [s for s in saves if s.get("first")], [s for s in saves if not s.get("first")]
    usual = later or first             # a first save is better than nothing
    slower = [line for line in saves if isinstance(line.get("slowdown"), (int, float))]
    sigma = _spread(slower, "slowdown")
    rates = [line.get("steps_per_s") for line in lines if line["event"] == "progress"]
    return Measured(
        stall_s=_spread(usual, "stall_s"), write_s=_spread(usual, "write_s"), durable_s=_spread(usual, "durable_s"),
        local_stall_s=_spread(local, "stall_s"), local_durable_s=_spread(local, "durable_s"), slowdown=sigma,
        slowed_stall_s=spread(_slowed(usual, sigma)) if sigma is not None else None,
        size_bytes=_spread(usual, "size_bytes"), first_stall_s=_spread(first, "stall_s"),
        step_s=spread([1 / rate for rate in rates if isinstance(rate, (int, float)) and rate > 0]))


def from_outside(attempts: Sequence[Attempt], *, step: int, saved_at: float, size_bytes: int) -> Measured:
    """Of a trainer that tells no steps, by its newest checkpoint: its size, and the time of a step from its attempt's start
    to that save, start-up and saves included. Two saves would tell more, and may be hours apart."""
    wrote = next((attempt for attempt in reversed(attempts) if attempt.started_at < saved_at), None)
    steps = step - (wrote.resume_step or 0) if wrote is not None else 0
    return Measured(size_bytes=spread([size_bytes]),
                    step_s=spread([(saved_at - wrote.started_at) / steps]) if wrote is not None and steps > 0 else None)


def _slowed(saves: Sequence[dict[str, Any]], sigma: Spread) -> list[float]:
    """The slowdown of one save is noise on few steps, so the median of all is used; noise below zero is none."""
    pairs = [(s.get("stall_s"), s.get("durable_s"), s.get("background")) for s in saves]
    return [stall + (max(0.0, min(sigma.median, SLOWDOWN_AT_MOST)) * max(0.0, durable - stall) if background else 0.0)
            for stall, durable, background in pairs
            if isinstance(stall, (int, float)) and isinstance(durable, (int, float))]


def _spread(lines: Sequence[dict[str, Any]], key: str) -> Spread | None:
    return spread([value for line in lines if isinstance(value := line.get(key), (int, float))])


def spread(values: Sequence[float]) -> Spread | None:
    """Of the latest samples; None without any."""
    if not values:
        return None
    latest = sorted(values[-SAMPLES_AT_MOST:])
    last = len(latest) - 1
    return Spread(median=statistics.median(latest), low=latest[round(0.1 * last)], high=latest[round(0.9 * last)],
                  count=len(latest))
