"""How rank 0 learns that the other ranks' files of a checkpoint are on the disk, and what they are called.

Each other rank leaves a note in the temp folder once its files are synced, or could not be written: `.rank-00001`, made
complete elsewhere and renamed. Rank 0 asks for each by name: a directory that a network file system has cached may not list
what is there. So nothing here needs a collective, and a thread may wait while training goes on with its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from orch_trainer.files import Files

PREFIX = ".rank-"


class Note(NamedTuple):
    """What one rank says: the files that it sees in the folder, its own among them; or why it has none."""

    files: list[str]
    error: str
    is_disk_trouble: bool


def leave_note(files: Files, folder: Path, rank: int, note: Note) -> None:
    """Raises OSError."""
    temporary = folder / ".note-{:05d}".format(rank)
    files.write(temporary, json.dumps(note._asdict()).encode() + b"\n")
    files.rename(temporary, _path(folder, rank))


def read_note(folder: Path, rank: int) -> Note | None:
    """None while it is not there."""
    try:
        content = json.loads(_path(folder, rank).read_bytes().decode())
        return Note(list(map(str, content["files"])), str(content["error"]), bool(content["is_disk_trouble"]))
    except FileNotFoundError:
        return None


def remove_notes(files: Files, folder: Path, ranks: range) -> None:
    for rank in ranks:
        files.remove(_path(folder, rank))


def is_note(name: str) -> bool:
    return name.startswith((PREFIX, ".note-")) and os.sep not in name


def _path(folder: Path, rank: int) -> Path:
    return folder / "{}{:05d}".format(PREFIX, rank)
