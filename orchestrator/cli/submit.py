"""``orch submit``."""

from __future__ import annotations

import os

import click

from orchestrator.cli.completion import complete_job, complete_run
from orchestrator.cli.context import open_ports, print_json


@click.command()
@click.argument("tag", shell_complete=complete_job)
@click.option("--after", multiple=True, metavar="TAG|JOBID", shell_complete=complete_run,
              help="Wait for the real end of that run, or for that job.")
@click.option("--profile", metavar="NAME", help="Resources from this profile of orch.yaml.")
@click.option("--memory", metavar="36G", help="Memory of this run instead of the profile's.")
@click.option("--again", is_flag=True, help="Continue a run that is over or held, with job.sh and resources as they are now.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the script, submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def submit(
    tag: str, after: tuple[str, ...], profile: str | None, memory: str | None, again: bool, dry_run: bool, as_json: bool,
) -> None:
    """Queue a run and its successor, with the resources of one profile and nothing else.

    A tag that is queued or running already is left alone (exit 0).

    \b
    orch submit resnet-a
    orch submit resnet-b --after resnet-a --dry-run
    """
    from orchestrator.control import submit as use
    from orchestrator.control.publish import publish_state
    from orchestrator.views.facts import run_as_json

    ports, _ = open_ports()
    request = use.Request(tag=tag, after=after, profile=profile, memory=memory, again=again)
    spec = use.build_spec(ports, request, os.environ)
    known = use.known_already(ports, tag, again=again)
    if known is None:
        use.check_spec(ports, spec)
    else:
        use.refuse_otherwise(known, spec, request)
    if dry_run:
        script = use.preview(ports, spec)
        if as_json:
            print_json({"tag": tag, "dry_run": True, "script": script, "environment": spec.environment})
        else:
            click.echo(script, nl=False)
        return
    result = use.submit(ports, spec, again=again)
    publish_state(ports)
    jobs = [s.job_id for s in result.run.waiting if s.job_id]
    live = result.run.live
    if as_json:
        print_json({"already": result.already, **run_as_json(result.run), "job_ids": jobs})
    elif result.already:
        queued = f"queued (job {', '.join(jobs)})" if jobs else str(result.run.phase)
        where = f"running (job {live.job_id})" if live else queued
        click.echo(f"{tag} is {where} already; nothing was submitted")
        if spec.script_sha256 != result.run.spec.script_sha256:
            click.echo(f"      jobs/{tag}/job.sh has changed since: attempts use the copy in runs/{tag}/job.sh until "
                       f"`orch update {tag} --script`", err=True)
    else:
        click.echo(f"{tag}: job {jobs[0] if jobs else '?'} queued"
                   + (f", its successor {jobs[1]} behind it" if len(jobs) > 1 else "")
                   + f"; `orch status {tag}`, `orch logs -f {tag}`")
        last = result.run.submissions[-1]
        if last.state == "rejected":
            click.echo(f"      no successor ahead, since Slurm refused it: {last.reason}", err=True)
