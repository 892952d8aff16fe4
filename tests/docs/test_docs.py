"""What the program says of itself: every command and option has help, with examples that run; exit codes are as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import errors
from orchestrator.cli.main import COMMANDS, orch


def commands(group: click.Group, path: tuple[str, ...] = ("orch",)) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    context = click.Context(group, **group.context_settings)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ROOT = Path(__file__).parents[2]
ALL = list(commands(orch))


def command_at(words: list[str]) -> click.Command:
    """The command that these words of a shell line name."""
    found: click.Command = orch
    for word in words:
        if not isinstance(found, click.Group):
            break
        inner = found.get_command(click.Context(found, **found.context_settings), word)
        assert inner is not None, f"no command {word}"
        found = inner
    return found


@pytest.mark.parametrize(("path", "command"), ALL, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_every_command_and_option_has_help(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help and command.help.strip()[0].isupper()
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help and parameter.help.endswith("."), f"{' '.join(path)} {parameter.opts[0]}"


@pytest.mark.parametrize(("path", "command"), ALL, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_help_ends_in_two_examples_that_parse(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help is not None
    lines = [line.strip() for line in command.help.strip().splitlines()]
    assert "" in lines[:-2] or "\b" in lines[:-2]
    for line in lines[-2:]:
        used = [part for part in re.split(r"\s*(?:&&|\|\||\||;)\s*", line) if re.search(r"\borch\b", part)]
        assert used or any("orch" in other for other in lines[-2:]), line
        for part in used:
            words = shlex.split(part[part.index("orch"):].partition(" >")[0].removesuffix("&"))
            if words[0] != "orch":
                continue
            target = command_at(words[1:])
            depth = len(words[1:]) if isinstance(target, click.Group) else next(
                i for i, w in enumerate(words[1:], 1) if command_at(words[1: i + 1]) is target)
            target.make_context(words[0], words[1 + depth:], resilient_parsing=False)
    assert any(" ".join(path) in line for line in lines[-2:])


def test_the_list_of_commands_is_short_and_whole() -> None:
    listed = orch.get_help(click.Context(orch, **orch.context_settings))
    for name, (_, line) in COMMANDS.items():
        assert name in listed and line in listed.replace("\n", " ") and len(line) < 70 and line.endswith(".")


def test_the_pages_that_are_written_from_the_program_are_up_to_date() -> None:
    """In a process of its own: click keeps the help option of whoever asked first."""
    ran = subprocess.run([sys.executable, ROOT / "ops" / "docs.py", "--check"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


def tree() -> dict[str, int]:
    """Class -> exit code as the head of errors.py draws it; one without a number has its parent's."""
    drawn: dict[str, int] = {}
    parents: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(\s*[│├└─\s]*)([A-Z]\w+)\s{2,}(\d+)?|(\s*[│├└─\s]*)([A-Z]\w+)$", line)
        if not match:
            continue
        indent, name, code = match.group(1) or match.group(4) or "", match.group(2) or match.group(5), match.group(3)
        parents = [p for p in parents if p[0] < len(indent)]
        inherited = drawn[parents[-1][1]] if parents else errors.OrchError.exit_code
        drawn[name] = int(code) if code else inherited
        parents.append((len(indent), name))
    return drawn


def test_exit_codes_are_as_the_head_of_errors_says() -> None:
    classes = {name: value.exit_code for name, value in vars(errors).items()
               if isinstance(value, type) and issubclass(value, errors.OrchError)}
    drawn = tree()
    assert set(drawn) == set(classes)
    # the drawing gives a group of Slurm's errors no number of its own
    assert {name: code for name, code in drawn.items() if name != "SlurmError"} == {
        name: code for name, code in classes.items() if name != "SlurmError"}


def test_every_error_says_what_it_is() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.OrchError):
            assert value.__doc__ and value.__doc__.strip().endswith(".")
