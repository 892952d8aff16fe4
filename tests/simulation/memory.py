"""What was read and parsed once is not parsed again: journals, control.json, trainers' lines.

These readings are pure in a file's bytes, and they were three quarters of a schedule's time. A journal is read on from
where it was left off, so that the run here is the fold of one who never forgets; at the end of a schedule it is compared
with a fold from the first line to the last (``rest``).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import journal, trainer_control, trainer_lines
from orchestrator.core.fold import apply, fold
from orchestrator.core.observation import Control
from orchestrator.model import Run

_read, _read_control, _last_lines = journal.read, trainer_control.read_control, trainer_lines.last_lines


class Events(list[journal.Event]):
    """What a journal held, with the run it tells of."""

    run: Run | None = None


@dataclass(slots=True)
class _Journal:
    read_to: int = 0                   # bytes of whole lines
    size: int = 0
    events: Events = field(default_factory=Events)


@dataclass(slots=True)
class Memory:
    """Of one world."""

    _journals: dict[Path, _Journal] = field(default_factory=dict)
    _controls: dict[Path, Control | None] = field(default_factory=dict)
    _lines: dict[Path, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)

    def events(self, run_dir: Path) -> Events:
        held = self._journals.get(run_dir)
        if held is None:
            held = self._journals[run_dir] = _Journal()
        path = f"{run_dir}/journal.jsonl"
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return held.events
        if size != held.size:
            assert size >= held.read_to, "whole lines of a journal are never cut off"
            with open(path, "rb") as file:
                file.seek(held.read_to)
                whole = file.read().rpartition(b"\n")[0]
            held.size = size
            if whole:
                fresh = [json.loads(line) for line in whole.splitlines()]
                longer, longer.run = (longer := Events([*held.events, *fresh])), held.events.run
                for event in fresh:
                    longer.run = apply(longer.run, event)
                held.events, held.read_to = longer, held.read_to + len(whole) + 1
        return held.events

    def read(self, run_dir: Path) -> tuple[list[journal.Event], str]:
        """``journal.read``; nobody here asks for the torn rest."""
        return self.events(run_dir), ""

    def control(self, run_dir: Path) -> Control | None:
        """``trainer_control.read_control``."""
        if run_dir not in self._controls:
            self._controls[run_dir] = _read_control(run_dir)
        return self._controls[run_dir]

    def control_changed(self, run_dir: Path) -> None:
        self._controls.pop(run_dir, None)

    def last_lines(self, attempt_dir: Path) -> list[dict[str, Any]]:
        """``trainer_lines.last_lines``; trainers only append."""
        try:
            size = os.stat(f"{attempt_dir}/trainer.jsonl").st_size
        except FileNotFoundError:
            return []
        known = self._lines.get(attempt_dir)
        if known is None or known[0] != size:
            known = self._lines[attempt_dir] = size, _last_lines(attempt_dir)
        return known[1]


def fold_known(events: list[journal.Event]) -> Run | None:
    """``core.fold.fold``, of a journal that ``Memory`` has folded already."""
    return events.run if isinstance(events, Events) else fold(events)
