"""Lines on a terminal, in colour, or as plain text where they go into a pipe or a file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from orchestrator.views.text import Line

COLOURS = {"title": "bold", "good": "green", "warn": "yellow", "bad": "bold red", "faint": "dim", "": ""}


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def terminal_height() -> int | None:
    """Lines of the terminal that stdout is, less the one of the cursor; None where it is none."""
    return shutil.get_terminal_size().lines - 1 if sys.stdout.isatty() else None


def show(lines: Sequence[Line]) -> None:
    """Print lines; colour only on a terminal, and not where NO_COLOR or a dumb terminal forbids it."""
    from orchestrator.views.text import plain

    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        for line in lines:
            click.echo(plain(line))
        return
    screen = console()
    for line in lines:
        screen.print(as_text(line), soft_wrap=True)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def as_text(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((text, COLOURS[style]) for text, style in line))
