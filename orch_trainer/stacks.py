"""The stacks of all threads on a signal, for a process that hangs: faulthandler writes them while Python itself is stuck."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
from pathlib import Path
from typing import Collection

SIGNAL = signal.SIGUSR2


def dump_on_signal(attempt_dir: Path, taken: Collection[int]) -> int | None:
    """Write them into stacks-HOST-PID.txt whenever SIGUSR2 comes; None where somebody else has that signal."""
    if SIGNAL in taken or signal.getsignal(SIGNAL) != signal.SIG_DFL:
        return None
    pid = os.getpid()
    path = attempt_dir / "stacks-{}-{}.txt".format(socket.gethostname(), pid)
    try:
        # open for good: the handler may open nothing
        file = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(SIGNAL, file, all_threads=True)
    except (OSError, RuntimeError, ValueError):
        return None
    atexit.register(_remove_if_empty, path, pid)
    return int(SIGNAL)


def _remove_if_empty(path: Path, pid: int) -> None:
    try:
        if os.getpid() == pid and path.stat().st_size == 0:
            path.unlink()
    except OSError:
        pass
