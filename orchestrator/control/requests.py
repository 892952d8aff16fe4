"""What people ask of a run that exists: hold, release, cancel, wait. One fact into the journal, then a pass for its tag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator import folders, journal
from orchestrator.control.passes import pass_over_all, reconcile
from orchestrator.control.ports import Ports, ask_slurm, require_run
from orchestrator.errors import Refused, TimedOut
from orchestrator.model import Phase, Run

LOCK_WAIT_S = 10.0


def hold(ports: Ports, tag: str) -> Run:
    """The live attempt goes on; nothing else starts. Raises Refused for a run that is over."""
    return _ask(ports, tag, "held", refuse_over=True, by="user", reason="by hand")


def release(ports: Ports, tag: str) -> Run:
    """A held run goes on. Raises Refused for a run that is not held."""
    run = require_run(ports.repository, tag)
    if run.over:
        raise Refused(f"{tag} is {run.phase}", hint=f"`orch submit {tag} --again` continues it")
    if run.phase != Phase.HELD:
        raise Refused(f"{tag} is not held", hint=f"`orch explain {tag}` says what it waits for")
    return _ask(ports, tag, "released", refuse_over=True, reason="by hand")


def cancel(ports: Ports, tag: str, *, now: bool) -> Run:
    """End the run: the successor first, then the live attempt, which saves before it stops unless ``now``."""
    return _ask(ports, tag, "cancel", refuse_over=False, now=now, reason="by hand")


def _ask(ports: Ports, tag: str, event: str, *, refuse_over: bool, **context: object) -> Run:
    run = require_run(ports.repository, tag)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        run = require_run(ports.repository, tag)
        if run.over:
            if refuse_over:
                raise Refused(f"{tag} is {run.phase}", hint=f"`orch submit {tag} --again` continues it")
            return run
        locked.append(event, **context)
        after = reconcile(ports, tag, ask_slurm(ports.slurm), locked, lambda line: None)
    assert after is not None
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
