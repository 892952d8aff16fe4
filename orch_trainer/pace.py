"""When to save, where to, and when to stop. Pure: every time is an argument (`now` monotonic, `wall` epoch seconds).

    training --notice, stop request--> stopping --save complete, or no time for it--> stop

A save that is due while the one before it is still being written waits until that one is usable: two writes at once slow
each other down and hold two snapshots in memory, a skipped one would double the interval, and waste is convex in T, so that
the best interval that can be had is the C + t_a that this comes to (docs/planning.md 3). A step that is a milestone does not
wait: its save does, in its block.
"""

from __future__ import annotations

from typing import Callable, Tuple

SAFETY = 1.25                       # a save may take this much longer than the last one
STUCK_AFTER_S, STUCK_TIMES = 600.0, 5.0     # a write in the background that lasts so long, and so many times the one before
NOTICE_LATE_S = 10.0                # a notice that has not come by then is not relied upon
LAST_SAVES_MAX = 2                  # tries after the notice; a full disk will not get emptier
SHARED, LOCAL = 0, 1                # where a checkpoint goes: for any node to resume from, or for this one


class Pace:
    def __init__(self, *, interval_s: float, now: float, deadline: float | None, saved_step: int | None,
                 local_interval_s: float | None = None, lead_s: float = 0.0, save_steps: Tuple[int, ...] = (),
                 next_time: Callable[[float], float | None] = lambda wall: None, wall: float = 0.0) -> None:
        self.interval_s = interval_s
        self.local_interval_s = local_interval_s        # None: there is no local level
        self.deadline = deadline
        self._lead_s = lead_s                           # from a notice to it; a save just before the notice is needless
        self._save_steps = save_steps                   # milestones
        self._passed_step = saved_step or 0             # up to here they are saved
        self._next_time = next_time                     # the wall time of the first milestone by the clock behind this one
        self._save_at = next_time(wall)
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
        self._writing: Tuple[int | None, int] = (None, SHARED)      # its step and level
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

    @property
    def answered(self) -> int | None:
        """The newest request that a save has been begun for."""
        return self._answered

    def save_due(self, now: float, wall: float) -> bool:
        if self.stopping:
            return self._last_save_due(wall)
        if self.writing:                                # a later step is no milestone; where that write is stuck it has to do
            return self._is_milestone_now() and not self.is_stuck(now - max(self._began.values()))
        return self._is_asked(wall) or (self._interval_over(now) and not self._notice_is_near(wall))

    def stop_due(self, wall: float) -> bool:
        return self.stopping and not self._last_save_due(wall)

    def level(self, now: float, wall: float) -> int:
        """Where a save that begins now goes. The last one goes where every node finds it, unless time is too short."""
        if self.local_interval_s is None:
            return SHARED
        if self.stopping:
            return SHARED if self._in_time(wall, SHARED) else LOCAL
        return SHARED if self._is_asked(wall) or self._shared_over(now) else LOCAL

    def is_milestone(self, step: int) -> bool:
        """Whether this very step is to be saved. All ranks come to the same answer by themselves."""
        return step in self._save_steps

    def _is_milestone_now(self) -> bool:
        return self.step is not None and self.step > self._passed_step and self.is_milestone(self.step)

    @property
    def writing_level(self) -> int:
        """Of the save that is being written, or was last."""
        return self._writing[1]

    def overdue_s(self, now: float) -> float | None:
        """For how long a checkpoint has been written, when the next one waits for it and that is worth a line: at once, and
        each time that it has doubled."""
        if not self.writing or self.stopping or now < self._warn_at:
            return None
        if not self._requested and not self._interval_over(now):
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

    def save_begun(self, now: float, level: int = SHARED, *, wall: float = 0.0) -> None:
        self._began[LOCAL] = now
        if level == SHARED:
            self._began[SHARED] = now
            self._passed_step = max(self._passed_step, self.step or 0)
            if self._save_at is not None and wall >= self._save_at:
                self._save_at = self._next_time(wall)
            if self._answered is not None:
                self._answered = self._request
        if self.stopping:
            self._last_saves += 1

    def write_begun(self, now: float, wall: float, step: int, level: int = SHARED) -> None:
        """The save that began last goes on in the background."""
        self.writing, self._warn_at, self._writing = True, 0.0, (step, level)
        self._written_at = wall + max(0.0, self._cost_s.get(level, 0.0) - (now - self._began[LOCAL]))

    def save_done(self, step: int, cost_s: float, level: int = SHARED) -> None:
        """It is usable, so many seconds after it began."""
        self.saved_step, self.saved_level = step, level
        self.saves += 1
        self._cost_s[level] = cost_s
        self._is_saved = self._last_saves > 0

    @property
    def _requested(self) -> bool:
        return self._answered is not None and self._request > self._answered

    def _is_asked(self, wall: float) -> bool:
        """For a save that goes by no interval: somebody wants one now, or a milestone is reached."""
        step = self.step or 0
        reached = any(self._passed_step < milestone <= step for milestone in self._save_steps)
        return self._requested or reached or (self._save_at is not None and wall >= self._save_at)

    def _interval_over(self, now: float) -> bool:
        local = self.local_interval_s is not None and now - self._began[LOCAL] >= self.local_interval_s
        return local or self._shared_over(now)

    def _shared_over(self, now: float) -> bool:
        return now - self._began[SHARED] >= self.interval_s

    def _notice_is_near(self, wall: float) -> bool:
        """A save that begins now would run into the lead, at whose begin there is one anyway."""
        if self.deadline is None:
            return False
        notice = self.deadline - self._lead_s
        return notice - self._cost_s.get(SHARED, 0.0) * SAFETY <= wall < notice + NOTICE_LATE_S

    def _last_save_due(self, wall: float) -> bool:
        newest, saved_level = self._writing if self.writing else (self.saved_step, self.saved_level)
        levels: Tuple[int, ...] = (SHARED,) if self.local_interval_s is None else (SHARED, LOCAL)
        if self.step is not None and self.step == newest:
            levels = levels[:saved_level]               # a copy on this node is none for another
        return not self._is_saved and self._last_saves < LAST_SAVES_MAX and any(self._in_time(wall, at) for at in levels)

    def _in_time(self, wall: float, level: int) -> bool:
        """Behind a save that is still being written. With nothing measured yet it is tried."""
        cost_s = self._cost_s.get(level)
        if self.deadline is None or cost_s is None:
            return True
        begin = max(wall, self._written_at) if self.writing else wall
        return begin + cost_s * SAFETY <= self.deadline
