"""Reading checkpoints: which are complete, whether their content is what was written, and holding one while it is read.

What a network file system lists may be gone and what is there may not be listed yet; so a folder counts by what is found
in it by name, and whoever knows a name (`also`) gives it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

from orch_trainer.files import size_by_name

MARKER = "COMPLETE"


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
        return _read(folder)
    except OSError as error:
        if error.errno != errno.ESTALE:
            return None
    try:
        return _read(folder)                            # the name may by now mean something that is there
    except OSError:
        return None


def complete_checkpoints(parent: Path, also: Iterable[Path] = ()) -> list[Checkpoint]:
    """Oldest step first. Order is by the marker's step, never by name or date. Raises OSError where nobody can say."""
    try:
        folders = {path for path in parent.iterdir() if not path.name.startswith(".")}
    except FileNotFoundError:
        folders = set()
    found = (read_checkpoint(folder) for folder in sorted(folders.union(also)))
    return sorted((one for one in found if one is not None), key=lambda one: one.step)


def damage(folder: Path) -> str:
    """What in a complete checkpoint is not as it was written, by its checksums; '' if nothing is, or it has none."""
    from orch_trainer.sums import file_sum  # a thread pool's worth of imports, seldom needed

    try:
        marker = _marker(folder)
        sums, budget = dict(marker.get("sums") or {}), int(marker.get("sum_bytes") or 0)
        wrong = [name for name in sorted(sums) if file_sum(folder / name, budget) != sums[name]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "{}: {}".format(type(error).__name__, error)
    return "" if not wrong else "{} of {} files differ from their checksums, {} first".format(len(wrong), len(sums), wrong[0])


def newest_undamaged(found: list[Checkpoint]) -> tuple[Checkpoint | None, list[str]]:
    """Of checkpoints, oldest first, the newest whose content is as it was written; and what is wrong with newer ones."""
    wrong: list[str] = []
    for one in reversed(found):
        why = damage(one.path)
        if not why:
            return one, wrong
        wrong.append("{}: {}".format(one.path, why))
    return None, wrong


@contextmanager
def reading(folder: Path | str) -> Iterator[Path]:
    """Inside this block the complete checkpoint stays: retention leaves it alone, on whatever host (where the file system has
    locks). For evaluations that run beside the training. Raises FileNotFoundError if it is gone: take a newer one."""
    path = Path(folder)
    descriptor = os.open(str(path / MARKER), os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            pass                                        # no locks there; renamed aside it is still read to its end
        (path / MARKER).stat()                          # it may have been set aside before the lock was had
        yield path
    finally:
        os.close(descriptor)


@contextmanager
def unread(folder: Path) -> Iterator[bool]:
    """Whether nobody is in `reading`; then nobody comes to be while this block sets the folder aside."""
    try:
        descriptor = os.open(str(folder / MARKER), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        yield _locked_alone(descriptor)
    finally:
        os.close(descriptor)


def _locked_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _read(folder: Path) -> Checkpoint | None:
    """Raises OSError for what is not there."""
    try:
        marker = _marker(folder)
        sizes = {str(name): int(size) for name, size in marker["files"].items()}
        if any(size_by_name(folder / name) != size for name, size in sizes.items()):
            return None
        return Checkpoint(int(marker["step"]), folder, int(marker["epoch"]), int(marker["attempt"]), sum(sizes.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _marker(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / MARKER).read_bytes().decode())
    if not isinstance(content, dict):
        raise ValueError("no marker")
    return content
