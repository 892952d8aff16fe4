"""Acting: an intent into the journal, the effect, its result into the journal. The only place with effects on Slurm.

Killed between any two lines, the next pass finds the intent and looks for what became of it; so no line here may do an
effect whose intent is not written yet.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from pathlib import Path

from orchestrator import folders
from orchestrator.attempt_files import read_record
from orchestrator.control.observe import jobs_of
from orchestrator.control.ports import Ports
from orchestrator.core import actions as do
from orchestrator.core.observation import Observation
from orchestrator.core.reliability import interval_in_force_s, local_interval_in_force_s
from orchestrator.core.script import attempt_spec, batch_script, dependency, dependency_jobs, job_name
from orchestrator.errors import NoRoom, SlurmError, SlurmUnreachable, StorageError, SubmissionRejected
from orchestrator.journal import LockedJournal
from orchestrator.model import Run
from orchestrator.records import AttemptSpec
from orchestrator.rollback import keep_apart, set_aside_newer
from orchestrator.sightings import JobSeen
from orchestrator.slurm.fields import gres_counts
from orchestrator.states import ENDED_STATES, ENDING_STATES
from orchestrator.trainer_control import write_control
from orchestrator.units import slurm_minutes

# By path: a PYTHONPATH of the user's, or another package of our name, must not hide it.
SUPERVISOR = str(Path(__file__).absolute().parents[1] / "attempt" / "__main__.py")


def act(action: do.Action, run: Run, seen: Observation, journal: LockedJournal, ports: Ports) -> Observation:
    """Do one action; the observation, brought up to date with what was done.

    Raises SlurmUnreachable when Slurm does not answer, SubmissionRejected when it says no to anything but an sbatch (an
    sbatch that is refused is a fact, and stands in the journal).
    """
    match action:
        case do.QueueAttempt():
            return _queue(action, run, seen, journal, ports)
        case do.CancelJob(job_id=job_id):
            _cancel(job_id, action.why, journal, ports)
            return _look_again(run, seen, job_id, ports)
        case do.StopJob(job_id=job_id):
            journal.append("asked", kind="stop", job_id=job_id, why=action.why)
            ports.slurm.stop(job_id)
        case do.PauseJob(submission_id=submission_id, job_id=job_id):
            _hold(job_id, submission_id, action.why, journal, ports)
        case do.ResumeJob(submission_id=submission_id, job_id=job_id):
            journal.append("asked", kind="release", job_id=job_id, why=action.why)
            ports.slurm.release(job_id)
            if run.spec.nice is not None:      # which a held job could not be given
                journal.append("asked", kind="change", job_id=job_id, why=f"nice {run.spec.nice}")
                ports.slurm.change(job_id, nice=run.spec.nice)
            journal.append("resumed", submission_id=submission_id)
        case do.ChangeJob():
            return _change(action, run, seen, journal, ports)
        case do.TakeScript(sha256=sha256):
            _take_script(sha256, run, journal, ports)
        case do.Repoint(submission_id=submission_id, job_id=job_id, dependency=text):
            journal.append("asked", kind="repoint", job_id=job_id, why=action.why)
            ports.slurm.set_dependency(job_id, text)
            journal.append("repointed", submission_id=submission_id, dependency=text)
        case do.Withdraw():
            return _withdraw(action, run, seen, journal, ports)
        case do.WriteControl(control=control):
            write_control(folders.run_dir(ports.repository, run.spec.tag), control)
            return replace(seen, control=control)
        case do.KeepApart():
            _keep_apart(action, run, journal, ports)
        case do.SetAside(newer_than_step=step):
            back = run.rollback
            assert back is not None
            names, epoch = set_aside_newer(folders.run_dir(ports.repository, run.spec.tag), step, back.into, back.checkpoint,
                                           back.step)
            journal.append("rolled_back", to_step=back.step, set_aside=names, into=back.into, epoch=epoch)
            return replace(seen, checkpoint_step=back.step)
        case do.Wait():
            pass
    return seen


def _change(action: do.ChangeJob, run: Run, seen: Observation, journal: LockedJournal, ports: Ports) -> Observation:
    """One that starts meanwhile keeps its memory, but a limit set just then holds for it too; Slurm's own notice comes in
    time for that all the same. What its supervisor is told of the limit is written first, since it reads it once."""
    job_id = action.job_id
    journal.append("asked", kind="change", job_id=job_id, why=action.why)
    told_s = _tell_limit(action, action.time_s, run, ports)
    try:
        ports.slurm.change(job_id, memory_bytes=action.memory_bytes, time_s=action.time_s, nice=action.nice)
    except SubmissionRejected as error:
        _tell_limit(action, told_s if run.change is None else run.spec.profile.time_s, run, ports)
        if run.change is not None:     # else it came back, and is left as it is
            _take_back(action, run, ports)
        before = [s.job_id or "" for s in run.waiting if run.change is not None and s.changed_sequence > run.change.sequence]
        others = f"; job {', '.join(before)} was changed before" if before else ""
        reason = f"job {job_id}: {error.message}{others}"
        journal.append("unchanged", submission_id=action.submission_id, reason=reason)
        raise SubmissionRejected(reason, hint=error.hint) from error
    journal.append("changed", submission_id=action.submission_id)
    return _look_again(run, seen, job_id, ports)


def _take_back(action: do.ChangeJob, run: Run, ports: Ports) -> None:
    """Of several values Slurm may have taken some before it refused one. What was asked for before, it takes again."""
    had = run.spec.profile
    with contextlib.suppress(SlurmError):
        ports.slurm.change(action.job_id, memory_bytes=None if action.memory_bytes is None else had.memory_bytes,
                           time_s=None if action.time_s is None else had.time_s)


def _tell_limit(action: do.ChangeJob, time_s: float | None, run: Run, ports: Ports) -> float | None:
    """Write the time limit, where it is changed, into what the supervisor reads when it starts; what was there before."""
    submission = run.submission(action.submission_id)
    assert submission is not None
    path = folders.attempt_dir(folders.run_dir(ports.repository, run.spec.tag), submission.number) / "spec.json"
    told = read_record(path, AttemptSpec) if action.time_s is not None else None
    if told is None or time_s is None:
        return None
    folders.replace_file(path, replace(told, time_limit_s=slurm_minutes(time_s) * 60.0).to_json())
    return told.time_limit_s


def _take_script(sha256: str, run: Run, journal: LockedJournal, ports: Ports) -> None:
    """The attempt that runs keeps the file that it has open."""
    source = folders.job_dir(ports.repository, run.spec.tag) / "job.sh"
    copy = folders.run_dir(ports.repository, run.spec.tag) / "job.sh"
    for path in (source, copy):        # the copy: it was taken, and the journal does not say so yet
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if hashlib.sha256(text).hexdigest() == sha256:
            folders.replace_file(copy, text, mode=0o755)
            journal.append("script_taken")
            return
    journal.append("unchanged", reason=f"{source} has changed again since it was to be taken")


def _cancel(job_id: str, why: str, journal: LockedJournal, ports: Ports) -> None:
    """A scancel that may not have arrived keeps the run under observation, also when it is over, until Slurm has answered."""
    journal.append("asked", kind="cancel", job_id=job_id, why=why, awaited=True)
    ports.slurm.cancel(job_id)
    journal.append("answered", kind="cancel", job_id=job_id)


def _hold(job_id: str, submission_id: str, why: str, journal: LockedJournal, ports: Ports) -> None:
    """Noted before it is done, since nothing releases a job that is held and not known to be; to release one that is not held
    does no harm, and one that starts although it was to be held stands down at its gate."""
    journal.append("asked", kind="hold", job_id=job_id, why=why)
    journal.append("paused", submission_id=submission_id)
    ports.slurm.hold(job_id)


def _keep_apart(action: do.KeepApart, run: Run, journal: LockedJournal, ports: Ports) -> None:
    name, into = action.checkpoint, action.into
    try:
        is_there = keep_apart(folders.run_dir(ports.repository, run.spec.tag), name, into)
    except StorageError:
        if run.live is None and not run.waiting:
            raise
        return                         # the next pass tries again, and ends in time what hangs while it publishes
    if is_there:
        journal.append("kept_apart", checkpoint=f"{into}/{name}")
    else:
        journal.append("held", by="orch", reason=f"cannot go back: {name} is no complete checkpoint any more")


def _withdraw(action: do.Withdraw, run: Run, seen: Observation, journal: LockedJournal, ports: Ports) -> Observation:
    """scancel alone could hit a job that has just started: it takes over from an attempt that has just ended."""
    job_id = action.job_id
    _hold(job_id, action.submission_id, action.why, journal, ports)
    seen = _look_again(run, seen, job_id, ports)
    job = seen.jobs.get(action.submission_id)
    if job is not None and job.state == "PENDING":
        _cancel(job_id, action.why, journal, ports)
        return _look_again(run, seen, job_id, ports)
    journal.append("asked", kind="release", job_id=job_id, why="it has started meanwhile")
    ports.slurm.release(job_id)
    journal.append("resumed", submission_id=action.submission_id)
    return seen


def _look_again(run: Run, seen: Observation, job_id: str, ports: Ports) -> Observation:
    """A cancelled waiting job is gone at once; seeing that now settles the run within this pass. Ids can come twice: it is
    the submission's in its comment, or none of ours."""
    job = ports.slurm.job(job_id)
    return seen if job is None else replace(seen, jobs={**seen.jobs, **jobs_of(run, (job,))})


def next_number(run: Run, run_dir: Path) -> int:
    """One more than any attempt that the journal or the folder knows: numbers are never used twice."""
    numbers = [s.number for s in run.submissions] + [a.number for a in run.attempts]
    attempts = run_dir / "attempts"
    if attempts.is_dir():
        numbers += [int(path.name) for path in attempts.iterdir() if path.name.isdigit()]
    return max(numbers, default=0) + 1


def _queue(action: do.QueueAttempt, run: Run, seen: Observation, journal: LockedJournal, ports: Ports) -> Observation:
    run_dir = folders.run_dir(ports.repository, run.spec.tag)
    number, submission_id = next_number(run, run_dir), ports.new_id()
    policy = run.spec.policy(ports.policy)
    folder = folders.attempt_dir(run_dir, number)
    folder.mkdir(parents=True, exist_ok=True)  # before sbatch: 22.05 fails a job whose output folder is missing
    script = folder / "script.sh"
    text = batch_script(run.spec, number=number, submission_id=submission_id, folder=folder, behind=action.behind,
                        nice=action.nice, entry=SUPERVISOR, delay_s=action.delay_s,
                        exclude=action.exclude)
    folders.replace_file(script, text, mode=0o755)
    step = seen.measured.step_s
    told = attempt_spec(run.spec, policy, interval_s=interval_in_force_s(run, policy),
                        local_interval_s=local_interval_in_force_s(run, policy), run_dir=run_dir, number=number,
                        step_s=step.median if step else None,
                        submission_id=submission_id)
    folders.replace_file(folder / "spec.json", told.to_json())
    journal.append("queueing", submission_id=submission_id, number=number, dependency=dependency(action.behind),
                   why=action.why)
    try:
        job_id = ports.slurm.submit(script, run.spec.environment)
    except SubmissionRejected as error:
        for_now = {"for_now": True} if isinstance(error, NoRoom) else {}
        journal.append("rejected", submission_id=submission_id, reason=error.message, **for_now)
        return seen
    journal.append("queued", submission_id=submission_id, job_id=job_id)
    job = _read_back(run, submission_id, job_id, action, journal, ports)
    if job is None or job.state in ENDED_STATES:  # what was seen in its folder is older: nothing is to be concluded from both
        return replace(seen, silent=f"job {job_id} was submitted and " + (
            "could not be read back" if job is None else "has ended already"))
    return replace(seen, jobs={**seen.jobs, submission_id: job})


def _read_back(
    run: Run, submission_id: str, job_id: str, action: do.QueueAttempt, journal: LockedJournal, ports: Ports,
) -> JobSeen | None:
    """What Slurm made of the submission. A submit plugin may have dropped the GPU, the dependency or the comment."""
    try:
        job = ports.slurm.job(job_id)
        if job is not None and submission_id not in jobs_of(run, (job,)):
            _disown(run, submission_id, job, journal, ports)
            return None
        problem = _difference(run, job, action, ports) if job is not None else ""
    except SlurmUnreachable:
        return None  # the next pass sees it
    if problem:
        journal.append("held", by="orch", reason=f"job {job_id} was cancelled: {problem}")
        _cancel(job_id, problem, journal, ports)
    return job


def _disown(run: Run, submission_id: str, job: JobSeen, journal: LockedJournal, ports: Ports) -> None:
    """Without its comment no squeue would tell it from others: it would be taken for lost, and submitted again for ever. It
    is cancelled only if it bears the name that it was just submitted with; the id may be another job's."""
    named = job.name == job_name(run.spec)
    why = (f"Slurm's record of it has {job.comment[:80]!r} for the comment by which orch knows its jobs; a submit plugin may "
           "have replaced it: ask the site's administrators to leave comments that begin with orch/ as they are")
    journal.append("dropped", submission_id=submission_id, why="replaced", reason=why)
    journal.append("held", by="orch", reason=f"job {job.job_id}{' was cancelled' if named else ''}: {why}")
    if named:
        _cancel(job.job_id, why, journal, ports)


def _difference(run: Run, job: JobSeen, action: do.QueueAttempt, ports: Ports) -> str:
    wanted, got = gres_counts(run.spec.profile.gres or ""), gres_counts(job.gres)
    for name, count in wanted.items():
        if got.get(name, 0) < count:
            return f"asked for {name}:{count} a node, Slurm's record of it says {job.gres or 'none'}"
    if job.state == "PENDING":
        # a dependency that is met already is not shown any more, so a missing one counts only while that job is not over
        for job_id in sorted(set(action.behind) - dependency_jobs(job.dependency)):
            other = ports.slurm.job(job_id)
            if other is not None and other.state not in ENDED_STATES | ENDING_STATES:
                return f"asked to wait behind job {job_id}, Slurm's record of it says {job.dependency or 'nothing'}"
    return ""
