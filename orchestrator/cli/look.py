"""``orch status`` and ``explain``: they look, and change nothing."""

from __future__ import annotations

import click

from orchestrator.cli.context import open_ports, print_json


@click.command()
@click.argument("tag", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def status(tag: str | None, as_json: bool) -> None:
    """One line a run; with TAG its attempts with their endings, idle time and lost work, and its checkpoints.

    \b
    orch status
    orch status resnet-a --json
    """
    from orchestrator import folders
    from orchestrator.checkpoints import complete_checkpoints
    from orchestrator.control.look import look_at, look_at_all
    from orchestrator.views import facts
    from orchestrator.views.status import run_lines, status_lines

    ports, _ = open_ports(any_config=True)
    if tag is not None:
        seen = look_at(ports, tag)
        if as_json:
            print_json({**facts.run_as_json(seen.run, seen.jobs, seen.progress), "reliability": seen.setting.as_event(),
                        "slurm_silent": seen.silent})
            return
        checkpoints = complete_checkpoints(folders.checkpoint_dir(folders.run_dir(ports.repository, tag)))
        lines = run_lines(seen.run, seen.jobs, seen.progress, checkpoints, ports.clock(), seen.setting)
        if seen.silent:
            lines += ["", f"Slurm does not answer: {seen.silent}"]
        click.echo("\n".join(lines))
        return
    looks, errors, silent = look_at_all(ports)
    if as_json:
        print_json({"runs": [facts.run_as_json(look.run, look.jobs, look.progress) for look in looks],
                    "errors": [str(error) for error in errors], "slurm_silent": silent})
        return
    if looks:
        click.echo("\n".join(status_lines([(k.run, k.jobs, k.progress) for k in looks], ports.clock())))
    elif not errors:
        click.echo("no runs yet: `orch new TAG`, then `orch submit TAG`")
    for error in errors:
        click.echo(f"damaged: {error}\n         {error.hint}", err=True)
    if silent:
        click.echo(f"Slurm does not answer: {silent}", err=True)


@click.command()
@click.argument("tag")
@click.option("--interval", "the_interval", is_flag=True, help="How M and the checkpoint interval came about, worked out.")
def explain(tag: str, the_interval: bool) -> None:
    """What the next pass would note and do about this run, and why; nothing is done.

    \b
    orch explain resnet-a
    orch explain resnet-a --interval
    """
    from orchestrator.control.look import explain_interval, explain_run

    ports, _ = open_ports(any_config=True)
    click.echo("\n".join(explain_interval(ports, tag) if the_interval else explain_run(ports, tag)))
