"""``orch update`` and ``top``: change what waits, where it waits."""

from __future__ import annotations

import click

from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports, print_json


@click.command()
@click.argument("tag", shell_complete=complete_run)
@click.option("--memory", metavar="28G", help="Memory of each node.")
@click.option("--time", "limit", metavar="4:00:00", help="Time limit of an attempt; the trainer's notice follows it.")
@click.option("--nice", type=int, metavar="N", help="How far its jobs step back behind others, as `sbatch --nice`.")
@click.option("--script", is_flag=True, help="Take jobs/TAG/job.sh as it is now, for the next attempt on.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def update(tag: str, memory: str | None, limit: str | None, nice: int | None, script: bool, as_json: bool) -> None:
    """Change what a run asks for: its waiting jobs keep their ids and dependencies, and every later attempt asks for it too.

    An attempt that runs goes on as it is. What Slurm refuses is said in its words (exit 6) and not recorded as done; what no
    node could ever hold is refused (exit 4).

    \b
    orch update resnet-a --memory 28G --time 4:00:00
    orch update resnet-a --nice 100
    orch update resnet-a --script
    """
    from orchestrator.control.publish import publish_state
    from orchestrator.control.update import Wish
    from orchestrator.control.update import update as change
    from orchestrator.views.facts import run_as_json

    ports, _ = open_ports(any_config=True)
    result = change(ports, tag, Wish(memory=memory, time=limit, nice=nice, script=script))
    publish_state(ports)
    if as_json:
        print_json({"already": not result.words, "changed_jobs": list(result.jobs), **run_as_json(result.run)})
    elif not result.words:
        click.echo(f"{tag} is like that already; nothing was changed")
    else:
        live = f"; attempt {result.run.live.number}, which runs, goes on as it is" if result.run.live else ""
        where = f"job {', '.join(result.jobs)} and later attempts" if result.jobs else "from the next attempt on"
        click.echo(f"{tag}: {result.words} ({where}){live}")


@click.command()
@click.argument("tag", shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def top(tag: str, as_json: bool) -> None:
    """Put a run's waiting job before your other jobs, where the site allows it (SchedulerParameters=enable_user_top).

    \b
    orch top resnet-a
    orch queue
    """
    from orchestrator.control.update import top as to_the_top

    ports, _ = open_ports(any_config=True)
    job_id = to_the_top(ports, tag)
    if as_json:
        print_json({"tag": tag, "job_id": job_id})
    else:
        click.echo(f"{tag}: job {job_id} comes before your other waiting jobs; `orch queue` shows the order")
