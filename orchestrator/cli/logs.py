"""``orch logs``: what a run printed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from orchestrator.cli.context import open_ports


@click.command()
@click.argument("tag")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, into the next attempt, until the run is over.")
@click.option("--attempt", type=int, metavar="N", help="That attempt only.")
@click.option("-n", "lines", type=int, default=50, show_default=True, metavar="N", help="How many lines to begin with.")
def logs(tag: str, follow: bool, attempt: int | None, lines: int) -> None:
    """What a run printed, the newest attempt's last lines by default.

    \b
    orch logs resnet-a -n 200
    orch logs -f resnet-a
    """
    from orchestrator import folders
    from orchestrator.control.look import look_at
    from orchestrator.control.ports import read_run, require_run
    from orchestrator.errors import UnknownTag
    from orchestrator.views.facts import state_word

    ports, _ = open_ports(any_config=True)
    run_dir = folders.run_dir(ports.repository, tag)
    run = require_run(ports.repository, tag)
    if attempt is not None and not _log(run_dir, attempt).exists():
        raise UnknownTag(f"{tag} has no attempt {attempt} that printed anything", hint=f"`orch status {tag}` lists them")
    shown = _tail(run_dir, attempt or _newest(run_dir), lines)
    if shown is None:
        click.echo(f"{tag} has not started yet; `orch explain {tag}` says what it waits for", err=True)
    looked_at = float("-inf")
    while follow:
        if time.monotonic() - looked_at >= ASK_SLURM_EVERY_S:  # what no pass has noted yet, where no daemon runs
            run, looked_at = look_at(ports, tag).run, time.monotonic()
        elif (noted := read_run(ports.repository, tag)) is not None and noted.over:
            run = noted
        newest = attempt or _newest(run_dir)
        if newest is not None and (shown is None or newest > shown[0]):
            _print_new(run_dir, shown)
            shown = (newest, 0)
            click.echo(f"--- attempt {newest} ---", err=True)
        shown = _print_new(run_dir, shown)
        if run.over or (run.phase == "held" and run.live is None) or (attempt is not None and newest != _newest(run_dir)):
            shown = _print_new(run_dir, shown)
            click.echo(f"--- {tag} is {state_word(run)}{f': {run.phase_reason}' if run.phase_reason else ''} ---", err=True)
            return
        time.sleep(0.5)


ASK_SLURM_EVERY_S = 10.0


def _log(run_dir: Path, number: int) -> Path:
    from orchestrator import folders

    return folders.attempt_dir(run_dir, number) / "out.log"


def _newest(run_dir: Path) -> int | None:
    """The newest attempt that has printed something."""
    attempts = run_dir / "attempts"
    names = sorted((p.name for p in attempts.iterdir() if p.name.isdigit()), reverse=True) if attempts.is_dir() else []
    return next((int(name) for name in names
                 if (attempts / name / "start.json").exists() and (attempts / name / "out.log").exists()), None)


def _tail(run_dir: Path, number: int | None, lines: int) -> tuple[int, int] | None:
    """Print the last lines of an attempt; where the output ends: (attempt, byte)."""
    if number is None or not _log(run_dir, number).exists():
        return None
    data = _log(run_dir, number).read_bytes()
    click.echo(b"\n".join(data.splitlines()[-lines:]).decode(errors="replace"))
    return number, len(data)


def _print_new(run_dir: Path, shown: tuple[int, int] | None) -> tuple[int, int] | None:
    if shown is None:
        return None
    number, offset = shown
    try:
        with _log(run_dir, number).open("rb") as file:
            file.seek(offset)
            data = file.read()
    except OSError:
        return shown
    if data:
        click.echo(data.decode(errors="replace"), nl=False)
    return number, offset + len(data)
