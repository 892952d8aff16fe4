"""One pass: observe, note the news, fold, decide, act. The only place where reading, deciding and acting meet.

A pass over all runs notes each journal's length *before* its one squeue; a run whose journal grew since (a submit by hand,
another daemon) is left for the next pass, because what Slurm said may be older than what the journal says. So two daemons
cost a squeue, and nothing else.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from orchestrator import folders, journal
from orchestrator.control.act import act
from orchestrator.control.forgotten import forgotten_jobs
from orchestrator.control.observe import observe, upstream_of, with_offers
from orchestrator.control.ports import Ports, Snapshot, ask_slurm, known_run, read_run, tags_with_runs
from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Observation
from orchestrator.core.pending import HELD_BY_UPSTREAM, why_again
from orchestrator.core.script import parse_comment, repository_key
from orchestrator.errors import JournalError, OrchError, RunLocked, StorageError, storage_error
from orchestrator.model import ENDED_STATES, Policy, Run
from orchestrator.units import format_duration

# A run settles within a few rounds (first attempt, successor, control file); more is a mistake of ours.
ROUNDS_AT_MOST = 50


class Line(str):
    """A line of a log: a sentence for people, which programs tell apart by ``action``, with what the event says."""

    action: str
    about: Mapping[str, object]

    def __new__(cls, text: str, action: str, about: Mapping[str, object] | None = None) -> Line:
        line = super().__new__(cls, text)
        line.action, line.about = action, about or {}
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPass:
    """What a pass did with one run, in words for logs."""

    tag: str
    lines: tuple[Line, ...] = ()
    error: OrchError | None = None
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    runs: tuple[RunPass, ...]
    snapshot: Snapshot | None          # None: nothing was to be asked


# For so long after a submission was given up Slurm is still looked at for its job: an old answer may have hidden it. And for
# so long after it was asked for anything last; for a scancel that was not answered, until it is.
STRAYS_FOR_S = 600.0


def settled(run: Run, now: float) -> bool:
    """Nothing can happen to this run until a person asks for something."""
    if not run.over and run.phase != "held":
        return False
    given_up = any(s.dropped_at is not None and now - s.dropped_at < STRAYS_FOR_S for s in run.submissions)
    asked = any(now - at < STRAYS_FOR_S for at in run.requests.values())
    idle = run.live is None and not run.waiting and not run.unanswered and run.change is None and not run.lingering
    return idle and not given_up and not asked


def _goes_on_again(repository: Path, run: Run) -> bool:
    return run.held_by == HELD_BY_UPSTREAM and bool(why_again(run, upstream_of(repository, run)))


def pass_over_all(ports: Ports, beat: Callable[[], None] = lambda: None) -> PassReport:
    """One pass over every run of the repository, with one squeue, or none when nothing is under way. ``beat`` is called as
    the pass gets on: with hundreds of runs and a slow Slurm it may take minutes."""
    noted: list[tuple[Run, int]] = []
    reports: list[RunPass] = []
    for tag in tags_with_runs(ports.repository):
        try:
            run, length = known_run(ports.repository, tag)
        except (JournalError, StorageError) as error:
            reports.append(RunPass(tag=tag, error=error))
            continue
        if not settled(run, ports.clock()) or _goes_on_again(ports.repository, run):
            noted.append((run, length))
    if not noted:
        return PassReport(runs=tuple(reports), snapshot=None)
    snapshot = ask_slurm(ports, frozenset(run.spec.repository for run, _ in noted))
    snapshot.answers.forgotten = forgotten_jobs((run for run, _ in noted), snapshot)
    for run, length in _upstream_first(noted):
        beat()
        reports.append(pass_over_one(ports, run, snapshot, noted_length=length))
    reports += _orphans(ports.repository, snapshot, {run.spec.tag for run, _ in noted})
    return PassReport(runs=tuple(reports), snapshot=snapshot)


def _upstream_first(noted: list[tuple[Run, int]]) -> list[tuple[Run, int]]:
    """What becomes of a run is known to those that wait for it in the same pass."""
    if not any(run.spec.after_tags for run, _ in noted):
        return noted
    by_tag = {run.spec.tag: (run, length) for run, length in noted}
    try:
        order = TopologicalSorter({tag: run.spec.after_tags for tag, (run, _) in by_tag.items()}).static_order()
        return [by_tag[tag] for tag in order if tag in by_tag]
    except CycleError:                 # refused at submission; a journal may have been edited by hand
        return noted


def _orphans(repository: Path, snapshot: Snapshot, known: Set[str]) -> list[RunPass]:
    """Jobs of this repository whose run is gone: its folder was deleted. Those of ``known`` were just read."""
    jobs: dict[str, list[str]] = {}
    key = repository_key(str(repository))
    for job in snapshot.jobs:
        parsed = parse_comment(job.comment) if job.state not in ENDED_STATES else None
        if parsed is not None and parsed[0] == key and parsed[1] not in known:
            jobs[parsed[1]] = sorted([*jobs.get(parsed[1], ()), job.job_id], key=int)
    return [
        RunPass(tag=tag, error=JournalError(
            f"{folders.run_dir(repository, tag)} is gone, and job {', '.join(ids)} of it is still in Slurm",
            hint=f"`orch submit {tag}` takes it back; `scancel {' '.join(ids)}` ends it"))
        for tag, ids in jobs.items() if not journal.journal_path(folders.run_dir(repository, tag)).exists()]


def pass_over_one(ports: Ports, run: Run, snapshot: Snapshot, *, noted_length: int) -> RunPass:
    """One pass over one run, given as its journal of that length tells it; an OrchError or a disk's refusal is caught and
    reported, the run stays as it is."""
    tag, lines = run.spec.tag, list[Line]()
    try:
        with journal.locked(folders.run_dir(ports.repository, tag), wait_s=0.0, clock=ports.clock) as locked:
            if locked.length() != noted_length:
                return RunPass(tag=tag, lines=(
                    Line("its journal grew since squeue was asked: left for the next pass", "leave"),))
            run = _settle(ports, run, snapshot, locked, lines.append)
        return RunPass(tag=tag, lines=tuple(lines), run=run)
    except RunLocked:
        return RunPass(tag=tag, lines=(Line("another orch process is at it: left for the next pass", "leave"),))
    except OrchError as error:
        return RunPass(tag=tag, lines=tuple(lines), error=error)
    except OSError as error:
        return RunPass(tag=tag, lines=tuple(lines), error=storage_error(error))
    except Exception as error:  # a mistake of ours about one run must not stop the others: it is printed whole
        lines += [Line(text, "mistake") for text in traceback.format_exc().splitlines()]
        return RunPass(tag=tag, lines=tuple(lines), error=OrchError(f"a mistake in orch: {type(error).__name__}: {error}"))


def reconcile(
    ports: Ports, tag: str, snapshot: Snapshot, locked: journal.LockedJournal, say: Callable[[Line], None],
) -> Run | None:
    """Bring one run and the world together, under the run's lock."""
    run = _read(ports, tag, locked)
    return None if run is None else _settle(ports, run, snapshot, locked, say)


def catch_up(ports: Ports, tag: str, snapshot: Snapshot, locked: journal.LockedJournal) -> None:
    """Note the news of one run and do nothing about it."""
    run = _read(ports, tag, locked)
    assert run is not None
    policy, seen = run.spec.policy(ports.policy), observe(ports, run, snapshot)
    _note_news(run, seen, policy, locked, ports, lambda line: None)


def _read(ports: Ports, tag: str, locked: journal.LockedJournal) -> Run | None:
    """The run as it is now, with all that was appended under this lock."""
    locked.take_appended()
    return read_run(ports.repository, tag)


def _settle(ports: Ports, run: Run, snapshot: Snapshot, locked: journal.LockedJournal, say: Callable[[Line], None]) -> Run:
    """Note the news, decide and act, until there is nothing to do."""
    policy, seen = run.spec.policy(ports.policy), observe(ports, run, snapshot)
    for _ in range(ROUNDS_AT_MOST):
        run = _note_news(run, seen, policy, locked, ports, say)
        if (informed := with_offers(ports, run, seen, snapshot)) is not seen:  # an ending that was just noted depends on them
            seen, run = informed, _note_news(run, informed, policy, locked, ports, say)
        actions = decide(run, seen, policy, ports.clock())
        seen = _act_on(actions, run, seen, locked, ports, say)
        before, run = run, _grown(run, locked, say)
        if run is before:
            return run
    raise AssertionError(f"{run.spec.tag} does not settle: {actions}")


def _note_news(
    run: Run, seen: Observation, policy: Policy, locked: journal.LockedJournal, ports: Ports, say: Callable[[Line], None],
) -> Run:
    for _ in range(ROUNDS_AT_MOST):
        facts = news(run, seen, policy, ports.clock())
        if not facts:
            return run
        for fact in facts:
            context = {key: value for key, value in fact.items() if key != "event"}
            event = locked.append(str(fact["event"]), **context)
            say(Line(describe(event), str(fact["event"]), context))
        run = _grown(run, locked)
    raise AssertionError(f"{run.spec.tag}: news without end: {facts}")


def _grown(run: Run, locked: journal.LockedJournal, say: Callable[[Line], None] = lambda line: None) -> Run:
    """The run after what has been appended since; itself if nothing was. What Slurm refused, and why it was held, is said."""
    for event in locked.take_appended():
        if event["event"] in ("rejected", "held"):
            say(Line(describe(event), event["event"], {key: event[key] for key in event if key not in ("event", "t")}))
        grown = apply(run, event)
        assert grown is not None
        run = grown
    return run


def _act_on(
    actions: list[do.Action], run: Run, seen: Observation, locked: journal.LockedJournal, ports: Ports,
    say: Callable[[Line], None],
) -> Observation:
    for action in actions:
        if isinstance(action, do.Wait):
            continue
        say(Line(f"{verb(action)}: {action.why}", verb(action).split()[0]))
        seen = act(action, run, seen, locked, ports)
    return seen


def verb(action: do.Action) -> str:
    match action:
        case do.QueueAttempt():
            return "queue an attempt"
        case do.CancelJob(job_id=job_id):
            return f"cancel job {job_id}"
        case do.StopJob(job_id=job_id):
            return f"stop job {job_id}"
        case do.PauseJob(job_id=job_id):
            return f"hold job {job_id}"
        case do.ResumeJob(job_id=job_id):
            return f"release job {job_id}"
        case do.Withdraw(job_id=job_id):
            return f"withdraw job {job_id}"
        case do.ChangeJob(job_id=job_id):
            return f"change job {job_id}"
        case do.TakeScript():
            return "take job.sh anew"
        case do.Repoint(job_id=job_id, dependency=text):
            return f"point job {job_id} to {text}"
        case do.WriteControl():
            return "write control.json"
        case do.KeepApart(checkpoint=name):
            return f"keep {name} apart"
        case do.SetAside(newer_than_step=step):
            return f"set aside checkpoints newer than step {step}"
        case do.Wait():
            return "wait"


def _refusal(event: journal.Event) -> str:
    room = "; there is room when another job has ended" if event.get("for_now") else ""
    return f"Slurm refused it: {event['reason']}{room}"


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
        case "requeued":
            return f"job {event['job_id']} was put back into the queue, by the site or by somebody: it waits again"
        case "answered":
            return f"job {event['job_id']} is gone: it need not be asked to {event['kind']} any more"
        case "rejected":
            return _refusal(event)
        case "canary":
            return f"resume: {event['state']}: {event.get('reason', '')}"
        case "interval":
            unchanged = " still" if event.get("kept") else ""
            every_s, local_s = event["interval_s"], event.get("local_interval_s")
            local = f", to the node every {format_duration(local_s)}" if local_s is not None and local_s < every_s else ""
            return f"interval: a checkpoint every {format_duration(every_s)}{local}{unchanged}"
        case "lingers" if event.get("over"):
            return f"job {event['job_id']} has come to its end at last"
        case "lingers":
            where = f" on {event['nodes']}" if event.get("nodes") else ""
            return (f"job {event['job_id']} has been ending for {format_duration(event['t'] - event['since'])}{where}: Slurm "
                    "waits until nothing of it is left")
        case "saves":
            return f"cannot save: {event.get('reason', '')}" if event.get("fail") else "saves again"
        case other:
            return str(other) + (f": {event['reason']}" if event.get("reason") else "")
