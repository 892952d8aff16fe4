"""What a person changes of a run that exists (`orch update`): what is to be done about it, and when it is done. Pure.

A wish stands in the journal (``update``) until every waiting job asks for it (``changed``) and the run's own copy of job.sh
is the one that was meant (``script_taken``); then the run is like that (``updated``). All of it can be done again without
harm, so that an intent without a result is simply done again. What Slurm refuses ends the wish (``unchanged``).
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.actions import ChangeJob, TakeScript
from orchestrator.core.observation import Observation
from orchestrator.core.waiting import Kind, look_up
from orchestrator.model import Change, Phase, Run, Submission, SubmissionState
from orchestrator.sightings import JobSeen
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_clock, format_size


def changes(run: Run, seen: Observation) -> list[ChangeJob | TakeScript]:
    """What is still to be done about the wish."""
    wish = run.change
    if wish is None or _is_over(run):
        return []
    script = [] if wish.script_sha256 is None or wish.script_taken else [
        TakeScript(sha256=wish.script_sha256, why=f"jobs/{run.spec.tag}/job.sh is to be taken anew")]
    return [*script, *(
        ChangeJob(submission_id=s.id, job_id=s.job_id, memory_bytes=wish.memory_bytes, time_s=wish.time_s,
                  nice=None if _held(s, seen) else wish.nice, why=f"{in_words(wish)} from now on")
        for s in run.waiting if s.job_id is not None and _asks_otherwise(s, wish) and _waits(seen, s))]


def done(run: Run, seen: Observation) -> Iterator[dict[str, object]]:
    """The fact that the wish has come true; also that it cannot any more, since the run is over."""
    wish = run.change
    if wish is None or seen.silent is not None:
        return
    if _is_over(run):
        yield {"event": "unchanged", "reason": f"the run is {run.phase}"}
    elif not changes(run, seen) and not any(_asks_otherwise(s, wish) and _may_wait(seen, s) for s in run.waiting):
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


def _asks_otherwise(submission: Submission, wish: Change) -> bool:
    """It was submitted, and changed last, before the wish; job.sh alone is nothing that Slurm knows of."""
    asked = wish.memory_bytes is not None or wish.time_s is not None or wish.nice is not None
    return asked and max(submission.sequence, submission.changed_sequence) < wish.sequence


def _waits(seen: Observation, submission: Submission) -> bool:
    job = seen.jobs.get(submission.id)
    return job is not None and job.state in WAITING_STATES


def _may_wait(seen: Observation, submission: Submission) -> bool:
    """Not known yet counts as waiting: its sbatch is not settled, or squeue does not show it yet."""
    job = seen.job(submission.id)
    return submission.state == SubmissionState.INTENDED or not isinstance(job, JobSeen) or job.state in WAITING_STATES


def _held(submission: Submission, seen: Observation) -> bool:
    """A new nice value gives a held job a priority again, and so lets it go; a held one gets it when it is released."""
    found = look_up(seen.jobs[submission.id].reason)
    return submission.held or (found is not None and found[0].kind is Kind.HELD)
