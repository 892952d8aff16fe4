"""``orch should-stop``, ``should-save``, ``notify-save``, for help and completion: ``cli.entry`` runs them without it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from orch_trainer import shell


@click.command("should-stop")
def should_stop() -> None:
    """For job scripts without Python: exit code 0 when a notice or a stop request came, 1 to go on.

    \b
    if orch should-stop; then save; exit 0; fi
    orch should-stop && exit 0
    """
    sys.exit(shell.main(["should-stop"]))


@click.command("should-save")
def should_save() -> None:
    """For job scripts without Python: exit code 0 when a save is due, or `orch save` asks for one; 1 to go on.

    The interval is the run's (T*), from the start of one `orch notify-save` to the next. After a notice it says 1: what is
    to be saved then, `orch should-stop` says.

    \b
    if orch should-save; then save; fi
    orch should-save && save
    """
    sys.exit(shell.main(["should-save"]))


@click.command("notify-save")
@click.argument("step", type=click.IntRange(min=0))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--stall", type=click.FloatRange(min=0), metavar="SECONDS",
              help="For how long training stood still to write it.")
def notify_save(step: int, path: Path, stall: float | None) -> None:
    """For job scripts without Python: PATH, a file or a folder, is the state after STEP; it becomes a complete checkpoint.

    A folder directly in $ORCH_CHECKPOINT_DIR is one where it lies; anything else is copied there. The next attempt finds
    it in $ORCH_RESUME_FROM. Exit code 1: not saved, as for a full disk; 76: a newer start has taken the run.

    \b
    orch notify-save 1200 state.bin
    orch notify-save 1200 out --stall 0.8
    """
    more = [] if stall is None else ["--stall", str(stall)]
    sys.exit(shell.main(["notify-save", str(step), str(path), *more]))
