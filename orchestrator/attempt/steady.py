"""Epoch seconds that only ever go forward: where a wait ends must not move when somebody sets the clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """The wall clock as it was at first, carried on by the monotonic one."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead_s = wall() - monotonic()

    def __call__(self) -> float:
        return self._ahead_s + self._monotonic()

    def of_wall(self, at: float) -> float:
        """This clock's time for a time that somebody has just read off the wall's."""
        return at + self() - self._wall()

    def to_wall(self, at: float) -> float:
        """What the wall clock, as it goes now, will show at this clock's time."""
        return at - self() + self._wall()
