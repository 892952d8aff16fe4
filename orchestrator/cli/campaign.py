"""A campaign in place of a tag: what ``orch submit``, ``status``, ``explain``, ``hold``, ``release``, ``wait`` and ``cancel``
do with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import print_json
from orchestrator.cli.terminal import show, terminal_width
from orchestrator.errors import OrchError, UserError
from orchestrator.model import Phase, Run

if TYPE_CHECKING:
    from orchestrator.control.campaign import Checked
    from orchestrator.control.ports import Ports
    from orchestrator.control.requests import Patience
    from orchestrator.views.status import View


def submit_all(ports: Ports, name: str, *, dry_run: bool, as_json: bool, for_one: bool) -> None:
    """``for_one``: there are options that only a single run takes."""
    from orchestrator.control.campaign import check_campaign, submit_campaign
    from orchestrator.control.checks import options_without_effect
    from orchestrator.folders import job_dir
    from orchestrator.views.campaign import submitted_words
    from orchestrator.views.facts import run_as_json

    if for_one:
        raise UserError(f"{name} is a campaign: --after, --profile, --memory, --again, --prove-resume are for one run",
                        hint=f"write `after:` and `profile:` into jobs/{name}.campaign.yaml")
    checked = check_campaign(ports, name, os.environ)
    for tag, spec in checked.specs.items():
        if words := options_without_effect(job_dir(ports.repository, tag) / "job.sh", spec.profile.name):
            click.echo(f"orch: {words}", err=True)
    if dry_run:
        _show_plan(ports, checked, as_json=as_json)
        return
    done: list[tuple[Run, bool]] = []

    def say(run: Run, already: bool) -> None:
        done.append((run, already))
        if not as_json:
            click.echo(submitted_words(run, already))

    with _published_after(ports):
        submit_campaign(ports, checked, say)
    new = [run.spec.tag for run, already in done if not already]
    if as_json:
        print_json({"campaign": name, "submitted": new, "runs": [
            {"already": already, **run_as_json(run)} for run, already in done]})
    else:
        click.echo(f"{name}: {len(new)} submitted, {len(done) - len(new)} there already; `orch status {name}`")


def _show_plan(ports: Ports, checked: Checked, *, as_json: bool) -> None:
    from orchestrator.views.campaign import plan_json, plan_lines
    from orchestrator.views.status import View

    there = {member.tag: member.run for member in checked.members if member.run is not None}
    after = {member.tag: member.after for member in checked.members}
    profiles = {tag: spec.profile for tag, spec in checked.specs.items()}
    if as_json:
        print_json(plan_json(checked.name, after, profiles, there))
    else:
        show(plan_lines(after, profiles, there, View(now=ports.clock(), width=terminal_width())))


def cancel_all(ports: Ports, name: str, *, now: bool, as_json: bool) -> None:
    from orchestrator.control.campaign import cancel_campaign

    def words(run: Run) -> str:
        saves = "" if now or run.live is None else ": it saves first"
        return f"is {'being cancelled' if run.phase == Phase.CANCELLING else run.phase}{saves}"

    runs = _ask(ports, lambda: cancel_campaign(ports, name, now=now))
    last = f"`orch status {name}` shows how they end" if runs else f"nothing of {name} was left to cancel"
    _report(name, runs, words, last, as_json=as_json)


def hold_all(ports: Ports, name: str, *, as_json: bool) -> None:
    from orchestrator.control.campaign import hold_campaign

    def words(run: Run) -> str:
        return "is held" + (f"; attempt {run.live.number} goes on" if run.live else "")

    runs = _ask(ports, lambda: hold_campaign(ports, name))
    last = f"`orch release {name}` lets all of it go on" if runs else f"all of {name} is held already"
    _report(name, runs, words, last, as_json=as_json)


def release_all(ports: Ports, name: str, *, as_json: bool) -> None:
    from orchestrator.control.campaign import release_campaign

    def words(run: Run) -> str:
        jobs = [s.job_id for s in run.waiting if s.job_id]
        return f"is held: it {run.phase_reason}" if run.phase == Phase.HELD else \
            "goes on" + (f" (job {jobs[0]})" if jobs else "")

    runs = _ask(ports, lambda: release_campaign(ports, name))
    _report(name, runs, words, f"`orch explain {name}` says what each waits for", as_json=as_json)


def wait_for_all(ports: Ports, name: str, states: frozenset[str], patience: Patience, *, as_json: bool) -> None:
    from orchestrator.control.campaign import wait_for_campaign

    runs = wait_for_campaign(ports, name, states, patience)
    _report(name, runs, lambda run: f"is {run.phase}", "", as_json=as_json)


def _ask(ports: Ports, ask: Callable[[], list[Run]]) -> list[Run]:
    with _published_after(ports):
        return ask()


@contextmanager
def _published_after(ports: Ports) -> Iterator[None]:
    """The views show what was done before a failure too; that they could not be written would hide it."""
    from orchestrator.control.publish import publish_state

    try:
        yield
    except Exception:
        with suppress(OrchError, OSError):
            publish_state(ports)
        raise
    publish_state(ports)


def _report(name: str, runs: list[Run], words: Callable[[Run], str], last: str, *, as_json: bool) -> None:
    from orchestrator.views.facts import run_as_json

    if as_json:
        print_json({"campaign": name, "runs": [run_as_json(run) for run in runs]})
        return
    for run in runs:
        click.echo(f"{run.spec.tag} {words(run)}")
    if last:
        click.echo(last)


def explain_all(ports: Ports, name: str) -> None:
    from orchestrator.control.campaign import look_at_campaign
    from orchestrator.views.campaign import explained
    from orchestrator.views.text import one_line

    after, shown, silent = look_at_campaign(ports, name)
    for line in explained(name, after, shown):
        click.echo(line)
    if silent:
        click.echo(f"Slurm does not answer: {one_line(silent)}", err=True)


def status_of_all(ports: Ports, name: str, view: View, *, as_json: bool) -> None:
    from orchestrator.control.campaign import look_at_campaign
    from orchestrator.views.campaign import campaign_json, campaign_lines
    from orchestrator.views.text import one_line

    after, shown, silent = look_at_campaign(ports, name)
    if as_json:
        print_json({**campaign_json(name, after, shown), "slurm_silent": silent})
        return
    show(campaign_lines(name, after, shown, view))
    if silent:
        click.echo(f"Slurm does not answer: {one_line(silent)}", err=True)
