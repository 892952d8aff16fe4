"""``orch reliability``: exposure and interruptions over all runs."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import open_ports
from orchestrator.cli.plan_options import answer, json_option, write_page


@click.command()
@click.option("-o", "output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html",
              help="Write it as a page with pictures too.")
@json_option
def reliability(output: Path | None, as_json: bool) -> None:
    """What all runs together say: exposure, interruptions by ending, M for each number of nodes, whether the rate has
    changed, which node is worse than chance.

    \b
    orch reliability
    orch reliability --json
    """
    from orchestrator.control.look import look_at_all
    from orchestrator.planner.exposure import exposed
    from orchestrator.planner.record import record_of
    from orchestrator.views.reliability import reliability_json, reliability_lines

    ports, _ = open_ports(any_config=True)
    now = ports.clock()
    shown, errors, silent = look_at_all(ports)
    for error in errors:
        click.echo(f"damaged, and left out: {error}", err=True)
    if silent:
        click.echo(f"Slurm does not answer, so live attempts are taken to run still: {silent}", err=True)
    stretches = [stretch for look in shown for stretch in exposed(
        look.run, now, {submission: job.nodes for submission, job in look.jobs.items()})]
    if not any(stretch.hours > 0 for stretch in stretches):
        answer({"attempts": 0, "exposure_h": 0.0, "interruptions": 0}, ["nothing has run yet"], as_json)
        return
    record = record_of(stretches, ports.policy.prior_mtbi_h)
    if output is not None:
        from orchestrator.views.reliability_page import reliability_page

        write_page(output, reliability_page(record))
    answer(reliability_json(record), reliability_lines(record), as_json)
