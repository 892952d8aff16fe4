"""What was read and parsed once is not parsed again as long as the file has not changed.

These readings are pure in a file's bytes (``disk.Disk.parsed`` keeps them there). A journal is read on from where it was
left off, so that the run here is the fold of one who never forgets; at the end of a schedule it is compared with a fold from
the first line to the last, read from the disk (``rest``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from simulation.disk import Disk, Node

from orchestrator import attempt_files, checkpoints, trainer_control, trainer_lines
from orchestrator.checkpoints import Checkpoint
from orchestrator.core.fold import apply, fold
from orchestrator.core.observation import Control
from orchestrator.journal import Event
from orchestrator.model import Run
from orchestrator.records import Record

_read_control, _read_lines = trainer_control.read_control, trainer_lines.read_lines
_read_record, _complete_checkpoints = attempt_files.read_record, checkpoints.complete_checkpoints
R = TypeVar("R", bound=Record)


class Events(list[Event]):
    """What a journal held, with the run it tells of."""

    run: Run | None = None


@dataclass(slots=True)
class _Journal:
    node: Node | None = None
    read_to: int = 0                   # bytes of whole lines
    size: int = 0
    events: Events = field(default_factory=Events)


@dataclass(slots=True)
class Memory:
    """Of one world's disk."""

    disk: Disk
    _journals: dict[Path, _Journal] = field(default_factory=dict)
    _checkpoints: dict[Path, tuple[int, list[Checkpoint]]] = field(default_factory=dict)

    def events(self, run_dir: Path) -> Events:
        held = self._journals.get(run_dir)
        if held is None:
            held = self._journals[run_dir] = _Journal()
        if held.node is None:
            held.node = self.disk.files.get(f"{run_dir}/journal.jsonl")
        if held.node is not None and len(held.node.data) != held.size:
            self._read_on(held, held.node.data)
        return held.events

    @staticmethod
    def _read_on(held: _Journal, data: bytes) -> None:
        assert len(data) >= held.read_to, "whole lines of a journal are never cut off"
        whole, held.size = data[held.read_to:].rpartition(b"\n")[0], len(data)
        if whole:
            fresh = [json.loads(line.decode()) for line in whole.splitlines()]
            longer, longer.run = (longer := Events([*held.events, *fresh])), held.events.run
            for event in fresh:
                longer.run = apply(longer.run, event)
            held.events, held.read_to = longer, held.read_to + len(whole) + 1

    def read(self, run_dir: Path) -> tuple[list[Event], str]:
        """``journal.read``; nobody here asks for the torn rest."""
        return self.events(run_dir), ""

    def control(self, run_dir: Path) -> Control | None:
        """``trainer_control.read_control``."""
        return self.disk.parsed(f"{run_dir}/control.json", lambda: _read_control(run_dir), None)

    def read_lines(self, attempt_dir: Path) -> list[dict[str, Any]]:
        """``trainer_lines.read_lines``."""
        return self.disk.parsed(f"{attempt_dir}/trainer.jsonl", lambda: _read_lines(attempt_dir), [])

    def record(self, path: Path, kind: type[R]) -> R | None:
        """``attempt_files.read_record``; a file is always asked for as the same kind."""
        return self.disk.parsed(str(path), lambda: _read_record(path, kind), None)

    def checkpoints(self, folder: Path, also: Iterable[Path] = ()) -> list[Checkpoint]:
        """``checkpoints.complete_checkpoints``; on this disk whatever is there is listed, ``also`` too."""
        assert all(path.parent == folder for path in also)
        changes = self.disk.changes(folder)
        known = self._checkpoints.get(folder)
        if known is None or known[0] != changes:
            known = self._checkpoints[folder] = changes, _complete_checkpoints(folder)
        return known[1]


def fold_known(events: list[Event]) -> Run | None:
    """``core.fold.fold``, of a journal that ``Memory`` has folded already."""
    return events.run if isinstance(events, Events) else fold(events)
