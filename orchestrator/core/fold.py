"""The state of a run is the fold of its journal: one event at a time, no file, no clock, no second way.

An event is a dict with ``event``, ``t`` (epoch seconds) and its context. Restart is replay through this same function.
An event that does not apply in the present state is ignored on purpose: two daemons, a torn line or a hand-edited journal
may tell a thing twice, and the first telling stands. Unknown events are ignored too; a newer *schema* is refused when the
journal is read.

    submit       the first event: what was asked for
    queueing     intent: sbatch is about to be called        -> queued | rejected | lost
    queued       Slurm gave a job id
    rejected     Slurm said no; nothing is queued (for_now: there was no room for one more job)
    lost         the intent never reached Slurm
    repointed    the dependency of a waiting job was changed
    asked        intent: scancel/scontrol is about to be called (kind, job_id)   -> answered
    answered     it was called, or is no longer needed
    paused / resumed    a waiting job was held / released in Slurm
    started      a supervisor took an attempt
    ended        an attempt ended, with its ending and the evidence
    requeued     its job was put back into the queue and waits again
    dropped      a waiting submission is gone without having trained (stood down, cancelled, vanished)
    held, released, cancel, cancelled, finished, reopened    the run's phase; ``by`` says who held it: user, orch, upstream
    update       a person wants other memory, time or nice value, or job.sh as it is now   -> updated | unchanged
    changed, script_taken    a waiting job asks for it, the run's copy of job.sh is that one
    updated      the run asks for it from now on
    unchanged    it does not: Slurm refused, or the run is over
    save         a person asked for a checkpoint now
    canary       the proof that the run resumes where it was: stopping, proven or broken, with the evidence
    rollback     intent: go back to an earlier checkpoint   -> rolled_back: newer ones are set aside, it goes on
    kept_apart   that checkpoint lies where no trainer's retention removes it, until what still trains has ended
    adjusted     the next attempts ask for more memory or a longer lead, because of an ending
    saves        the trainer cannot save (fail: true; a full disk), or can again
    lingers      a job has been ending for long and keeps its node, or is gone at last (over: true)
    interval     a checkpoint interval was chosen, with all that it was computed from: M from `platform`, which counts all
                 runs in node-hours, and `own`, this run in hours, each with its prior (older ones: one `prior` for the run)
    estimated    a person was told when Slurm would start a waiting job; a guess that changes nothing
    note         a sentence for people; changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.core.altered import altered, put
from orchestrator.errors import JournalError
from orchestrator.model import (
    After,
    Attempt,
    Canary,
    Change,
    Ending,
    Lingering,
    Phase,
    Profile,
    Rollback,
    Run,
    RunSpec,
    Submission,
    SubmissionState,
)

Event = dict[str, Any]
Changes = dict[str, Any]               # fields of the run, and what they are after an event; {} where it does not apply


def fold(events: Iterable[Event], run: Run | None = None) -> Run | None:
    """The run that these events tell of, ``run`` being what those before them told; None if there is no ``submit`` at their
    head. Raises JournalError for an event that lacks what its name promises."""
    run = altered(run) if run is not None else None      # ours alone until it is whole, and so each event changes it in place
    for number, event in enumerate(events, 1 + (run.events if run is not None else 0)):
        try:
            if run is None:
                run = apply(run, event)
            else:
                put(run, _changes_by(event, run))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            of = f" of {run.spec.tag}" if run is not None else ""
            raise JournalError(
                f'event {number} of the journal{of} is a damaged "{event.get("event")}" ({type(error).__name__}: {error})',
                hint="delete or repair that line by hand; orch leaves this run alone until then") from error
    return run


def apply(run: Run | None, event: Event) -> Run | None:
    """The run after one more event."""
    if run is None:
        return _submit(event) if event.get("event") == "submit" else None
    return altered(run, **_changes_by(event, run))


def _changes_by(event: Event, run: Run) -> Changes:
    update = _UPDATES.get(str(event.get("event")))
    return {"events": run.events + 1, **(update(run, event) if update else {})}


def spec_from_event(data: dict[str, Any]) -> RunSpec:
    """The spec as the ``submit`` event carries it (``dataclasses.asdict`` of a RunSpec, through JSON)."""
    data = dict(data)
    data["profile"] = Profile(**data["profile"])
    after = data.get("after_tags", {})
    # an older journal has a list: any end would do then
    data["after_tags"] = {tag: After(after[tag] if isinstance(after, dict) else After.ENDED) for tag in after}
    data["after_jobs"] = tuple(data.get("after_jobs", ()))
    data["save_at"] = tuple(data.get("save_at", ()))
    return RunSpec(**data)


def _submit(event: Event) -> Run:
    at = float(event["t"])
    spec = spec_from_event(event["spec"])
    return Run(spec=spec, submitted_at=at, phase_since=at, events=1, canary=_wanted(spec))


def _wanted(spec: RunSpec) -> Canary:
    return Canary.WANTED if spec.prove_resume else Canary.NONE


def _phase(event: Event, phase: Phase, **changes: Any) -> Changes:
    return {"phase": phase, "phase_since": float(event["t"]), "phase_reason": str(event.get("reason", "")), "held_by": "",
            **changes}


def _with_submission(run: Run, submission_id: str, **changes: Any) -> Changes:
    return {"submissions": tuple(altered(s, **changes) if s.id == submission_id else s for s in run.submissions)}


# --- submissions ------------------------------------------------------------------------------------------------------


def _queueing(run: Run, event: Event) -> Changes:
    if run.submission(event["submission_id"]) is not None:
        return {}
    new = Submission(id=event["submission_id"], number=int(event["number"]), intended_at=float(event["t"]),
                     sequence=run.events, dependency=str(event.get("dependency", "")))
    return {"submissions": (*run.submissions, new)}


def _settle(state: SubmissionState, *, only_from: frozenset[SubmissionState]) -> Callable[[Run, Event], Changes]:
    def update(run: Run, event: Event) -> Changes:
        submission = run.submission(event["submission_id"])
        if submission is None or submission.state not in only_from:
            return {}
        job_id, at = event.get("job_id", submission.job_id), float(event["t"])
        return _with_submission(run, submission.id, state=state, job_id=None if job_id is None else str(job_id),
                                reason=str(event.get("reason", "")), for_now=bool(event.get("for_now")),
                                queued_at=at if state == SubmissionState.QUEUED else submission.queued_at,
                                dropped_at=at if state == SubmissionState.DROPPED else None,
                                stood_down_at=float(event["t"]) if event.get("why") == "stood down" else None)
    return update


def _repointed(run: Run, event: Event) -> Changes:
    return _with_submission(run, event["submission_id"], dependency=str(event["dependency"]))


def _pause(held: bool) -> Callable[[Run, Event], Changes]:
    def update(run: Run, event: Event) -> Changes:
        return _with_submission(run, event["submission_id"], held=held)
    return update


def _interval(run: Run, event: Event) -> Changes:
    return {"interval": {key: value for key, value in event.items() if key != "event"}}


def _saves(run: Run, event: Event) -> Changes:
    return {"saves_fail": bool(event["fail"]), "saves_told_at": float(event["t"])}


def _lingers(run: Run, event: Event) -> Changes:
    others = tuple(one for one in run.lingering if one.submission_id != event["submission_id"])
    if event.get("over"):
        return {"lingering": others}
    return {"lingering": (*others, Lingering(submission_id=str(event["submission_id"]), job_id=str(event["job_id"]),
                                             since=float(event["since"]), nodes=str(event.get("nodes") or "")))}


def _adjusted(run: Run, event: Event) -> Changes:
    """An ending changed what the next attempts ask for."""
    profile = altered(
        run.spec.profile, memory_bytes=event.get("memory_bytes", run.spec.profile.memory_bytes),
        lead_s=float(event.get("lead_s", run.spec.profile.lead_s)))
    return {"spec": altered(run.spec, profile=profile), "adjusted_sequence": run.events}


def _update(run: Run, event: Event) -> Changes:
    """A wish that comes on top of one that has not come true yet adds to it."""
    if run.over:
        return {}
    wanted = {key: event[key] for key in ("memory_bytes", "time_s", "nice", "script_sha256") if event.get(key) is not None}
    taken = run.change is not None and run.change.script_taken and "script_sha256" not in wanted
    return {"change": altered(run.change or Change(sequence=0), sequence=run.events, script_taken=taken, **wanted)}


def _script_taken(run: Run, event: Event) -> Changes:
    return {} if run.change is None else {"change": altered(run.change, script_taken=True)}


def _changed(run: Run, event: Event) -> Changes:
    return _with_submission(run, event["submission_id"], changed_sequence=run.events)


def _updated(run: Run, event: Event) -> Changes:
    wish = run.change
    if wish is None:
        return {}
    had = run.spec.profile
    profile = altered(had, memory_bytes=had.memory_bytes if wish.memory_bytes is None else wish.memory_bytes,
                      time_s=had.time_s if wish.time_s is None else wish.time_s)
    spec = altered(run.spec, profile=profile, nice=run.spec.nice if wish.nice is None else wish.nice,
                   script_sha256=wish.script_sha256 or run.spec.script_sha256)
    return {"spec": spec, "change": None, "updated": (*run.updated, wish)}


def _unchanged(run: Run, event: Event) -> Changes:
    """What had been done of it stays: job.sh, if it was taken. One that came back is not asked again, and waits as it is."""
    wish = run.change
    if wish is None:
        return _with_submission(run, str(event.get("submission_id")), changed_sequence=run.events)
    taken = wish.script_sha256 if wish.script_taken else None
    return {"change": None, "spec": altered(run.spec, script_sha256=taken or run.spec.script_sha256)}


def _asked(run: Run, event: Event) -> Changes:
    request = f"{event['kind']} {event['job_id']}"
    awaited = {request} if event.get("awaited") else set()  # older journals have no answers
    return {"requests": {**run.requests, request: float(event["t"])}, "unanswered": run.unanswered | awaited}


def _answered(run: Run, event: Event) -> Changes:
    return {"unanswered": run.unanswered - {f"{event['kind']} {event['job_id']}"}}


# --- attempts ---------------------------------------------------------------------------------------------------------


def _started(run: Run, event: Event) -> Changes:
    if any(a.epoch == int(event["epoch"]) for a in run.attempts):
        return {}  # an epoch is one start
    job, restart = str(event["job_id"]), int(event["restart_count"])
    # a successor's start is noted before the end of the one before it, of which nobody has made anything yet
    let_go = run.live is None and run.released_sequence > max((a.ended_sequence or 0 for a in run.attempts), default=0)
    new = Attempt(
        number=int(event["number"]), submission_id=str(event["submission_id"]), job_id=job, restart_count=restart,
        epoch=int(event["epoch"]), host=str(event.get("host", "")), started_at=float(event["started_at"]),
        resume_step=event.get("resume_step"), let_go=let_go)
    return {"attempts": (*run.attempts, new),
            **_with_submission(run, new.submission_id, state=SubmissionState.STARTED, job_id=job)}


def _ended(run: Run, event: Event) -> Changes:
    epoch = int(event["epoch"])
    attempts = tuple(
        altered(
            a, ended_at=float(event["ended_at"]), ended_sequence=run.events, ending=Ending(event["ending"]),
            reason=str(event.get("reason", "")), checkpoint_step=event.get("checkpoint_step"),
            last_step=event.get("last_step"), exit_code=event.get("exit_code"), nodes=str(event.get("nodes") or ""),
            trainer_at=event.get("trainer_at"), first_step_at=event.get("first_step_at"), saved_at=event.get("saved_at"),
            knows_orch=bool(event.get("knows_orch", True)))
        if a.epoch == epoch and a.live else a
        for a in run.attempts)
    ended = {a.submission_id for a in attempts if a.epoch == epoch} - {a.submission_id for a in attempts if a.live}
    return {"attempts": attempts, "submissions": tuple(
        altered(s, state=SubmissionState.ENDED) if s.id in ended else s for s in run.submissions)}


def _requeued(run: Run, event: Event) -> Changes:
    """The job of an attempt that has ended waits again, and becomes another attempt when it starts."""
    submission = run.submission(event["submission_id"])
    if submission is None or submission.state != SubmissionState.ENDED:
        return {}
    return _with_submission(run, submission.id, state=SubmissionState.QUEUED, queued_at=float(event["t"]))


# --- the run's phase --------------------------------------------------------------------------------------------------


def _held(run: Run, event: Event) -> Changes:
    by = str(event.get("by", "orch"))
    over_upstream = run.phase == Phase.HELD and run.held_by == "upstream" and by == "user"  # a person's word goes first
    nowhere_to_go = run.phase == Phase.ROLLING_BACK and by == "orch"
    if run.phase != Phase.ACTIVE and not over_upstream and not nowhere_to_go:
        return {}
    return _phase(event, Phase.HELD, held_by=by, rollback=None)


def _released(run: Run, event: Event) -> Changes:
    if run.phase != Phase.HELD:
        return {}
    # who releases a run in spite of the proof has decided about it
    canary = Canary.NONE if run.canary == Canary.BROKEN else run.canary
    return _phase({**event, "reason": ""}, Phase.ACTIVE, released_sequence=run.events, canary=canary)


def _cancel(run: Run, event: Event) -> Changes:
    if run.over:
        return {}
    # who asks once more grants no further lead
    since = run.phase_since if run.phase == Phase.CANCELLING else float(event["t"])
    return _phase({**event, "t": since}, Phase.CANCELLING, cancel_now=run.cancel_now or bool(event.get("now")))


def _cancelled(run: Run, event: Event) -> Changes:
    return {} if run.over else _phase(event, Phase.CANCELLED)


def _finished(run: Run, event: Event) -> Changes:
    return {} if run.over else _phase(event, Phase.FINISHED, metrics=dict(event.get("metrics") or {}))


def _reopened(run: Run, event: Event) -> Changes:
    """A person asked for a finished, cancelled or held run again, with job.sh and resources as they are now."""
    if not run.over and run.phase != Phase.HELD:
        return {}
    spec = spec_from_event(event["spec"]) if "spec" in event else run.spec
    now, before = spec.profile, run.spec.profile
    wish = Change(sequence=run.events, memory_bytes=None if now.memory_bytes == before.memory_bytes else now.memory_bytes,
                  time_s=None if now.time_s == before.time_s else now.time_s,
                  nice=None if spec.nice == run.spec.nice else spec.nice)
    goes_on = Phase.ACTIVE if run.rollback is None else Phase.ROLLING_BACK     # which a cancel had cut off
    return _phase({**event, "reason": ""}, goes_on, spec=spec, change=None, updated=(*run.updated, wish), metrics={},
                  cancel_now=False, released_sequence=run.events,
                  canary=_wanted(spec) if "spec" in event else run.canary)


def _save(run: Run, event: Event) -> Changes:
    return {"saves_asked": run.saves_asked + 1}


def _canary(run: Run, event: Event) -> Changes:
    return {"canary": Canary(event["state"]), "canary_epoch": int(event["epoch"]), "canary_told": event}


def _rollback(run: Run, event: Event) -> Changes:
    if run.phase == Phase.CANCELLING:
        return {}
    step, checkpoint, at = int(event["to_step"]), str(event.get("checkpoint", "")), round(float(event["t"]))
    while (into := f"set-aside-{at}") in run.set_aside:                # another one of the same second
        at += 1
    comes_back = checkpoint.partition("/")[0] in run.set_aside
    apart = "" if comes_back or not checkpoint else f"{into}-to-{step}"
    kept = run.set_aside[checkpoint.partition("/")[0]] if comes_back else step
    return _phase(event, Phase.ROLLING_BACK, set_aside={**run.set_aside, into: kept, **({apart: kept} if apart else {})},
                  rollback=Rollback(step=step, checkpoint=checkpoint, kept=kept, into=into, apart=apart))


def _kept_apart(run: Run, event: Event) -> Changes:
    if run.phase != Phase.ROLLING_BACK or run.rollback is None:
        return {}
    return {"rollback": altered(run.rollback, checkpoint=str(event["checkpoint"]), apart="")}


def _rolled_back(run: Run, event: Event) -> Changes:
    """What ended before no longer counts: a person has decided where it goes on."""
    if run.phase != Phase.ROLLING_BACK or run.rollback is None:
        return {}
    kept = run.rollback.kept
    aside = {folder: min(step, kept) for folder, step in run.set_aside.items()}
    return _phase({**event, "reason": ""}, Phase.ACTIVE, rollback=None, metrics={}, cancel_now=False,
                  released_sequence=run.events, rolled_back_epoch=int(event["epoch"]),
                  set_aside={**aside, str(event["into"]): kept} if event.get("set_aside") else aside)


_WAITING = frozenset({SubmissionState.INTENDED, SubmissionState.QUEUED})

_UPDATES: dict[str, Callable[[Run, Event], Changes]] = {
    "queueing": _queueing,
    "queued": _settle(SubmissionState.QUEUED, only_from=frozenset({SubmissionState.INTENDED})),
    "rejected": _settle(SubmissionState.REJECTED, only_from=frozenset({SubmissionState.INTENDED})),
    "lost": _settle(SubmissionState.DROPPED, only_from=frozenset({SubmissionState.INTENDED})),
    "dropped": _settle(SubmissionState.DROPPED, only_from=_WAITING),
    "repointed": _repointed,
    "asked": _asked,
    "answered": _answered,
    "adjusted": _adjusted,
    "saves": _saves,
    "lingers": _lingers,
    "update": _update,
    "changed": _changed,
    "script_taken": _script_taken,
    "updated": _updated,
    "unchanged": _unchanged,
    "interval": _interval,
    "paused": _pause(held=True),
    "resumed": _pause(held=False),
    "started": _started,
    "ended": _ended,
    "requeued": _requeued,
    "held": _held,
    "released": _released,
    "cancel": _cancel,
    "cancelled": _cancelled,
    "finished": _finished,
    "reopened": _reopened,
    "save": _save,
    "canary": _canary,
    "rollback": _rollback,
    "kept_apart": _kept_apart,
    "rolled_back": _rolled_back,
}
