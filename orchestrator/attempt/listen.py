"""Signals as bytes in a pipe: handlers do nothing, and one ``select`` waits for signals and for the notice step alike."""

from __future__ import annotations

import os
import select
import signal

_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGCHLD)


class Listener:
    """Every signal this process gets, in order, none lost while something else is being done."""

    def __init__(self, stop_signals: frozenset[int] = frozenset({signal.SIGTERM, signal.SIGINT})) -> None:
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)
        self.stop_signals = stop_signals
        self._pending: list[int] = []

    def wait(self, timeout_s: float, *others: int) -> list[int]:
        """Sleep until a signal or one of these descriptors has something; which of them are ready."""
        ready, _, _ = select.select([self._read_end, *others], [], [], timeout_s)
        if self._read_end in ready:
            self._pending += os.read(self._read_end, 4096)
        return [descriptor for descriptor in others if descriptor in ready]

    def taken(self) -> list[int]:
        """The signals heard since the last call."""
        heard, self._pending = self._pending, []
        return heard

    def pause(self, timeout_s: float) -> bool:
        """Sleep; False as soon as a stop signal is there, which stays to be taken."""
        import time
        until = time.monotonic() + timeout_s
        while not self.stop_signals & set(self._pending):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return True
            self.wait(left_s)
        return False
