"""Whether a trainer hangs: how long it has given no sign of life, against a limit learnt from its own steps and saves, each
from its like: a run with steps of a second and saves of ten minutes is not given an hour for a step.

Counted is the time in which this supervisor was awake: where Slurm suspends the whole job, nobody's clock runs. A trainer
without alive.json (one that knows nothing of orch) is never judged. What was learnt is handed to the next attempt in
life.json; behind one that was called hung the limit is doubled, twice at most, so that a step which was merely long gets by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.host import is_alive
from orchestrator.records import AttemptSpec

FACTOR = 5.0
PATIENCE_AT_MOST = 4.0
TRAINING_AT_LEAST_S = 600.0
# Loading, compiling, the first save: nothing has been learnt of these, and they happen once or seldom.
SLOWLY_AT_LEAST_S = 1800.0
# A tick that comes later than this was not late by the machine's load: everything was stopped, and counts as this much.
TICK_AT_MOST_S = 5.0
STARTING, TRAINING, SAVING = "starting", "training", "saving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """alive.json as the trainer wrote it last."""

    pid: int
    pid_start: int
    host: str
    written_at: float
    signs: int
    step: int | None = None
    doing: str = TRAINING
    at_most_s: float | None = None     # announced for what is done now

    @property
    def process(self) -> tuple[str, int, int]:
        return self.host, self.pid, self.pid_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What an attempt leaves to the next."""

    longest_s: float = 0.0             # between two signs while training
    longest_save_s: float = 0.0        # while saving
    patience: float = 1.0              # times the limit; doubled by each attempt that was called hung


class Life:
    """Ticked once a second with what alive.json says."""

    def __init__(self, host: str, fixed_s: float | None, before: Learnt) -> None:
        self._host, self._fixed_s = host, fixed_s
        self._learnt = before
        self._sign: Sign | None = None
        self._rewritten_s = 0.0        # since alive.json changed in any way
        self._ticked: float | None = None
        self.silent_s = 0.0

    @property
    def sign(self) -> Sign | None:
        return self._sign

    @property
    def learnt(self) -> Learnt:
        return self._learnt

    @property
    def limit_s(self) -> float:
        """For what the trainer does now."""
        sign = self._sign
        announced_s = sign.at_most_s or 0.0 if sign is not None else 0.0
        if self._fixed_s is not None:
            return max(self._fixed_s, announced_s)
        learnt = self._learnt
        if sign is None or sign.doing in (STARTING, SAVING):
            usual_s = max(SLOWLY_AT_LEAST_S, FACTOR * learnt.longest_save_s)
        else:
            usual_s = max(TRAINING_AT_LEAST_S, FACTOR * learnt.longest_s)
        return learnt.patience * max(usual_s, announced_s)

    def tick(self, sign: Sign | None, now: float, *, countable: bool) -> bool:
        """Whether the trainer hangs. ``countable`` is false while its silence may have another reason than itself."""
        passed_s = min(TICK_AT_MOST_S, now - self._ticked) if self._ticked is not None else 0.0
        self._ticked = now
        before = self._sign
        self._sign = sign or before
        if sign is None or before is None or sign.process != before.process:
            self.silent_s = self._rewritten_s = 0.0
            return False
        self._rewritten_s = 0.0 if sign.written_at != before.written_at else self._rewritten_s + passed_s
        if sign.signs != before.signs:
            self._learn(before, self.silent_s)
            self.silent_s = 0.0
            return False
        if countable and self._there(sign):
            self.silent_s += passed_s
        return self.silent_s > self.limit_s

    def _learn(self, before: Sign, silent_s: float) -> None:
        if before.at_most_s is not None:
            return
        if before.doing == TRAINING:
            self._learnt = replace(self._learnt, longest_s=max(self._learnt.longest_s, silent_s))
        elif before.doing == SAVING:
            self._learnt = replace(self._learnt, longest_save_s=max(self._learnt.longest_save_s, silent_s))

    def _there(self, sign: Sign) -> bool:
        """Whether that process is still there to be judged; another host's is while its file is rewritten."""
        if sign.host == self._host:
            return is_alive(sign.pid, sign.pid_start)
        return self._rewritten_s < 2 * TRAINING_AT_LEAST_S / FACTOR


def hung_after_s(spec: AttemptSpec, environment: Mapping[str, str]) -> float | None:
    """The limit that somebody has set; None: it is learnt. Zero or nonsense in the environment sets none."""
    if spec.hung_after_s is not None:
        return spec.hung_after_s
    try:
        return float(environment.get("ORCH_HUNG_AFTER_S", "")) or None
    except ValueError:
        return None


def read_sign(folder: Path, epoch: int) -> Sign | None:
    """None where there is no such file, or none of this start; or a torn one, which is read again a second later."""
    data = _read(folder / "alive.json")
    try:
        if int(data["epoch"]) != epoch:
            return None
        step, at_most_s = data.get("step"), data.get("at_most_s")
        return Sign(pid=int(data["pid"]), pid_start=int(data["pid_start"]), host=str(data["host"]),
                    written_at=float(data["t"]), signs=int(data["signs"]),
                    step=step if isinstance(step, int) else None, doing=str(data.get("doing", TRAINING)),
                    at_most_s=float(at_most_s) if at_most_s is not None else None)
    except (KeyError, TypeError, ValueError):
        return None


def read_learnt(folder: Path | None) -> Learnt:
    """What the attempt in this folder left."""
    data = _read(folder / "life.json") if folder is not None else {}
    try:
        return Learnt(**{key: float(value) for key, value in data.items() if key in Learnt.__slots__})
    except (TypeError, ValueError):
        return Learnt()


def life_json(learnt: Learnt, *, hung: bool) -> dict[str, Any]:
    patience = min(PATIENCE_AT_MOST, 2 * learnt.patience) if hung else learnt.patience
    return asdict(replace(learnt, longest_s=round(learnt.longest_s, 1), longest_save_s=round(learnt.longest_save_s, 1),
                          patience=patience))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
