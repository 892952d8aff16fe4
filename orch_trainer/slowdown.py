"""How much slower steps are while a checkpoint is being written. Pure: every time is an argument.

A stretch of steps begins with a step and ends with one; saves and announced phases lie between stretches. The steps of the
stretches with a write under way are held against those without one: slowdown = 1 - calm seconds a step / seconds a step.
"""

from __future__ import annotations

import threading
from typing import Any, Tuple

STEPS_AT_LEAST = 2                  # fewer say nothing


class Gauge:
    """`attends` tells the loop that the step just done begins a stretch: `attend` it. The rest is asked at saves only."""

    def __init__(self) -> None:
        self.attends = True
        self._depth = 0                                 # of saves and phases, one within the other
        self._from: Tuple[Any, float] | None = None     # the step that began this stretch
        self._calm = [0.0, 0.0]                         # steps and seconds; what lies back counts ever less
        self._writing: list[float] | None = None        # the same while a write is under way
        self._lock = threading.Lock()                   # a write ends in its own thread

    def attend(self, step: Any, at: float) -> None:
        self.attends = False
        self._from = (step, at)

    def pause(self, step: Any, at: float) -> None:
        """A save or a phase begins; the newest step and when it was done."""
        with self._lock:
            self._depth += 1
            self._close(step, at)
            self.attends = False

    def resume(self) -> None:
        with self._lock:
            self._depth -= 1
            self.attends = self._depth == 0

    def write_begun(self) -> None:
        with self._lock:
            self._calm = [0.5 * value for value in self._calm]
            self._writing = [0.0, 0.0]

    def write_ended(self, step: Any, at: float) -> float | None:
        """The slowdown, which noise may make negative; None where too few steps were done to say."""
        with self._lock:
            self._close(step, at)
            writing, self._writing = self._writing, None
            self.attends = self._depth == 0
            if writing is None or writing[0] < STEPS_AT_LEAST or self._calm[0] < STEPS_AT_LEAST or writing[1] <= 0:
                return None
            return 1 - (self._calm[1] / self._calm[0]) / (writing[1] / writing[0])

    def _close(self, step: Any, at: float) -> None:
        began, self._from = self._from, None
        if began is None or not isinstance(step, int) or not isinstance(began[0], int) or step <= began[0]:
            return
        stretch = self._calm if self._writing is None else self._writing
        stretch[0] += step - began[0]
        stretch[1] += at - began[1]
