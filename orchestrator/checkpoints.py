"""Reading checkpoints: which folders are complete, and whether one is as it was written. Never writes.

A folder is a complete checkpoint if and only if its ``COMPLETE`` marker parses and every file it lists has the listed size
(docs/protocol.md), or if the framework that wrote it would call it so (``layouts``). Order is by step, never by name or
date. What a network file system lists may be gone, and what is there may not be listed for half a minute: a folder counts
by what is found in it by name, and whoever knows a name gives it (``also``).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import layouts

if TYPE_CHECKING:
    from orchestrator.records import StartRecord

MARKER = "COMPLETE"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    step: int
    saved_at: float
    size_bytes: int
    epoch: int = 0                     # 0: not known, it is a framework's own
    counts_steps: bool = True          # its number is one of steps, not of saves


def complete_checkpoints(folder: Path, also: Iterable[Path] = ()) -> list[Checkpoint]:
    """All complete checkpoints below this folder and of ``also``, newest step last. A folder that is not there has none."""
    found = [*_with_marker(folder, also), *map(_frameworks_own, layouts.newest_first(folder))]
    return sorted(found, key=lambda c: (c.step, c.saved_at))


def newest_complete(folder: Path, *others: Checkpoint, start: StartRecord | None = None) -> Checkpoint | None:
    """The complete checkpoint with the highest step, of this folder and of ``others``. Of frameworks' own only the newest is
    looked at: they may be large. ``start``: as that attempt left it."""
    own = next(layouts.newest_first(folder), None)
    found = [*others, *_with_marker(folder), *([_frameworks_own(own)] if own is not None else [])]
    return max(found if start is None else left_by(start, found), key=lambda c: (c.step, c.saved_at), default=None)


def left_by(start: StartRecord, found: list[Checkpoint]) -> list[Checkpoint]:
    """Without those that lay there before and are newer than what it resumed from: they are damaged."""
    resumed = -1 if start.resume_step is None else start.resume_step
    return [one for one in found if one.step <= resumed or one.epoch >= start.epoch or not one.epoch]


def _with_marker(folder: Path, also: Iterable[Path] = ()) -> list[Checkpoint]:
    try:
        paths = {folder / name for name in os.listdir(folder) if not name.startswith(".")}
    except FileNotFoundError:
        paths = set()
    return [one for one in map(read_checkpoint, paths.union(also)) if one is not None]


def _frameworks_own(found: layouts.Found) -> Checkpoint:
    return Checkpoint(path=found.path, step=found.step, saved_at=found.saved_at, size_bytes=found.size_bytes,
                      counts_steps=found.counts_steps)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in this folder, None if it is not complete."""
    try:
        marker = json.loads((path / MARKER).read_text())
        files = dict(marker["files"])
        if any(_size(path / name) != size for name, size in files.items()):
            return None
        return Checkpoint(path=path, step=int(marker["step"]), saved_at=float(marker["saved_at"]),
                          size_bytes=sum(files.values()), epoch=int(marker.get("epoch", 0)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def damage(path: Path) -> str:
    """What in a complete checkpoint differs from its checksums; '' if nothing does, or it has none, as a framework's own.
    Reads about 1 GiB at most."""
    if not (path / MARKER).exists():
        return ""
    try:
        marker = json.loads((path / MARKER).read_text())
        sums, budget = dict(marker.get("sums") or {}), int(marker.get("sum_bytes") or 0)
        wrong = [name for name, found in sorted(sums.items()) if _sum(path / name, budget) != found]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{len(wrong)} of {len(sums)} files differ from their checksums, {wrong[0]} first" if wrong else ""


def _size(path: Path) -> int:
    """Asked of the open file: opening makes a network file system look again, where a stat may answer from a cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _blocks(size: int, budget: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of what is read of a file (docs/protocol.md)."""
    if size <= budget:
        yield 0, size
        return
    block = min(_BLOCK_BYTES, budget // 2)
    count = budget // block
    yield from ((number * (size - block) // (count - 1), block) for number in range(count))


def _sum(path: Path, budget: int) -> str:
    found = 0
    with open(path, "rb") as file:
        for offset, length in _blocks(os.fstat(file.fileno()).st_size, budget):
            file.seek(offset)
            for begin in range(0, length, _BLOCK_BYTES):
                found = zlib.crc32(file.read(min(_BLOCK_BYTES, length - begin)), found)
    return f"{found & 0xFFFFFFFF:08x}"
