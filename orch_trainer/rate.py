"""How fast it goes, and so how long it still takes. Pure: every time is an argument."""

from __future__ import annotations

HALF_LIFE_S = 1800.0                # several checkpoints, so that the time left does not jump with each save


class Rate:
    """Steps per second of wall time, saves and evaluations included; what lies back counts ever less."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._s = 0.0

    def add(self, steps: float, seconds: float) -> None:
        """Steps back (a roll-back within the run) are time without progress."""
        fade = 0.5 ** (seconds / HALF_LIFE_S)
        self._steps = self._steps * fade + max(0.0, steps)
        self._s = self._s * fade + seconds

    def left_s(self, steps: float) -> float | None:
        """For so many steps; None while there is no rate."""
        return max(0.0, steps) * self._s / self._steps if self._steps > 0 else None
