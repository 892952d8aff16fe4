"""``orch``: arguments in, text and an exit code out. Subcommands are imported when they are called, so that help is quick."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, NoReturn

import click

from orchestrator.errors import OrchError, UserError, storage_error

# name -> (module[:attribute], one line for the list of commands), in the order in which a newcomer meets them
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("repository", "Make this folder a repository that orch works in."),
    "cluster": ("cluster:cluster_group", "Start, show and stop a private Slurm in a folder."),
    "new": ("repository", "Make a job folder to fill in."),
    "submit": ("submit", "Queue a run and its successor."),
    "status": ("look", "One line a run; with TAG its attempts, endings, checkpoints."),
    "watch": ("watch", "The same, live."),
    "queue": ("queue", "Everybody's jobs in this Slurm, in their order."),
    "logs": ("logs", "What a run printed, also into the next attempt."),
    "explain": ("look", "Why a run waits, and what the next pass would do."),
    "hold": ("ask", "Let the live attempt go on and start nothing after it."),
    "release": ("ask", "Let a held run go on."),
    "cancel": ("ask", "Save, then end a run."),
    "update": ("update", "Change memory, time, nice value or job.sh of a run."),
    "top": ("update", "Put a run's waiting job before your others."),
    "save": ("checkpoint", "Ask a running trainer for a checkpoint now."),
    "rollback": ("checkpoint", "Go on from an earlier checkpoint; newer ones are set aside."),
    "wait": ("ask", "Wait until a run is finished, held or cancelled."),
    "daemon": ("daemon", "Passes over all runs, one after another."),
    "tick": ("daemon", "One pass over all runs."),
    "notify": ("notify:notify_group", "Try the channels that orch tells people by."),
    "completion": ("completion", "Let the shell complete commands, options and tags."),
    "reliability": ("reliability", "Interruptions over all runs: M, endings, changes, bad nodes."),
    "plan": ("plan", "Checkpoint interval, storage and copies, and their cost."),
    "should-stop": ("shell:should_stop", "In job.sh: exit code 0 when it is time to save and leave."),
    "should-save": ("shell:should_save", "In job.sh: exit code 0 when it is time to save."),
    "notify-save": ("shell:notify_save", "In job.sh: a file or folder becomes a complete checkpoint."),
    "vendor": ("repository", "Copy the trainer library into this repository, for containers."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and lines, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"orchestrator.cli.{module}"), attribute or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(f'no command "{args[0]}"' + (f'; did you mean "{near[0]}"?' if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="orch-slurm", prog_name="orch")
def orch() -> None:
    """Training jobs on Slurm that keep running until they are finished.

    \b
    orch init && orch new my-run && orch submit my-run
    orch status
    """


_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 prints the help and has no such class


def main() -> NoReturn:
    """The entry point: an OrchError, and a disk's refusal, become text (or, with --json, an object) and an exit code."""
    try:
        orch.main(standalone_mode=False, prog_name="orch")
    except OrchError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except _NO_ARGUMENTS as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        where = f"`{context.command_path} --help` has all that it takes" if context is not None else ""
        _print_error(UserError(error.format_message(), hint=where))
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        refusal = storage_error(error)
        _print_error(refusal)
        sys.exit(refusal.exit_code)
    sys.exit(0)


def _print_error(error: OrchError) -> None:
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": type(error).__name__, "message": error.message, "hint": error.hint}))
        return
    click.echo(f"orch: {error.message}", err=True)
    if error.hint:
        click.echo(f"      {error.hint}", err=True)


if __name__ == "__main__":
    main()
