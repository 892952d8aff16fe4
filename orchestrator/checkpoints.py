"""Reading checkpoints: which folders are complete. Never writes; the trainer library alone does.

A folder is a complete checkpoint if and only if its ``COMPLETE`` marker parses and every file it lists has the listed size
(docs/protocol.md). Order is by the marker's step, never by name or date.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

MARKER = "COMPLETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    saved_at: float
    size_bytes: int
    epoch: int = 0


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """All complete checkpoints below this folder, newest step last. A folder that is not there has none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = (read_checkpoint(folder / name) for name in names if not name.startswith("."))
    return sorted((c for c in found if c is not None), key=lambda c: (c.step, c.saved_at))


def newest_complete(folder: Path) -> Checkpoint | None:
    """The complete checkpoint with the highest step."""
    found = complete_checkpoints(folder)
    return found[-1] if found else None


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in this folder, None if it is not complete."""
    try:
        marker = json.loads((path / MARKER).read_text())
        files = dict(marker["files"])
        if any((path / name).stat().st_size != size for name, size in files.items()):
            return None
        return Checkpoint(path=path, step=int(marker["step"]), saved_at=float(marker["saved_at"]),
                          size_bytes=sum(files.values()), epoch=int(marker.get("epoch", 0)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
