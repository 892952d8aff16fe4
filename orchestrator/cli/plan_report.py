"""``orch plan report``: a page to show and to keep."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.plan_options import answer, json_option, write_page


@click.command()
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(path_type=Path))
@click.option("-o", "output", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE.html",
              help="Where the page is written.")
@json_option
def report(plan_file: Path, output: Path, as_json: bool) -> None:
    """One self-contained page: cost and waste against write time and interval, today's and the best marked.

    PLAN.yaml has the options of the other commands as keys: params, bytes_per_param, nodes, mode, stall, write and
    interval (as they are today), mtbi, restart, limit, step_time, keep, gpu_hourly_usd, write_range, title.

    \b
    orch plan report plan.yaml -o plan.html
    orch plan report plan.yaml -o plan.html --json
    """
    from orchestrator.cli.plan_files import read_plan
    from orchestrator.planner.report import report as made
    from orchestrator.views.plan_json import interval_json, optimum_json
    from orchestrator.views.plan_page import report_page

    found = made(read_plan(plan_file))
    text = report_page(found)
    write_page(output, text)
    answer({"page": str(output), "interval": interval_json(found.plan), "optimum": optimum_json(found.best)},
           [f"{output}: {len(text) // 1024 + 1} KB, one file, readable without scripts"], as_json)


COMMANDS = (report,)
