"""``orch init``, ``new`` and ``vendor``: files in the user's repository. Nothing that is there is overwritten."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.completion import complete_job
from orchestrator.cli.context import find_repository


@click.command()
def init() -> None:
    """Make this folder a repository that orch works in; what is there already stays as it is.

    \b
    orch init
    orch init && orch new my-first-run
    """
    from orchestrator.control.scaffold import init_repository

    for line in init_repository(Path.cwd()):
        click.echo(line)


@click.command()
@click.argument("tag")
@click.option("--from", "source", metavar="TAG", shell_complete=complete_job,
              help="Copy that job's folder instead of a template.")
def new(tag: str, source: str | None) -> None:
    """Make a job folder: jobs/TAG/job.sh with the command and a commented jobs/TAG/job.yaml.

    \b
    orch new resnet-a
    orch new resnet-b --from resnet-a
    """
    from orchestrator.control.scaffold import new_job

    for line in new_job(find_repository(), tag, source):
        click.echo(line)


@click.command()
def vendor() -> None:
    """Copy the trainer library into this repository (orch_trainer/), for containers that see nothing else.

    \b
    orch vendor
    git add orch_trainer
    """
    from orchestrator.control.scaffold import vendor_library

    click.echo(vendor_library(find_repository()))
