"""What people ask of a run that exists: hold, release, cancel, wait. One fact into the journal, then a pass for its tag."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator import folders, journal
from orchestrator.control.passes import PassReport, catch_up, pass_over_all, reconcile
from orchestrator.control.ports import Ports, ask_slurm, require_run, runs_now
from orchestrator.control.publish import publish_state
from orchestrator.control.tell import tell
from orchestrator.core.pending import HELD_BY_UPSTREAM
from orchestrator.errors import Refused, SlurmUnreachable, TimedOut
from orchestrator.model import After, Phase, Run
from orchestrator.views.facts import how_to_go_on, state_word

LOCK_WAIT_S = 40.0  # longer than one Slurm command may take: a pass holds the lock meanwhile


def hold(ports: Ports, tag: str) -> Run:
    """The live attempt goes on; nothing else starts. Raises Refused for a run that is over."""
    return _ask(ports, tag, "held", _refuse_over, by="user", reason="by hand")


def release(ports: Ports, tag: str) -> Run:
    """A held run goes on. Raises Refused for a run that is not held."""
    return _ask(ports, tag, "released", _refuse_unless_held, reason="by hand")


def cancel(ports: Ports, tag: str, *, now: bool) -> Run:
    """End the run: the successor first, then the live attempt, which saves before it stops unless ``now``. Raises Refused for
    one that is finished; one that is cancelled already is left as it is."""
    return _ask(ports, tag, "cancel", _refuse_finished, now=now, reason="by hand")


def _refuse_over(run: Run) -> None:
    if run.over or run.phase == Phase.CANCELLING:
        raise Refused(f"{run.spec.tag} is {run.phase}", hint=f"`orch submit {run.spec.tag} --again` continues it later")


def _refuse_finished(run: Run) -> None:
    if run.phase == Phase.FINISHED:
        raise Refused(f"{run.spec.tag} is finished; nothing was cancelled")


def _refuse_unless_held(run: Run) -> None:
    _refuse_over(run)
    if run.phase != Phase.HELD:
        raise Refused(f"{run.spec.tag} is not held", hint=f"`orch explain {run.spec.tag}` says what it waits for")
    if run.held_by == HELD_BY_UPSTREAM:
        raise Refused(f"{run.spec.tag} {run.phase_reason}", hint=how_to_go_on(run))


def _ask(ports: Ports, tag: str, event: str, refuse: Callable[[Run], None], **context: object) -> Run:
    """Catch up first, so that what is refused or done rests on what is so, not on what the last pass knew; then append."""
    require_run(ports.repository, tag)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        catch_up(ports, tag, ask_slurm(ports), locked)
        run = require_run(ports.repository, tag)
        refuse(run)
        if run.over:
            return run
        locked.append(event, **context)
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


def wait_for(
    ports: Ports, tag: str, states: frozenset[str], *, timeout_s: float | None, every_s: float,
    sleep: Callable[[float], None], monotonic: Callable[[], float], say: Callable[[str], None],
) -> Run:
    """Until the run's phase is one of ``states``; passes over all runs meanwhile, as a daemon would. ``say`` is told once
    when Slurm falls silent, and once when it answers again.

    Raises TimedOut; Refused when the run is over or held in another state, which it will not leave by itself.
    """
    began, silent_since = monotonic(), None
    while True:
        report = pass_over_all(ports)
        silent_since = _say_of_silence(report, silent_since, monotonic(), say)
        tell(ports, report)
        publish_state(ports, report)    # whoever waited reads ops/STATE.md next
        run = require_run(ports.repository, tag)
        if run.phase in states:
            return run
        if run.over:
            raise Refused(f"{tag} is {run.phase}", hint="that will not change by itself")
        if run.phase == Phase.HELD and run.live is None:
            raise Refused(f"{tag} is held: {run.phase_reason}", hint=how_to_go_on(run))
        passed_at = monotonic()
        while monotonic() - passed_at < every_s:
            if timeout_s is not None and monotonic() - began >= timeout_s:
                raise TimedOut(f"{tag} is {state_word(run)} after {timeout_s:g} s, not {' or '.join(sorted(states))}",
                               hint=f"`orch explain {tag}` says what it waits for")
            sleep(0.2)


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
