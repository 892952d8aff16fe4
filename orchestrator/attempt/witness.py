"""What the gate is asked with: the journal, the predecessor's folder and process, Slurm's word, upstream runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import journal
from orchestrator.attempt import commands
from orchestrator.attempt.resume import local_checkpoints, of_this_history
from orchestrator.attempt.take import Identity, starts
from orchestrator.attempt_files import read_heartbeat, read_record, saved_after_notice
from orchestrator.checkpoints import newest_complete
from orchestrator.core.endings import Evidence, classify
from orchestrator.core.fold import fold
from orchestrator.core.gate import GateAnswer, Leave, Predecessor, ask
from orchestrator.core.pending import Upstream
from orchestrator.errors import JournalError
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.host import boot_id, is_alive, nothing_there
from orchestrator.model import ENDED_STATES, After, Ending, Phase, Run
from orchestrator.records import AttemptSpec, EndRecord, StartRecord
from orchestrator.sightings import JobGone, JobSeen, JobSighting

ASK_FOR_S = 60.0
# A heart beats every 30 s; one that beat within this time is still taken for a beating one.
BEAT_JUST_NOW_S = 45.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """The gate's answer, the epoch of the start that it was about, and the length of the journal that it rests on."""

    answer: GateAnswer
    asked_about: int
    journal_length: int = 0


class Pulse:
    """How long ago a heart beat: by the wall clock when a beat is seen first, from then on by the monotonic one."""

    def __init__(self, clock: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._clock, self._monotonic = clock, monotonic
        self._seen: dict[Path, tuple[float, float]] = {}        # beat, and when it was by our monotonic clock

    def age_s(self, folder: Path) -> float | None:
        beat = read_heartbeat(folder)
        if beat is None:
            return None
        if folder not in self._seen or self._seen[folder][0] != beat:
            self._seen[folder] = beat, self._monotonic() - max(0.0, self._clock() - beat)
        return self._monotonic() - self._seen[folder][1]


def leave(spec: AttemptSpec, me: Identity, *, clock: Callable[[], float], monotonic: Callable[[], float],
          wait: Callable[[float], bool]) -> Leaving:
    """Ask the gate, again and again while nobody can say, for a minute. ``wait`` is false when a signal came."""
    give_up, pause_s = monotonic() + ASK_FOR_S, 1.0
    pulse = Pulse(clock, monotonic)
    while True:
        asked = ask_once(spec, me, pulse)
        if asked.answer.leave is not Leave.ASK_AGAIN:
            return asked
        if monotonic() >= give_up:
            reason = f"{asked.answer.reason} (asked for {ASK_FOR_S:.0f} s)"
            return Leaving(GateAnswer(Leave.STAND_DOWN, reason), asked.asked_about)
        if not wait(pause_s):
            return Leaving(GateAnswer(Leave.STAND_DOWN, "told to stop while waiting"), asked.asked_about)
        pause_s = 2.0


def ask_once(spec: AttemptSpec, me: Identity, pulse: Pulse) -> Leaving:
    run_dir = Path(spec.run_dir)
    length = journal.length(run_dir)
    try:
        run = fold(journal.read(run_dir)[0])
    except (JournalError, OSError, KeyError, ValueError, TypeError) as error:
        return Leaving(GateAnswer(Leave.ASK_AGAIN, f"the journal cannot be read: {error}"), 0)
    if run is None:
        return Leaving(GateAnswer(Leave.ASK_AGAIN, "there is no journal"), 0)
    before = starts(run_dir)
    newest = before[-1] if before else None
    predecessor = look_at(run, run_dir, newest, me, pulse, spec.local_dir) if newest else None
    upstream = tuple(_upstream(run_dir.parent / tag, condition) for tag, condition in run.spec.after_tags.items())
    return Leaving(ask(run, spec.submission_id, predecessor, upstream), newest.epoch if newest else 0, length)


def look_at(
    run: Run, run_dir: Path, start: StartRecord, me: Identity, pulse: Pulse, local_dir: str = "",
) -> Predecessor:
    """The predecessor as its folder, its process and Slurm tell of it. Its progress is what could be resumed from here.

    Our own job under a lower restart count is over by definition (a site that requeues), and whatever may live on of it the
    fence ends. So it is under the same count where nothing of it is there (slurmctld lost what it knew of the start). By our
    own job's id Slurm can only tell of us, also where it has lost its state and counts anew.
    """
    folder = attempt_dir(run_dir, start.number)
    end = read_record(folder / "end.json", EndRecord)
    local = local_checkpoints(local_dir, of_this_history(run_dir, starts(run_dir))) if local_dir else []
    checkpoint = newest_complete(checkpoint_dir(run_dir), *local, start=start)
    same_id = start.job_id == me.job_id
    requeued = same_id and (start.restart_count < me.restart_count or bool(nothing_there(run_dir, start)))
    job = JobGone() if same_id else _its_own(start, commands.look_at_job(start.job_id))
    age_s = None if requeued else pulse.age_s(folder)
    saved = saved_after_notice(end.notice_at if end else None, start, checkpoint)
    return Predecessor(
        number=start.number, epoch=start.epoch, resume_step=start.resume_step,
        alive=not requeued and _alive(start, end, job, age_s),
        evidence=Evidence(
            job=job, end=end, heartbeat_age_s=age_s, checkpoint_step=checkpoint.step if checkpoint else None,
            saved_after_notice=saved, cancel_requested=run.phase in (Phase.CANCELLING, Phase.CANCELLED)))


def _its_own(start: StartRecord, job: JobSighting) -> JobSighting:
    """Ids come twice when slurmctld has lost its state: of a job with another comment nothing is to be learnt."""
    if isinstance(job, JobSeen) and job.comment and not job.comment.endswith(f":{start.submission_id}"):
        return JobGone()
    return job


def _alive(start: StartRecord, end: EndRecord | None, job: JobSighting, age_s: float | None) -> bool:
    """Whether it is still at work in its own right. One whose job has ended for Slurm is not: the fence ends its rest."""
    if end is not None and not end.provisional:
        return False
    if isinstance(job, JobSeen) and job.state in ENDED_STATES:
        return False
    here = boot_id()
    if start.boot_id and start.boot_id == here:
        return is_alive(start.pid, start.pid_start)
    return age_s is not None and age_s < BEAT_JUST_NOW_S


def _upstream(run_dir: Path, condition: After) -> Upstream:
    try:
        run = fold(journal.read(run_dir)[0])
    except (JournalError, OSError, KeyError, ValueError, TypeError):
        run = None
    if run is not None and not run.over and run.phase != Phase.ROLLING_BACK and _finished(run, run_dir):
        run = replace(run, phase=Phase.FINISHED)
    return Upstream(tag=run_dir.name, condition=condition, run=run)


def _finished(run: Run, run_dir: Path) -> bool:
    """Whether its newest start has finished it, which no pass may have noted yet: we start half a second after its end."""
    newest = next(iter(reversed(starts(run_dir))), None)
    end = read_record(attempt_dir(run_dir, newest.number) / "end.json", EndRecord) if newest else None
    if newest is None or end is None or end.provisional or end.epoch != newest.epoch:
        return False
    known = next((a for a in run.attempts if a.epoch == newest.epoch), None)
    if known is not None and known.ended_sequence is not None and known.ended_sequence <= run.released_sequence:
        return False                   # it was submitted again since
    verdict = classify(Evidence(job=JobGone(), end=end))
    return verdict is not None and verdict.ending == Ending.FINISHED
