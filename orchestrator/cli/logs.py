"""``orch logs``: what a run printed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports, print_json

ASK_SLURM_EVERY_S = 10.0
BLOCK_BYTES = 1 << 20
BLOCKS_MAX = 64


@click.command()
@click.argument("tag", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, into the next attempt, until the run is over.")
@click.option("--attempt", type=int, metavar="N", help="That attempt only.")
@click.option("-n", "lines", type=click.IntRange(min=0), default=50, show_default=True, metavar="N",
              help="How many lines to begin with.")
@click.option("--progress", is_flag=True, help="Instead: the trainer's latest progress as one JSON object.")
def logs(tag: str, follow: bool, attempt: int | None, lines: int, progress: bool) -> None:
    """What a run printed, the newest attempt's last lines by default; of a line that a progress bar has drawn many times
    over, what a terminal shows in the end.

    \b
    orch logs -f resnet-a
    orch logs --progress resnet-a
    """
    from orchestrator import folders
    from orchestrator.control.ports import require_run
    from orchestrator.control.progress import latest_progress
    from orchestrator.errors import UnknownTag, UserError

    ports, _ = open_ports(any_config=True)
    run_dir = folders.run_dir(ports.repository, tag)
    require_run(ports.repository, tag)
    if attempt is not None and not _log(run_dir, attempt).exists():
        raise UnknownTag(f"{tag} has no attempt {attempt} that printed anything", hint=f"`orch status {tag}` lists them")
    if progress:
        if follow:
            raise UserError("--progress prints one object and does not follow", hint=f"orch logs --progress {tag}")
        print_json(latest_progress(ports.repository, tag, attempt))
        return
    number = attempt or _newest(run_dir)
    output = Output(_log(run_dir, number)) if number is not None else None
    if output is None:
        click.echo(f"{tag} has not started yet; `orch explain {tag}` says what it waits for", err=True)
    else:
        output.print_last(lines)
    if follow:
        _follow(tag, run_dir, attempt, number, output)
    elif output is not None:
        output.print_rest()


def _follow(tag: str, run_dir: Path, only: int | None, number: int | None, output: Output | None) -> None:
    from orchestrator.control.look import look_at
    from orchestrator.control.ports import read_run, require_run
    from orchestrator.views.facts import state_word

    ports, _ = open_ports(any_config=True)
    run, looked_at = require_run(ports.repository, tag), float("-inf")
    while True:
        if time.monotonic() - looked_at >= ASK_SLURM_EVERY_S:  # what no pass has noted yet, where no daemon runs
            run, looked_at = look_at(ports, tag).run, time.monotonic()
        elif (noted := read_run(ports.repository, tag)) is not None and noted.over:
            run = noted
        newest = _newest(run_dir)
        over = run.over or (run.phase == "held" and run.live is None) or (only is not None and number != newest)
        if output is not None:
            output.print_new()
        if only is None and newest is not None and newest != number:
            if output is not None:
                output.print_rest()
            click.echo(f"--- attempt {newest} ---", err=True)
            number, output = newest, Output(_log(run_dir, newest))
            output.print_new()
        if over:
            if output is not None:
                output.print_rest()
            click.echo(f"--- {tag} is {state_word(run)}{f': {run.phase_reason}' if run.phase_reason else ''} ---", err=True)
            return
        time.sleep(0.5)


class Output:
    """An attempt's output as it grows: to a terminal byte by byte, which draws bars itself; elsewhere by whole lines."""

    def __init__(self, path: Path) -> None:
        from orchestrator.views.terminal import ShownLines

        self._path = path
        self._at = 0
        self._lines = ShownLines()
        self._to_terminal = sys.stdout.isatty()
        self._is_open = False          # the terminal's last line has not ended

    def print_last(self, lines: int) -> None:
        with self._path.open("rb") as file:
            self._at = file.seek(0, os.SEEK_END)
            data = _last_lines(file, self._at, lines)
        _echo(self._lines.take(data))
        if self._to_terminal:
            rest = "".join(self._lines.end())
            click.echo(rest, nl=False)
            self._is_open = bool(rest)

    def print_new(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return
        self._at += len(data)
        if not self._to_terminal:
            _echo(self._lines.take(data))
        elif data:
            click.echo(data, nl=False)
            self._is_open = not data.endswith(b"\n")

    def print_rest(self) -> None:
        """Nothing more comes: the last line ends here, wherever it is."""
        _echo(self._lines.end() or ([""] if self._is_open else []))
        self._is_open = False


def _echo(lines: list[str]) -> None:
    if lines:
        click.echo("\n".join(lines))


def _last_lines(file: BinaryIO, end: int, lines: int) -> bytes:
    """Read backwards; a bar may have been drawn into one line for hours, so not without end."""
    begin, blocks, found = end, list[bytes](), 0
    while begin > 0 and found <= lines and len(blocks) < BLOCKS_MAX:
        begin = max(0, begin - BLOCK_BYTES)
        file.seek(begin)
        blocks.append(file.read(min(BLOCK_BYTES, end - begin - sum(map(len, blocks)))))
        found += blocks[-1].count(b"\n")
    parts = b"".join(reversed(blocks)).split(b"\n")
    kept = lines + 1 if parts[-1] == b"" else lines
    return b"\n".join(parts[-kept:]) if lines else b""


def _log(run_dir: Path, number: int) -> Path:
    from orchestrator import folders

    return folders.attempt_dir(run_dir, number) / "out.log"


def _newest(run_dir: Path) -> int | None:
    """The newest attempt that has printed something."""
    from orchestrator import folders
    from orchestrator.control.progress import attempt_numbers

    return next((number for number in attempt_numbers(run_dir) if _log(run_dir, number).exists()
                 and (folders.attempt_dir(run_dir, number) / "start.json").exists()), None)
