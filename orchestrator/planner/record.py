"""All runs' interruptions put together: exposure, endings, M for each number of nodes, each run's two rates, change,
shape, nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.model import INTERRUPTIONS
from orchestrator.planner import exposure, weibull
from orchestrator.planner.change import Change, change, ratio_seen
from orchestrator.planner.exposure import Exposed
from orchestrator.planner.pooled import Counted, TwoRates, two_rates
from orchestrator.planner.suspects import Suspect, suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNodes:
    """All runs on so many nodes together, their own parts taken as one."""

    nodes: int
    runs: int
    hours: float
    interruptions: int
    known: TwoRates


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRun:
    """One run."""

    tag: str
    nodes: int
    hours: float
    platform_interruptions: int
    own_interruptions: int
    known: TwoRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What all runs together say."""

    attempts: int
    hours: float
    node_hours: float
    endings: dict[str, int]            # how attempts ended, the interruptions among them
    platform: Counted
    by_nodes: tuple[OfNodes, ...]
    runs: tuple[OfRun, ...]
    places: tuple[float, ...]          # of each interruption, the share of all expected ones before it
    change: Change | None              # None: too few to say
    ratio_seen: float | None           # the smallest change that so many interruptions show
    shape: weibull.Fit | None
    suspects: tuple[Suspect, ...]

    @property
    def interruptions(self) -> int:
        return sum(count for ending, count in self.endings.items() if ending in INTERRUPTIONS)


def record_of(stretches: Sequence[Exposed], prior_mtbi_h: float | None = None) -> Record:
    """From every attempt that counts, of every run."""
    platform = exposure.platform(stretches)
    endings: dict[str, int] = {}
    for stretch in stretches:
        name = str(stretch.ending) if stretch.ending is not None else "runs"
        endings[name] = endings.get(name, 0) + 1
    by_tag: dict[str, list[Exposed]] = {}
    for stretch in stretches:
        by_tag.setdefault(stretch.tag, []).append(stretch)
    runs = tuple(_of_run(mine, tag, platform, prior_mtbi_h) for tag, mine in sorted(by_tag.items()))
    places = exposure.positions(stretches, {run.tag: run.known.rate_per_h for run in runs})
    ended_h, censored_h = exposure.intervals_h(stretches)
    return Record(
        attempts=len(stretches), hours=sum(s.hours for s in stretches), node_hours=platform.hours,
        endings=dict(sorted(endings.items(), key=lambda item: (-item[1], item[0]))), platform=platform,
        by_nodes=tuple(_of_nodes(stretches, nodes, platform, prior_mtbi_h)
                       for nodes in sorted({s.nodes for s in stretches})),
        runs=runs, places=tuple(places), change=change(places), ratio_seen=ratio_seen(len(places)) if places else None,
        shape=weibull.fit(ended_h, censored_h), suspects=tuple(suspects(exposure.stretches_of_nodes(stretches))))


def _of_nodes(stretches: Sequence[Exposed], nodes: int, platform: Counted, prior_mtbi_h: float | None) -> OfNodes:
    mine = [s for s in stretches if s.nodes == nodes]
    return OfNodes(nodes=nodes, runs=len({s.tag for s in mine}), hours=sum(s.hours for s in mine),
                   interruptions=sum(s.interrupted for s in mine),
                   known=two_rates(nodes, platform=platform, own=_own_of(mine), prior_mtbi_h=prior_mtbi_h))


def _own_of(stretches: Sequence[Exposed]) -> Counted:
    """The mean run's own part: interruptions in hours, of all these together."""
    return Counted(interruptions=sum(s.ending in exposure.OWN for s in stretches), hours=sum(s.hours for s in stretches))


def _of_run(mine: Sequence[Exposed], tag: str, platform: Counted, prior_mtbi_h: float | None) -> OfRun:
    own = exposure.own(mine, tag)
    return OfRun(tag=tag, nodes=mine[-1].nodes, hours=own.hours, own_interruptions=own.interruptions,
                 platform_interruptions=sum(s.ending in exposure.PLATFORM for s in mine),
                 known=two_rates(mine[-1].nodes, platform=platform, own=own, prior_mtbi_h=prior_mtbi_h))
