"""``orch notify``: the channels of ``notify:`` in orch.yaml, tried by hand."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.context import open_ports, print_json

STDERR = 2                             # a command's own words are for who tries it by hand


@click.group("notify")
def notify_group() -> None:
    """What orch tells people, and by which channels, stands under `notify:` in orch.yaml.

    \b
    orch notify test
    orch notify test --json
    """


@notify_group.command("test")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def test_command(as_json: bool) -> None:
    """Send one message to every channel now, and print what came of it; exit 4 if one did not take it.

    \b
    orch notify test
    orch notify test && orch daemon
    """
    from orchestrator.control.tell import send_test
    from orchestrator.errors import Refused, UserError
    from orchestrator.notify.result import Delivered

    ports, config = open_ports()
    if not ports.notify.channels:
        raise UserError(f"{config.path.name} names no channel",
                        hint="write `notify: {discord: {webhook_file: PATH}}` or `notify: {command: [PROGRAM]}` into it")
    results = send_test(ports, errors=STDERR)
    failed = [(name, result.why) for name, result in results if not isinstance(result, Delivered)]
    if as_json:
        print_json({"channels": {name: {"delivered": isinstance(result, Delivered), "why": getattr(result, "why", "")}
                                 for name, result in results}})
        sys.exit(Refused.exit_code if failed else 0)
    for name, result in results:
        if isinstance(result, Delivered):
            click.echo(f"{name}: delivered" + (f" (message {result.message_id})" if result.message_id else ""))
    if failed:
        raise Refused("; ".join(f"{name}: {why}" for name, why in failed), hint="docs/notifications.md says what helps")
