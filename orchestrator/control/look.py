"""Looking at runs for the command line and for the views: at most one squeue, no lock, nothing written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import folders, journal
from orchestrator.checkpoints import complete_checkpoints
from orchestrator.control.forgotten import forgotten_jobs
from orchestrator.control.history import history_of
from orchestrator.control.observe import jobs_of, observe, with_offers
from orchestrator.control.passes import describe, settled, verb
from orchestrator.control.ports import Ports, Snapshot, ask_slurm, require_run, runs_now
from orchestrator.control.waits import estimate, guesses_and_starts, why_it_waits
from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import begun, news
from orchestrator.core.observation import Observation
from orchestrator.core.recovery import rule_in_words
from orchestrator.core.reliability import Setting, restarts, setting
from orchestrator.core.waiting import Kind
from orchestrator.errors import OrchError, SlurmUnreachable
from orchestrator.model import Phase, Run
from orchestrator.rollback import set_aside_checkpoints
from orchestrator.sightings import JobSeen
from orchestrator.trainer_control import read_control
from orchestrator.trainer_lines import last_of, read_lines
from orchestrator.views.facts import Progress, Shown, how_to_go_on, met_of, state_word
from orchestrator.views.interval import worked_out
from orchestrator.views.status import Whole
from orchestrator.views.waits import estimate_lines, waiting_lines

Ask = Callable[[Ports], Snapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run as it is to be shown: the journal's word, with the news that no pass has noted yet."""

    run: Run
    jobs: dict[str, JobSeen]
    progress: Progress
    silent: str | None
    setting: Setting
    news: tuple[journal.Event, ...] = ()  # what a pass would note now


def look_at(ports: Ports, tag: str, snapshot: Snapshot | None = None, run: Run | None = None) -> Look:
    """One run. The journal may lag behind the world by a pass; what a pass would note is shown as if it were noted."""
    run = run or require_run(ports.repository, tag)
    snapshot = snapshot or ask_slurm(ports)
    run, seen, facts = _with_news(ports, run, snapshot)
    run = begun(run, seen)
    return Look(run=run, jobs=jobs_of(run, snapshot.jobs), progress=progress_of(ports, run), silent=snapshot.silent,
                setting=setting(run, seen.measured, seen.others, run.spec.policy(ports.policy), ports.clock()),
                news=tuple(facts))


def look_at_all(ports: Ports, ask: Ask = ask_slurm) -> tuple[list[Shown], list[OrchError], str | None]:
    """All runs, newest last, what could not be read, and why Slurm is silent if it is. Slurm is asked where something is
    under way."""
    runs, errors = runs_now(ports.repository)
    runs.sort(key=lambda run: run.submitted_at)
    rests = {run.spec.tag for run in runs if settled(run, ports.clock())}
    snapshot = ask(ports) if len(rests) < len(runs) else Snapshot(asked_at=ports.clock())
    snapshot.answers.forgotten = forgotten_jobs((run for run in runs if run.spec.tag not in rests), snapshot)
    shown = []
    for run in runs:
        seen = run if run.spec.tag in rests else _with_news(ports, run, snapshot)[0]
        by_journal = Progress(step=_last_step(seen), interval_s=seen.interval_s)
        progress = by_journal if seen.over else progress_of(ports, seen)
        shown.append(Shown(run=seen, jobs=jobs_of(seen, snapshot.jobs), progress=progress))
    by_tag = {one.run.spec.tag: one.run for one in shown}
    return [replace(one, met=met_of(one.run, by_tag)) for one in shown], errors, snapshot.silent


def explain_run(ports: Ports, tag: str) -> list[str]:
    """The pure decision, in words."""
    run = require_run(ports.repository, tag)
    snapshot = ask_slurm(ports)  # after the journal: a job that is submitted in between is not taken for gone
    run, seen, facts = _with_news(ports, run, snapshot)
    state = state_word(run, jobs_of(run, snapshot.jobs))
    lines = [f"{tag} is {state}" + (f": {run.phase_reason}" if run.phase_reason else "")]
    if run.phase == Phase.HELD:
        lines.append(how_to_go_on(run))
    waits = why_it_waits(ports, run, snapshot, seen.upstream)
    if waits is not None and (run.live is None or waits[0].kind is not Kind.BEHIND):
        lines += waiting_lines(*waits, zone=None)
    rule = rule_in_words(run, run.spec.policy(ports.policy))
    lines += [rule] if rule else []
    lines += [f"would note: {describe(fact)}" for fact in facts]
    for action in decide(run, seen, run.spec.policy(ports.policy), ports.clock()):
        lines.append(f"nothing to do: {action.why}" if isinstance(action, do.Wait) else f"would {verb(action)}: {action.why}")
    return lines


def explain_start(ports: Ports, tag: str) -> list[str]:
    """When its next attempt may start, by Slurm's guesses. Raises Refused where none waits for its turn, SlurmError."""
    run = require_run(ports.repository, tag)
    snapshot = ask_slurm(ports)
    if snapshot.silent is not None:
        raise SlurmUnreachable(snapshot.silent, hint=snapshot.hint)
    run, _, _ = _with_news(ports, run, snapshot)
    waits = why_it_waits(ports, run, snapshot)
    lines = waiting_lines(*waits, zone=None)[:1] if waits is not None else []
    one = estimate(ports, run, snapshot)
    return [*lines, *estimate_lines(one, guesses_and_starts(ports), ports.clock(), None)]


def explain_interval(ports: Ports, tag: str) -> list[str]:
    """How M and the checkpoint interval came about."""
    seen = look_at(ports, tag)
    return worked_out(seen.run, seen.setting, restarts(seen.run), seen.progress.interval_s)


def _with_news(ports: Ports, run: Run, snapshot: Snapshot) -> tuple[Run, Observation, list[journal.Event]]:
    """The run as a pass would know it now, what it would decide on, and what it would note."""
    seen = observe(ports, run, snapshot)
    events: list[journal.Event] = []
    while True:
        facts = news(run, seen, run.spec.policy(ports.policy), ports.clock())
        if not facts:
            informed = with_offers(ports, run, seen, snapshot)
            if informed is seen:
                return run, seen, events
            seen = informed
        for fact in facts:
            event = {"t": ports.clock(), **fact}
            events.append(event)
            changed = apply(run, event)
            assert changed is not None
            run = changed


def whole_of(ports: Ports, tag: str, ask: Ask = ask_slurm) -> Whole:
    """One run with all that is shown of it. Slurm is not asked of one that rests."""
    run = require_run(ports.repository, tag)
    snapshot = Snapshot(asked_at=ports.clock()) if settled(run, ports.clock()) else ask(ports)
    seen = look_at(ports, tag, snapshot, run)
    checkpoint_dir = folders.checkpoint_dir(folders.run_dir(ports.repository, tag))
    found, saves = history_of(ports.repository, seen.run, seen.news)
    return Whole(
        shown=Shown(run=seen.run, jobs=seen.jobs, progress=seen.progress), setting=seen.setting, silent=seen.silent,
        checkpoints=complete_checkpoints(checkpoint_dir), saves=saves, moments=found,
        set_aside=set_aside_checkpoints(checkpoint_dir, seen.run.set_aside))


def progress_of(ports: Ports, run: Run) -> Progress:
    """What the newest attempt's trainer said last."""
    run_dir = folders.run_dir(ports.repository, run.spec.tag)
    control = read_control(run_dir)
    interval_s = control.interval_s if control else run.interval_s
    newest = max(run.attempts, key=lambda a: a.epoch) if run.attempts else None
    events = read_lines(folders.attempt_dir(run_dir, newest.number)) if newest is not None else []
    latest = last_of(events, "progress", "saved", "stopped", "finished", "first_step")
    if latest is None:
        return Progress(step=_last_step(run), interval_s=interval_s)
    said = last_of(events, "progress") or {}
    of = _number(said, "of") or _number(last_of(events, "start") or {}, "of")
    told = [_number(latest, "step"), newest.last_step if newest is not None else None]  # its end tells of later steps
    step = max((one for one in told if one is not None), default=None)
    return Progress(
        step=int(step) if step is not None else None, of=int(of) if of is not None else None, loss=_number(said, "loss"),
        steps_per_s=_number(said, "steps_per_s"), left_s=_number(said, "left_s"), memory_bytes=_number(said, "memory_bytes"),
        gpu_memory_bytes=_number(said, "gpu_memory_bytes"), at=_number(said or latest, "t"), interval_s=interval_s)


def _last_step(run: Run) -> int | None:
    """By the journal's word."""
    newest = max(run.attempts, key=lambda a: a.epoch) if run.attempts else None
    return (newest.last_step or newest.resume_step) if newest is not None else None


def _number(event: dict[str, Any], key: str) -> float | None:
    value = event.get(key)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
