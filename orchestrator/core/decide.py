"""What to do about a run: ``decide(run, seen, policy, now)`` gives a list of actions and reaches nothing.

Level-triggered: the same run and the same observation give the same actions, whatever woke the pass; an action that was done
and confirmed in the journal is not given again. No job is touched unless Slurm shows one with our submission's id: once
slurmctld has lost its state, the number of ours is somebody else's. While Slurm is silent nothing is decided, since nothing
is known.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core import canary
from orchestrator.core.actions import (
    Action,
    CancelJob,
    KeepApart,
    PauseJob,
    QueueAttempt,
    Repoint,
    ResumeJob,
    SetAside,
    StopJob,
    Wait,
    Withdraw,
    WriteControl,
)
from orchestrator.core.changing import changes
from orchestrator.core.observation import Control, Observation
from orchestrator.core.pending import unmet, waits_for
from orchestrator.core.recovery import (
    STOOD_DOWN_AT_MOST,
    backoff,
    excluded_nodes,
    last_chance,
    last_unsettled,
    stood_down_in_a_row,
    turned_away,
)
from orchestrator.core.reliability import interval_in_force_s, local_interval_in_force_s
from orchestrator.core.script import dependency, dependency_jobs
from orchestrator.model import CANCEL_MARGIN_S, Attempt, Canary, Ending, Phase, Policy, Run, Submission, SubmissionState
from orchestrator.sightings import JobSeen
from orchestrator.states import ALLOCATED_STATES, ENDED_STATES, ENDING_STATES, WAITING_STATES

# A scancel that seems to have had no effect is sent again after this long.
ASK_AGAIN_AFTER_S = 60.0


def decide(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    """The actions for this run. ``[Wait]`` when there is nothing to do."""
    if seen.silent is not None:
        return [Wait(why=f"Slurm does not answer ({seen.silent}); nothing is decided until it does")]
    wanted = changes(run, seen)
    if wanted:
        return list(wanted)            # what is queued, released or withdrawn asks for what a person wants by then
    actions = [*_strays(run, seen, now), *_left_running(run, seen, now), *_control(run, seen, policy),
               *_BY_PHASE[run.phase](run, seen, policy, now)]
    return actions or [Wait(why=_rest(run, seen))]


# --- one function a phase -----------------------------------------------------------------------------------------------


def _active(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    waiting = run.waiting
    if any(s.state == SubmissionState.INTENDED for s in waiting):
        return [Wait(why="a submission's result is not known yet; Slurm is searched for its id before another is made")]
    overtaken = _overtaken(run, seen, policy, now)
    withdrawn: list[Action] = [
        Withdraw(submission_id=s.id, job_id=s.job_id, why=_why_withdrawn(run, s.job_id)) for s in reversed(overtaken)
        if s.job_id is not None and _may_ask(run, "cancel", s.job_id, now)]
    if withdrawn:
        return withdrawn               # what is queued instead is decided when they are gone
    actions: list[Action] = [
        ResumeJob(submission_id=s.id, job_id=s.job_id, why="the run was released")
        for s in waiting if s.held and s.job_id is not None and s.id in seen.jobs and s not in overtaken]
    actions += _repoint(run, seen, now)
    actions += _queue(run, seen, policy, now)
    if all(isinstance(action, Wait) for action in actions):
        return _stop_for_proof(run, seen, now) or actions
    return actions


def _stop_for_proof(run: Run, seen: Observation, now: float) -> list[Action]:
    """Once all else is done: its successor waits behind it by now, if it can have one."""
    live = canary.must_stop(run)
    job = seen.jobs.get(live.submission_id) if live is not None else None
    # scancel --signal tries again for half a minute where the job waits, as one that was put back into the queue does
    if live is None or job is None or job.state != "RUNNING" or not _may_ask(run, "stop", live.job_id, now):
        return []
    return [StopJob(job_id=live.job_id, why=f"attempt {live.number} has trained enough to prove that it resumes")]


def _held(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    why = f"the run is held: {run.phase_reason}" if run.phase_reason else "the run is held"
    if run.held_by == "user":
        return [PauseJob(submission_id=s.id, job_id=s.job_id, why=why)
                for s in run.waiting if s.job_id is not None and s.id in seen.jobs and not s.held]
    actions = _cancel_waiting(run, seen, now, why)
    if run.canary == Canary.BROKEN:
        actions += _cancel_live(run, seen, now, why)  # what it trains is not the run that was asked for
    return actions


def _cancelling(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    actions = _cancel_waiting(run, seen, now, "the run is being cancelled: the successor first")
    patience_s = 0.0 if run.cancel_now else run.spec.profile.lead_s + CANCEL_MARGIN_S
    if run.live is not None and now - run.phase_since >= patience_s:
        words = "asked to end at once" if run.cancel_now else "did not stop within its lead"
        actions += _cancel_live(run, seen, now, f"attempt {run.live.number} {words}")
    return actions


PUBLISHED_S = 20.0                     # a trainer that holds the fence for longer hangs in it


def _rolling_back(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    """Nothing may train while checkpoints are set aside: a save of what is to be undone would be the newest again."""
    back = run.rollback
    assert back is not None
    why = f"the run goes back to step {back.step}"
    actions: list[Action] = [KeepApart(checkpoint=back.checkpoint, into=back.apart, why=why)] if back.apart else []
    if back.apart and now - run.phase_since < PUBLISHED_S:
        return actions                 # what trains ends when that is done; should it be gone, it goes on
    actions += _cancel_waiting(run, seen, now, why) + _cancel_live(run, seen, now, why)
    if not back.apart and run.live is None and not run.waiting:
        actions.append(SetAside(newer_than_step=back.kept, why=why))
    return actions


def _over(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    """Also what took over from an attempt in the moment in which that one finished: its node was called failed, and lives."""
    why = f"the run is {run.phase}"
    return _cancel_waiting(run, seen, now, why) + _cancel_live(run, seen, now, why)


_BY_PHASE = {
    Phase.ACTIVE: _active, Phase.HELD: _held, Phase.CANCELLING: _cancelling,
    Phase.ROLLING_BACK: _rolling_back, Phase.CANCELLED: _over, Phase.FINISHED: _over,
}


# --- queueing -----------------------------------------------------------------------------------------------------------


def _queue(run: Run, seen: Observation, policy: Policy, now: float) -> list[Action]:
    """At most one sbatch a decision: the next one is decided on what this one came to."""
    live, waiting = run.live, run.waiting
    if run.change is not None:
        return [Wait(why="nothing is queued before what was asked for by hand is known of every job that waits")]
    if live is None and not waiting:
        blocked = _blocked(run, seen) or _undecided(run) or _no_room(run, policy, now)
        if blocked:
            return [Wait(why=blocked)]
        last = _last_ended(run)
        wait = backoff(run, policy)
        delay_s = max(0.0, wait.until - now) if wait is not None else 0.0
        if unmet(run, seen.upstream):  # it waits behind a job as it is
            delay_s = min(delay_s, policy.backoff_s)
        first = not run.begun
        why = "first attempt" if last is None else _begins_again(run, seen, last) if first else \
            f"attempt {last.number} ended ({last.ending}): the next one continues"
        return [QueueAttempt(behind=_upstream_jobs(run, seen), nice=first and policy.finish_first, delay_s=delay_s,
                             exclude=excluded_nodes(run, seen, policy, now), why=f"{why}, {wait.why}" if wait else why)]
    ahead = len(waiting) - (0 if live is not None else 1)
    if ahead >= policy.successors_ahead:
        return []
    if run.submissions[-1].state == SubmissionState.REJECTED:
        return [Wait(why=f"no successor ahead: Slurm refused it ({run.submissions[-1].reason}); "
                         "the next attempt is queued when this one has ended")]
    if live is not None and len(stood_down_in_a_row(run)) >= STOOD_DOWN_AT_MOST:
        return [Wait(why="no successor ahead: the last ones started while this attempt trained, and stood down; the next one "
                         "is queued when it has ended")]
    if last_chance(run, policy):
        return [Wait(why="no successor ahead: if what runs or waits already saves nothing newer, it holds the run")]
    behind = waiting[-1].job_id if waiting else live.job_id if live is not None else None
    assert behind is not None, "a queued submission has a job id"
    if live is not None and not _still_there(seen, live):
        return [Wait(why=f"attempt {live.number} is about to end; its ending decides what is queued")]
    return [QueueAttempt(behind=(behind,), nice=False, delay_s=0.0, exclude=excluded_nodes(run, seen, policy, now),
                         why=f"a successor behind job {behind}")]


def _begins_again(run: Run, seen: Observation, last: Attempt) -> str:
    """A person rolled it back, released it or submitted it again."""
    words = "rolled back: it goes on" if last.epoch <= run.rolled_back_epoch else "it goes on"
    return words + (f" from step {seen.checkpoint_step}" if seen.checkpoint_step is not None else "")


def _still_there(seen: Observation, live: Attempt) -> bool:
    job = seen.jobs.get(live.submission_id)
    return job is not None and job.state in WAITING_STATES | ALLOCATED_STATES


def _last_ended(run: Run) -> Attempt | None:
    ended = [a for a in run.attempts if not a.live]
    return ended[-1] if ended else None


# --- waiting behind other runs --------------------------------------------------------------------------------------------


def _no_room(run: Run, policy: Policy, now: float) -> str:
    wait = turned_away(run, policy)
    return f"Slurm takes no further job for now; asked again {wait.why}" if wait is not None and now < wait.until else ""


def _undecided(run: Run) -> str:
    last = last_unsettled(run)
    if last is not None and last.ending == Ending.OUT_OF_MEMORY:
        return "what the largest node has is not known yet; it decides whether more memory can be asked for"
    return ""


def _blocked(run: Run, seen: Observation) -> str:
    """Why nothing can be queued behind what it waits for: there is no job."""
    for other in unmet(run, seen.upstream):
        words = waits_for({other.tag: other.condition})
        if other.run is None:
            return f"{words}, and its journal cannot be read"
        if other.run.live is None and not other.run.waiting:
            return f"{words}, which is {other.run.phase} and has nothing queued"
    return ""


def _upstream_jobs(run: Run, seen: Observation) -> tuple[str, ...]:
    jobs = tuple(other.run.last_job_id for other in unmet(run, seen.upstream) if other.run and other.run.last_job_id)
    return (*jobs, *(run.spec.after_jobs if not run.begun else ()))


def _repoint(run: Run, seen: Observation, now: float) -> list[Action]:
    """A dependent follows its upstream's newest attempt, as long as it waits itself."""
    if run.live is not None or not run.waiting:
        return []
    head = run.waiting[0]
    job = seen.jobs.get(head.id)
    wanted, waits = _upstream_jobs(run, seen), unmet(run, seen.upstream)
    if head.job_id is None or job is None or job.state != "PENDING":
        return []
    if job.reason == "DependencyNeverSatisfied" and _may_ask(run, "repoint", head.job_id, now):
        return [Repoint(submission_id=head.id, job_id=head.job_id, dependency=dependency(wanted),
                        why=f"what it waits for ({job.dependency}) can never happen any more")]
    if not waits:
        return []
    if frozenset(wanted) <= dependency_jobs(head.dependency):
        return []
    names = ", ".join(other.tag for other in waits)
    return [Repoint(submission_id=head.id, job_id=head.job_id, dependency=dependency(wanted),
                    why=f"{names} has queued another attempt")]


# --- a successor that asks for what an ending has overtaken ---------------------------------------------------------------


def _overtaken(run: Run, seen: Observation, policy: Policy, now: float) -> list[Submission]:
    """Waiting jobs that were submitted before an ending changed what is asked for: too little memory, too short a lead,
    a node that failed. Mostly the successor has started by then; where the partition is full it would wait for hours, and
    then stand down or fail in the same way."""
    excluded = excluded_nodes(run, seen, policy, now)
    failures = [a.ended_sequence for a in run.attempts
                if a.ending == Ending.NODE_FAILURE and a.nodes in excluded and a.ended_sequence is not None]
    changed = max([run.adjusted_sequence, *failures])
    return [s for s in run.waiting if s.sequence < changed
            and (job := seen.jobs.get(s.id)) is not None and job.state == "PENDING"]


def _why_withdrawn(run: Run, job_id: str) -> str:
    last = _last_ended(run)
    of = f"attempt {last.number} ended ({last.ending})" if last is not None else "the request was changed"
    return f"job {job_id} was submitted before {of} and still waits; the next one asks for what is needed now"


# --- ending things --------------------------------------------------------------------------------------------------------


def _cancel_waiting(run: Run, seen: Observation, now: float, why: str) -> list[Action]:
    return [CancelJob(job_id=s.job_id, why=why) for s in reversed(run.waiting)
            if s.job_id is not None and s.id in seen.jobs and _may_ask(run, "cancel", s.job_id, now)]


def _cancel_live(run: Run, seen: Observation, now: float, why: str) -> list[Action]:
    live = run.live
    asks = live is not None and live.submission_id in seen.jobs and _may_ask(run, "cancel", live.job_id, now)
    return [CancelJob(job_id=live.job_id, why=why)] if live is not None and asks else []


def _strays(run: Run, seen: Observation, now: float) -> list[Action]:
    """Jobs that Slurm still has although their submission was given up: one that was believed gone, or one too many."""
    given_up = {s.id for s in run.submissions if s.state in (SubmissionState.DROPPED, SubmissionState.REJECTED)}
    return [CancelJob(job_id=job.job_id, why="its submission was given up, and Slurm still has it")
            for submission_id, job in seen.jobs.items()
            if submission_id in given_up and job.state not in ENDED_STATES | ENDING_STATES
            and _may_ask(run, "cancel", job.job_id, now)]


def _left_running(run: Run, seen: Observation, now: float) -> list[Action]:
    """Jobs that Slurm goes on calling running although it is certain that nothing of their ended attempt is there: they keep
    their nodes, and the successor waits behind them."""
    ended = {a.epoch: a for a in run.attempts if not a.live}
    living = {a.submission_id for a in run.attempts if a.live}
    found: list[Action] = []
    for record in seen.attempts:
        attempt, job = ended.get(record.start.epoch), seen.jobs.get(record.start.submission_id)
        why = record.nothing_there or record.node_failed
        if (why and attempt is not None and job is not None and job.state == "RUNNING"
                and attempt.submission_id not in living and _may_ask(run, "cancel", job.job_id, now)):
            found.append(CancelJob(job_id=job.job_id, why=f"attempt {attempt.number} has ended ({attempt.ending}), and Slurm "
                                   f"goes on calling its job running: {why}"))
    return found


def _may_ask(run: Run, kind: str, job_id: str, now: float) -> bool:
    asked_at = run.requests.get(f"{kind} {job_id}")
    return asked_at is None or now - asked_at >= ASK_AGAIN_AFTER_S


# --- control.json -----------------------------------------------------------------------------------------------------------


def _control(run: Run, seen: Observation, policy: Policy) -> list[Action]:
    """What the running trainer should read. Nobody reads it while nothing runs or waits, but an old stop request must be
    gone before the next attempt is queued."""
    interval_s, local_s = interval_in_force_s(run, policy), local_interval_in_force_s(run, policy)
    stop = "cancel" if run.phase == Phase.CANCELLING and not run.cancel_now else None
    have = seen.control
    old_stop = have is not None and have.stop is not None and run.phase == Phase.ACTIVE
    if run.live is None and not run.waiting and not old_stop:
        return []
    save = max(run.saves_asked, have.save if have else 0)
    wanted = Control(seq=have.seq if have else 0, interval_s=interval_s, stop=stop, save=save, local_interval_s=local_s)
    if wanted == have:
        return []
    words = [f"interval {interval_s:g} s", f"stop: {stop}" if stop else "", "save now" if have and save > have.save else ""]
    return [WriteControl(control=replace(wanted, seq=wanted.seq + 1), why=", ".join(filter(None, words)))]


def _rest(run: Run, seen: Observation) -> str:
    """Why there is nothing to do, in one sentence."""
    if run.phase != Phase.ACTIVE:
        return f"the run is {run.phase}" + (f": {run.phase_reason}" if run.phase_reason else "")
    live = run.live
    if live is not None:
        ahead = _jobs(run.waiting)
        return f"attempt {live.number} runs (job {live.job_id})" + (f", its successor waits ({ahead})" if ahead else "")
    states = [f"job {s.job_id} is {job.state.lower()}{f' ({job.reason})' if job.reason else ''}"
              for s in run.waiting[:1] if isinstance(job := seen.job(s.id), JobSeen)]
    return states[0] if states else "waits for Slurm"


def _jobs(waiting: tuple[Submission, ...]) -> str:
    return ", ".join(f"job {s.job_id}" for s in waiting if s.job_id)
