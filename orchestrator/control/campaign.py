"""Campaigns: runs that are submitted, looked at, held, released, waited for and cancelled together.

A campaign has no state of its own. What a run waits for, and with which campaign it was submitted, stands in its journal;
the file adds what has not been submitted yet. So a submission that was cut short is completed by the same command.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from orchestrator import folders
from orchestrator.config import load_config, load_job
from orchestrator.config.campaign import (
    CAMPAIGN_SUFFIX,
    CampaignPlan,
    campaign_names,
    campaign_path,
    load_campaign,
)
from orchestrator.control import requests
from orchestrator.control.after import refuse_cycle, where_named
from orchestrator.control.look import Ask, look_at_all
from orchestrator.control.ports import Ports, ask_slurm, job_tags, read_run, require_run, runs_now, unknown_tag
from orchestrator.control.submit import Request, build_spec, check_spec, submit
from orchestrator.core.pending import HELD_BY_UPSTREAM
from orchestrator.core.told import in_queue
from orchestrator.errors import NoRoom, OrchError, Refused, SlurmUnreachable, SubmissionRejected, UnknownTag, UserError
from orchestrator.model import After, Phase, Run, RunSpec
from orchestrator.views.facts import Shown, how_to_go_on, state_word


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One run of a campaign; ``run`` is None before it was submitted."""

    tag: str
    after: Mapping[str, After]
    run: Run | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A campaign of which nothing is wrong, upstream first. ``specs``: of the members that have no run yet."""

    name: str
    members: tuple[Member, ...]
    specs: Mapping[str, RunSpec]


def named(ports: Ports, text: str) -> str | None:
    """The campaign that a word of the command line means: its name or its file; None: the word is a tag. A run or a job
    folder of that name goes first. Raises UserError for a file that is no campaign's."""
    repository = ports.repository
    if text.endswith(CAMPAIGN_SUFFIX):
        name, given = Path(text).name.removesuffix(CAMPAIGN_SUFFIX), Path(text).absolute()
        path = campaign_path(repository, name)
        if given.exists() and not (path.exists() and path.samefile(given)):
            raise UserError(f"{text} is not in {path.parent}", hint=f"mv {text} {path.parent}/")
        if not path.exists() and not _submitted_with(ports, name):
            raise unknown_tag(name, campaign_names(repository), "campaign")
        return name
    if folders.job_dir(repository, text).is_dir() or folders.run_dir(repository, text).is_dir():
        return None
    return text if campaign_path(repository, text).is_file() or _submitted_with(ports, text) else None


def _submitted_with(ports: Ports, name: str) -> list[Run]:
    return [run for run in runs_now(ports.repository)[0] if name and run.spec.campaign == name]


def members(ports: Ports, name: str) -> list[Member]:
    """What the file lists and what was submitted with it, upstream first. A file that is wrong by now hides no run."""
    found = {run.spec.tag: Member(tag=run.spec.tag, after=run.spec.after_tags, run=run)
             for run in _submitted_with(ports, name)}
    try:
        plan = load_campaign(ports.repository, name)
    except UserError:
        if not found:
            raise
        return _upstream_first(found)
    for tag, part in plan.parts.items():
        run = read_run(ports.repository, tag)
        written = {item.name: item.condition or After.FINISHED for item in part.after}
        found[tag] = Member(tag=tag, after=written if run is None else run.spec.after_tags, run=run)
    return _upstream_first({tag: found[tag] for tag in [*plan.parts, *(tag for tag in found if tag not in plan.parts)]})


def _upstream_first(found: Mapping[str, Member]) -> list[Member]:
    try:
        order = TopologicalSorter({tag: member.after for tag, member in found.items()}).static_order()
        return [found[tag] for tag in order if tag in found]
    except CycleError:                 # of conditions that are past: those that wait form none
        return list(found.values())


def look_at_campaign(
    ports: Ports, name: str, ask: Ask = ask_slurm,
) -> tuple[dict[str, Mapping[str, After]], dict[str, Shown], str | None]:
    """What each run waits for, upstream first; those that were submitted, as they stand; why Slurm is silent if it is."""
    after = {member.tag: member.after for member in members(ports, name)}
    found, _, silent = look_at_all(ports, ask)
    return after, {one.run.spec.tag: one for one in found if one.run.spec.tag in after}, silent


# --- submitting -----------------------------------------------------------------------------------------------------------


def check_campaign(ports: Ports, name: str, environ: Mapping[str, str]) -> Checked:
    """All of it, before any of it is submitted. Writes nothing. Raises UserError with file, line, key and remedy; Refused."""
    plan = load_campaign(ports.repository, name)
    there = {tag: run for tag in plan.parts if (run := read_run(ports.repository, tag)) is not None}
    for tag in plan.parts:
        if tag not in there:
            _check_named(ports, plan, tag)
    specs: dict[str, RunSpec] = {}
    for tag in plan.parts:
        if tag not in there:
            with _placed(plan, tag):
                specs[tag] = _spec(ports, plan, tag, environ)
    waits = {tag: specs[tag].after_tags if tag in specs else {} if there[tag].over or there[tag].begun
             else there[tag].spec.after_tags for tag in plan.parts}
    order = refuse_cycle(ports, waits, lambda tag, upstream: _where(ports, plan, tag, upstream))
    for tag, spec in specs.items():
        with _placed(plan, tag):
            check_spec(ports, spec)
    after = {tag: specs[tag].after_tags if tag in specs else there[tag].spec.after_tags for tag in plan.parts}
    return Checked(name=name, specs=specs,
                   members=tuple(Member(tag=tag, after=after[tag], run=there.get(tag)) for tag in order))


def _check_named(ports: Ports, plan: CampaignPlan, tag: str) -> None:
    """What the file names is there."""
    if not folders.job_dir(ports.repository, tag).is_dir():
        raise plan.error(tag, f"no job folder jobs/{tag}",
                         _near(tag, job_tags(ports.repository), f"`orch new {tag}` makes it"))
    profiles, profile = load_config(ports.repository).profiles, plan.parts[tag].profile
    if profile is not None and profile not in profiles:
        raise plan.error(tag, f'no profile "{profile}" in orch.yaml', _near(profile, list(profiles), ""), ".profile")


def _near(word: str, known: list[str], otherwise: str) -> str:
    near = difflib.get_close_matches(word, known, 1, cutoff=0.5)
    return f'did you mean "{near[0]}"?' if near else otherwise or f"there are: {', '.join(known)}"


def _spec(ports: Ports, plan: CampaignPlan, tag: str, environ: Mapping[str, str]) -> RunSpec:
    part = plan.parts[tag]
    return build_spec(ports, Request(tag=tag, after=part.after, profile=part.profile, beside=frozenset(plan.parts),
                                     campaign=plan.name), environ)


@contextlib.contextmanager
def _placed(plan: CampaignPlan, tag: str) -> Iterator[None]:
    """Complaints about one part say where it stands in the campaign, unless they do already."""
    try:
        yield
    except OrchError as error:
        if isinstance(error, SlurmUnreachable) or error.message.startswith(str(plan.document.path)):
            raise
        raise type(error)(plan.error(tag, error.message).message, hint=error.hint) from None


def _where(ports: Ports, plan: CampaignPlan, tag: str, upstream: str) -> str:
    written = where_named(plan.parts[tag].after, upstream)
    return written or where_named(load_job(folders.job_dir(ports.repository, tag)).after, upstream)


def as_in_campaign(ports: Ports, request: Request) -> Request:
    """A run of a campaign that is submitted again: its campaign still says what it waits for and with which resources.
    Raises UserError for a campaign that is wrong by now."""
    run = read_run(ports.repository, request.tag)
    name = run.spec.campaign if run is not None else ""
    if not name or not campaign_path(ports.repository, name).exists():
        return request
    part = load_campaign(ports.repository, name).parts.get(request.tag)
    if part is None:
        return request
    return replace(request, campaign=name, after=(*part.after, *request.after), profile=request.profile or part.profile)


def submit_campaign(ports: Ports, checked: Checked, say: Callable[[Run, bool], None]) -> None:
    """Submit what has no run yet, and complete what was cut short; ``say(run, already)`` hears of each.

    A part that Slurm refuses is held, and what waits for it is held by it: SubmissionRejected is raised in the end, then;
    NoRoom where all that Slurm lacks is room. Raises SlurmUnreachable at once: the same command goes on.
    """
    refused: list[str] = []
    later: list[str] = []
    for count, member in enumerate(checked.members):
        if member.run is not None and member.run.phase != Phase.ACTIVE:
            say(member.run, True)
            continue
        try:
            done = submit(ports, checked.specs[member.tag] if member.run is None else member.run.spec)
            say(done.run, done.already)
        except NoRoom as error:
            later.append(error.message)
        except SubmissionRejected as error:
            refused.append(f"{member.tag}: {error.message}")
        except SlurmUnreachable as error:
            left = len(checked.members) - count - 1
            raise SlurmUnreachable(error.message + (f"; {left} more of {checked.name} were not begun with" if left else ""),
                                   hint=f"`orch submit {checked.name}` goes on with them" if left else error.hint) from error
    if refused:
        raise SubmissionRejected("; ".join([*refused, *later]),
                                 hint="mend it, then `orch submit TAG --again`; what waits for it goes on by itself")
    if later:
        raise NoRoom("; ".join(later), hint="`orch daemon` or `orch tick` queues what is left when other jobs have ended")


# --- what people ask of all of it -----------------------------------------------------------------------------------------


def cancel_campaign(ports: Ports, name: str, *, now: bool) -> list[Run]:
    """End all of it, what waits first, so that nothing starts or is held meanwhile; not those that are over."""
    return _ask_each(ports, _submitted(ports, name)[::-1], lambda run: not run.over,
                     lambda tag: requests.cancel(ports, tag, now=now))


def hold_campaign(ports: Ports, name: str) -> list[Run]:
    """Start nothing more of it, what waits first. Runs that are over, or held already, are left out. Raises Refused where
    nothing is left to hold; also, once the others are held, for runs that go back to a checkpoint and then train."""
    runs = _submitted(ports, name)
    if all(run.over or run.phase == Phase.CANCELLING for run in runs):
        raise Refused(f"nothing of {name} can be held: all of it is over", hint=f"`orch status {name}`")
    held = _ask_each(ports, runs[::-1], lambda run: run.phase == Phase.ACTIVE or run.held_by == HELD_BY_UPSTREAM,
                     lambda tag: requests.hold(ports, tag))
    back = [run.spec.tag for run in _submitted(ports, name) if run.phase == Phase.ROLLING_BACK]
    if back:
        raise Refused(f"not held: {', '.join(back)}, being rolled back; nothing else of {name} starts",
                      hint=f"`orch hold {name}` once more when that is done")
    return held


def release_campaign(ports: Ports, name: str) -> list[Run]:
    """Let go on what is held, by hand or by orch, upstream first: what was held because of those comes by itself. Raises
    Refused where nothing is."""
    runs = _submitted(ports, name)
    if not any(_may_be_released(run) for run in runs):
        lost = [run for run in runs if run.phase == Phase.HELD]
        raise Refused("; ".join(f"{run.spec.tag} {run.phase_reason}" for run in lost) or f"nothing of {name} is held",
                      hint=how_to_go_on(lost[0]) if lost else f"`orch explain {name}` says where each stands")
    return _ask_each(ports, runs, _may_be_released, lambda tag: requests.release(ports, tag))


def _may_be_released(run: Run) -> bool:
    return run.phase == Phase.HELD and run.held_by != HELD_BY_UPSTREAM


def _submitted(ports: Ports, name: str) -> list[Run]:
    """Its runs, upstream first."""
    found = [member.run for member in members(ports, name) if member.run is not None]
    if not found:
        raise UnknownTag(f"nothing of {name} has been submitted", hint=f"`orch submit {name}`")
    return found


def _ask_each(ports: Ports, runs: list[Run], which: Callable[[Run], bool], ask: Callable[[str], Run]) -> list[Run]:
    """Of each run that it is for, as it is by then. What goes wrong with one, a silent Slurm or its refusal, keeps none of
    the others from being asked; the first trouble is raised after the last."""
    done: list[Run] = []
    trouble: OrchError | None = None
    for tag in [run.spec.tag for run in runs]:
        if not which(require_run(ports.repository, tag)):
            continue
        try:
            done.append(ask(tag))
        except Refused:                # it has come to its end, or goes on, since it was looked at
            continue
        except OrchError as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    return done


def wait_for_campaign(ports: Ports, name: str, states: frozenset[str], patience: requests.Patience) -> list[Run]:
    """Until nothing of it can train any more by itself; its runs, where all have come to one of ``states``. Raises Refused
    with those that have not, TimedOut."""
    def come() -> list[Run] | None:
        found = members(ports, name)
        runs = [member.run for member in found if member.run is not None]
        others = [run for run in runs if run.phase not in states]
        missing = [member.tag for member in found if member.run is None]
        going = {run.spec.tag for run in in_queue(runs_now(ports.repository)[0])}
        if any(run.spec.tag in going for run in others):
            return None
        if others or missing:
            words = [f"{run.spec.tag} is {state_word(run)}: {run.phase_reason}".removesuffix(": ") for run in others]
            raise Refused("; ".join([*words, *(f"{tag} has not been submitted" for tag in missing)]),
                          hint=f"`orch submit {name}`" if missing else f"`orch explain {name}` says what helps")
        return runs

    def stands() -> str:
        left = [run for run in _submitted(ports, name) if run.phase not in states]
        return ", ".join(f"{run.spec.tag} is {state_word(run)}" for run in left)

    _submitted(ports, name)
    return requests.wait_until(ports, name, come, stands, states, patience)
