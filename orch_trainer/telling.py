"""The lines of a training: START, progress, and whatever else the block says, each with its time."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Callable, Mapping, Tuple

from orch_trainer.device import Device, Memory
from orch_trainer.lines import Lines, plain
from orch_trainer.rate import Rate

REPORT_S = 30.0
FIRST_REPORT_S = 2.0                                    # doubling to REPORT_S: whoever looks at once sees it move
ERROR_CHARACTERS_MAX = 1000
VALUE_CHARACTERS_MAX = 100


class Teller:
    """Puts the block's events into lines. `due` is when `step` has something to report again (monotonic)."""

    def __init__(self, lines: Lines, clock: Any, memory: Memory, total_steps: int | None) -> None:
        self._lines = lines
        self._wall: Callable[[], float] = clock.time
        self._monotonic: Callable[[], float] = clock.monotonic
        self._memory = memory
        self._total_steps = total_steps
        self._rate = Rate()
        self._reported: Tuple[float, Any] | None = None
        self._pause_s = FIRST_REPORT_S / 2
        self.due = self._monotonic()                    # the first step is reported at once

    def put(self, event: str, text: str = "", **keys: Any) -> None:
        self._lines.put(dict(keys, t=self._wall(), event=event), text)

    def write(self, event: str, text: str, **keys: Any) -> None:
        self._lines.write(dict(keys, t=self._wall(), event=event), text)

    def start(self, device: Device, *, attempt: int, resume_from: object, resume_step: int | None, rank: int, ranks: int,
              interval_s: float, config: Mapping[str, Any]) -> None:
        gpu = "" if device.gpu_free_bytes is None else " ({} free)".format(_size(device.gpu_free_bytes))
        text = "START  attempt {}  from {}{}  ranks {}  device {}{}  free memory {}  interval {:g} s{}".format(
            attempt, resume_from or "the beginning", "" if self._total_steps is None else "  to step {}".format(
                self._total_steps), ranks, device.name, gpu, _size(device.free_bytes), interval_s,
            "  " + json.dumps(plain(config)) if config else "")
        self.write("start", text, pid=os.getpid(), host=socket.gethostname(), rank=rank, world_size=ranks,
                   resume_step=resume_step, of=self._total_steps, device=device.name,
                   free_memory_bytes=device.free_bytes, gpu_free_memory_bytes=device.gpu_free_bytes,
                   interval_s=interval_s, config=config)

    def report(self, step: Any, loss: Any, numbers: Mapping[str, Any]) -> None:
        """A step is worth a line. Never raises."""
        try:
            now, step = self._monotonic(), plain(step)
            self._pause_s = min(2 * self._pause_s, REPORT_S)
            self.due = now + self._pause_s
            if self._reported is None:
                self.put("first_step", step=step)
            else:
                before_at, before = self._reported
                steps, seconds = step - before, max(now - before_at, 1e-9)
                self._rate.add(steps, seconds)
                self._reported = (now, step)
                self._progress(step, steps / seconds, loss, numbers)
            self._reported = (now, step)
        except Exception as error:                      # a line of log is never worth a training
            self._lines.put({"t": self._wall(), "event": "progress", "step": plain(step), "loss": None,
                             "error": in_words(error)})

    def _progress(self, step: Any, steps_per_s: float, loss: Any, numbers: Mapping[str, Any]) -> None:
        of, wall = self._total_steps, self._wall()
        left_s = None if of is None else self._rate.left_s(of - step)
        memory_bytes, gpu_bytes = self._memory.used(wall)
        loss, shown = _number(loss), {key: _number(value) for key, value in numbers.items()}
        words = [
            "step {}".format(step) if of is None else "step {} of {} ({:.0f}%)".format(step, of, 100 * step / of),
            *("{} {}".format(key, _short(value)) for key, value in dict(loss=loss, **shown).items() if value is not None),
            _speed(steps_per_s),
            "" if memory_bytes is None else "memory {}".format(_size(memory_bytes)),
            "" if gpu_bytes is None else "gpu {}".format(_size(gpu_bytes)),
            "" if left_s is None else "{} left".format(_duration(left_s)),
        ]
        event = dict(shown, t=wall, event="progress", step=step, of=of, loss=loss, steps_per_s=steps_per_s,
                     left_s=left_s, memory_bytes=memory_bytes, gpu_memory_bytes=gpu_bytes)
        self._lines.put(event, "  ".join(word for word in words if word))


def in_words(error: BaseException | None) -> str:
    """Type and message of an exception, also of one that cannot say what it is."""
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    return ("{}: {}".format(name, message) if message else name)[:ERROR_CHARACTERS_MAX]


def _number(value: Any) -> Any:
    """A tensor or numpy scalar as a float; what is no number as text of bounded length."""
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return str(value)[:VALUE_CHARACTERS_MAX]


def _short(value: Any) -> str:
    return "{:.4g}".format(value) if isinstance(value, float) else str(value)


def _speed(steps_per_s: float) -> str:
    """Steps of a minute are no "0.0 steps/s"."""
    return "{:.2f} s/step".format(1 / steps_per_s) if 0 < steps_per_s < 1 else "{:.1f} steps/s".format(steps_per_s)


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown"
    return "{:.1f} GB".format(size_bytes / 1e9) if size_bytes >= 1e9 else "{:.0f} MB".format(size_bytes / 1e6)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return "{}d{:02d}h".format(hours // 24, hours % 24)
    if hours:
        return "{}h{:02d}m".format(hours, minutes)
    return "{}m{:02d}s".format(minutes, rest) if minutes else "{}s".format(rest)
