"""The sign of life: `alive.json`, rewritten in place by the watch's thread while the loop gives signs.

The loop only counts (`Pulse.signs`); the thread writes the count. So a dead loop in a living process shows as a file that
is rewritten with the same count, a stopped process as a file that is rewritten no more. Judging is the supervisor's.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple

from orch_trainer.lines import plain
from orch_trainer.process import pid_start

WRITE_S = 10.0
SHORTEST_S = 0.5
FILE_BYTES = 512                    # padded, so that a shorter text leaves nothing of a longer one
STARTING, TRAINING, SAVING = "starting", "training", "saving"
Doing = Tuple[str, Optional[float]]  # what the loop does, and the seconds that it announced for it at most


class Pulse:
    """What the loop's thread keeps for the watch's thread. Every field is assigned whole; no lock."""

    def __init__(self) -> None:
        self.signs = 0              # rises with each step, question, save and phase
        self.doing: Doing = (STARTING, None)

    def begin(self, doing: str, at_most_s: float | None = None) -> Doing:
        """What was done until now, to be given back to `end`."""
        before = self.doing
        self.doing = (doing, at_most_s)
        self.signs += 1
        return before

    def end(self, before: Doing) -> None:
        self.doing = before
        self.signs += 1


class Alive:
    """The only writer of this attempt's alive.json. A file that cannot be written is no reason to disturb the training."""

    def __init__(self, path: Path, pulse: Pulse, *, epoch: int, every_s: float) -> None:
        self.every_s = every_s
        self._path = path
        self._pulse = pulse
        self._who: Mapping[str, Any] = {"pid": os.getpid(), "pid_start": pid_start(os.getpid()), "host": socket.gethostname(),
                                        "epoch": epoch}
        self._next = 0.0
        self._written: Doing | None = None
        self._seen = -1
        self._seen_at = 0.0

    def write_if_due(self, now: float, wall: float, step: Any) -> None:
        """`now` is monotonic. A change of what is done is written at once: a phase must be known before it lasts."""
        signs, doing = self._pulse.signs, self._pulse.doing
        if doing[0] == STARTING and step is not None:
            doing = (TRAINING, None)
        if signs != self._seen:
            self._seen, self._seen_at = signs, now
        if now < self._next and doing == self._written:
            return
        self._next, self._written = now + self.every_s, doing
        self._write(dict(self._who, t=round(wall, 3), signs=signs, idle_s=round(now - self._seen_at, 1), step=plain(step),
                         doing=doing[0], at_most_s=doing[1]))

    def _write(self, content: Mapping[str, Any]) -> None:
        data = json.dumps(content).encode().ljust(FILE_BYTES - 1) + b"\n"
        try:
            descriptor = os.open(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(descriptor, data, 0)
            finally:
                os.close(descriptor)
        except OSError:
            pass                    # the supervisor sees an old file, and whether it can write there itself


def write_every_s(environ: Mapping[str, str]) -> float:
    """Four times within the limit, where the limit is set and short."""
    try:
        return max(SHORTEST_S, min(WRITE_S, float(environ["ORCH_HUNG_AFTER_S"]) / 4))
    except (KeyError, ValueError):
        return WRITE_S
