"""What follows from an ending: one rule for each, as data, and the numbers of ``recovery:`` in orch.yaml.

``why_hold`` and ``backoff`` apply the rule of the newest ending, ``adjustment`` and ``excluded_nodes`` what it changes,
``rule_in_words`` names it for ``orch explain``. All are pure functions of the run.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from dataclasses import dataclass

from orchestrator.core.observation import Observation
from orchestrator.model import Attempt, Ending, Phase, Policy, Run, SubmissionState
from orchestrator.units import format_duration, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What follows an ending.

    ``retries``: how many of this kind in a row, without a newer checkpoint, are followed by another attempt; None: no limit.
    ``counted``: one of ``endings_without_progress``, and followed by a back-off: it says something of the training itself
    when it brings no newer checkpoint, as a preemption or a dead node does not.
    """

    follows: str
    retries: int | None = None
    counted: bool = False


_CONTINUES = "the next attempt continues from the newest complete checkpoint"
_GOES_ON = "the successor goes on"
RULES: dict[Ending, Rule] = {
    Ending.FINISHED: Rule(follows="done"),
    Ending.LIMIT_SAVED: Rule(follows=f"planned stop: {_GOES_ON}"),
    Ending.PREEMPTED_SAVED: Rule(follows=f"planned stop: {_GOES_ON}"),
    Ending.LIMIT_UNSAVED: Rule(follows=f"{_GOES_ON}, and what is submitted from now on has a longer lead", counted=True),
    Ending.PREEMPTED_UNSAVED: Rule(follows=_GOES_ON),
    Ending.NODE_FAILURE: Rule(follows=f"{_GOES_ON}; the node is left out for a while"),
    Ending.OUT_OF_MEMORY: Rule(follows="the next attempt asks for more memory"),
    Ending.CRASH: Rule(follows=_CONTINUES, counted=True),
    Ending.HUNG: Rule(follows=_CONTINUES, counted=True),
    Ending.VANISHED: Rule(follows=_CONTINUES, counted=True),
    Ending.SETUP_FAILURE: Rule(follows="the next attempt begins anew", retries=0, counted=True),
    Ending.NO_RESULT: Rule(follows="the next attempt begins anew", retries=0, counted=True),
    Ending.CANCELLED: Rule(follows="held: orch does not fight people"),
}
# So many that stood down one after another, and the next is waited with: something lets them start too early.
STOOD_DOWN_AT_MOST = 2
# So many endings without progress on one node, and the next attempt tries another: its GPU may be the reason.
FRUITLESS_ENDINGS = 2
_ONE_NODE = re.compile(r"[A-Za-z0-9._-]+")
# Of a trainer that keeps its own checkpoints nobody knows whether it got on; one that ended this soon did not.
TOO_SHORT_FOR_PROGRESS_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A wait before the next attempt."""

    until: float
    why: str


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
    """Nodes to keep away from for a while; none where leaving them out would leave too few."""
    if seen.partition_nodes is None:
        return ()
    failed = _failed_nodes(run, policy, now)
    return failed if len(failed) <= policy.exclude_share * seen.partition_nodes else ()


def _failed_nodes(run: Run, policy: Policy, now: float) -> tuple[str, ...]:
    """Nodes that failed under this run of late, and those on which it got nowhere FRUITLESS_ENDINGS times. One-node attempts
    only: of several nodes nobody knows which one it was."""
    def of_late(attempt: Attempt) -> bool:
        return (attempt.ended_at is not None and now - attempt.ended_at < policy.exclude_node_s
                and _ONE_NODE.fullmatch(attempt.nodes) is not None)

    late = [a for a in run.attempts if of_late(a)]
    failed = {a.nodes for a in late if a.ending == Ending.NODE_FAILURE}
    if len(late) >= FRUITLESS_ENDINGS:
        counts = Counter(a.nodes for a in _since_progress(run) if _rule(a).counted and of_late(a))
        failed |= {node for node, count in counts.items() if count >= FRUITLESS_ENDINGS}
    return tuple(sorted(failed))


# --- whether and when it goes on --------------------------------------------------------------------------------------------


def why_hold(run: Run, seen: Observation, policy: Policy) -> str:
    """Why this run must not go on by itself after its newest ending; '' if it may."""
    last = _newest(run)
    if last is None:
        return ""
    words = f"attempt {last.number}: {last.ending}: {last.reason}"
    if last.ending == Ending.CANCELLED:
        return f"attempt {last.number} was cancelled outside orch"
    alike, retries = _alike_without_progress(run), _retries(last, policy)
    if retries is not None and alike > retries:
        return words if retries == 0 else f"{alike} in a row without a newer checkpoint; {words}"
    if last.ending == Ending.OUT_OF_MEMORY and last_unsettled(run) is not None and (why := why_no_more_memory(run, seen)):
        return f"attempt {last.number}: {last.ending}: {why}"
    misses = without_progress(run)
    if _rule(last).counted and retries is None and misses >= policy.endings_without_progress:
        return f"{misses} endings in a row without a newer checkpoint; the last: {last.ending}: {last.reason}"
    return ""


def backoff(run: Run, policy: Policy) -> Backoff | None:
    """The wait, doubling, after endings without progress and after submissions that stood down one after another; none after
    planned stops or with progress."""
    misses, last = without_progress(run), _newest(run)
    if misses and last is not None and last.ended_at is not None and _rule(last).counted:
        return _wait(run, policy, misses, last.ended_at, f"{misses} without progress")
    idle = stood_down_in_a_row(run)
    if len(idle) >= STOOD_DOWN_AT_MOST:
        return _wait(run, policy, len(idle) - 1, idle[-1], f"{len(idle)} stood down in a row")
    return None


def last_chance(run: Run, policy: Policy) -> bool:
    """Whether endings without progress of what runs and waits already would hold the run: one more successor behind them
    would train before anybody could."""
    misses, under_way = without_progress(run), len(run.waiting) + (run.live is not None)
    return misses > 0 and misses + under_way >= policy.endings_without_progress


def _wait(run: Run, policy: Policy, count: int, since: float, why: str) -> Backoff:
    wait_s = min(policy.backoff_s * 2 ** min(count - 1, 20), policy.backoff_at_most_s)
    wait_s = with_jitter(wait_s, run.spec.tag, count)
    return Backoff(until=since + wait_s, why=f"after a back-off of {wait_s:.0f} s ({why})")


def with_jitter(wait_s: float, tag: str, count: int) -> float:
    """A tenth up or down, always the same for the same run and count: many runs must not come back at one instant."""
    return wait_s * (0.9 + 0.2 * (zlib.crc32(f"{tag} {count}".encode()) % 1000) / 1000)


def rule_in_words(run: Run, policy: Policy) -> str:
    """The rule that applies after the newest ending, with the numbers that it works with; '' before the first."""
    last = _newest(run)
    if last is None or last.ending is None:
        return ""
    if last.ending == Ending.CANCELLED and run.phase in (Phase.CANCELLING, Phase.CANCELLED):
        return f"rule for {last.ending}: nothing follows, as `orch cancel` asked"
    parts = [_rule(last).follows]
    retries, misses = _retries(last, policy), without_progress(run)
    if retries is not None:
        alike = _alike_without_progress(run)
        parts.append(f"{alike} in a row without a newer checkpoint, at most {retries} are retried")
        if alike > retries:
            return f"rule for {last.ending}: held" + (" at once" if retries == 0 else f": {parts[-1]}")
    elif _rule(last).counted:
        parts.append(f"{misses} of at most {policy.endings_without_progress - 1} endings in a row without a newer checkpoint"
                     if misses else "it made progress, so nothing counts against it" if last.progressed
                     else "nobody knows whether it made progress, so nothing counts against it")
        if misses >= policy.endings_without_progress:
            return (f"rule for {last.ending}: held: {misses} endings in a row without a newer checkpoint "
                    f"(`endings_without_progress: {policy.endings_without_progress}`)")
    wait = backoff(run, policy)
    if wait is not None:
        parts.append(wait.why)
    parts += {Ending.OUT_OF_MEMORY: [f"memory x {policy.memory_factor:g} up to the largest node's"],
              Ending.LIMIT_UNSAVED: [f"lead x {policy.lead_factor:g} up to half the limit"],
              Ending.NODE_FAILURE: [f"for {format_duration(policy.exclude_node_s)}, unless that were more than "
                                    f"{policy.exclude_share:.0%} of the partition"]}.get(last.ending, [])
    return f"rule for {last.ending}: {'; '.join(parts)}"


def without_progress(run: Run) -> int:
    """How many endings in a row, of those that count, brought no newer checkpoint."""
    return sum(_rule(attempt).counted for attempt in _since_progress(run))


def _alike_without_progress(run: Run) -> int:
    """How many endings of the newest one's kind came in a row, without a newer checkpoint."""
    recent = _since_progress(run)
    return next((i for i, attempt in enumerate(recent) if attempt.ending != recent[0].ending), len(recent))


def _since_progress(run: Run) -> list[Attempt]:
    """Attempts, newest first, back to the one that brought a newer checkpoint."""
    since: list[Attempt] = []
    for attempt in reversed([a for a in run.attempts if not a.live and decides(run, a)]):
        if _may_have_progressed(attempt):
            break
        since.append(attempt)
    return since


def _may_have_progressed(attempt: Attempt) -> bool:
    """Unknown progress is not "none", unless the attempt was too short for any. Nothing that began wrongly or ended without
    a result got on."""
    if attempt.ending in (Ending.SETUP_FAILURE, Ending.NO_RESULT):
        return False
    if attempt.progressed is None:
        return (attempt.ended_at or attempt.started_at) - attempt.started_at > TOO_SHORT_FOR_PROGRESS_S
    return attempt.progressed


def decides(run: Run, attempt: Attempt) -> bool:
    """Endings from before a person said `release` or `--again` no longer decide anything."""
    return attempt.ended_sequence is not None and attempt.ended_sequence > run.released_sequence


def refused(run: Run) -> str:
    """Slurm's words if it refused the submission that the run now depends on; '' otherwise. A refused *successor* is no
    reason: the next attempt is submitted when the live one has ended."""
    last = run.submissions[-1] if run.submissions else None
    if last is None or last.state != SubmissionState.REJECTED or last.for_now or run.waiting:
        return ""
    endings = [a.ended_sequence for a in run.attempts if a.ended_sequence is not None]
    decided_at = max([run.released_sequence, *endings])
    return f"Slurm refused the job: {last.reason}" if last.sequence > decided_at else ""


def turned_away(run: Run, policy: Policy) -> Backoff | None:
    """The wait, doubling, while Slurm has no room for one more job of this run's."""
    refusals = list(itertools.takewhile(lambda s: s.for_now, reversed(run.submissions)))
    if not refusals:
        return None
    return _wait(run, policy, len(refusals), refusals[0].intended_at, f"no room: {refusals[0].reason}")


def stood_down_in_a_row(run: Run) -> list[float]:
    """When the latest submissions stood down, as far as nothing trained in between and nobody released the run."""
    times: list[float] = []
    for submission in reversed(run.submissions):
        if submission.stood_down_at is None or submission.sequence < run.released_sequence:
            break
        times.append(submission.stood_down_at)
    return times[::-1]


def _newest(run: Run) -> Attempt | None:
    """The newest ending that still decides something."""
    ended = [a for a in run.attempts if not a.live and decides(run, a)]
    return ended[-1] if ended else None


def _rule(attempt: Attempt) -> Rule:
    assert attempt.ending is not None, "asked of ended attempts alone"
    return RULES[attempt.ending]


def _retries(attempt: Attempt, policy: Policy) -> int | None:
    assert attempt.ending is not None
    return policy.retries.get(attempt.ending, RULES[attempt.ending].retries)
