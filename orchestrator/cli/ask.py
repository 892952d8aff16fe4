"""``orch hold``, ``release``, ``cancel`` and ``wait``: what people ask of a run."""

from __future__ import annotations

import time

import click

from orchestrator.cli.campaign import cancel_all, hold_all, release_all, wait_for_all
from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports, print_json
from orchestrator.errors import UserError
from orchestrator.model import After, Phase, Run

_json_option = click.option("--json", "as_json", is_flag=True, help="Print an object.")


def _report(run: Run, sentence: str, as_json: bool) -> None:
    from orchestrator.views.facts import run_as_json

    if as_json:
        print_json(run_as_json(run))
    else:
        click.echo(sentence)


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_run)
@_json_option
def hold(tag: str, as_json: bool) -> None:
    """Let the live attempt go on, and start nothing after it until `orch release`. Or of all runs of a campaign that can be.

    \b
    orch hold resnet-a
    orch release resnet-a
    """
    from orchestrator.control import requests
    from orchestrator.control.campaign import named
    from orchestrator.control.publish import publish_state

    ports, _ = open_ports(any_config=True)
    if (campaign := named(ports, tag)) is not None:
        hold_all(ports, campaign, as_json=as_json)
        return
    run = requests.hold(ports, tag)
    publish_state(ports)
    live = f"; attempt {run.live.number} goes on" if run.live else ""
    _report(run, f"{tag} is held{live}", as_json)


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_run)
@_json_option
def release(tag: str, as_json: bool) -> None:
    """Let a held run go on; what held it no longer counts against it. Or all runs of a campaign that are held.

    \b
    orch release resnet-a
    orch explain resnet-a
    """
    from orchestrator.control import requests
    from orchestrator.control.campaign import named
    from orchestrator.control.publish import publish_state

    ports, _ = open_ports(any_config=True)
    if (campaign := named(ports, tag)) is not None:
        release_all(ports, campaign, as_json=as_json)
        return
    run = requests.release(ports, tag)
    publish_state(ports)
    jobs = [s.job_id for s in run.waiting if s.job_id]
    _report(run, f"{tag} goes on" + (f" (job {jobs[0]})" if jobs else ""), as_json)


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_run)
@click.option("--now", is_flag=True, help="End it at once; training since the last checkpoint is lost.")
@_json_option
def cancel(tag: str, now: bool, as_json: bool) -> None:
    """End a run: its successor first, then the live attempt, which saves before it stops. Or all runs of a campaign.

    \b
    orch cancel resnet-a --now
    orch cancel ablation
    """
    from orchestrator.control import requests
    from orchestrator.control.campaign import named
    from orchestrator.control.publish import publish_state

    ports, _ = open_ports(any_config=True)
    if (campaign := named(ports, tag)) is not None:
        cancel_all(ports, campaign, now=now, as_json=as_json)
        return
    run = requests.cancel(ports, tag, now=now)
    publish_state(ports)
    waiting = {} if as_json else requests.dependents(ports, tag)
    if run.phase == Phase.CANCELLED:
        sentence = f"{tag} is cancelled"
    else:
        sentence = f"{tag} is being cancelled" + ("" if now else ": it saves first") + \
            f"; `orch wait {tag} --for cancelled` waits for it"
    for other, condition in waiting.items():
        sentence += f"\n{other} waits for it to end, and starts then" if condition == After.ENDED else \
            f"\n{other} waits for it to finish: it is held, and goes on if {tag} does (`orch submit {tag} --again`)"
    _report(run, sentence, as_json)


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_run)
@click.option("--for", "states", default="finished", show_default=True, metavar="STATE,...",
              help="Some of finished, held, cancelled.")
@click.option("--timeout", metavar="2h", help="Give up after this long (exit 9).")
@_json_option
def wait(tag: str, states: str, timeout: str | None, as_json: bool) -> None:
    """Wait until a run, or each run of a campaign, has come to one of these states; passes over all runs meanwhile, as a
    daemon would.

    A run that is over or held in another state ends the wait at once (exit 4), a campaign once nothing of it can train any
    more by itself. While Slurm does not answer it waits on, and says so.

    \b
    orch wait resnet-a --for finished,held --timeout 2h
    orch wait resnet-a && ./evaluate.sh
    """
    from orchestrator.control import requests
    from orchestrator.control.campaign import named
    from orchestrator.units import parse_duration_s

    wanted = frozenset(states.replace(" ", "").split(","))
    possible = {"finished", "held", "cancelled"}
    if not wanted <= possible:
        raise UserError(f"--for: unknown state {', '.join(sorted(wanted - possible))}",
                        hint=f"write some of {', '.join(sorted(possible))}")
    try:
        timeout_s = parse_duration_s(timeout) if timeout is not None else None
    except ValueError as error:
        raise UserError(f"--timeout: {error}") from None
    ports, config = open_ports(any_config=True)
    patience = requests.Patience(timeout_s=timeout_s, every_s=min(5.0, config.every_s), sleep=time.sleep,
                                 monotonic=time.monotonic, say=lambda sentence: click.echo(f"orch: {sentence}", err=True))
    if (campaign := named(ports, tag)) is not None:
        wait_for_all(ports, campaign, wanted, patience, as_json=as_json)
        return
    run = requests.wait_for(ports, tag, wanted, patience)
    _report(run, f"{tag} is {run.phase}" + (f": {run.phase_reason}" if run.phase_reason else ""), as_json)
