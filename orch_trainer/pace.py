"""When to save, where to, and when to stop. Pure: every time is an argument (`now` monotonic, `wall` epoch seconds).

    training --notice, stop request--> stopping --save complete, or no time for it--> stop

A save that is due while the one before it is still being written waits until that one is usable: two writes at once slow
each other down and hold two snapshots in memory, a skipped one would double the interval, and waste is convex in T, so that
the best interval that can be had is the C + t_a that this comes to (docs/planning.md 3).
"""

from __future__ import annotations

SAFETY = 1.25                       # a save may take this much longer than the last one
STUCK_AFTER_S, STUCK_TIMES = 600.0, 5.0     # a write in the background that lasts so long, and so many times the one before
LAST_SAVES_MAX = 2                  # tries after the notice; a full disk will not get emptier
SHARED, LOCAL = 0, 1                # where a checkpoint goes: for any node to resume from, or for this one


class Pace:
    def __init__(self, *, interval_s: float, now: float, deadline: float | None, saved_step: int | None,
                 local_interval_s: float | None = None) -> None:
        self.interval_s = interval_s
        self.local_interval_s = local_interval_s        # None: there is no local level
        self.deadline = deadline
        self.step: int | None = None                    # the newest step done ...
        self.step_at = now                              # ... and when
        self.saved_step = saved_step                    # the newest complete checkpoint's
        self.saved_level = SHARED
        self.saves = 0                                  # of this attempt
        self.stop_reason: str | None = None             # set once, never taken back
        self.writing = False                            # a save goes on in the background
        self._cost_s: dict[int, float] = {}             # until the last save to this level was usable
        self._began = {SHARED: now, LOCAL: now}         # of the last save to this level or a better one, or of training
        self._written_at = 0.0                          # wall time at which the save in the background is likely to be usable
        self._writing_step: int | None = None
        self._warn_at = 0.0
        self._lead_told = False
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
        return not self.writing and self._wanted(now)

    def stop_due(self, wall: float) -> bool:
        return self.stopping and not self._last_save_due(wall)

    def level(self, now: float, wall: float) -> int:
        """Where a save that begins now goes. The last one goes where every node finds it, unless time is too short."""
        if self.local_interval_s is None:
            return SHARED
        if self.stopping:
            return SHARED if self._in_time(wall, SHARED) else LOCAL
        return SHARED if self._shared_wanted(now) else LOCAL

    def overdue_s(self, now: float) -> float | None:
        """For how long a checkpoint has been written, when the next one waits for it and that is worth a line: at once, and
        each time that it has doubled."""
        if not self.writing or self.stopping or not self._wanted(now) or now < self._warn_at:
            return None
        passed_s = now - max(self._began.values())
        self._warn_at = now + passed_s
        return passed_s

    def is_stuck(self, written_s: float) -> bool:
        """Whether a write in the background has lasted too long to be merely slow."""
        return written_s >= max(STUCK_AFTER_S, STUCK_TIMES * max(self._cost_s.values(), default=0.0))

    def lead_short_of_s(self, lead_s: float | None) -> float | None:
        """What the last save would need between notice and limit, where that is more than there is; once."""
        needed_s = SAFETY * self._cost_s.get(SHARED, 0.0)
        if lead_s is None or needed_s <= lead_s or self._lead_told:
            return None
        self._lead_told = True
        return needed_s

    def save_begun(self, now: float, level: int = SHARED) -> None:
        self._began[LOCAL] = now
        if level == SHARED:
            self._began[SHARED] = now
            if self._answered is not None:
                self._answered = self._request
        if self.stopping:
            self._last_saves += 1

    def write_begun(self, now: float, wall: float, step: int, level: int = SHARED) -> None:
        """The save that began last goes on in the background."""
        self.writing, self._warn_at, self._writing_step = True, 0.0, step
        self._written_at = wall + max(0.0, self._cost_s.get(level, 0.0) - (now - self._began[LOCAL]))

    def save_done(self, step: int, cost_s: float, level: int = SHARED) -> None:
        """It is usable, so many seconds after it began."""
        self.saved_step, self.saved_level = step, level
        self.saves += 1
        self._cost_s[level] = cost_s
        self._is_saved = self._last_saves > 0

    def _wanted(self, now: float) -> bool:
        local = self.local_interval_s is not None and now - self._began[LOCAL] >= self.local_interval_s
        return local or self._shared_wanted(now)

    def _shared_wanted(self, now: float) -> bool:
        requested = self._answered is not None and self._request > self._answered
        return requested or now - self._began[SHARED] >= self.interval_s

    def _last_save_due(self, wall: float) -> bool:
        newest = self._writing_step if self.writing else self.saved_step
        is_saved = self._is_saved or (self.step is not None and self.step == newest)
        levels = (SHARED,) if self.local_interval_s is None else (SHARED, LOCAL)
        return not is_saved and self._last_saves < LAST_SAVES_MAX and any(self._in_time(wall, level) for level in levels)

    def _in_time(self, wall: float, level: int) -> bool:
        """Behind a save that is still being written. With nothing measured yet it is tried."""
        cost_s = self._cost_s.get(level)
        if self.deadline is None or cost_s is None:
            return True
        begin = max(wall, self._written_at) if self.writing else wall
        return begin + cost_s * SAFETY <= self.deadline
