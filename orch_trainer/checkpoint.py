"""Checkpoints on disk: how one becomes complete, and which are removed (complete.py reads them).

A checkpoint is written into `.tmp-step-STEP-EPOCH-PID`, synced and marked there; only then, under the fence, it is renamed.
A folder is removed by renaming it to `.old-...` under the fence; after that it is nobody's and is emptied at leisure.
Invariants: what has its final name and a marker is whole; never removed are the newest complete checkpoint, the one that
this attempt resumed from (in the shared folder), and one that somebody reads.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Iterable

from orch_trainer.complete import MARKER, Checkpoint, complete_checkpoints, damage, read_checkpoint, unread
from orch_trainer.fence import Fence
from orch_trainer.files import Files, size_by_name, sync_tree
from orch_trainer.shards import is_note, remove_notes
from orch_trainer.sums import budget_bytes, sums_of

MARKER_BEFORE = ".complete"
TEMPORARY = ".tmp-"
REMOVED = ".old-"
DAMAGED = ".damaged-"                                   # had its final name and was not whole: kept, the newest of them


class Checkpoints:
    """Publishes and removes the checkpoints of one run."""

    def __init__(self, parent: Path, fence: Fence, *, attempt: int, keep: int, files: Files,
                 resumed_step: int | None = None) -> None:
        self.parent = parent
        self.files = files
        self._fence = fence
        self._attempt = attempt
        self._keep = keep
        self._resumed_step = resumed_step
        self._numbers = itertools.count()

    def temporary(self, step: int, pid: int) -> Path:
        return self.parent / "{}step-{:08d}-{}-{}".format(TEMPORARY, step, self._fence.epoch, pid)

    def check(self) -> None:
        """Raises Fenced where a newer start has taken the run, OSError where nobody can say."""
        with self._fence.held():
            pass

    def begin(self, folder: Path) -> None:
        """An empty temp folder; a leftover of an earlier failure under the same name is ours and goes."""
        if folder.exists():
            self.files.remove_tree(folder)
        self.files.make_folder(folder)

    def sync(self, folder: Path) -> list[str]:
        """Bring what was written to the disk; the files' relative paths."""
        return [name for name in sync_tree(self.files, folder) if name not in (MARKER, MARKER_BEFORE) and not is_note(name)]

    def publish(self, step: int, folder: Path, names: Iterable[str], saved_at: float, *, ranks: int = 1) -> Checkpoint:
        """Make the temp folder the complete checkpoint of this step. Raises Fenced or OSError; nothing is published then."""
        final = self.parent / "step-{:08d}".format(step)
        sizes = _sizes(folder, names, may_be_gone=ranks > 1)
        remove_notes(self.files, folder, range(1, ranks))
        self._mark(folder, step, sizes, saved_at)
        with self._fence.held():
            existing = read_checkpoint(final)
            if existing is not None and damage(final):  # what was not resumed from must not stand in the way of its like
                existing = None
            if existing is None:
                if final.exists():                      # damaged: no checkpoint, and kept for whoever asks why
                    self._set_aside(final, DAMAGED)
                self.files.rename(folder, final)
                self.files.sync(self.parent)
        if existing is not None:                        # kept as it is: never replace what is complete
            self.files.remove_tree(folder)
            return existing
        return Checkpoint(step, final, self._fence.epoch, self._attempt, sum(sizes.values()))

    def mark(self, step: int, folder: Path, names: Iterable[str], saved_at: float) -> Checkpoint:
        """Make a complete checkpoint of a folder that is in its place already. Raises Fenced or OSError."""
        sizes = _sizes(folder, names)
        with self._fence.held():
            self._mark(folder, step, sizes, saved_at)
        return Checkpoint(step, folder, self._fence.epoch, self._attempt, sum(sizes.values()))

    def retire(self, just_saved: int) -> None:
        """Set aside all but the newest `keep` checkpoints, the one just saved (after a roll-back it may be older than
        others), the one that this attempt resumed from, and those that are being read."""
        with self._fence.held():
            for one in complete_checkpoints(self.parent)[:-self._keep]:
                if one.step not in (just_saved, self._resumed_step):
                    with unread(one.path) as nobody_reads:
                        if nobody_reads:
                            self._set_aside(one.path)
            for folder in sorted(self.parent.glob(DAMAGED + "*"), key=_changed_at)[:-1]:
                self._set_aside(folder)

    def clear(self) -> None:
        """Remove whatever lies in this folder; for local copies of which the shared level has something newer."""
        with self._fence.held():
            for folder in self.parent.iterdir():
                if not folder.name.startswith(REMOVED):
                    self._set_aside(folder)
        self.empty(self.set_aside())

    def sweep(self) -> None:
        """Set aside the temp folders of dead starts: of older epochs, and of this one where the writer is gone."""
        with self._fence.held():
            for folder in list(self.parent.glob(TEMPORARY + "step-*")):
                if self._is_dead(folder.name):
                    self._set_aside(folder)

    def set_aside(self) -> list[Path]:
        """What waits to be emptied."""
        return sorted(self.parent.glob(REMOVED + "*"))

    def empty(self, folders: list[Path]) -> None:
        for folder in folders:
            self.files.remove_tree(folder)

    def discard(self, folder: Path) -> None:
        """Remove a temp folder of this process."""
        self.files.remove_tree(folder)

    def _mark(self, folder: Path, step: int, sizes: dict[str, int], saved_at: float) -> None:
        """The marker is made complete under another name, so that there is never half of one."""
        marker = {"protocol": 1, "step": step, "epoch": self._fence.epoch, "attempt": self._attempt, "saved_at": saved_at,
                  "files": sizes, "sums": sums_of(folder, sizes), "sum_bytes": budget_bytes(len(sizes))}
        before = folder / MARKER_BEFORE
        self.files.write(before, json.dumps(marker).encode() + b"\n")
        self.files.rename(before, folder / MARKER)
        self.files.sync(folder)

    def _set_aside(self, folder: Path, prefix: str = REMOVED) -> None:
        name = "{}{}-{}-{}-".format(prefix, folder.name.lstrip("."), self._fence.epoch, os.getpid())
        target = self.parent / (name + str(next(self._numbers)))
        while target.exists():                          # pids come again
            target = self.parent / (name + str(next(self._numbers)))
        self.files.rename(folder, target)

    def _is_dead(self, name: str) -> bool:
        epoch, pid = name.split("-")[-2:]
        if not (epoch.isdigit() and pid.isdigit()):
            return False
        if int(epoch) != self._fence.epoch:
            return int(epoch) < self._fence.epoch
        return int(pid) == os.getpid() or not Path("/proc", pid).exists()


def _sizes(folder: Path, names: Iterable[str], *, may_be_gone: bool = False) -> dict[str, int]:
    """`may_be_gone`: a rank has seen another's file under a name that it bore only while it was written. All are done now."""
    sizes = {}
    for name in sorted(set(names)):
        try:
            sizes[name] = size_by_name(folder / name)
        except FileNotFoundError:
            if not may_be_gone:
                raise
    return sizes


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
