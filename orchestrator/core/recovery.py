"""What follows from an ending: the rules of ``recovery:`` in orch.yaml, as pure functions of the run.

    out-of-memory       memory x memory_factor, up to the largest node's; then held
    limit-unsaved       lead x lead_factor, up to half the limit; said
    node-failure        the node is excluded for exclude_node_for, unless that leaves too few
    crash, hung, ...    next attempt while there is progress; endings_without_progress in a row: held; back-off with jitter
    planned stops       the successor goes on at once, and nothing is counted
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from orchestrator.core.observation import Observation
from orchestrator.model import Attempt, Ending, Policy, Run
from orchestrator.units import format_duration, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What the next attempts ask for instead."""

    memory_bytes: int | None = None
    lead_s: float | None = None
    why: str = ""


def last_unsettled(run: Run) -> Attempt | None:
    """The newest ending, if nothing has been made of it yet. Its successor may well train by now: it was queued ahead."""
    ended = [a for a in run.attempts if not a.live]
    if not ended:
        return None
    last = ended[-1]
    settled = max(run.adjusted_sequence, run.released_sequence)
    return last if last.ended_sequence is not None and last.ended_sequence > settled else None


def needs_offers(run: Run, policy: Policy, now: float) -> bool:
    """Whether this run's next step depends on what nodes there are."""
    last = last_unsettled(run)
    return (last is not None and last.ending == Ending.OUT_OF_MEMORY) or bool(_failed_nodes(run, policy, now))


def adjustment(run: Run, seen: Observation, policy: Policy) -> Adjustment | None:
    """More memory or a longer lead after the newest ending; None when it asks for neither, or for more than there is."""
    last = last_unsettled(run)
    profile = run.spec.profile
    if last is None:
        return None
    if last.ending == Ending.OUT_OF_MEMORY and profile.memory_bytes is not None and seen.memory_at_most_bytes is not None:
        wanted = min(int(profile.memory_bytes * policy.memory_factor), seen.memory_at_most_bytes)
        if wanted > profile.memory_bytes:
            why = (f"attempt {last.number} ran out of {format_size(profile.memory_bytes)}: memory x "
                   f"{policy.memory_factor:g} = {format_size(wanted)}")
            return Adjustment(memory_bytes=wanted, why=why)
    if last.ending == Ending.LIMIT_UNSAVED:
        lead_s = min(profile.lead_s * policy.lead_factor, profile.time_s / 2)
        if lead_s > profile.lead_s:
            return Adjustment(lead_s=lead_s, why=f"attempt {last.number} could not save within its lead of "
                              f"{format_duration(profile.lead_s)}: {format_duration(lead_s)} from the next submission on")
    return None


def why_no_more_memory(run: Run, seen: Observation) -> str:
    """Why an out-of-memory cannot be mended by asking for more."""
    have = run.spec.profile.memory_bytes
    if have is None:
        return "the profile names no memory, so it cannot be raised; write `memory:` into orch.yaml"
    if seen.memory_at_most_bytes is None:
        return ""
    return f"{format_size(have)} were not enough, and the largest node has {format_size(seen.memory_at_most_bytes)}"


def excluded_nodes(run: Run, seen: Observation, policy: Policy, now: float) -> tuple[str, ...]:
    """Nodes that failed under this run of late; none where leaving them out would leave too few."""
    failed = _failed_nodes(run, policy, now)
    if not failed or seen.partition_nodes is None or len(failed) > policy.exclude_share * seen.partition_nodes:
        return ()
    return failed


def _failed_nodes(run: Run, policy: Policy, now: float) -> tuple[str, ...]:
    """One-node attempts only: of several nodes nobody knows which one it was."""
    names = {a.nodes for a in run.attempts
             if a.ending == Ending.NODE_FAILURE and a.ended_at is not None and now - a.ended_at < policy.exclude_node_s
             and re.fullmatch(r"[A-Za-z0-9._-]+", a.nodes)}
    return tuple(sorted(names))


def with_jitter(wait_s: float, tag: str, count: int) -> float:
    """A tenth up or down, always the same for the same run and count: many runs must not come back at one instant."""
    return wait_s * (0.9 + 0.2 * (zlib.crc32(f"{tag} {count}".encode()) % 1000) / 1000)
