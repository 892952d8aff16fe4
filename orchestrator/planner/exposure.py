"""What runs tell of interruptions: hours that they ran, on which nodes, and how each attempt ended. From the words, and pure.

The exposure is censored: planned stops and cancels count without an event, the live attempt until now, or until its limit
where nobody has noted its end; a setup failure or a missing result counts as neither. Of the interruptions, those that a
machine or its owner causes are the platform's; the others are the run's own. A crash is taken for the run's, although
hardware can cause one: what is certain is pooled, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from orchestrator.model import INTERRUPTIONS, Attempt, Ending, Run
from orchestrator.planner.pooled import Counted
from orchestrator.planner.suspects import Stretch

PLATFORM = frozenset({Ending.NODE_FAILURE, Ending.VANISHED, Ending.PREEMPTED_UNSAVED})
OWN = INTERRUPTIONS - PLATFORM
# A bad node shows as one of these; memory, limits and preemptions are nobody's node's fault.
NODE_SUSPECTED = frozenset({Ending.NODE_FAILURE, Ending.VANISHED, Ending.CRASH, Ending.HUNG})
NO_EXPOSURE = frozenset({Ending.SETUP_FAILURE, Ending.NO_RESULT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One attempt, as far as interruptions go."""

    tag: str
    nodes: int
    names: tuple[str, ...]
    started_at: float
    hours: float
    ending: Ending | None              # None: it runs
    planned: bool = False              # orch itself stopped it

    @property
    def interrupted(self) -> bool:
        return self.ending in INTERRUPTIONS and not self.planned

    @property
    def node_hours(self) -> float:
        return self.nodes * self.hours

    @property
    def ended_at(self) -> float:
        return self.started_at + 3600 * self.hours


def exposed(run: Run, now: float, nodes_now: Mapping[str, str] | None = None) -> list[Exposed]:
    """The run's attempts that count. ``nodes_now``: of live attempts by their submission id, since an attempt's own record
    gets its nodes when it ends."""
    at, nodes, limit_s = nodes_now or {}, run.spec.profile.nodes, run.spec.profile.time_s
    found: list[Exposed] = []
    for attempt in run.attempts:
        if attempt.ending not in NO_EXPOSURE:
            names = node_names(attempt.nodes)  # they count rather than the profile, which may have been another one then
            found.append(Exposed(
                tag=run.spec.tag, nodes=len(names) or nodes,
                names=names or node_names(at.get(attempt.submission_id) or attempt.host),
                started_at=attempt.started_at, hours=_hours(attempt, limit_s, now), ending=attempt.ending,
                planned=planned(run, attempt)))
    return found


def planned(run: Run, attempt: Attempt) -> bool:
    """Whether orch itself stopped it (the resume canary): nobody's interruption, also where it did not save."""
    return attempt.ending == Ending.PREEMPTED_UNSAVED and f"stop {attempt.job_id}" in run.requests


def _hours(attempt: Attempt, limit_s: float, now: float) -> float:
    end = attempt.ended_at if attempt.ended_at is not None else min(now, attempt.started_at + limit_s)
    return max(0.0, end - attempt.started_at) / 3600


def platform(stretches: Iterable[Exposed]) -> Counted:
    """The platform's interruptions in the node-hours of all these attempts."""
    stretches = list(stretches)
    return Counted(interruptions=sum(s.interrupted and s.ending in PLATFORM for s in stretches),
                   hours=sum(s.node_hours for s in stretches))


def own(stretches: Iterable[Exposed], tag: str) -> Counted:
    """The run's own in its hours."""
    mine = [s for s in stretches if s.tag == tag]
    return Counted(interruptions=sum(s.ending in OWN for s in mine), hours=sum(s.hours for s in mine))


def positions(stretches: Iterable[Exposed], rates_per_h: Mapping[str, float]) -> list[float]:
    """For each interruption, by the clock and over all runs, the share of all expected ones that came before it.
    ``rates_per_h`` is each run's: runs on more nodes, or with more faults of their own, count for more, so that a change
    of what runs is no change of the rate."""
    stretches = list(stretches)
    changes = sorted(change for s in stretches for change in (
        (s.started_at, rates_per_h[s.tag]), (s.ended_at, -rates_per_h[s.tag])))
    expected_at: dict[float, float] = {}
    expected = rate = before = 0.0
    for at, change in changes:
        expected += rate * (at - before) / 3600
        expected_at[at] = expected
        before, rate = at, rate + change
    if expected <= 0:
        return []
    return [min(1.0, expected_at[at] / expected) for at in sorted(s.ended_at for s in stretches if s.interrupted)]


def intervals_h(stretches: Iterable[Exposed]) -> tuple[list[float], list[float]]:
    """Hours since the last restart at each interruption, and those that no interruption ended: what a Weibull is fitted
    to."""
    stretches = [s for s in stretches if s.hours > 0]
    return [s.hours for s in stretches if s.interrupted], [s.hours for s in stretches if not s.interrupted]


def stretches_of_nodes(stretches: Iterable[Exposed]) -> list[Stretch]:
    return [Stretch(nodes=s.names, hours=s.hours, interrupted=s.ending in NODE_SUSPECTED) for s in stretches]


@lru_cache(maxsize=10_000)
def node_names(text: str) -> tuple[str, ...]:
    """``n[1-3,07],m1`` as Slurm writes it: n1 n2 n3 n07 m1; ``r[1-2]n[1-2]``: r1n1 r1n2 r2n1 r2n2."""
    names: list[str] = []
    for item in re.findall(r"(?:[^\s,\[\]]|\[[^\]]*\])+", text):
        pieces = re.findall(r"\[[^\]]*\]|[^\[\]]+", item)
        names += map("".join, product(*(_numbers(p[1:-1]) if p.startswith("[") else (p,) for p in pieces)))
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            found += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return found
