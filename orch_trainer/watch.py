"""Reads what the trainer is told, away from the training loop: a file server that hangs stalls only this thread.

`poll` is one round and may be called directly; `start` calls it every few seconds, or at once after `wake`.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

from orch_trainer.alive import Alive
from orch_trainer.control import read_control, read_notice
from orch_trainer.device import Memory
from orch_trainer.lines import Lines
from orch_trainer.pace import Pace
from orch_trainer.process import Signals
from orch_trainer.settings import Settings
from orch_trainer.telling import in_words

POLL_S = 2.0


class Watch:
    def __init__(self, settings: Settings, signals: Signals, pace: Pace, lines: Lines, clock: Any,
                 alive: Alive | None, memory: Memory) -> None:
        self._settings = settings
        self._signals = signals
        self._pace = pace
        self._lines = lines
        self._wall: Callable[[], float] = clock.time
        self._monotonic: Callable[[], float] = clock.monotonic
        self._alive = alive
        self._memory = memory
        self._seq = -1
        self._notice_reason: str | None = None
        self._said: tuple[str, float | None] | None = None
        self._is_closing = False
        self._round = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """What holds at the start; START shows it, so it makes no line."""
        self._read_control(tell=False)
        self._read_notice()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="orch-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        """Not waited for without end: the thread may hang where the file server hangs."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    @property
    def stop_reason(self) -> str:
        """As the supervisor told it, if it did: a bare signal does not say why it was sent."""
        return self._notice_reason or self._pace.stop_reason or "signal"

    def poll(self) -> None:
        """One round: wishes, notice, memory, the queued lines. Nothing to do where another thread is in the middle of one."""
        if not self._round.acquire(blocking=False):
            return
        try:
            self._read_control()
            self._read_notice()
            self._say_notice()
            self._memory.read_if_due(self._monotonic())
            self._lines.flush()
        finally:
            self._round.release()

    def _loop(self) -> None:
        pause_s = POLL_S if self._alive is None else min(POLL_S, self._alive.every_s)
        while not self._is_closing:
            try:
                self._show_life()
                self._wake.wait(pause_s)
                self._wake.clear()
                self._show_life()                       # before what may hang: it must be known before it lasts
                self.poll()
            except Exception as error:                  # a dead thread would be deaf to every later notice
                self._lines.say("orch: a round of the watch failed: {}".format(in_words(error)))

    def _show_life(self) -> None:
        """Only from this thread: without it nobody can tell a hung trainer from one that shows nothing."""
        if self._alive is not None and not self._is_closing:
            self._alive.write_if_due(self._monotonic(), self._wall(), self._pace.step)

    def _read_control(self, *, tell: bool = True) -> None:
        path = self._settings.control_file
        control = read_control(path) if path is not None else None
        if control is None or control.seq <= self._seq:
            return
        self._seq = control.seq
        self._pace.request_save(control.save)
        if control.stop is not None:
            self._pace.stop(control.stop)
        if control.local_interval_s is not None and self._pace.local_interval_s is not None:
            self._pace.local_interval_s = control.local_interval_s
        if control.interval_s is not None and control.interval_s != self._pace.interval_s:
            self._pace.interval_s = control.interval_s
            if tell:
                self._lines.put({"t": self._wall(), "event": "interval", "interval_s": control.interval_s,
                                 "seq": control.seq},
                                "checkpoint interval {:g} s".format(control.interval_s))

    def _read_notice(self) -> None:
        folder = self._settings.attempt_dir
        notice = read_notice(folder / "notice.json") if folder is not None else None
        if notice is not None:
            self._notice_reason = notice.reason
            self._pace.deadline = notice.deadline       # None: sooner than the limit, and not known
            self._pace.stop(notice.reason)
        elif self._signals.seen:
            self._pace.stop("signal")

    def _say_notice(self) -> None:
        """Again when notice.json tells more than the bare signal before it."""
        if not self._pace.stopping:
            return
        said = (self.stop_reason, self._pace.deadline if self._notice_reason else None)    # until when, the notice tells
        if said != self._said:
            self._said = said
            left = "" if said[1] is None else "  {:.0f} s left".format(said[1] - self._wall())
            self._lines.put({"t": self._wall(), "event": "notice", "reason": said[0], "deadline": said[1]},
                            "notice: {}{}".format(said[0], left))
