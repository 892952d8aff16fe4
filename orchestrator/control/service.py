"""The daemon as a process: which signals it hears, and how its lines are said to people and to programs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from orchestrator.config import Config
from orchestrator.config.notify import CREDENTIAL
from orchestrator.control.passes import Line
from orchestrator.core.script import repository_key
from orchestrator.errors import UserError
from orchestrator.startup import WATCHDOG_AT_LEAST_S, Startup, short_path

Say = Callable[[str, str], None]       # tag, line


class Signals:
    """SIGTERM and SIGINT end the daemon after the pass, SIGHUP makes it read orch.yaml and pass at once; both end a sleep.

    A SIGHUP because the terminal was closed ends it too: nobody is left whom it could tell anything.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._hung_up = False
        self._had_terminal = _to_terminal()
        self._wakes, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP or (self._had_terminal and not _to_terminal()):
            self.stopping = True
        else:
            self._hung_up = True

    def hung_up(self) -> bool:
        """Whether a SIGHUP came since this was asked last."""
        came, self._hung_up = self._hung_up, False
        return came

    def sleep(self, seconds: float) -> None:
        """Until a signal comes at most."""
        select.select([self._wakes], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)


def _to_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def say_to_people(print_line: Callable[[str], None]) -> Say:
    """``2026-01-31 12:00:00 TAG: line``; a traceback as so many lines."""
    def say(tag: str, line: str) -> None:
        for part in line.splitlines():
            _quietly(print_line, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {tag + ': ' if tag else ''}{part}")
    return say


def say_to_programs(print_line: Callable[[str], None]) -> Say:
    """One object a line: ``t``, ``tag`` (null: the daemon itself), ``action``, ``text``, and what the event says besides."""
    def say(tag: str, line: str) -> None:
        action, about = (line.action, line.about) if isinstance(line, Line) else ("note", {})
        _quietly(print_line, json.dumps({**about, "t": round(time.time(), 3), "tag": tag or None, "action": action,
                                         "text": str(line)}, default=str))
    return say


def _quietly(print_line: Callable[[str], None], text: str) -> None:
    """A full disk under the log, a reader that went away, or a name that is no text must not end the passes."""
    with contextlib.suppress(OSError):
        print_line(text.encode(errors="backslashreplace").decode())


def startup_of(repository: Path, config: Config, *, orch: Path, sbatch: Path | None, conf: str) -> Startup:
    """What is to be started, as this shell knows it: neither systemd nor cron will have its environment. ``conf``: the
    SLURM_CONF that orch would not find by itself. Raises UserError for a path that cannot be written there."""
    if not str(repository).isprintable():
        raise UserError(f"{str(repository)!r}: a path with such characters cannot stand in a unit or a crontab")
    environment = {"PATH": short_path(orch, [sbatch] if sbatch else [])} | ({"SLURM_CONF": conf} if conf else {})
    return Startup(repository=repository, key=repository_key(str(repository)), orch=orch, environment=environment,
                   watchdog_s=max(WATCHDOG_AT_LEAST_S, 10 * config.slurm_timeout_s), credential=CREDENTIAL)
