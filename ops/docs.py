"""Writes what documentation says of commands and keys from the program itself: ``.venv/bin/python ops/docs.py``.

docs/commands.md is every command's help. A test fails while a file says something else than the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from orchestrator.cli.main import orch

ROOT = Path(__file__).parents[1]


def commands(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Every command, groups themselves among them, in the order of ``orch --help``."""
    context = click.Context(command, parent, info_name=command.name, max_content_width=100, terminal_width=100,
                            **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, context)


def commands_page() -> str:
    """docs/commands.md."""
    lines = ["# Commands", "", "Written by `ops/docs.py` from the program's own help; `orch COMMAND --help` prints the same.",
             "Exit codes are in [configuration.md](configuration.md#exit-codes)."]
    for context in commands(orch):
        lines += ["", f"## `{context.command_path}`", "", "```text", context.get_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


PAGES = {"docs/commands.md": commands_page}


def main() -> int:
    stale = [name for name, page in PAGES.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != page()]
    if "--check" in sys.argv:
        print(*(f"{name} is out of date: run .venv/bin/python ops/docs.py" for name in stale), sep="\n", end="")
        return len(stale)
    for name in stale:
        (ROOT / name).write_text(PAGES[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
