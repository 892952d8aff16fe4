"""What people ask of a run that exists: hold, release, cancel, wait. One fact into the journal, then a pass for its tag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator import folders, journal
from orchestrator.control.passes import catch_up, pass_over_all, reconcile
from orchestrator.control.ports import Ports, ask_slurm, require_run
from orchestrator.errors import Refused, SlurmUnreachable, TimedOut
from orchestrator.model import Phase, Run

LOCK_WAIT_S = 10.0


def hold(ports: Ports, tag: str) -> Run:
    """The live attempt goes on; nothing else starts. Raises Refused for a run that is over."""
    return _ask(ports, tag, "held", _refuse_over, by="user", reason="by hand")


def release(ports: Ports, tag: str) -> Run:
    """A held run goes on. Raises Refused for a run that is not held."""
    return _ask(ports, tag, "released", _refuse_unless_held, reason="by hand")


def cancel(ports: Ports, tag: str, *, now: bool) -> Run:
    """End the run: the successor first, then the live attempt, which saves before it stops unless ``now``."""
    return _ask(ports, tag, "cancel", lambda run: None, now=now, reason="by hand")


def _refuse_over(run: Run) -> None:
    if run.over:
        raise Refused(f"{run.spec.tag} is {run.phase}", hint=f"`orch submit {run.spec.tag} --again` continues it")


def _refuse_unless_held(run: Run) -> None:
    _refuse_over(run)
    if run.phase != Phase.HELD:
        raise Refused(f"{run.spec.tag} is not held", hint=f"`orch explain {run.spec.tag}` says what it waits for")


def _ask(ports: Ports, tag: str, event: str, refuse: Callable[[Run], None], **context: object) -> Run:
    """Catch up first, so that what is refused or done rests on what is so, not on what the last pass knew; then append."""
    require_run(ports.repository, tag)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        catch_up(ports, tag, ask_slurm(ports.slurm), locked)
        run = require_run(ports.repository, tag)
        refuse(run)
        if run.over:
            return run
        locked.append(event, **context)
        snapshot = ask_slurm(ports.slurm)
        after = reconcile(ports, tag, snapshot, locked, lambda line: None)
    assert after is not None
    if snapshot.silent is not None:
        raise SlurmUnreachable(f"{tag}: recorded, and Slurm does not answer: {snapshot.silent}",
                               hint="`orch daemon` or `orch tick` does the rest when Slurm is back")
    return after


def wait_for(
    ports: Ports, tag: str, states: frozenset[str], *, timeout_s: float | None, every_s: float,
    sleep: Callable[[float], None], daemon_runs: Callable[[Path], bool],
) -> Run:
    """Until the run's phase is one of ``states``; runs passes itself where no daemon does.

    Raises TimedOut, and Refused when the run ended in a state that can never become one of these by itself.
    """
    began, passed_at = ports.clock(), float("-inf")
    while True:
        run = require_run(ports.repository, tag)
        if run.phase in states:
            return run
        if run.over:
            raise Refused(f"{tag} is {run.phase}", hint="that will not change by itself")
        now = ports.clock()
        if timeout_s is not None and now - began >= timeout_s:
            raise TimedOut(f"{tag} is {run.phase} after {timeout_s:g} s, not {' or '.join(sorted(states))}",
                           hint=f"`orch explain {tag}` says what it waits for")
        if now - passed_at >= every_s and not daemon_runs(ports.repository):
            pass_over_all(ports, only=tag)
            passed_at = ports.clock()
            continue
        sleep(0.5)
