"""``orch save`` and ``orch rollback``: checkpoints at moments that matter."""

from __future__ import annotations

import getpass
import re
import time

import click

from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports, print_json
from orchestrator.errors import UserError
from orchestrator.units import format_duration, format_size, parse_duration_s


@click.command()
@click.argument("tag", shell_complete=complete_run)
@click.option("--no-wait", is_flag=True, help="Ask, and leave.")
@click.option("--timeout", default="30m", show_default=True, metavar="30m", help="Wait for so long at most (exit 9).")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def save(tag: str, no_wait: bool, timeout: str, as_json: bool) -> None:
    """Ask a running trainer for a checkpoint now, and wait until it is complete.

    For a trainer that uses orch_trainer, or a script that asks `orch should-save`: it saves at its next step, and its
    interval begins anew. A script that does not ask answers with its next `orch notify-save`.

    \b
    orch save resnet-a
    orch save resnet-a --no-wait
    """
    from orchestrator.control import requests

    try:
        timeout_s = parse_duration_s(timeout)
    except ValueError as error:
        raise UserError(f"--timeout: {error}") from None
    ports, _ = open_ports(any_config=True)
    attempt, request = requests.save(ports, tag)
    if no_wait:
        if as_json:
            print_json({"tag": tag, "attempt": attempt.number, "asked": True})
        else:
            click.echo(f"{tag}: attempt {attempt.number} is asked to save; `orch status {tag}` shows its newest checkpoint")
        return
    saved = requests.wait_for_save(ports, tag, attempt, request, timeout_s=timeout_s, sleep=time.sleep,
                                   monotonic=time.monotonic)
    if as_json:
        print_json({"tag": tag, "attempt": attempt.number, **saved})
    else:
        size = saved.get("size_bytes")
        click.echo(f"{tag}: step {saved['step']} is saved"
                   + (f" ({format_size(size)})" if isinstance(size, int) else "") + f" in {saved['path']}")


@click.command()
@click.argument("tag", shell_complete=complete_run)
@click.option("--to", "target", required=True, metavar="STEP|-1h|NAME",
              help="The step of a complete checkpoint, how old it is to be at least, or where one lies in checkpoints/.")
@click.option("--why", required=True, help="For the journal, and for whoever reads it.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def rollback(tag: str, target: str, why: str, as_json: bool) -> None:
    """Go on from an earlier complete checkpoint, as after a spike of the loss.

    A live attempt is ended at once. Newer checkpoints are moved to checkpoints/set-aside-..., not deleted: nothing
    resumes from them, nothing removes them, and `orch status TAG` shows them. A run that was held, cancelled or finished
    goes on too. To undo it, name one of those: it comes back with the older ones beside it, and what was saved since is
    set aside in turn. One that a cancel cuts off is completed by `orch submit TAG --again`.

    \b
    orch rollback resnet-a --to 12000 --why "loss spike at 12400"
    orch rollback resnet-a --to -1h --why "bad learning rate"
    orch rollback resnet-a --to set-aside-1700000050/step-00012400 --why "it was no spike"
    """
    from orchestrator.control import requests
    from orchestrator.control.publish import publish_state
    from orchestrator.model import Phase

    step, ago_s, name = _target(target)
    if not why.strip():
        raise UserError("--why: is empty", hint="write what was wrong with the newer checkpoints")
    ports, _ = open_ports(any_config=True)
    run, chosen = requests.rollback(ports, tag, step=step, ago_s=ago_s, name=name, by=getpass.getuser(), why=why.strip())
    publish_state(ports)
    age = format_duration(max(0.0, ports.clock() - chosen.saved_at))
    if as_json:
        print_json({"tag": tag, "step": chosen.step, "checkpoint": str(chosen.path), "state": str(run.phase)})
    elif run.phase == Phase.ROLLING_BACK:
        click.echo(f"{tag} goes back to step {chosen.step} (saved {age} ago) once its live attempt has ended; `orch daemon` "
                   "or `orch tick` does the rest")
    else:
        click.echo(f"{tag} goes on from step {chosen.step} (saved {age} ago)")


def _target(text: str) -> tuple[int | None, float | None, str | None]:
    """A step, seconds ago, or a path in checkpoints/: those of frameworks end in the step, or in the number of the save."""
    if text.isdigit():
        return int(text), None, None
    if "/" in text or re.fullmatch(r"[A-Za-z][\w.-]*[0-9]", text):
        return None, None, text
    if text.startswith("-"):
        try:
            return None, parse_duration_s(text[1:]), None
        except ValueError as error:
            raise UserError(f"--to {text}: {error}") from None
    raise UserError(f"--to {text} is no step and no time",
                    hint="write the step of a checkpoint, its name, or -1h for one an hour old")
