"""Jobs that slurmctld has forgotten: where it would matter how one ended, accounting is asked, once a pass for all runs.

The attempt's own record stays the first witness. Accounts are evidence of ends alone: they lag, and of a job whose end was
never reported they say RUNNING for ever. No answer, or no accounting, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from orchestrator.control.ports import Ports, Snapshot
from orchestrator.core.endings import classify, in_doubt
from orchestrator.core.evidence import evidence_of, later_starts
from orchestrator.core.news import LOST_AFTER_S
from orchestrator.core.observation import AttemptSeen, Observation
from orchestrator.model import ENDED_STATES, Run, Submission, SubmissionState
from orchestrator.sightings import Execution, JobGone, JobSeen

# The clocks of slurmctld, of a node and of this host may differ by this much.
CLOCKS_APART_S = 10.0


def forgotten_jobs(runs: Iterable[Run], snapshot: Snapshot) -> Set[str]:
    """Job ids that these runs' journals think queued or running and of which squeue did not tell."""
    if snapshot.silent is not None:
        return frozenset()
    known = {job.job_id for job in snapshot.jobs}
    return frozenset(
        s.job_id for run in runs for s in run.submissions
        if s.state in (SubmissionState.QUEUED, SubmissionState.STARTED) and s.job_id is not None) - known


def with_accounts(ports: Ports, run: Run, seen: Observation, snapshot: Snapshot) -> Observation:
    """What was seen, with how the forgotten executions ended whose ending is to be noted now, where accounting knows."""
    if not ports.accounting or seen.silent is not None:
        return seen
    now = ports.clock()
    attempts = [a for a in seen.attempts if _in_doubt(run, a, seen, now)]
    waiting = [s for s in run.submissions if _never_seen(s, seen, now)]
    if not attempts and not waiting:
        return seen
    job_ids = {a.start.job_id for a in attempts} | {s.job_id for s in waiting if s.job_id is not None}
    told = snapshot.answers.executions(ports.slurm, job_ids)
    if not told:
        return seen
    ended = {s.id: job for s in waiting if (job := _of_submission(s, told)) is not None}
    return replace(seen, jobs={**seen.jobs, **ended}, attempts=tuple(
        replace(a, accounted=_of_attempt(run, a, told)) if a in attempts else a for a in seen.attempts))


def _in_doubt(run: Run, attempt: AttemptSeen, seen: Observation, now: float) -> bool:
    """Slurm knows the job no more, or tells of another execution of it; the ending is to be noted now; and Slurm's word would
    change it. While a heart beats nothing is asked."""
    start = attempt.start
    if any(a.epoch == start.epoch and not a.live for a in run.attempts):
        return False
    evidence = evidence_of(run, start, attempt, seen, now)
    if not isinstance(evidence.job, JobGone):
        return False
    return bool(later_starts(run, start, seen) or classify(evidence)) and in_doubt(evidence)


def _never_seen(submission: Submission, seen: Observation, now: float) -> bool:
    """It waited when the journal was written, Slurm has known it no more for long enough, and it left no word."""
    asked_at = seen.asked_at if seen.asked_at is not None else now
    return (submission.state == SubmissionState.QUEUED and submission.id not in seen.jobs
            and asked_at - (submission.queued_at or 0.0) > LOST_AFTER_S
            and all(a.start.submission_id != submission.id for a in seen.attempts)
            and all(s.submission_id != submission.id for s in seen.stood_down))


def _of_attempt(run: Run, attempt: AttemptSeen, told: list[Execution]) -> JobSeen | None:
    """The execution that this supervisor was in: the latest that had begun when it did. One of before its sbatch was another
    job's."""
    start, submission = attempt.start, run.submission(attempt.start.submission_id)
    asked_at = submission.intended_at if submission is not None else 0.0
    begun = sorted((one for one in told if one.job_id == start.job_id and one.start_at is not None
                    and one.submitted_at >= asked_at - CLOCKS_APART_S), key=_age)
    before = [one for one in begun if one.start_at is not None and one.start_at <= start.started_at + 1.0]
    own = before[-1] if before else next(iter(begun), None)
    if (own is None or own.state not in ENDED_STATES or own.start_at is None or own.end_at is None
            or not own.start_at - CLOCKS_APART_S <= start.started_at <= own.end_at + CLOCKS_APART_S):
        return None
    return own.as_seen


def _of_submission(submission: Submission, told: list[Execution]) -> JobSeen | None:
    """How the job of a submission ended that no supervisor speaks of."""
    from_s, to_s = submission.intended_at - CLOCKS_APART_S, (submission.queued_at or submission.intended_at) + CLOCKS_APART_S
    own = max((one for one in told if one.job_id == submission.job_id and from_s <= one.submitted_at <= to_s), key=_age,
              default=None)
    return own.as_seen if own is not None and own.state in ENDED_STATES else None


def _age(one: Execution) -> tuple[float, float]:
    return (one.start_at or one.submitted_at, one.submitted_at)
