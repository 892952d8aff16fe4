"""Checkpoints on disk: which are complete, how one becomes complete, which are removed.

A checkpoint is written into `.tmp-step-STEP-EPOCH-PID`, synced, and only then, under the fence, marked and renamed.
A folder is removed by renaming it to `.old-...` under the fence; after that it is nobody's and is emptied at leisure.
Invariants: what has its final name and a marker is whole; the newest complete checkpoint is never removed.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from orch_trainer.fence import Fence
from orch_trainer.files import Files, sync_tree

MARKER = "COMPLETE"
TEMPORARY = ".tmp-"
REMOVED = ".old-"


class Checkpoint(NamedTuple):
    """A complete checkpoint."""

    step: int
    path: Path
    epoch: int
    attempt: int
    size_bytes: int


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in this folder, or None unless its marker parses and all its files have the listed sizes."""
    try:
        marker: dict[str, Any] = json.loads((folder / MARKER).read_bytes().decode())
        sizes = {str(name): int(size) for name, size in marker["files"].items()}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        return Checkpoint(int(marker["step"]), folder, int(marker["epoch"]), int(marker["attempt"]),
                          sum(sizes.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def complete_checkpoints(parent: Path) -> list[Checkpoint]:
    """Oldest step first. Order is by the marker's step, never by name or date."""
    try:
        folders = [path for path in parent.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    found = (read_checkpoint(folder) for folder in folders)
    return sorted((one for one in found if one is not None), key=lambda one: one.step)


class Checkpoints:
    """Publishes and removes the checkpoints of one run."""

    def __init__(self, parent: Path, fence: Fence, *, attempt: int, keep: int, files: Files) -> None:
        self.parent = parent
        self._fence = fence
        self._attempt = attempt
        self._keep = keep
        self._files = files
        self._numbers = itertools.count()

    def temporary(self, step: int, pid: int) -> Path:
        return self.parent / "{}step-{:08d}-{}-{}".format(TEMPORARY, step, self._fence.epoch, pid)

    def begin(self, folder: Path) -> None:
        """An empty temp folder; a leftover of an earlier failure under the same name is ours and goes."""
        if folder.exists():
            self._files.remove_tree(folder)
        self._files.make_folder(folder)

    def sync(self, folder: Path) -> dict[str, int]:
        """Bring the written files to the disk; their sizes."""
        sizes = sync_tree(self._files, folder)
        sizes.pop(MARKER, None)
        return sizes

    def publish(self, step: int, folder: Path, sizes: dict[str, int], saved_at: float) -> Checkpoint:
        """Make the folder the complete checkpoint of this step. Raises Fenced, having written nothing."""
        final = self.parent / "step-{:08d}".format(step)
        marker = {"protocol": 1, "step": step, "epoch": self._fence.epoch, "attempt": self._attempt,
                  "saved_at": saved_at, "files": sizes}
        with self._fence.held():
            existing = read_checkpoint(final)
            if existing is None:
                self._files.write(folder / MARKER, json.dumps(marker).encode() + b"\n")
                self._files.sync(folder)
                if final.exists():                      # damaged: no checkpoint
                    self._set_aside(final)
                self._files.rename(folder, final)
                self._files.sync(self.parent)
        if existing is not None:                        # kept as it is: never replace what is complete
            self._files.remove_tree(folder)
            return existing
        return Checkpoint(step, final, self._fence.epoch, self._attempt, sum(sizes.values()))

    def retire(self, just_saved: int) -> None:
        """Set aside all but the newest `keep` checkpoints and the one just saved.

        After a roll-back the one just saved may be older than others. What this attempt resumed from needs no
        protection of its own: it goes only here, after something newer is complete.
        """
        with self._fence.held():
            complete = complete_checkpoints(self.parent)
            for one in complete[:-self._keep]:
                if one.step != just_saved:
                    self._set_aside(one.path)

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
            self._files.remove_tree(folder)

    def discard(self, folder: Path) -> None:
        """Remove a temp folder of this process."""
        self._files.remove_tree(folder)

    def _set_aside(self, folder: Path) -> None:
        name = "{}{}-{}-{}-{}".format(REMOVED, folder.name.lstrip("."), self._fence.epoch, os.getpid(),
                                      next(self._numbers))
        self._files.rename(folder, self.parent / name)

    def _is_dead(self, name: str) -> bool:
        epoch, pid = name.split("-")[-2:]
        if not (epoch.isdigit() and pid.isdigit()):
            return False
        if int(epoch) != self._fence.epoch:
            return int(epoch) < self._fence.epoch
        return int(pid) == os.getpid() or not Path("/proc", pid).exists()
