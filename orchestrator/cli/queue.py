"""``orch queue``: everybody's jobs."""

from __future__ import annotations

import click

from orchestrator.cli.context import open_ports, print_json
from orchestrator.cli.terminal import show, terminal_width


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def queue(as_json: bool) -> None:
    """Everybody's jobs in this Slurm that run or wait: project, place in the order, start (~ by Slurm's guess), why it waits.

    The project of a job of orch's is REPOSITORY/TAG; of others their jobs' names are shown.

    \b
    orch queue
    orch queue --json
    """
    from orchestrator.views.queue import queue_json, queue_lines
    from orchestrator.views.status import View

    ports, _ = open_ports(any_config=True)
    jobs = ports.slurm.queue()
    if as_json:
        print_json({"jobs": queue_json(jobs)})
    elif jobs:
        show(queue_lines(jobs, str(ports.repository), View(now=ports.clock(), width=terminal_width())))
    else:
        click.echo("no jobs in this Slurm")
