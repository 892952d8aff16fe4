"""``orch daemon`` and ``orch tick``: the loop, and one pass."""

from __future__ import annotations

import os
import random
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import open_ports, print_json, slurm_conf, this_program

if TYPE_CHECKING:
    from orchestrator.control.ports import Ports


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print each line as an object: t, tag, action, text, ...")
@click.option("--print-unit", "text", flag_value="unit", help="Instead: print a systemd user unit for it.")
@click.option("--print-cron", "text", flag_value="cron", help="Instead: print a crontab line that does its work.")
@click.option("--print-scrontab", "text", flag_value="scrontab", help="Instead: print a scrontab entry that does its work.")
def daemon(as_json: bool, text: str | None) -> None:
    """Passes over all runs of this repository, 30 s apart (`daemon: {every: 30s}`), in the foreground.

    SIGTERM and SIGINT end it after the pass, SIGHUP makes it read orch.yaml and pass at once. Jobs need no daemon to run; it
    queues what comes after them.

    \b
    orch daemon --print-unit > ~/.config/systemd/user/orch.service
    nohup orch daemon >> ops/daemon.log 2>&1 &
    """
    import faulthandler

    from orchestrator import startup
    from orchestrator.control.loop import Daemon, only_daemon
    from orchestrator.control.passes import Line
    from orchestrator.control.service import Signals, say_to_people, say_to_programs, startup_of
    from orchestrator.sd_notify import Manager

    ports, config = open_ports(any_config=text is not None)
    if text is not None:
        write = {"unit": startup.daemon_unit, "cron": startup.tick_crontab, "scrontab": startup.tick_scrontab}[text]
        conf = os.environ.get("SLURM_CONF", "") if slurm_conf(ports.repository, config) is None else ""
        start = startup_of(ports.repository, config, orch=this_program(), sbatch=_sbatch(), conf=conf)
        click.echo(write(start), nl=False)
        return

    def reload() -> tuple[Ports, float]:
        again, fresh = open_ports(ports.repository)  # not a folder above, while orch.yaml is being replaced
        return again, fresh.every_s

    say = say_to_programs(click.echo) if as_json else say_to_people(click.echo)
    with only_daemon(ports.repository):
        faulthandler.enable()                          # systemd's watchdog ends what hangs by SIGABRT
        signals = Signals()
        say("", Line(f"daemon for {ports.repository}, a pass every {config.every_s:g} s", "begin"))
        loop = Daemon(ports=ports, every_s=config.every_s, reload=reload, monotonic=time.monotonic,
                      jitter=lambda: random.uniform(-1, 1), say=say, manager=Manager(os.environ))
        loop.run(signals.sleep, lambda: signals.stopping, signals.hung_up)
        say("", Line("ended; jobs go on by themselves", "end"))


def _sbatch() -> Path | None:
    program = "sbatch"                                 # only looked for, never started here
    found = shutil.which(program)
    if found is None:
        click.echo(f"orch: there is no {program} in this shell's PATH: add its folder to the PATH below", err=True)
    return Path(found) if found else None


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
    from orchestrator.control.service import say_to_people
    from orchestrator.control.tell import tell
    from orchestrator.errors import SlurmUnreachable

    ports, _ = open_ports()
    report = pass_over_all(ports)
    told = tell(ports, report)
    for line in (*told.lines, *([told.trouble] if told.trouble else [])):
        click.echo(f"notify: {line}", err=True)
    if report.snapshot is not None and report.snapshot.answers.accounting_silent:
        click.echo(f"accounting does not answer: {report.snapshot.answers.accounting_silent}", err=True)
    publish_state(ports, report)
    silent = report.snapshot.silent if report.snapshot else None
    if as_json:
        print_json({"runs": [{"tag": r.tag, "did": list(r.lines), "error": str(r.error) if r.error else None}
                             for r in report.runs], "slurm_silent": silent})
    else:
        say, complain = say_to_people(click.echo), say_to_people(partial(click.echo, err=True))
        for run in report.runs:
            for line in run.lines:
                say(run.tag, line)
            if run.error is not None:
                complain(run.tag, str(run.error))
    errors = [run.error for run in report.runs if run.error is not None]
    if silent is not None:
        raise SlurmUnreachable(f"Slurm does not answer: {silent}", hint=report.snapshot.hint if report.snapshot else "")
    if errors:
        raise errors[0]
