"""Writes what documentation says of commands and keys from the program itself: ``.venv/bin/python ops/docs.py``.

docs/commands.md is every command's help; the tables of keys in docs/configuration.md and docs/campaigns.md come from
the types that parse them. A test fails while a file says something else than the program.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from orchestrator.cli.main import orch
from orchestrator.config import keys
from orchestrator.core import fold

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


def configuration_page() -> str:
    """docs/configuration.md with its two tables of keys written anew; the rest stays as it is."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    return with_keys(with_keys(text, "orch.yaml", keys.ConfigFile), "job.yaml", keys.JobFile)


def campaigns_page() -> str:
    """docs/campaigns.md, likewise."""
    return with_keys((ROOT / "docs" / "campaigns.md").read_text(), "a campaign's run", keys.CampaignPartFile)


def with_keys(text: str, name: str, kind: type[msgspec.Struct]) -> str:
    """A page with its table of these keys written anew."""
    table = "\n".join(["| key | unit | default | meaning |", "|---|---|---|---|", *rows(kind)])
    text, count = re.subn(rf"(<!-- keys of {name}:[^\n]*-->\n).*?(<!-- end -->)",
                          lambda match: match[1] + table + "\n" + match[2], text, flags=re.DOTALL)
    assert count == 1, f"there is no place for the keys of {name}"
    return text


def rows(kind: type[msgspec.Struct], above: str = "") -> Iterator[str]:
    """A line a key, those of inner mappings behind their own."""
    for field in msgspec.structs.fields(kind):
        inner, meta = inner_struct(field.type), next((m for m in get_args(field.type) if isinstance(m, msgspec.Meta)), None)
        if meta is not None and not (inner is not None and field.default is None):
            yield row(f"{above}{field.name}{':' if inner else ''}", field, meta)
        if inner is not None:
            named = "NAME: " if "dict" in str(field.type) else ""
            yield from rows(inner, f"{above}{field.name}: {named}")


def inner_struct(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for part in get_args(kind) if (found := inner_struct(part)) is not None), None)


def row(name: str, field: Any, meta: msgspec.Meta) -> str:
    extra = meta.extra or {}
    default = extra.get("default")
    if default is None:
        value = f"{field.default:g}" if isinstance(field.default, float) else field.default
        default = f"`{value}`" if value is not None else "none"
    return f"| `{name}` | {extra.get('unit', '')} | {default} | {meta.description} |"


def events_page() -> str:
    """docs/events.md: the head of core/fold.py, and a line of every kind from the journals that tests replay."""
    text, _, table = (fold.__doc__ or "").partition("\n    submit")
    samples = [line for path in sorted((ROOT / "tests" / "journals").glob("*.jsonl"))
               for line in path.read_text(errors="replace").splitlines()]
    known = {found[1]: line for line in reversed(samples) if (found := re.match(r'\{"event": "([a-z]+)".*\}$', line))}
    lines = ["# The events of a journal", "", "Written by `ops/docs.py` from the head of `orchestrator/core/fold.py`.", "",
             text.strip(), "", "```text", textwrap.dedent("    submit" + table).rstrip(), "```", "",
             "A line of each kind, from the journals in `tests/journals`:", ""]
    for name, line in sorted(known.items()):
        lines += [f"## {name}", "", "```json", line if len(line) < 900 else line[:900] + " ...", "```", ""]
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"docs/events.md": events_page, "docs/commands.md": commands_page, "docs/configuration.md": configuration_page,
         "docs/campaigns.md": campaigns_page}


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
