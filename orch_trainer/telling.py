"""The lines of a training: START, progress, and whatever else the block says, each with its time."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Callable, Mapping

from orch_trainer.lines import Lines, plain
from orch_trainer.process import find_device

REPORT_S = 30.0


class Teller:
    """Puts the block's events into lines. `due` is when `step` has something to report again (monotonic)."""

    def __init__(self, lines: Lines, clock: Any) -> None:
        self._lines = lines
        self._wall: Callable[[], float] = clock.time
        self._monotonic: Callable[[], float] = clock.monotonic
        self._reported: tuple[float, int] | None = None
        self.due = self._monotonic()                    # the first step is reported at once

    def put(self, event: str, **keys: Any) -> None:
        self._lines.put(dict(keys, t=self._wall(), event=event))

    def write(self, event: str, text: str, **keys: Any) -> None:
        self._lines.write(dict(keys, t=self._wall(), event=event), text)

    def start(self, *, attempt: int, resume_from: object, resume_step: int | None, rank: int, ranks: int,
              interval_s: float, config: Mapping[str, Any]) -> None:
        device, free_bytes = find_device()
        free = "unknown" if free_bytes is None else "{:.1f} GB".format(free_bytes / 1e9)
        text = "START  attempt {}  from {}  ranks {}  device {}  free memory {}  interval {:g} s  {}".format(
            attempt, resume_from or "the beginning", ranks, device, free, interval_s, json.dumps(plain(config)))
        self.write("start", text, pid=os.getpid(), host=socket.gethostname(), rank=rank, world_size=ranks,
                   resume_step=resume_step, device=device, free_memory_bytes=free_bytes, interval_s=interval_s,
                   config=config)

    def report(self, step: int, loss: Any, numbers: Mapping[str, Any]) -> None:
        """A step is worth a line. Never raises."""
        try:
            now = self._monotonic()
            self.due = now + REPORT_S
            if self._reported is None:
                self.put("first_step", step=plain(step))
            else:
                self._progress(step, (step - self._reported[1]) / max(now - self._reported[0], 1e-9),
                               dict(numbers, loss=loss))
            self._reported = (now, step)
        except Exception as error:                      # a line of log is never worth a training
            self._lines.put({"t": self._wall(), "event": "progress", "step": plain(step), "loss": None,
                             "error": repr(error)})

    def _progress(self, step: int, steps_per_s: float, numbers: dict[str, Any]) -> None:
        loss = _number(numbers.pop("loss"))
        shown = dict({} if loss is None else {"loss": loss}, **{key: _number(value) for key, value in numbers.items()})
        text = "  ".join(["step {}".format(step)] + ["{} {}".format(key, _short(shown[key])) for key in shown]
                         + ["{:.1f} steps/s".format(steps_per_s)])
        event = dict(shown, t=self._wall(), event="progress", step=plain(step), loss=loss, steps_per_s=steps_per_s)
        self._lines.put(event, text)


def _number(value: Any) -> Any:
    """A tensor or numpy scalar as a float; what is no number stays what it is."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def _short(value: Any) -> str:
    return "{:.4g}".format(value) if isinstance(value, float) else str(value)
