"""What the journal does not know yet: a pure comparison of a run with an observation.

Facts come in rounds: a start that nobody has noted, then its ending, then what the ending means for the run. ``news`` gives
the first round that has anything; the caller appends it, folds, and asks again until there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.core import canary, lingering
from orchestrator.core.changing import done
from orchestrator.core.endings import Verdict, classify
from orchestrator.core.evidence import RUN_AGAIN, evidence_of, later_starts, waits_again
from orchestrator.core.observation import AttemptSeen, Observation
from orchestrator.core.pending import HELD_BY_UPSTREAM, why_again, why_lost
from orchestrator.core.recovery import adjustment, decides, refused, why_hold
from orchestrator.core.reliability import setting, worth_changing
from orchestrator.core.script import parse_comment
from orchestrator.core.waiting import Kind, look_up
from orchestrator.model import ENDED_STATES, Attempt, Ending, Phase, Policy, Run, Submission, SubmissionState
from orchestrator.sightings import JobGone, JobSeen
from orchestrator.states import exit_code_words

Fact = dict[str, object]

# sbatch may have reached the controller although its answer never came back, and a controller may answer from a minute ago:
# for this long an intent without a job is "not known yet", and a job that Slurm does not know is not gone.
LOST_AFTER_S = 60.0
# A job may end before the record that its supervisor wrote can be read here (network file systems).
RECORD_LAG_S = 15.0
SAVES_TOLD_EVERY_S = 3600.0
HEARTBEAT_S = 30.0  # between two beats of a supervisor


def news(run: Run, seen: Observation, policy: Policy, now: float) -> list[Fact]:
    """The next round of facts, [] when the journal knows everything."""
    for round_ in _ROUNDS:
        facts = list(round_(run, seen, now))
        if facts:
            return facts
    change = adjustment(run, seen, policy) if run.phase == Phase.ACTIVE else None
    if change is not None:
        return [{"event": "adjusted", "reason": change.why,
                 **({"memory_bytes": change.memory_bytes} if change.memory_bytes is not None else {}),
                 **({"lead_s": change.lead_s} if change.lead_s is not None else {})}]
    return (list(_phase(run, seen, policy)) or list(canary.news(run, seen)) or list(lingering.news(run, seen, now))
            or list(_saves(run, seen, now)) or list(_interval(run, seen, policy, now)))


# --- submissions whose sbatch was not settled, and jobs that the journal does not know ---------------------------------


def _submissions(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    for submission in run.waiting:
        if submission.state != SubmissionState.INTENDED:
            continue
        job = seen.job(submission.id)
        trace = _trace(seen, submission)
        if isinstance(job, JobSeen):
            yield {"event": "queued", "submission_id": submission.id, "job_id": job.job_id, "found": True}
        elif trace is not None:
            yield {"event": "queued", "submission_id": submission.id, "job_id": trace, "found": True}
        elif isinstance(job, JobGone) and _asked_at(seen, now) - submission.intended_at > LOST_AFTER_S:
            yield {"event": "lost", "submission_id": submission.id}
    yield from _adopted(run, seen)


def _asked_at(seen: Observation, now: float) -> float:
    """Patience is counted to the moment of the question: the machine may have slept between it and now."""
    return seen.asked_at if seen.asked_at is not None else now


def _trace(seen: Observation, submission: Submission) -> str | None:
    """The job id that this submission's supervisor left in a record."""
    ids = [a.start.job_id for a in seen.attempts if a.start.submission_id == submission.id]
    ids += [s.job_id for s in seen.stood_down if s.submission_id == submission.id]
    return ids[0] if ids else None


def _adopted(run: Run, seen: Observation) -> Iterator[Fact]:
    """Jobs of this run that Slurm knows and the journal does not: its end was cut off. They are taken back, never doubled."""
    strangers = [
        (parsed[2], submission_id, job.job_id) for submission_id, job in seen.jobs.items()
        if run.submission(submission_id) is None and job.state not in ENDED_STATES
        and (parsed := parse_comment(job.comment)) is not None]
    for number, submission_id, job_id in sorted(strangers):  # in the order in which they were submitted
        yield {"event": "queueing", "submission_id": submission_id, "number": number, "adopted": True}
        yield {"event": "queued", "submission_id": submission_id, "job_id": job_id, "found": True}


# --- attempts ---------------------------------------------------------------------------------------------------------


def _starts(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    known = {a.epoch for a in run.attempts}
    for record in sorted(seen.attempts, key=lambda a: a.start.epoch):
        start = record.start
        if start.epoch not in known:
            yield {"event": "started", "number": start.number, "submission_id": start.submission_id,
                   "job_id": start.job_id, "restart_count": start.restart_count, "epoch": start.epoch,
                   "host": start.host, "started_at": start.started_at, "resume_step": start.resume_step}


def _endings(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    records = {a.start.epoch: a for a in seen.attempts}
    for attempt in run.attempts:
        if not attempt.live:
            continue
        record = records.get(attempt.epoch)
        verdict = _verdict(run, attempt, record, seen, now)
        if verdict is not None:
            end = record.end if record else None
            job = record.accounted if record and record.accounted else seen.job(attempt.submission_id)
            yield {"event": "ended", "epoch": attempt.epoch, "number": attempt.number, "job_id": attempt.job_id,
                   "ended_at": _ended_at(record, job, now),
                   "ending": str(verdict.ending), "reason": verdict.reason,
                   "exit_code": end.exit_code if end else None,
                   "nodes": _nodes(job),
                   "checkpoint_step": _step_at_end(run, attempt, record, seen),
                   "last_step": _last_step(record),
                   "trainer_at": _trainer_at(record), "first_step_at": _first_step_at(record),
                   "saved_at": record.saved_at if record else None,
                   "knows_orch": (end is not None and end.knows_orch) or (record is not None and record.knows_orch),
                   **({"left_behind": list(end.left_behind)} if end and end.left_behind else {})}


def _verdict(run: Run, attempt: Attempt, record: AttemptSeen | None, seen: Observation, now: float) -> Verdict | None:
    told = record is not None and ((record.end is not None and not record.end.provisional) or record.accounted is not None)
    later = later_starts(run, attempt, seen)
    if later and not told:
        requeued = later[-1].restart_count > attempt.restart_count
        return Verdict(Ending.VANISHED, "the site requeued the job" if requeued else RUN_AGAIN)
    return classify(evidence_of(run, attempt, record, seen, now))


def _requeued(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    """Noted once the attempt has ended for the journal, so that what waits is again among what waits."""
    for submission in run.submissions:
        if submission.state != SubmissionState.ENDED:
            continue
        attempts = [a for a in run.attempts if a.submission_id == submission.id]
        if attempts and waits_again(seen.job(submission.id), max(attempts, key=lambda attempt: attempt.restart_count)):
            yield {"event": "requeued", "submission_id": submission.id, "job_id": submission.job_id}


def _answers(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    """Requests that nobody need send again: their job has ended, or Slurm does not know it."""
    if seen.silent is not None:
        return
    alive = {job.job_id for job in seen.jobs.values() if job.state not in ENDED_STATES}
    for request in sorted(run.unanswered):
        kind, _, job_id = request.partition(" ")
        if job_id not in alive:
            yield {"event": "answered", "kind": kind, "job_id": job_id}


def _changes(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    """What a person wanted of the run is so now."""
    yield from done(run, seen)


def _ended_at(record: AttemptSeen | None, job: object, now: float) -> float:
    """When it ended, as well as can be known. A provisional record tells when the notice came, not when the end did; Slurm
    may notice a dead node minutes late, so its word is bounded by the last sign of life and one heartbeat more."""
    if record is not None and record.end is not None and not record.end.provisional:
        return record.end.ended_at
    signs = [at for at in (record.heartbeat_at, record.heard_at) if at is not None] if record is not None else []
    if isinstance(job, JobSeen) and job.state in ENDED_STATES and job.end_at is not None:
        return min([job.end_at, now, *([max(signs) + HEARTBEAT_S] if signs else [])])
    return max(signs) if signs else now


def _nodes(job: object) -> str:
    return job.nodes if isinstance(job, JobSeen) else ""


def _trainer_at(record: AttemptSeen | None) -> float | None:
    if record is None:
        return None
    return record.end.trainer_at if record.end is not None and record.end.trainer_at else record.trainer_at


def _first_step_at(record: AttemptSeen | None) -> float | None:
    if record is None:
        return None
    return record.end.first_step_at if record.end is not None and record.end.first_step_at else record.first_step_at


def begun(run: Run, seen: Observation) -> Run:
    """With what live attempts have told of their start, which the journal gets with their end: R of the restart that led to
    one is known from its first step on."""
    records = {record.start.epoch: record for record in seen.attempts}
    return replace(run, attempts=tuple(
        replace(a, trainer_at=_trainer_at(records[a.epoch]), first_step_at=_first_step_at(records[a.epoch]))
        if a.live and a.epoch in records else a for a in run.attempts))


def _last_step(record: AttemptSeen | None) -> int | None:
    if record is None:
        return None
    return record.end.last_step if record.end is not None and record.end.last_step is not None else record.last_step


def _step_at_end(run: Run, attempt: Attempt, record: AttemptSeen | None, seen: Observation) -> int | None:
    """The newest complete checkpoint when this attempt ended: its own record's word, else what lies there now, which the
    next attempt's resume step bounds."""
    if record is not None and record.end is not None and not record.end.provisional:
        return record.end.checkpoint_step
    later = [a.resume_step for a in run.attempts if a.epoch > attempt.epoch and a.resume_step is not None]
    return min(later) if later else seen.checkpoint_step


# --- waiting submissions that are gone ----------------------------------------------------------------------------------


def _drops(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    """One submission a round: what its end means for the run may settle the others."""
    reasons = {s.submission_id: s.reason for s in seen.stood_down}
    for submission in run.waiting:
        if submission.state != SubmissionState.QUEUED:
            continue
        job = seen.job(submission.id)
        facts: list[Fact] = []
        if isinstance(job, JobSeen) and job.state == "CANCELLED" and f"cancel {job.job_id}" not in run.requests:
            facts = list(_never_started(run, submission, job))  # also when it stood down at its gate because of that
        elif submission.id in reasons:
            facts = [{"event": "dropped", "submission_id": submission.id, "why": "stood down",
                      "reason": reasons[submission.id]}]
        elif isinstance(job, JobGone) and _asked_at(seen, now) - (submission.queued_at or 0.0) > LOST_AFTER_S:
            facts = [{"event": "dropped", "submission_id": submission.id, "why": "gone",
                      "reason": f"Slurm does not know job {submission.job_id}"}]
        elif isinstance(job, JobSeen) and job.state in ENDED_STATES and not _too_fresh(job, now):
            facts = list(_never_started(run, submission, job))
        if facts:
            yield from facts
            return


def _too_fresh(job: JobSeen, now: float) -> bool:
    return job.state != "CANCELLED" and job.end_at is not None and now - job.end_at < RECORD_LAG_S


def _never_started(run: Run, submission: Submission, job: JobSeen) -> Iterator[Fact]:
    """The job has ended and no supervisor left a word."""
    asked_by_us = f"cancel {job.job_id}" in run.requests
    if job.state == "CANCELLED":
        yield {"event": "dropped", "submission_id": submission.id, "why": "cancelled",
               "reason": "cancelled by orch" if asked_by_us else "cancelled outside orch"}
        if not asked_by_us and run.phase == Phase.ACTIVE:
            yield {"event": "held", "by": "orch", "reason": _cancelled_outside(job)}
    elif job.state in ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED"):
        yield {"event": "dropped", "submission_id": submission.id, "why": "ended", "reason": f"Slurm: {job.state}"}
    else:
        told = ": ".join(filter(None, [job.state, exit_code_words(job.exit_code) or _ended_by(job)]))
        why = f"job {job.job_id} ended ({told}) before its supervisor could report; see its out.log"
        yield {"event": "dropped", "submission_id": submission.id, "why": "setup-failure", "reason": why}
        if run.phase == Phase.ACTIVE:
            yield {"event": "held", "by": "orch", "reason": f"setup-failure: {why}"}


def _cancelled_outside(job: JobSeen) -> str:
    """A job that may not be requeued is CANCELLED by Slurm itself when its node's prolog fails; it has a node then."""
    if not job.nodes or job.start_at is None:
        return f"its waiting job {job.job_id} was cancelled outside orch"
    return (f"its job {job.job_id} was cancelled outside orch on {job.nodes} before its supervisor could report, or the node "
            "could not start it: `sinfo -R` names those whose prolog failed")


def _ended_by(job: JobSeen) -> str:
    """Slurm's reason for an ending, where its exit code says nothing."""
    found = look_up(job.reason)
    return found[0].sentence if found is not None and found[0].kind is Kind.ENDED else ""


# --- what it means for the run ------------------------------------------------------------------------------------------


def _phase(run: Run, seen: Observation, policy: Policy) -> Iterator[Fact]:
    if run.over or run.phase == Phase.ROLLING_BACK:
        return
    ended = [a for a in run.attempts if not a.live]
    finished = next((a for a in ended if a.ending == Ending.FINISHED and decides(run, a)), None)
    if finished is not None:
        yield {"event": "finished", "attempt": finished.number, "metrics": seen.metrics or {}}
    elif run.phase == Phase.CANCELLING:
        if run.live is None and not run.waiting:
            yield {"event": "cancelled", "reason": run.phase_reason}
    elif run.phase == Phase.ACTIVE and run.live is None:
        reason = why_hold(run, seen, policy) or refused(run)
        if reason:
            yield {"event": "held", "by": "orch", "reason": reason}
        elif lost := why_lost(run, seen.upstream):
            yield {"event": "held", "by": HELD_BY_UPSTREAM, "reason": lost}
    elif again := why_again(run, seen.upstream):
        yield {"event": "released", "by": HELD_BY_UPSTREAM, "reason": again}


def in_force(run: Run) -> Fact:
    """The intervals as they are."""
    local = {"local_interval_s": run.local_interval_s} if run.local_interval_s is not None else {}
    return {"interval_s": run.interval_s, **local}


def _saves(run: Run, seen: Observation, now: float) -> Iterator[Fact]:
    """Whether the live attempt's latest save failed. Training goes on meanwhile; a disk that comes and goes is told of
    once an hour."""
    live = run.live
    record = next((a for a in seen.attempts if live is not None and a.start.epoch == live.epoch), None)
    if record is None:
        return
    quiet = run.saves_told_at is not None and now - run.saves_told_at < SAVES_TOLD_EVERY_S
    if record.save_failed is not None and not run.saves_fail and not quiet:
        step, error = record.save_failed
        yield {"event": "saves", "fail": True, "step": step, "reason": error, "checkpoint_step": seen.checkpoint_step}
    elif record.save_failed is None and record.has_saved_shared and run.saves_fail:
        yield {"event": "saves", "fail": False, "checkpoint_step": seen.checkpoint_step}


def _interval(run: Run, seen: Observation, policy: Policy, now: float) -> Iterator[Fact]:
    """The checkpoint interval, measured again: it changes only when that is worth it, in the running trainer too."""
    if run.phase != Phase.ACTIVE or seen.silent is not None:
        return
    ended = sum(not attempt.live for attempt in run.attempts)
    fixed_s = policy.checkpoint_interval_s if not policy.checkpoint_local else None
    if fixed_s is not None and run.interval_s == fixed_s and run.interval.get("ended") == ended:
        return                         # it is in force, and there is nothing to count anew
    wanted = setting(begun(run, seen), seen.measured, seen.others, policy, now)
    if worth_changing(run.interval_s, wanted, run.local_interval_s):
        yield {"event": "interval", "ended": ended, **wanted.as_event()}
    elif run.interval.get("ended") != ended:  # M is counted again after every ending, also when the interval stays
        yield {"event": "interval", "ended": ended, **wanted.as_event(), **in_force(run), "kept": True}


_ROUNDS = (_submissions, _starts, _endings, _requeued, _answers, _drops, _changes)
