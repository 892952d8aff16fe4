"""``orch status`` and ``explain``: they look, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.campaign import explain_all, status_of_all
from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports, print_json
from orchestrator.cli.terminal import show, terminal_width
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.control.ports import Ports
    from orchestrator.views.status import View


@click.command()
@click.argument("tag", metavar="[TAG|CAMPAIGN]", required=False, shell_complete=complete_run)
@click.option("--all", "everything", is_flag=True, help="Also what ended more than a day ago; with TAG all that happened.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def status(tag: str | None, everything: bool, as_json: bool) -> None:
    """One line a run. With TAG: its attempts with lost work and the idle time after each, what happened when, what waits,
    its checkpoints, M and T*. With CAMPAIGN its runs as a tree.

    In the object `resume_proof` is what came of `orch submit --prove-resume`: null, or its `state` (wanted, stopping,
    proven, broken) with `reason`, `attempt`, `saved_step`, `first_step`, `loss_before`, `loss_after` and `noise`. With TAG,
    `checkpoints` has the complete ones, also those that a roll-back has set aside (`set_aside`).

    \b
    orch status
    orch status resnet-a --json
    """
    from orchestrator.control.campaign import named
    from orchestrator.views.status import View

    ports, _ = open_ports(any_config=True)
    view = View(now=ports.clock(), width=terminal_width(), everything=everything)
    if tag is not None and (campaign := named(ports, tag)) is not None:
        status_of_all(ports, campaign, view, as_json=as_json)
    elif tag is not None:
        _one(ports, tag, view, as_json)
    else:
        _all(ports, view, as_json)


def _one(ports: Ports, tag: str, view: View, as_json: bool) -> None:
    from orchestrator.control.look import whole_of
    from orchestrator.views.facts import run_as_json
    from orchestrator.views.status import checkpoints_as_json, run_lines

    whole = whole_of(ports, tag)
    if not as_json:
        show(run_lines(whole, view))
        return
    run = run_as_json(whole.shown.run, whole.shown.jobs, whole.shown.progress)
    for attempt in run["attempts"]:
        saves = whole.saves.get(attempt["attempt"])
        attempt["saves"] = saves.count if saves is not None else None
    print_json({**run, "reliability": whole.setting.as_event() if whole.setting else None, "slurm_silent": whole.silent,
                "checkpoints": checkpoints_as_json(whole),
                "timeline": [{"at": moment.at, "words": moment.words} for moment in whole.moments]})


def _all(ports: Ports, view: View, as_json: bool) -> None:
    from orchestrator.control.look import look_at_all
    from orchestrator.views.facts import run_as_json
    from orchestrator.views.status import status_lines
    from orchestrator.views.text import one_line

    shown, errors, silent = look_at_all(ports)
    if as_json:
        print_json({"runs": [run_as_json(one.run, one.jobs, one.progress) for one in shown],
                    "errors": [str(error) for error in errors], "slurm_silent": silent})
        return
    if shown:
        show(status_lines(shown, view))
    elif not errors:
        click.echo("no runs yet: `orch new TAG`, then `orch submit TAG`")
    for error in errors:
        click.echo(f"damaged: {error}\n         {error.hint}", err=True)
    if silent:
        click.echo(f"Slurm does not answer: {one_line(silent)}", err=True)


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_run)
@click.option("--interval", "the_interval", is_flag=True, help="How M and the checkpoint interval came about, worked out.")
@click.option("--start", "the_start", is_flag=True,
              help="When its job may start: Slurm is asked with the same request, and with less; kept for a minute.")
def explain(tag: str, the_interval: bool, the_start: bool) -> None:
    """Why a run's job waits and what helps; what the next pass would note and do about the run, and why. Nothing is done.
    With CAMPAIGN one line a run: where it stands, and what it waits for.

    With --start Slurm's guess is noted, so that the next one can be shown with how far off such guesses were.

    \b
    orch explain resnet-a
    orch explain resnet-a --start
    orch explain resnet-a --interval
    """
    from orchestrator.control.campaign import named
    from orchestrator.control.look import explain_interval, explain_run, explain_start

    if the_interval and the_start:
        raise UserError("--interval and --start are two questions", hint="ask one after the other")
    ports, _ = open_ports(any_config=True)
    if (campaign := named(ports, tag)) is not None:
        if the_interval or the_start:
            raise UserError(f"{campaign} is a campaign: --interval and --start are for one run")
        explain_all(ports, campaign)
        return
    ask = explain_interval if the_interval else explain_start if the_start else explain_run
    click.echo("\n".join(ask(ports, tag)))
