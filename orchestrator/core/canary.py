"""The resume canary (``orch submit TAG --prove-resume``): whether a training that was stopped goes on where it was. Pure.

    wanted --enough is known of the first attempt--> stopping --the next attempt trains--> proven | broken (the run is held)

The evidence is the trainer's own lines: the step at which it goes on, and its loss against the loss before the stop and that
loss's own noise. An interruption that comes by itself serves as well as a stop of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from orchestrator.core.observation import Observation
from orchestrator.core.recovery import decides
from orchestrator.model import Attempt, Canary, Ending, Phase, Run

Lines = Sequence[dict[str, Any]]
# Losses that show their noise: lines come 2, 6, 14, 30 and 60 seconds after the first step.
LOSSES_BEFORE = 5
LOSSES_AFTER = 2
# A jump is no noise when it is so many times the largest rise before, and it is worth a word when so much of what was learnt
# is lost. A training whose loss never rose still has this much noise.
BEYOND_NOISE = 2.0
SHARE_LOST = 0.25
LEAST_NOISE = 0.02
_UNSAVED = frozenset({Ending.PREEMPTED_UNSAVED, Ending.LIMIT_UNSAVED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found, for the journal and for people."""

    is_good: bool
    words: str
    saved_step: int | None
    first_step: int | None
    loss_before: float | None = None
    loss_after: float | None = None
    noise: float | None = None


def news(run: Run, seen: Observation) -> Iterator[dict[str, object]]:
    """Facts for the journal: that the attempt is to be stopped now, or what came of it."""
    if run.canary not in (Canary.WANTED, Canary.STOPPING) or run.phase != Phase.ACTIVE:
        return
    unsaved = _stopped_unsaved(run, seen)
    if unsaved is not None:
        yield from _found(unsaved, Proof(is_good=False, saved_step=None, first_step=None, words=(
            f"attempt {unsaved.number} was given notice and saved nothing")))
        return
    live = run.live
    if live is None:
        return
    # of this training: submitted again or rolled back it may be another one, with losses of its own
    # and before the live one: a later one may have ended while Slurm does not say how an earlier one did
    before = next((a for a in reversed(run.attempts) if a.epoch < live.epoch and not a.live and decides(run, a)
                   and _saved_step(_lines(seen, a), live.resume_step) is not None), None)
    if before is None:
        told = sum(line["event"] == "progress" for line in _lines(seen, live))  # with a loss, if it tells any
        if (run.canary, run.canary_epoch) != (Canary.STOPPING, live.epoch) and told >= LOSSES_BEFORE:
            yield {"event": "canary", "state": str(Canary.STOPPING), "epoch": live.epoch, "attempt": live.number,
                   "reason": "its resume is to be proven"}
        return
    proof = judge(_lines(seen, before), _lines(seen, live), live.resume_step)
    if proof is None:
        return
    yield from _found(live, proof)


def _stopped_unsaved(run: Run, seen: Observation) -> Attempt | None:
    """The attempt that was stopped for the proof, where it left nothing to resume from: the next one would be stopped in
    the same way, and so on for ever."""
    stopped = next((a for a in run.attempts if a.epoch == run.canary_epoch), None)
    if run.canary != Canary.STOPPING or stopped is None or stopped.ending not in _UNSAVED:
        return None
    return stopped if not any(line["event"] == "saved" for line in _lines(seen, stopped)) else None


def _found(attempt: Attempt, proof: Proof) -> Iterator[dict[str, object]]:
    state = Canary.PROVEN if proof.is_good else Canary.BROKEN
    yield {"event": "canary", "state": str(state), "epoch": attempt.epoch, "attempt": attempt.number, "reason": proof.words,
           **{key: value for key, value in asdict(proof).items() if key not in ("is_good", "words")}}
    if not proof.is_good:
        yield {"event": "held", "by": "orch", "reason": f"resume is broken: {proof.words}"}


def must_stop(run: Run) -> Attempt | None:
    """The attempt that is to be stopped for the proof."""
    live = run.live
    return live if live is not None and (run.canary, run.canary_epoch) == (Canary.STOPPING, live.epoch) else None


def judge(before: Lines, after: Lines, resume_step: int | None) -> Proof | None:
    """None while too little is known. ``before`` and ``after`` are the lines of the stopped attempt and of the next one,
    which was told to resume from ``resume_step``."""
    saved = _saved_step(before, resume_step)
    assert saved is not None, "only an attempt that saved is compared"
    # a script's first step has no number: its saves tell that it began again, and never that it did not
    first = next((int(line["step"]) for line in after
                  if line["event"] in ("first_step", "saved") and line.get("step") is not None), None)
    if first is None:
        return None
    resumed = resume_step if resume_step is not None else saved
    if first < resumed:
        return Proof(is_good=False, saved_step=saved, first_step=first,
                     words=f"step {resumed} was saved and is to be resumed from, and training went on at step {first}")
    progress = sum(line["event"] == "progress" for line in after)
    if progress < LOSSES_AFTER:
        return None
    # what it learnt behind the checkpoint that it goes on from is lost by design, also after a roll-back
    kept = [line for line in before if isinstance(line.get("step"), int) and line["step"] <= resumed]
    return _by_loss(_losses(kept), _losses(after), resumed, first)


def _by_loss(before: list[float], after: list[float], saved: int, first: int) -> Proof:
    steps = f"it went on at step {first} from step {saved}"
    if len(before) < LOSSES_BEFORE or len(after) < LOSSES_AFTER:
        return Proof(is_good=True, saved_step=saved, first_step=first, words=f"{steps}; too few losses were told to compare")
    # the higher of the last two, the lower of the first two: a single outlier is no proof
    level, now = max(before[-2:]), min(after[:LOSSES_AFTER])
    noise = max(_largest_rise(before), LEAST_NOISE * abs(level))
    is_lost = now - level > BEYOND_NOISE * noise and now - level > SHARE_LOST * (before[0] - level)
    words = (f"{steps}, and the loss was {level:.4g} before and is {now:.4g} behind it, where its noise is {noise:.2g}"
             if is_lost else f"{steps}; loss {level:.4g} before, {now:.4g} behind it (noise {noise:.2g})")
    return Proof(is_good=not is_lost, words=words, saved_step=saved, first_step=first, loss_before=level, loss_after=now,
                 noise=noise)


def _largest_rise(losses: list[float]) -> float:
    """From any loss to a later one. A loss that falls rises by noise alone, however steep it falls."""
    lowest = accumulate(losses, min)
    return max(loss - low for loss, low in zip(losses, lowest, strict=True))


def _losses(lines: Lines) -> list[float]:
    return [float(line["loss"]) for line in lines
            if line["event"] == "progress" and isinstance(line.get("loss"), (int, float))]


def _saved_step(lines: Lines, resume_step: int | None) -> int | None:
    """What the next attempt, which was told to resume from ``resume_step`` or from none, could have resumed from: copies on a
    node are out of another one's reach."""
    return next((int(line["step"]) for line in reversed(lines) if line["event"] == "saved"
                 and (resume_step is not None or line.get("level") != "local")), None)


def _lines(seen: Observation, attempt: Attempt) -> Lines:
    return seen.lines.get(attempt.number, ())
