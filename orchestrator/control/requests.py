"""What people ask of a run that exists: hold, release, cancel, save, rollback, wait. One fact into the journal, then a pass
for its tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from orchestrator import folders, journal
from orchestrator.checkpoints import Checkpoint, complete_checkpoints
from orchestrator.control.passes import PassReport, catch_up, pass_over_all, reconcile
from orchestrator.control.ports import Ports, ask_slurm, require_run, runs_now
from orchestrator.control.publish import publish_state
from orchestrator.control.tell import tell
from orchestrator.core.pending import HELD_BY_UPSTREAM
from orchestrator.errors import Refused, SlurmUnreachable, StorageError, TimedOut
from orchestrator.model import After, Attempt, Phase, Run
from orchestrator.rollback import set_aside_checkpoints
from orchestrator.trainer_control import read_control
from orchestrator.trainer_lines import last_of, read_lines
from orchestrator.units import format_duration
from orchestrator.views.facts import how_to_go_on, state_word

T = TypeVar("T")

LOCK_WAIT_S = 40.0  # longer than one Slurm command may take: a pass holds the lock meanwhile


def hold(ports: Ports, tag: str) -> Run:
    """The live attempt goes on; nothing else starts. Raises Refused for a run that is over or being rolled back."""
    return _ask(ports, tag, "held", _refuse_hold, by="user", reason="by hand")


def release(ports: Ports, tag: str) -> Run:
    """A held run goes on. Raises Refused for a run that is not held."""
    return _ask(ports, tag, "released", _refuse_unless_held, reason="by hand")


def cancel(ports: Ports, tag: str, *, now: bool) -> Run:
    """End the run: the successor first, then the live attempt, which saves before it stops unless ``now``. Raises Refused for
    one that is finished; one that is cancelled already is left as it is."""
    return _ask(ports, tag, "cancel", _refuse_finished, now=now, reason="by hand")


def save(ports: Ports, tag: str) -> tuple[Attempt, int]:
    """Ask the trainer of the live attempt for a checkpoint now; the attempt, and the request's number. Raises Refused where
    none trains that would hear it."""
    live: list[Attempt] = []

    def refuse(run: Run) -> None:
        live.append(_trains(ports, run))

    run = _ask(ports, tag, "save", refuse, reason="by hand")
    control = read_control(folders.run_dir(ports.repository, tag))
    return live[0], control.save if control is not None else run.saves_asked


def _trains(ports: Ports, run: Run) -> Attempt:
    live, tag = run.live, run.spec.tag
    if live is None:
        raise Refused(f"nothing of {tag} runs that could save", hint=f"`orch status {tag}` shows its newest checkpoint")
    lines = read_lines(_attempt_dir(ports, tag, live))
    if not lines:
        raise Refused(f"attempt {live.number} of {tag} has said nothing yet; only a trainer that uses orch_trainer saves "
                      "when it is asked", hint=f"`orch logs {tag}` shows how far it is")
    if last_of(lines, "first_step", "progress", "saved") is None:
        raise Refused(f"attempt {live.number} of {tag} has not done its first step yet")
    return live


def wait_for_save(
    ports: Ports, tag: str, attempt: Attempt, request: int, *, timeout_s: float, sleep: Callable[[float], None],
    monotonic: Callable[[], float],
) -> dict[str, object]:
    """The trainer's line of the save that it began for this request (never by times: its clock may be another). Raises
    StorageError where that save failed, Refused where the attempt ended without it, TimedOut."""
    began = monotonic()
    while True:
        lines = read_lines(_attempt_dir(ports, tag, attempt))
        begun = next((at for at, line in enumerate(lines) if line["event"] == "saving"
                      and (line.get("request") or 0) >= request), len(lines))
        told = last_of([line for line in lines[begun:] if line.get("step") == lines[begun].get("step")],
                       "saved", "save_failed")
        if told is not None and told["event"] == "saved":
            return told
        if told is not None:
            raise StorageError(f"{tag} could not save step {told.get('step')}: {told.get('error')}")
        if last_of(lines, "stopped", "finished", "failed", "fenced") is not None:
            raise Refused(f"attempt {attempt.number} of {tag} ended before it saved",
                          hint=f"`orch status {tag}` shows its newest checkpoint")
        if monotonic() - began >= timeout_s:
            raise TimedOut(f"{tag} has not saved within {format_duration(timeout_s)}", hint=f"`orch logs {tag}`")
        sleep(0.2)


def _attempt_dir(ports: Ports, tag: str, attempt: Attempt) -> Path:
    return folders.attempt_dir(folders.run_dir(ports.repository, tag), attempt.number)


def rollback(
    ports: Ports, tag: str, *, step: int | None, ago_s: float | None, name: str | None = None, by: str, why: str,
) -> tuple[Run, Checkpoint]:
    """Go on from the complete checkpoint of this step or name, or from the newest that is so old; newer ones are set aside.
    One that an earlier roll-back has set aside is brought back.

    A live attempt is ended first. Raises Refused where there is no such checkpoint.
    """
    run = before = require_run(ports.repository, tag)
    folder = folders.checkpoint_dir(folders.run_dir(ports.repository, tag))
    there, aside = complete_checkpoints(folder), set_aside_checkpoints(folder, run.set_aside)
    if name is not None:
        found = [aside[name]] if name in aside else [one for one in there if one.path == folder / name]
    elif step is not None:
        found = [one for one in there if one.step == step] or [one for one in aside.values() if one.step == step]
    else:
        assert ago_s is not None
        # the one that was chosen already, if it is asked for once more while what trains still ends
        chosen = [aside[run.rollback.checkpoint]] if run.rollback is not None and run.rollback.checkpoint in aside else []
        old = [one for one in (*there, *chosen) if one.saved_at <= ports.clock() - ago_s]
        found = sorted(old, key=lambda one: one.step)[-1:]
    if len(found) != 1:
        wanted = name or (f"of step {step}" if step is not None else f"that is {format_duration(ago_s or 0.0)} old")
        how_many = f"{len(found)} complete checkpoints" if found else "no complete checkpoint"
        by_step = Counter(one.step for one in there)
        named = {str(one.step) if by_step[one.step] == 1 else str(one.path.relative_to(folder)): one for one in there} | aside
        ages = ", ".join(f"{to} ({format_duration(ports.clock() - one.saved_at)} old)" for to, one in named.items()
                         if not found or one in found)
        raise Refused(f"{tag} has {how_many} {wanted}", hint=f"there are: {ages}" if ages else "it has none at all")
    run = _ask(ports, tag, "rollback", _refuse_cancelling, to_step=found[0].step,
               checkpoint=str(found[0].path.relative_to(folder)), by=by, reason=f"{by}: {why}")
    if run.phase == Phase.HELD and run.released_sequence < before.events:      # not gone back to
        raise Refused(f"{tag} is held: it {run.phase_reason}", hint=f"`orch status {tag}` lists what there is")
    return run, found[0]


def _refuse_cancelling(run: Run) -> None:
    if run.phase == Phase.CANCELLING:
        raise Refused(f"{run.spec.tag} is being cancelled", hint=f"`orch wait {run.spec.tag} --for cancelled`, then again")


def _refuse_over(run: Run) -> None:
    if run.over or run.phase == Phase.CANCELLING:
        raise Refused(f"{run.spec.tag} is {run.phase}", hint=f"`orch submit {run.spec.tag} --again` continues it later")


def _refuse_hold(run: Run) -> None:
    _refuse_over(run)
    if run.phase == Phase.ROLLING_BACK and run.rollback is not None:
        raise Refused(f"{run.spec.tag} goes back to step {run.rollback.step} first, and nothing of it trains until then",
                      hint=f"hold it when that is done; `orch cancel {run.spec.tag}` ends it now")


def _refuse_finished(run: Run) -> None:
    if run.phase == Phase.FINISHED:
        raise Refused(f"{run.spec.tag} is finished; nothing was cancelled")


def _refuse_unless_held(run: Run) -> None:
    _refuse_over(run)
    if run.phase != Phase.HELD:
        raise Refused(f"{run.spec.tag} is not held", hint=f"`orch explain {run.spec.tag}` says where it stands")
    if run.held_by == HELD_BY_UPSTREAM:
        raise Refused(f"{run.spec.tag} {run.phase_reason}", hint=how_to_go_on(run))


def _ask(ports: Ports, tag: str, event: str, refuse: Callable[[Run], None], **context: object) -> Run:
    """Catch up first, so that what is refused or done rests on what is so, not on what the last pass knew; then append."""
    require_run(ports.repository, tag)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        snapshot = ask_slurm(ports)
        catch_up(ports, tag, snapshot, locked)
        run = require_run(ports.repository, tag)
        refuse(run)
        if run.over and event != "rollback":
            return run
        locked.append(event, **context)
        if snapshot.silent is None:    # a person who waits is not made to wait for a second silence
            snapshot = ask_slurm(ports)
        after = reconcile(ports, tag, snapshot, locked, lambda line: None)
    assert after is not None
    if snapshot.silent is not None:
        raise SlurmUnreachable(f"{tag}: recorded, and Slurm does not answer: {snapshot.silent}",
                               hint="`orch daemon` or `orch tick` does the rest when Slurm is back")
    return after


def dependents(ports: Ports, tag: str) -> dict[str, After]:
    """Runs that wait for this one (``after:``), and for what."""
    runs, _ = runs_now(ports.repository)
    return {run.spec.tag: run.spec.after_tags[tag] for run in runs
            if tag in run.spec.after_tags and not run.over and not run.begun}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How to wait. ``say`` is told once when Slurm falls silent, and once when it answers again."""

    timeout_s: float | None
    every_s: float
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    say: Callable[[str], None]


def wait_for(ports: Ports, tag: str, states: frozenset[str], patience: Patience) -> Run:
    """Until the run's phase is one of ``states``. Raises TimedOut; Refused when the run is over or held in another state,
    which it will not leave by itself."""
    def come() -> Run | None:
        run = require_run(ports.repository, tag)
        if run.phase in states:
            return run
        if run.over:
            raise Refused(f"{tag} is {run.phase}", hint="that will not change by itself")
        if run.phase == Phase.HELD and run.live is None:
            raise Refused(f"{tag} is held: {run.phase_reason}", hint=how_to_go_on(run))
        return None

    def stands() -> str:
        return f"{tag} is {state_word(require_run(ports.repository, tag))}"

    return wait_until(ports, tag, come, stands, states, patience)


def wait_until(
    ports: Ports, name: str, come: Callable[[], T | None], stands: Callable[[], str], states: frozenset[str],
    patience: Patience,
) -> T:
    """Passes over all runs, as a daemon would make them, until ``come()`` gives something. Raises TimedOut with where it
    ``stands()``."""
    began, silent_since = patience.monotonic(), None
    while True:
        report = pass_over_all(ports)
        silent_since = _say_of_silence(report, silent_since, patience.monotonic(), patience.say)
        tell(ports, report)
        publish_state(ports, report)    # whoever waited reads ops/STATE.md next
        if (found := come()) is not None:
            return found
        passed_at, timeout_s = patience.monotonic(), patience.timeout_s
        while patience.monotonic() - passed_at < patience.every_s:
            if timeout_s is not None and patience.monotonic() - began >= timeout_s:
                raise TimedOut(f"{stands()} after {timeout_s:g} s, not {' or '.join(sorted(states))}",
                               hint=f"`orch explain {name}` says where it stands")
            patience.sleep(0.2)


def _say_of_silence(
    report: PassReport, silent_since: float | None, now: float, say: Callable[[str], None],
) -> float | None:
    """Since when Slurm is silent, None while it answers; a pass that had nothing to ask changes nothing."""
    if report.snapshot is None:
        return silent_since
    if report.snapshot.silent is None:
        if silent_since is not None:
            say(f"Slurm answers again after {now - silent_since:.0f} s")
        return None
    if silent_since is None:
        say(f"Slurm does not answer: {report.snapshot.silent}; nothing is decided until it does")
    return now if silent_since is None else silent_since
