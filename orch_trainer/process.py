"""This process as its supervisor sees it: its registration, its signals."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any, Tuple

from orch_trainer.files import Files


def register(attempt_dir: Path, *, rank: int, epoch: int, stacks_signal: int | None, files: Files) -> Path:
    """Ask for the notice's signal. The file goes at exit; a killed process is told by pid and start time."""
    pid = os.getpid()
    content = {"pid": pid, "pid_start": pid_start(pid), "host": socket.gethostname(), "rank": rank, "epoch": epoch,
               "stacks_signal": stacks_signal}
    folder = attempt_dir / "trainers"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "{}-{}.json".format(content["host"], pid)
    temporary = attempt_dir / ".trainer-{}-{}-{}".format(content["host"], pid, rank)
    files.write(temporary, json.dumps(content).encode() + b"\n")
    files.rename(temporary, path)
    atexit.register(_unregister, path, pid)
    return path


def _unregister(path: Path, pid: int) -> None:
    if os.getpid() == pid:                              # not in a forked child
        try:
            path.unlink()
        except OSError:
            pass


def pid_start(pid: int) -> int:
    stat = Path("/proc", str(pid), "stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])     # field 22; the name in field 2 may hold blanks


class Signals:
    """Handlers that only raise a flag, however often the signal comes.

    A forked child (a data loader's worker) gets back what was there before, or nobody could terminate it.
    """

    _forks_watched = False
    _installed: Signals | None = None

    def __init__(self) -> None:
        self.seen = 0                                   # number of the last signal, 0 for none
        self._previous: list[tuple[int, Any]] = []

    def install(self, signals: Tuple[signal.Signals, ...]) -> bool:
        """False in a thread other than the main one, where Python allows no handler."""
        try:
            for number in signals:
                self._previous.append((number, signal.signal(number, self._handle)))
        except ValueError:
            return False
        Signals._installed = self
        if not Signals._forks_watched:
            os.register_at_fork(after_in_child=_restore_in_child)
            Signals._forks_watched = True
        return True

    def restore(self) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous = []
        Signals._installed = None

    def ignore(self) -> None:
        """We are leaving with our exit code; no further signal may replace it."""
        if threading.current_thread() is threading.main_thread():
            for number, _ in self._previous:
                signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: object) -> None:
        self.seen = number


def _restore_in_child() -> None:
    if Signals._installed is not None:
        try:
            Signals._installed.restore()
        except ValueError:
            pass
