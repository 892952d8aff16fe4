"""``orch update`` and ``orch top``: what waits is changed where it waits, and keeps its job id and its dependencies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestrator import folders, journal
from orchestrator.control import checks
from orchestrator.control.observe import jobs_of
from orchestrator.control.passes import catch_up, reconcile
from orchestrator.control.ports import Ports, ask_slurm, require_run
from orchestrator.control.requests import LOCK_WAIT_S
from orchestrator.core.changing import in_words
from orchestrator.errors import Refused, SlurmUnreachable, SubmissionRejected, UserError
from orchestrator.model import Change, Phase, Run
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_duration, parse_duration_s, parse_size_bytes

TOP_NEEDS = ("a site lets users do that by SchedulerParameters=enable_user_top in slurm.conf; `orch update OTHER --nice N` "
             "has your other runs step back")


_Value = TypeVar("_Value", int, float, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asked for, as it was written."""

    memory: str | None = None
    time: str | None = None
    nice: int | None = None
    script: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """``words``: what was changed, '' if the run was like that already. ``jobs``: those that were changed where they wait."""

    run: Run
    words: str = ""
    jobs: tuple[str, ...] = ()


def update(ports: Ports, tag: str, wish: Wish) -> Updated:
    """Change what the run asks for: its waiting jobs, where they wait, and every attempt from then on.

    Raises UserError for a value that is none, Refused for a run that is over or a request that no node could hold,
    SubmissionRejected in Slurm's words, SlurmUnreachable when it is recorded and Slurm does not answer.
    """
    change = _read(ports, tag, wish)
    _check(ports, require_run(ports.repository, tag), change)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        catch_up(ports, tag, ask_slurm(ports), locked)
        run = require_run(ports.repository, tag)
        _refuse_over(run)
        wanted = _differing(run, change)
        if wanted is None:
            return Updated(run=run)
        locked.append("update", **{key: value for key, value in (
            ("memory_bytes", wanted.memory_bytes), ("time_s", wanted.time_s), ("nice", wanted.nice),
            ("script_sha256", wanted.script_sha256)) if value is not None}, reason=in_words(wanted))
        began = run.events
        snapshot = ask_slurm(ports)
        try:
            after = reconcile(ports, tag, snapshot, locked, lambda line: None)
        except SlurmUnreachable as error:
            raise _recorded(tag, f"Slurm did not answer: {error.message}") from error
    assert after is not None
    if after.change is not None:
        raise _recorded(tag, f"Slurm does not answer: {snapshot.silent}" if snapshot.silent
                        else "Slurm does not show its job yet")
    if _differing(after, wanted) is not None:      # job.sh was edited in that very moment, or the run ended
        raise Refused(f"{tag}: not changed; `orch status {tag}` says what happened", hint="try again")
    changed = tuple(s.job_id for s in after.waiting if s.changed_sequence >= began and s.job_id is not None)
    return Updated(run=after, words=in_words(wanted), jobs=changed)


def _recorded(tag: str, why: str) -> SlurmUnreachable:
    return SlurmUnreachable(f"{tag}: recorded, and {why}", hint="`orch daemon` or `orch tick` does the rest")


def top(ports: Ports, tag: str) -> str:
    """Put the run's first waiting job before all other jobs of this user; its id. Raises Refused where none waits for its
    turn, SubmissionRejected in the site's words."""
    require_run(ports.repository, tag)
    with journal.locked(folders.run_dir(ports.repository, tag), wait_s=LOCK_WAIT_S, clock=ports.clock) as locked:
        snapshot = ask_slurm(ports)
        if snapshot.silent is not None:
            raise SlurmUnreachable(snapshot.silent, hint=snapshot.hint)
        catch_up(ports, tag, snapshot, locked)
        run = require_run(ports.repository, tag)
        _refuse_over(run)
        jobs = jobs_of(run, snapshot.jobs)
        waiting = [jobs[s.id].job_id for s in run.waiting if s.id in jobs and jobs[s.id].state in WAITING_STATES]
        if not waiting:
            raise Refused(f"no job of {tag} waits in Slurm", hint=f"`orch explain {tag}` says where it stands")
        if run.phase == Phase.HELD:
            raise Refused(f"{tag} is held, and would not start at the top either", hint=f"`orch release {tag}` first")
        locked.append("asked", kind="top", job_id=waiting[0], why="by hand")
        try:
            ports.slurm.top(waiting[0])
        except SubmissionRejected as error:
            locked.append("note", text=f"scontrol top was refused: {error.message}")
            raise SubmissionRejected(error.message, hint=TOP_NEEDS) from error
        locked.append("answered", kind="top", job_id=waiting[0])
    return waiting[0]


def _read(ports: Ports, tag: str, wish: Wish) -> Change:
    """The wish as values. Raises UserError with what to write instead."""
    if wish == Wish():
        raise UserError("nothing to change is named", hint="write some of --memory, --time, --nice and --script")
    values: dict[str, float] = {}
    for option, text, parse in (("--memory", wish.memory, parse_size_bytes), ("--time", wish.time, parse_duration_s)):
        try:
            if text is not None:
                values[option] = parse(text)
        except ValueError as error:
            raise UserError(f"{option}: {error}") from None
        if values.get(option, 1) <= 0:
            raise UserError(f"{option}: {text} is nothing")
    sha256 = None
    if wish.script:
        script = folders.job_dir(ports.repository, tag) / "job.sh"
        checks.check_script(script)
        sha256 = hashlib.sha256(script.read_bytes()).hexdigest()
    memory = values.get("--memory")
    return Change(sequence=0, memory_bytes=None if memory is None else int(memory), time_s=values.get("--time"),
                  nice=wish.nice, script_sha256=sha256)


def _check(ports: Ports, run: Run, change: Change) -> None:
    """Slurm itself takes any memory for a waiting job, and lets it wait for ever."""
    _refuse_over(run)
    had = run.spec.profile
    if change.time_s is not None and change.time_s <= had.lead_s:
        raise Refused(f"--time {format_duration(change.time_s)} leaves no time before the notice, which profile {had.name} "
                      f"wants {format_duration(had.lead_s)} ahead", hint="ask for more time, or shorten `lead` in orch.yaml")
    wanted = replace(had, memory_bytes=change.memory_bytes or had.memory_bytes, time_s=change.time_s or had.time_s)
    if wanted != had:
        checks.check_fits(wanted, ports.slurm.offers())


def _refuse_over(run: Run) -> None:
    if run.over or run.phase == Phase.CANCELLING:
        raise Refused(f"{run.spec.tag} is {run.phase}; nothing of it can be changed any more",
                      hint=f"`orch submit {run.spec.tag} --again` takes job.sh and orch.yaml's profile as they are now")


def _differing(run: Run, change: Change) -> Change | None:
    """What of it is not so yet; None if all is."""
    if run.change is not None:
        return change                  # what else is wanted already comes on top of it
    spec, profile = run.spec, run.spec.profile
    wanted = Change(
        sequence=0, memory_bytes=_unless(change.memory_bytes, profile.memory_bytes),
        time_s=_unless(change.time_s, profile.time_s), nice=_unless(change.nice, spec.nice),
        script_sha256=_unless(change.script_sha256, spec.script_sha256))
    return None if wanted == Change(sequence=0) else wanted


def _unless(wanted: _Value | None, had: _Value | None) -> _Value | None:
    return None if wanted == had else wanted
