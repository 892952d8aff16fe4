"""What bears on how an attempt ended, put together from what one pass has seen: for the news, and for whether accounting is
asked. Pure.

A job that was run again, or waits to be, is another execution's: what Slurm says of it tells nothing of the one before.
"""

from __future__ import annotations

from orchestrator.core.endings import Evidence
from orchestrator.core.observation import AttemptSeen, Observation
from orchestrator.model import Attempt, Phase, Run
from orchestrator.records import StartRecord
from orchestrator.sightings import JobGone, JobSeen, JobSighting
from orchestrator.states import WAITING_STATES

PUT_BACK = "Slurm put its job back into the queue"
RUN_AGAIN = "Slurm started its job anew, as it does when it has lost what it knew of it"
Start = Attempt | StartRecord


def evidence_of(run: Run, start: Start, record: AttemptSeen | None, seen: Observation, now: float) -> Evidence:
    """Of one start, which the journal may not know yet, and its folder."""
    job = seen.job(start.submission_id)
    # it was run again and stood down, as when slurmctld lost what it knew of the first time
    again = any((s.job_id, s.submission_id) == (start.job_id, start.submission_id) and s.at > start.started_at
                for s in seen.stood_down)
    put_back = waits_again(job, start)
    heartbeat = record.heartbeat_at if record else None
    return Evidence(
        job=(record.accounted if record else None) or (
            JobGone() if again or put_back or later_starts(run, start, seen) else job),
        end=record.end if record else None, heartbeat_age_s=now - heartbeat if heartbeat else None,
        checkpoint_step=seen.checkpoint_step, saved_after_notice=record.saved_after_notice if record else False,
        cancel_requested=run.phase == Phase.CANCELLING,
        nothing_there=RUN_AGAIN if again else PUT_BACK if put_back else record.nothing_there if record else "",
        node_failed=record.node_failed if record else "")


def later_starts(run: Run, start: Start, seen: Observation) -> list[Start]:
    """Of the same job, oldest first: those of the journal, and those that it does not know yet."""
    known: list[Start] = [*run.attempts, *(record.start for record in seen.attempts)]
    return sorted((one for one in known if (one.job_id, one.submission_id) == (start.job_id, start.submission_id)
                   and one.epoch > start.epoch), key=lambda one: one.epoch)


def waits_again(job: JobSighting, start: Start) -> bool:
    """Its job was requeued: it waits as what will be another execution, for two minutes, or until somebody releases it."""
    return isinstance(job, JobSeen) and job.state in WAITING_STATES and job.restart_count > start.restart_count
