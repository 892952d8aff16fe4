"""One pass: observe, note the news, fold, decide, act. The only place where reading, deciding and acting meet.

A pass over all runs notes each journal's length *before* its one squeue; a run whose journal grew since (a submit by hand,
another daemon) is left for the next pass, because what Slurm said may be older than what the journal says. So two daemons
cost a squeue, and nothing else.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator import folders, journal
from orchestrator.control.act import act
from orchestrator.control.observe import observe
from orchestrator.control.ports import Ports, Snapshot, ask_slurm, read_run, require_run, tags_with_runs
from orchestrator.core import decide as do
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Observation
from orchestrator.core.script import parse_comment, repository_key
from orchestrator.errors import JournalError, OrchError, RunLocked, StorageError, storage_error
from orchestrator.model import ENDED_STATES, Run

# A run settles within a few rounds (first attempt, successor, control file); more is a mistake of ours.
ROUNDS_AT_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPass:
    """What a pass did with one run, in words for logs."""

    tag: str
    lines: tuple[str, ...] = ()
    error: OrchError | None = None
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    runs: tuple[RunPass, ...]
    snapshot: Snapshot | None          # None: nothing was to be asked


# For so long after a submission was given up Slurm is still looked at for its job: an old answer may have hidden it.
STRAYS_FOR_S = 600.0


def settled(run: Run, now: float) -> bool:
    """Nothing can happen to this run until a person asks for something."""
    given_up = any(s.dropped_at is not None and now - s.dropped_at < STRAYS_FOR_S for s in run.submissions)
    return run.live is None and not run.waiting and not given_up and (run.over or run.phase == "held")


def pass_over_all(ports: Ports) -> PassReport:
    """One pass over every run of the repository, with one squeue, or none when nothing is under way."""
    noted: list[tuple[str, int]] = []
    reports: list[RunPass] = []
    for tag in tags_with_runs(ports.repository):
        length = journal.length(folders.run_dir(ports.repository, tag))
        try:
            run = require_run(ports.repository, tag)
        except (JournalError, StorageError) as error:
            reports.append(RunPass(tag=tag, error=error))
            continue
        if not settled(run, ports.clock()):
            noted.append((tag, length))
    if not noted:
        return PassReport(runs=tuple(reports), snapshot=None)
    snapshot = ask_slurm(ports)
    for tag, length in noted:
        reports.append(pass_over_one(ports, tag, snapshot, noted_length=length))
    reports += _orphans(ports.repository, snapshot)
    return PassReport(runs=tuple(reports), snapshot=snapshot)


def _orphans(repository: Path, snapshot: Snapshot) -> list[RunPass]:
    """Jobs of this repository whose run is gone: its folder was deleted."""
    jobs: dict[str, list[str]] = {}
    for job in snapshot.jobs:
        parsed = parse_comment(job.comment)
        if parsed is not None and parsed[0] == repository_key(str(repository)) and job.state not in ENDED_STATES:
            jobs[parsed[1]] = sorted([*jobs.get(parsed[1], ()), job.job_id], key=int)
    return [
        RunPass(tag=tag, error=JournalError(
            f"{folders.run_dir(repository, tag)} is gone, and job {', '.join(ids)} of it is still in Slurm",
            hint=f"`orch submit {tag}` takes it back; `scancel {' '.join(ids)}` ends it"))
        for tag, ids in jobs.items() if not journal.journal_path(folders.run_dir(repository, tag)).exists()]


def pass_over_one(ports: Ports, tag: str, snapshot: Snapshot, *, noted_length: int) -> RunPass:
    """One pass over one run; an OrchError or a disk's refusal is caught and reported, the run stays as it is."""
    lines: list[str] = []
    try:
        with journal.locked(folders.run_dir(ports.repository, tag), wait_s=0.0, clock=ports.clock) as locked:
            if locked.length() != noted_length:
                return RunPass(tag=tag, lines=("its journal grew since squeue was asked: left for the next pass",))
            run = reconcile(ports, tag, snapshot, locked, lines.append)
        return RunPass(tag=tag, lines=tuple(lines), run=run)
    except RunLocked:
        return RunPass(tag=tag, lines=("another orch process is at it: left for the next pass",))
    except OrchError as error:
        return RunPass(tag=tag, lines=tuple(lines), error=error)
    except OSError as error:
        return RunPass(tag=tag, lines=tuple(lines), error=storage_error(error))
    except Exception as error:  # a mistake of ours about one run must not stop the others: it is printed whole
        lines += traceback.format_exc().splitlines()
        return RunPass(tag=tag, lines=tuple(lines), error=OrchError(f"a mistake in orch: {type(error).__name__}: {error}"))


def reconcile(
    ports: Ports, tag: str, snapshot: Snapshot, locked: journal.LockedJournal, say: Callable[[str], None],
) -> Run | None:
    """Bring one run and the world together, under the run's lock."""
    run = read_run(ports.repository, tag)
    if run is None:
        return None
    seen = observe(ports, run, snapshot)
    for _ in range(ROUNDS_AT_MOST):
        run = _note_news(run, seen, locked, ports, say)
        before = run.events
        actions = do.decide(run, seen, run.spec.policy(ports.policy), ports.clock())
        seen = _act_on(actions, run, seen, locked, ports, say)
        run = _refold(ports, tag)
        if run.events == before:
            return run
    raise AssertionError(f"{tag} does not settle: {actions}")


def catch_up(ports: Ports, tag: str, snapshot: Snapshot, locked: journal.LockedJournal) -> None:
    """Note the news of one run and do nothing about it."""
    run = _refold(ports, tag)
    _note_news(run, observe(ports, run, snapshot), locked, ports, lambda line: None)


def _note_news(
    run: Run, seen: Observation, locked: journal.LockedJournal, ports: Ports, say: Callable[[str], None],
) -> Run:
    for _ in range(ROUNDS_AT_MOST):
        facts = news(run, seen, run.spec.policy(ports.policy), ports.clock())
        if not facts:
            return run
        for fact in facts:
            context = {key: value for key, value in fact.items() if key != "event"}
            event = locked.append(str(fact["event"]), **context)
            say(describe(event))
            changed = apply(run, event)
            assert changed is not None
            run = changed
    raise AssertionError(f"{run.spec.tag}: news without end: {facts}")


def _act_on(
    actions: list[do.Action], run: Run, seen: Observation, locked: journal.LockedJournal, ports: Ports,
    say: Callable[[str], None],
) -> Observation:
    for action in actions:
        if isinstance(action, do.Wait):
            continue
        say(f"{verb(action)}: {action.why}")
        seen = act(action, run, seen, locked, ports)
    return seen


def _refold(ports: Ports, tag: str) -> Run:
    run = read_run(ports.repository, tag)
    assert run is not None
    return run


def verb(action: do.Action) -> str:
    match action:
        case do.QueueAttempt():
            return "queue an attempt"
        case do.CancelJob(job_id=job_id):
            return f"cancel job {job_id}"
        case do.PauseJob(job_id=job_id):
            return f"hold job {job_id}"
        case do.ResumeJob(job_id=job_id):
            return f"release job {job_id}"
        case do.Repoint(job_id=job_id, dependency=text):
            return f"point job {job_id} to {text}"
        case do.WriteControl():
            return "write control.json"
        case do.Wait():
            return "wait"


def describe(event: journal.Event) -> str:
    """One line for a log."""
    match event["event"]:
        case "started":
            resumed = f" from step {event['resume_step']}" if event.get("resume_step") is not None else ""
            return f"attempt {event['number']} started (job {event['job_id']} on {event['host']}){resumed}"
        case "ended":
            return f"attempt {event['number']} ended: {event['ending']}" + (
                f" ({event['reason']})" if event.get("reason") else "")
        case "dropped":
            return f"submission {event['submission_id']} dropped: {event.get('reason', '')}"
        case "finished":
            return "finished"
        case "held":
            return f"held: {event.get('reason', '')}"
        case other:
            return str(other) + (f": {event['reason']}" if event.get("reason") else "")
