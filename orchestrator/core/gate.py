"""The gate: may this submission, now that Slurm has started it, train?

Dependencies are hints; an ``afterany`` successor starts half a second after its predecessor's end, whatever that end was,
long before a daemon's pass. So the question is asked inside the successor, by this pure function, which the daemon uses too
(to say what would happen, and to know what did).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.core.endings import Evidence, classify
from orchestrator.core.pending import Upstream, unmet
from orchestrator.model import (
    GOES_ON,
    GOES_ON_WITH_PROGRESS,
    After,
    Attempt,
    Ending,
    Phase,
    Run,
    SubmissionState,
)

_PAST = {After.FINISHED: "finished", After.ENDED: "ended for good"}


class Leave(Enum):
    GO = "go"
    DONE = "done"                # the run is finished: exit 0
    STAND_DOWN = "stand down"    # exit 76
    ASK_AGAIN = "ask again"      # nobody can say yet


@dataclass(frozen=True, slots=True)
class GateAnswer:
    leave: Leave
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The newest start before this one, as its folder and Slurm tell of it."""

    number: int
    epoch: int
    resume_step: int | None
    alive: bool                        # its supervisor or trainer still runs on this host, or its heart beat just now
    evidence: Evidence


def ask(run: Run, submission_id: str, predecessor: Predecessor | None, upstream: tuple[Upstream, ...] = ()) -> GateAnswer:
    """Whether this submission may train now."""
    if run.phase == Phase.FINISHED:
        return GateAnswer(Leave.DONE, "the run is finished")
    if run.phase != Phase.ACTIVE:
        return GateAnswer(Leave.STAND_DOWN, f"the run is {run.phase}" + (f": {run.phase_reason}" if run.phase_reason else ""))
    me = run.submission(submission_id)
    if me is None:
        return GateAnswer(Leave.ASK_AGAIN, "this submission is not in the journal")
    if me.state in (SubmissionState.DROPPED, SubmissionState.ENDED, SubmissionState.REJECTED):
        return GateAnswer(Leave.STAND_DOWN, f"this submission was {me.state}")
    for other in unmet(run, upstream) if predecessor is None or _known(run, predecessor) else ():
        if other.run is None:
            return GateAnswer(Leave.ASK_AGAIN, f"the state of {other.tag} cannot be read")
        return GateAnswer(Leave.STAND_DOWN, f"{other.tag} has not {_PAST[other.condition]}")
    if predecessor is None:
        return GateAnswer(Leave.GO, "first attempt")
    return _behind(run, me.sequence, predecessor)


def _known(run: Run, predecessor: Predecessor) -> Attempt | None:
    """The predecessor in the journal; one that is not there yet has trained since the run was submitted."""
    return next((a for a in run.attempts if a.epoch == predecessor.epoch), None)


def _behind(run: Run, my_sequence: int, predecessor: Predecessor) -> GateAnswer:
    """What follows from the predecessor's ending."""
    if predecessor.alive:
        return GateAnswer(Leave.ASK_AGAIN, f"attempt {predecessor.number} is still alive")
    known = _known(run, predecessor)
    if known is not None and known.ended_sequence is not None and known.ended_sequence < my_sequence:
        # whoever queued this submission knew of that ending: the decision has been made already
        return GateAnswer(Leave.GO, f"queued after attempt {known.number} ended ({known.ending})")
    verdict = classify(predecessor.evidence)
    ending = known.ending if known is not None and known.ending is not None else verdict.ending if verdict else None
    if ending is None:
        return GateAnswer(Leave.ASK_AGAIN, f"how attempt {predecessor.number} ended is not known yet")
    if ending == Ending.FINISHED:
        return GateAnswer(Leave.DONE, f"attempt {predecessor.number} finished the run")
    if ending in GOES_ON:
        return GateAnswer(Leave.GO, f"attempt {predecessor.number} ended: {ending}")
    if ending in GOES_ON_WITH_PROGRESS and _may_have_progressed(predecessor):
        return GateAnswer(Leave.GO, f"attempt {predecessor.number} ended: {ending}, with progress")
    return GateAnswer(Leave.STAND_DOWN, f"attempt {predecessor.number} ended: {ending}")


def _may_have_progressed(predecessor: Predecessor) -> bool:
    """A newer complete checkpoint, or a trainer that knows nothing of orch: unknown progress is not "none"."""
    step, end = predecessor.evidence.checkpoint_step, predecessor.evidence.end
    if step is None and end is not None and not end.knows_orch:
        return True
    return step is not None and step > (predecessor.resume_step if predecessor.resume_step is not None else -1)
