"""``orch daemon`` and ``orch tick``: the loop, and one pass."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import open_ports, print_json

if TYPE_CHECKING:
    from orchestrator.control.ports import Ports


def _say(tag: str, line: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    click.echo(f"{stamp} {tag + ': ' if tag else ''}{line}")


@click.command()
def daemon() -> None:
    """Passes over all runs of this repository, 30 s apart (`daemon: {every: 30s}`), in the foreground.

    SIGTERM and SIGINT end it after the pass. Jobs need no daemon to run; it queues what comes after them.

    \b
    orch daemon
    nohup orch daemon >> ops/daemon.log 2>&1 &
    """
    from orchestrator.control.loop import Daemon, only_daemon

    ports, config = open_ports()
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: stops.append(received))

    def reload() -> tuple[Ports, float]:
        again, fresh = open_ports()
        return again, fresh.every_s

    with only_daemon(ports.repository):
        _say("", f"daemon for {ports.repository}, a pass every {config.every_s:g} s")
        loop = Daemon(ports=ports, every_s=config.every_s, reload=reload, monotonic=time.monotonic,
                      jitter=lambda: random.uniform(-1, 1), say=_say)
        loop.run(time.sleep, lambda: bool(stops))
        _say("", "ended; jobs go on by themselves")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def tick(as_json: bool) -> None:
    """One pass over all runs: note what happened, queue what is due. For cron, and for the impatient.

    \b
    orch tick
    * * * * * cd ~/my-repository && orch tick >> ops/tick.log 2>&1
    """
    from orchestrator.control.passes import pass_over_all
    from orchestrator.control.publish import publish_state
    from orchestrator.errors import SlurmUnreachable

    ports, _ = open_ports()
    report = pass_over_all(ports)
    publish_state(ports.repository)
    silent = report.snapshot.silent if report.snapshot else None
    if as_json:
        print_json({"runs": [{"tag": r.tag, "did": list(r.lines), "error": str(r.error) if r.error else None}
                             for r in report.runs], "slurm_silent": silent})
    else:
        for run in report.runs:
            for line in run.lines:
                click.echo(f"{run.tag}: {line}")
            if run.error is not None:
                click.echo(f"{run.tag}: {run.error}", err=True)
    errors = [run.error for run in report.runs if run.error is not None]
    if silent is not None:
        raise SlurmUnreachable(f"Slurm does not answer: {silent}", hint=report.snapshot.hint if report.snapshot else "")
    if errors:
        raise errors[0]
