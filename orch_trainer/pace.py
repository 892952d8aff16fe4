"""When to save and when to stop. Pure: every time is an argument (`now` monotonic, `wall` epoch seconds).

    training --notice, stop request--> stopping --save complete, or no time for it--> stop
"""

from __future__ import annotations

SAFETY = 1.25                       # a save may take this much longer than the last one
LAST_SAVES_MAX = 2                  # tries after the notice; a full disk will not get emptier


class Pace:
    def __init__(self, *, interval_s: float, now: float, deadline: float | None, saved_step: int | None) -> None:
        self.interval_s = interval_s
        self.deadline = deadline
        self.step: int | None = None                    # the newest step done
        self.saved_step = saved_step                    # the newest complete checkpoint's
        self.saves = 0                                  # of this attempt
        self.stop_reason: str | None = None             # set once, never taken back
        self._save_s: float | None = None               # what the last save cost
        self._began = now                               # of the last save, or of training
        self._request = 0                               # the newest save request, and the newest one answered
        self._answered: int | None = None
        self._last_saves = 0                            # begun after the notice
        self._is_saved = False                          # one of them is complete

    @property
    def stopping(self) -> bool:
        return self.stop_reason is not None

    def stop(self, reason: str) -> None:
        if self.stop_reason is None:
            self.stop_reason = reason

    def request_save(self, number: int) -> None:
        """Each rise asks for one checkpoint. The first number seen was asked of somebody before us."""
        if self._answered is None:
            self._answered = number
        self._request = max(self._request, number)

    def save_due(self, now: float, wall: float) -> bool:
        if self.stopping:
            return self._last_save_due(wall)
        requested = self._answered is not None and self._request > self._answered
        return requested or now - self._began >= self.interval_s

    def stop_due(self, wall: float) -> bool:
        return self.stopping and not self._last_save_due(wall)

    def save_begun(self, now: float) -> None:
        self._began = now
        if self._answered is not None:
            self._answered = self._request
        if self.stopping:
            self._last_saves += 1

    def save_done(self, step: int, cost_s: float) -> None:
        self.saved_step = step
        self.saves += 1
        self._save_s = cost_s
        self._is_saved = self._last_saves > 0

    def _last_save_due(self, wall: float) -> bool:
        is_saved = self._is_saved or (self.step is not None and self.step == self.saved_step)
        return not is_saved and self._last_saves < LAST_SAVES_MAX and self._in_time(wall)

    def _in_time(self, wall: float) -> bool:
        """With nothing measured yet it is tried."""
        if self.deadline is None or self._save_s is None:
            return True
        return wall + self._save_s * SAFETY <= self.deadline
