"""When something about the whole repository is worth telling: a queue that runs dry, a Slurm that is silent. Pure.

Both are told by level, not by edge, and with hysteresis: what comes and goes within a minute is no news, and two hours of
flapping are two messages.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.pending import met
from orchestrator.message import QueueTold, SlurmTold
from orchestrator.model import Phase, Run

STEADY_AT_MOST_S = 300.0


def in_queue(runs: list[Run]) -> list[Run]:
    """Runs that train or can still come to train by themselves, in the order of their submission. A run that waits for a
    held one cannot (unless any end of that will do), nor can one that waits for such a one."""
    stuck = {run.spec.tag: run for run in runs if run.phase == Phase.HELD and run.live is None}
    while more := {run.spec.tag: run for run in runs if run.spec.tag not in stuck and _waits_for_one_of(stuck, run)}:
        stuck |= more
    return sorted((run for run in runs if not run.over and run.spec.tag not in stuck), key=lambda run: run.submitted_at)


def _waits_for_one_of(stuck: dict[str, Run], run: Run) -> bool:
    return not run.over and not run.begun and any(
        tag in stuck and not met(condition, stuck[tag]) for tag, condition in run.spec.after_tags.items())


def look_at_queue(told: QueueTold, left: int, *, something_left: bool, now: float, settle_s: float) -> tuple[QueueTold, bool]:
    """What is known of the queue after a look at it, and whether people should hear of its new ``level``.

    ``left`` runs are in the queue. ``something_left``: a run has left it since the last look, so that it was not empty then,
    however short the run was.
    """
    seen = min(left, 2)
    told = replace(told, level=max(told.level, seen, 1 if something_left else 0))
    if seen != told.seen or something_left:
        return replace(told, seen=seen, seen_since=now), False
    if seen < told.level and now - told.seen_since >= settle_s:
        return replace(told, level=seen), True
    return told, False


def listen(told: SlurmTold, silent: bool, *, now: float, after_s: float) -> tuple[SlurmTold, bool]:
    """What is known of Slurm after one more pass, and whether people should hear of it: ``told`` then says which way."""
    if silent:
        since = told.troubled_since if told.troubled_since is not None else now
        after = replace(told, troubled_since=since, silent_at=now)
        if not told.told and now - since >= after_s:
            return replace(after, told=True), True
        return after, False
    if told.troubled_since is None:
        return told, False
    if now - told.silent_at >= min(STEADY_AT_MOST_S, after_s / 2):
        return SlurmTold(), told.told
    return replace(told, on_and_off=True), False
