"""What a person changes of a run that exists (`orch update`): what is to be done about it, and when it is done. Pure.

A wish stands in the journal (``update``) until every waiting job asks for it (``changed``) and the run's own copy of job.sh
is the one that was meant (``script_taken``); then the run is like that (``updated``). All of it can be done again without
harm, so that an intent without a result is simply done again. What Slurm refuses ends the wish (``unchanged``).

A job that ran meanwhile keeps what it has. Put back into the queue, it is asked for what it missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.core.actions import ChangeJob, TakeScript
from orchestrator.core.evidence import waits_again
from orchestrator.core.observation import Observation
from orchestrator.core.waiting import Kind, look_up
from orchestrator.model import Change, Phase, Run, Submission, SubmissionState
from orchestrator.sightings import JobGone, JobSeen
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_clock, format_size


def changes(run: Run, seen: Observation) -> list[ChangeJob | TakeScript]:
    """What is still to be done about the wish, and about jobs that came back."""
    if _is_over(run):
        return []
    wish = run.change
    script = [] if wish is None or wish.script_sha256 is None or wish.script_taken else [
        TakeScript(sha256=wish.script_sha256, why=f"jobs/{run.spec.tag}/job.sh is to be taken anew")]
    return [*script, *(
        ChangeJob(submission_id=s.id, job_id=s.job_id, memory_bytes=missed.memory_bytes, time_s=missed.time_s,
                  nice=None if _held(s, seen) else missed.nice, why=f"{in_words(missed)} from now on")
        for s in run.submissions
        if s.job_id is not None and _waits(run, seen, s) and (missed := _missed(run, s)) is not None)]


def done(run: Run, seen: Observation) -> Iterator[dict[str, object]]:
    """The fact that the wish has come true; also that it cannot any more, since the run is over."""
    wish = run.change
    if wish is None or seen.silent is not None:
        return
    if _is_over(run):
        yield {"event": "unchanged", "reason": f"the run is {run.phase}"}
    elif not changes(run, seen) and not any(_missed(run, s) and _may_wait(seen, s) for s in run.waiting):
        yield {"event": "updated", "reason": in_words(wish)}


def in_words(wish: Change) -> str:
    """``memory 28G, time 4:00:00, nice 100, job.sh``."""
    parts = [f"memory {format_size(wish.memory_bytes)}"] if wish.memory_bytes is not None else []
    parts += [f"time {format_clock(wish.time_s)}"] if wish.time_s is not None else []
    parts += [f"nice {wish.nice}"] if wish.nice is not None else []
    return ", ".join([*parts, *(["job.sh"] if wish.script_sha256 is not None else [])])


def _is_over(run: Run) -> bool:
    """One that is being rolled back is not: it goes on as is wanted by then."""
    return run.over or run.phase == Phase.CANCELLING


def _missed(run: Run, submission: Submission) -> Change | None:
    """What was wanted after it was submitted, and changed last; of job.sh alone Slurm knows nothing."""
    asked = max(submission.sequence, submission.changed_sequence)
    missed = nothing = Change(sequence=0)
    for wish in (*run.updated, *([run.change] if run.change is not None else [])):
        if wish.sequence > asked:
            missed = replace(
                missed, memory_bytes=missed.memory_bytes if wish.memory_bytes is None else wish.memory_bytes,
                time_s=missed.time_s if wish.time_s is None else wish.time_s,
                nice=missed.nice if wish.nice is None else wish.nice)
    return missed if missed != nothing else None


def _waits(run: Run, seen: Observation, submission: Submission) -> bool:
    """In Slurm's queue; also of one that was put back there and may start before its last attempt is known to have ended."""
    job = seen.jobs.get(submission.id)
    if submission.state == SubmissionState.STARTED:
        return all(waits_again(job or JobGone(), a) for a in run.attempts if a.submission_id == submission.id)
    return submission.state == SubmissionState.QUEUED and job is not None and job.state in WAITING_STATES


def _may_wait(seen: Observation, submission: Submission) -> bool:
    """Not known yet counts as waiting: its sbatch is not settled, or squeue does not show it yet."""
    job = seen.job(submission.id)
    return submission.state == SubmissionState.INTENDED or not isinstance(job, JobSeen) or job.state in WAITING_STATES


def _held(submission: Submission, seen: Observation) -> bool:
    """A new nice value gives a held job a priority again, and so lets it go; a held one gets it when it is released."""
    found = look_up(seen.jobs[submission.id].reason)
    return submission.held or (found is not None and found[0].kind is Kind.HELD)
