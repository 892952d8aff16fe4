"""``orch watch``: ``orch status``, live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from orchestrator.cli.completion import complete_run
from orchestrator.cli.context import open_ports
from orchestrator.cli.terminal import as_text, console, show, terminal_height, terminal_width

if TYPE_CHECKING:
    from orchestrator.control.ports import Ports, Snapshot
    from orchestrator.views.status import View
    from orchestrator.views.text import Line

LOOK_EVERY_S = 2.0
ASK_SLURM_EVERY_S = 10.0


@click.command()
@click.argument("tag", metavar="[TAG|CAMPAIGN]", required=False, shell_complete=complete_run)
def watch(tag: str | None) -> None:
    """What `orch status` shows, renewed every two seconds, until everything is over or held, or Ctrl-C. Slurm is asked every
    ten seconds at most; nothing is changed. Into a pipe it prints once.

    \b
    orch watch
    orch watch resnet-a
    """
    from orchestrator.control.campaign import named

    ports, _ = open_ports(any_config=True)
    frame = Frames(ports, tag, named(ports, tag) if tag is not None else None)
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        show(frame.lines()[0])
        return
    try:
        _live(frame.lines)
    except KeyboardInterrupt:
        return


class Frames:
    """What is shown at a time, from what Slurm said at most ten seconds ago."""

    def __init__(self, ports: Ports, tag: str | None, campaign: str | None = None) -> None:
        self._ports, self._tag, self._campaign = ports, tag, campaign
        self._snapshot: Snapshot | None = None
        self._asked_at = float("-inf")

    def lines(self) -> tuple[list[Line], bool]:
        """The lines, and whether everything is over or held."""
        from orchestrator.control.look import look_at_all, whole_of
        from orchestrator.views.status import View, at_rest, run_lines, status_lines
        from orchestrator.views.text import fitting, one_line, wrapped

        view = View(now=self._ports.clock(), width=terminal_width(), height=terminal_height())
        if self._campaign is not None:
            return self._of_campaign(self._campaign, view)
        if self._tag is not None:
            whole = whole_of(self._ports, self._tag, self._ask)
            return fitting(run_lines(whole, view), view.height), at_rest(whole.shown.run)
        shown, errors, silent = look_at_all(self._ports, self._ask)
        lines = status_lines(shown, view)
        troubles = [f"damaged: {error}" for error in errors] + ([f"Slurm does not answer: {silent}"] if silent else [])
        for trouble in troubles:
            lines += wrapped(one_line(trouble), view.width, style="bad")
        if not shown and not errors:
            lines = wrapped("no runs yet: `orch new TAG`, then `orch submit TAG`", view.width)
        return fitting(lines, view.height), all(at_rest(one.run) for one in shown)

    def _of_campaign(self, name: str, view: View) -> tuple[list[Line], bool]:
        from orchestrator.control.campaign import look_at_campaign
        from orchestrator.views.campaign import campaign_lines
        from orchestrator.views.status import at_rest
        from orchestrator.views.text import fitting

        after, rows, _ = look_at_campaign(self._ports, name, self._ask)
        return fitting(campaign_lines(name, after, rows, view), view.height), all(at_rest(one.run) for one in rows.values())

    def _ask(self, ports: Ports) -> Snapshot:
        from orchestrator.control.ports import ask_slurm

        if self._snapshot is None or time.monotonic() - self._asked_at >= ASK_SLURM_EVERY_S:
            self._snapshot, self._asked_at = ask_slurm(ports), time.monotonic()
        return self._snapshot


def _live(lines: Callable[[], tuple[list[Line], bool]]) -> None:
    """Draw until everything rests; the last picture stays on the terminal."""
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found, resting = lines()
            live.update(Group(*(as_text(line) for line in found)), refresh=True)
            if resting:
                return
            time.sleep(LOOK_EVERY_S)
