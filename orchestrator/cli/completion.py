"""``orch completion``: the shell's completion of commands, options and tags."""

from __future__ import annotations

import os
from pathlib import Path

import click

from orchestrator.errors import UserError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes this shell complete commands, options and tags. bash and zsh: append it to ~/.bashrc or ~/.zshrc.

    \b
    orch completion bash >> ~/.bashrc
    orch completion fish > ~/.config/fish/completions/orch.fish
    """
    from click.shell_completion import get_completion_class

    from orchestrator.cli.main import orch

    maker = get_completion_class(shell)
    assert maker is not None, "click knows these three"
    click.echo(maker(orch, {}, "orch", "_ORCH_COMPLETE").source())


def complete_run(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Tags of runs, by the names of folders alone, and campaigns."""
    return _names("runs", begun)


def complete_job(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Tags of job folders, and campaigns."""
    return _names("jobs", begun)


def _names(folder: str, begun: str) -> list[str]:
    from orchestrator.cli.context import find_repository

    try:
        repository = find_repository(Path.cwd())
        with os.scandir(repository / folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        names += [path.name.removesuffix(".campaign.yaml") for path in (repository / "jobs").glob("*.campaign.yaml")]
    except (UserError, OSError):
        return []
    return sorted(name for name in names if name.startswith(begun) and not name.startswith("."))
