"""Looking at runs for the command line: one squeue, no lock, nothing written."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import folders
from orchestrator.control.observe import jobs_of, observe
from orchestrator.control.passes import describe, verb
from orchestrator.control.ports import Ports, Snapshot, ask_slurm, read_all, require_run
from orchestrator.core import decide as do
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.recovery import rule_in_words
from orchestrator.core.reliability import Setting, restarts, setting
from orchestrator.errors import OrchError
from orchestrator.model import JobSeen, Phase, Run
from orchestrator.trainer_control import read_control
from orchestrator.trainer_lines import last_lines, last_of
from orchestrator.views.facts import Progress, how_to_go_on, state_word
from orchestrator.views.interval import worked_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run as it is to be shown: the journal's word, with the news that no pass has noted yet."""

    run: Run
    jobs: dict[str, JobSeen]
    progress: Progress
    silent: str | None
    setting: Setting


def look_at(ports: Ports, tag: str, snapshot: Snapshot | None = None, run: Run | None = None) -> Look:
    """One run. The journal may lag behind the world by a pass; what a pass would note is shown as if it were noted."""
    run = run or require_run(ports.repository, tag)
    snapshot = snapshot or ask_slurm(ports)
    run = _with_news(ports, run, snapshot)[0]
    measured = observe(ports, run, snapshot).measured
    return Look(run=run, jobs=jobs_of(run, snapshot.jobs), progress=progress_of(ports, run), silent=snapshot.silent,
                setting=setting(run, measured, run.spec.policy(ports.policy), ports.clock()))


def look_at_all(ports: Ports) -> tuple[list[Look], list[OrchError], str | None]:
    """All runs, newest last, what could not be read, and why Slurm is silent if it is."""
    runs, errors = read_all(ports.repository)
    if not runs:
        return [], errors, None
    snapshot = ask_slurm(ports)
    runs.sort(key=lambda run: run.submitted_at)
    return [look_at(ports, run.spec.tag, snapshot, run) for run in runs], errors, snapshot.silent


def explain_run(ports: Ports, tag: str) -> list[str]:
    """The pure decision, in words."""
    run = require_run(ports.repository, tag)
    snapshot = ask_slurm(ports)  # after the journal: a job that is submitted in between is not taken for gone
    run, facts = _with_news(ports, run, snapshot)
    state = state_word(run, jobs_of(run, snapshot.jobs))
    lines = [f"{tag} is {state}" + (f": {run.phase_reason}" if run.phase_reason else "")]
    if run.phase == Phase.HELD:
        lines.append(how_to_go_on(run))
    rule = rule_in_words(run, run.spec.policy(ports.policy))
    lines += [rule] if rule else []
    lines += [f"would note: {fact}" for fact in facts]
    for action in do.decide(run, observe(ports, run, snapshot), run.spec.policy(ports.policy), ports.clock()):
        lines.append(f"nothing to do: {action.why}" if isinstance(action, do.Wait) else f"would {verb(action)}: {action.why}")
    return lines


def explain_interval(ports: Ports, tag: str) -> list[str]:
    """How M and the checkpoint interval came about."""
    seen = look_at(ports, tag)
    return worked_out(seen.run, seen.setting, restarts(seen.run), seen.progress.interval_s)


def _with_news(ports: Ports, run: Run, snapshot: Snapshot) -> tuple[Run, list[str]]:
    seen = observe(ports, run, snapshot)
    lines: list[str] = []
    while facts := news(run, seen, run.spec.policy(ports.policy), ports.clock()):
        for fact in facts:
            event = {"t": ports.clock(), **fact}
            lines.append(describe(event))
            changed = apply(run, event)
            assert changed is not None
            run = changed
    return run, lines


def progress_of(ports: Ports, run: Run) -> Progress:
    """The newest attempt's latest step and loss."""
    run_dir = folders.run_dir(ports.repository, run.spec.tag)
    control = read_control(run_dir)
    interval_s = control.interval_s if control else run.interval_s
    if not run.attempts:
        return Progress(interval_s=interval_s)
    newest = max(run.attempts, key=lambda a: a.epoch)
    events = last_lines(folders.attempt_dir(run_dir, newest.number))
    progress = last_of(events, "progress")
    latest = last_of(events, "progress", "saved", "stopped", "finished", "first_step")
    if latest is None:
        return Progress(step=newest.last_step or newest.resume_step, interval_s=interval_s)
    return Progress(step=latest.get("step"), loss=progress.get("loss") if progress else None,
                    steps_per_s=progress.get("steps_per_s") if progress else None, at=latest.get("t"),
                    interval_s=interval_s)
