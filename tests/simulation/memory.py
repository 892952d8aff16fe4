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
from orchestrator.checkpoints import Checkpoint, left_by
from orchestrator.control import observe
from orchestrator.core.fold import fold
from orchestrator.core.observation import Control
from orchestrator.journal import Event
from orchestrator.model import Run
from orchestrator.records import Record, StartRecord

_read_control, _read_lines = trainer_control.read_control, trainer_lines.read_lines
_read_record, _newest_epoch = attempt_files.read_record, attempt_files.newest_epoch
_complete_checkpoints, _read_metrics = checkpoints.complete_checkpoints, observe.read_metrics
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
    """Of one world's disk; ``wipe`` goes with the disk's."""

    disk: Disk
    _journals: dict[Path, _Journal] = field(default_factory=dict)
    _checkpoints: dict[Path, tuple[int, list[Checkpoint]]] = field(default_factory=dict)

    def wipe(self) -> None:
        self._journals.clear()
        self._checkpoints.clear()

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
            longer = Events([*held.events, *fresh])
            longer.run = fold(fresh, held.events.run)
            held.events, held.read_to = longer, held.read_to + len(whole) + 1

    def read(self, run_dir: Path) -> tuple[list[Event], str]:
        """``journal.read``; nobody here asks for the torn rest."""
        return self.events(run_dir), ""

    def control(self, run_dir: Path) -> Control | None:
        """``trainer_control.read_control``."""
        return self.disk.parsed(f"{run_dir}/control.json", lambda: _read_control(run_dir), None)

    def metrics(self, run_dir: Path) -> dict[str, object] | None:
        """``observe.read_metrics``."""
        return self.disk.parsed(f"{run_dir}/result.json", lambda: _read_metrics(run_dir), None)

    def read_lines(self, attempt_dir: Path) -> list[dict[str, Any]]:
        """``trainer_lines.read_lines``."""
        return self.disk.parsed(f"{attempt_dir}/trainer.jsonl", lambda: _read_lines(attempt_dir), [])

    def record(self, path: Path, kind: type[R]) -> R | None:
        """``attempt_files.read_record``; a file is always asked for as the same kind."""
        return self.disk.parsed(str(path), lambda: _read_record(path, kind), None)

    def checkpoints(self, folder: Path, also: Iterable[Path] = ()) -> list[Checkpoint]:
        """``checkpoints.complete_checkpoints``; on this disk whatever is there is listed, ``also`` too."""
        assert all(path.parent == folder for path in also)
        changes, known = self.disk.changes(folder), self._checkpoints.get(folder)
        if known is None or known[0] != changes:
            known = self._checkpoints[folder] = changes, _complete_checkpoints(folder)
        return known[1]

    def newest_checkpoint(self, folder: Path, *others: Checkpoint, start: StartRecord | None = None) -> Checkpoint | None:
        """``checkpoints.newest_complete``, which ``truth`` asks itself whenever a checkpoint was made or removed."""
        assert not others, "nothing is saved to nodes here"
        found = self.checkpoints(folder) if start is None else left_by(start, self.checkpoints(folder))
        return found[-1] if found else None

    def epoch(self, run_dir: Path) -> int | None:
        """``attempt_files.newest_epoch``."""
        return self.disk.parsed(f"{run_dir}/epoch", lambda: _newest_epoch(run_dir), 0)


def fold_known(events: list[Event]) -> Run | None:
    """``core.fold.fold``, of a journal that ``Memory`` has folded already."""
    return events.run if isinstance(events, Events) else fold(events)
