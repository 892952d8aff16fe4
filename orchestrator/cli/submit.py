"""``orch submit``."""

from __future__ import annotations

import os

import click

from orchestrator.cli.campaign import submit_all
from orchestrator.cli.completion import complete_job, complete_run
from orchestrator.cli.context import open_ports, print_json
from orchestrator.model import Canary, Phase, Run


@click.command()
@click.argument("tag", metavar="TAG|CAMPAIGN", shell_complete=complete_job)
@click.option("--after", multiple=True, metavar="TAG|TAG:ended|JOBID", shell_complete=complete_run,
              help="Begin when that run has finished, across all its attempts; when it has ended in any way; after that job.")
@click.option("--profile", metavar="NAME", help="Resources from this profile of orch.yaml.")
@click.option("--memory", metavar="36G", help="Memory of this run instead of the profile's.")
@click.option("--again", is_flag=True, help="Continue a run that is over or held, with job.sh and resources as they are now.")
@click.option("--prove-resume", is_flag=True, help="Stop the first attempt within minutes, and hold the run unless step and "
              "loss go on in the next. For trainers that use orch_trainer.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the script, submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def submit(
    tag: str, after: tuple[str, ...], profile: str | None, memory: str | None, again: bool, prove_resume: bool, dry_run: bool,
    as_json: bool,
) -> None:
    """Queue a run and its successor, with the resources of one profile and nothing else. Or a whole campaign, by its name or
    its file jobs/NAME.campaign.yaml.

    A tag that is queued or running already is left alone (exit 0); of a campaign what is missing is submitted.

    \b
    orch submit resnet-b --after resnet-a
    orch submit jobs/ablation.campaign.yaml --dry-run
    """
    from orchestrator.config.after import parse_option
    from orchestrator.control import submit as use
    from orchestrator.control.campaign import as_in_campaign, named
    from orchestrator.control.checks import options_without_effect
    from orchestrator.control.publish import publish_state
    from orchestrator.folders import job_dir
    from orchestrator.views.campaign import submitted_words
    from orchestrator.views.facts import how_to_go_on, run_as_json

    ports, _ = open_ports()
    if (campaign := named(ports, tag)) is not None:
        submit_all(ports, campaign, dry_run=dry_run, as_json=as_json,
                   for_one=bool(after or profile or memory or again or prove_resume))
        return
    request = use.Request(tag=tag, after=parse_option(after), profile=profile, memory=memory, again=again,
                          prove_resume=prove_resume)
    spec = use.build_spec(ports, as_in_campaign(ports, request), os.environ)
    known = use.known_already(ports, tag, again=again)
    if known is None:
        use.check_spec(ports, spec)
        if words := options_without_effect(job_dir(ports.repository, tag) / "job.sh", spec.profile.name):
            click.echo(f"orch: {words}", err=True)
    else:
        use.refuse_otherwise(known, spec, request)
    if dry_run:
        script, lost = use.preview(ports, spec), use.why_not_queued(ports, spec)
        _show_script(tag, script, lost, spec.environment if as_json else None)
        return
    result = use.submit(ports, spec, again=again)
    publish_state(ports)
    jobs, live = [s.job_id for s in result.run.waiting if s.job_id], result.run.live
    if as_json:
        print_json({"already": result.already, **run_as_json(result.run), "job_ids": jobs})
    elif result.already:
        queued = f"queued (job {', '.join(jobs)})" if jobs else str(result.run.phase)
        where = f"running (job {live.job_id})" if live else queued
        click.echo(f"{tag} is {where} already; nothing was submitted")
        if spec.script_sha256 != result.run.spec.script_sha256:
            click.echo(f"      jobs/{tag}/job.sh has changed since: attempts use the copy in runs/{tag}/job.sh until "
                       f"`orch update {tag} --script`", err=True)
    elif result.run.phase == Phase.HELD:
        click.echo(f"{submitted_words(result.run, False)}\n{how_to_go_on(result.run)}")
    else:
        _say_queued(result.run, jobs)


def _say_queued(run: Run, jobs: list[str]) -> None:
    tag = run.spec.tag
    click.echo(f"{tag}: job {jobs[0] if jobs else '?'} queued"
               + (f", its successor {jobs[1]} behind it" if len(jobs) > 1 else "")
               + f"; `orch status {tag}`, `orch logs -f {tag}`")
    if run.canary == Canary.WANTED:
        click.echo(f"      `orch daemon` stops it within minutes; `orch status {tag}` then says whether it has resumed")
    last = run.submissions[-1]
    if last.state == "rejected":
        click.echo(f"      no successor ahead, since Slurm refused it: {last.reason}", err=True)


def _show_script(tag: str, script: str, lost: str, environment: dict[str, str] | None) -> None:
    """A dry run; ``environment`` where an object is to be printed."""
    if environment is not None:
        print_json({"tag": tag, "dry_run": True, "script": script, "environment": environment, "would_be_held": lost})
        return
    if lost:
        click.echo(f"orch: {tag} would be recorded and held: it {lost}", err=True)
    click.echo(script, nl=False)
