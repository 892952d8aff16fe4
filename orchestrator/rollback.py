"""Setting newer checkpoints aside, and bringing them back: renamed, never deleted, under the fence.

The epoch is raised first, so that a trainer which lives on where nobody sees it publishes nothing any more.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.checkpoints import Checkpoint, complete_checkpoints
from orchestrator.errors import StorageError
from orchestrator.folders import checkpoint_dir, fsync_folder, replace_file
from orchestrator.layouts import BELOW, DEEPSPEED_TRACKER, MEGATRON_TRACKER, tracked


def keep_apart(run_dir: Path, checkpoint: str, into: str) -> bool:
    """Move a complete checkpoint of ``checkpoints/`` into the folder ``into`` beside it; False where it is gone. No trainer
    removes one meanwhile. Raises StorageError while another process holds the fence, OSError when it cannot be renamed."""
    parent = checkpoint_dir(run_dir)
    path, apart = parent / checkpoint, parent / into / checkpoint
    with _fence(run_dir / "epoch"):
        if not apart.exists() and path in [one.path for one in complete_checkpoints(parent)]:
            _keep_trackers(path.parent, apart.parent)
            _move(path, parent, parent / into)
        return apart.exists()          # a call that was killed may have moved it


def set_aside_newer(run_dir: Path, step: int, into: str, back: str = "", back_step: int = 0) -> tuple[list[str], int]:
    """Move complete checkpoints of later steps into the folder ``into`` beside them, as they lie there; the names of all
    that are in it, and the epoch up to which starts are of the history that is left. ``back``: a checkpoint that was set
    aside before, ``FOLDER/NAME``, and its step; it comes back, with the older ones of its folder.

    What a call that was killed had moved is among them. Raises StorageError while another process holds the fence, OSError
    when a folder cannot be renamed.
    """
    parent = checkpoint_dir(run_dir)
    aside = parent / into
    with _raised_epoch(run_dir / "epoch") as epoch:
        if not back or (parent / back).exists():        # which comes back first, so that nothing of it is taken for newer
            for checkpoint in [one for one in complete_checkpoints(parent) if one.step > step]:
                _keep_trackers(checkpoint.path.parent, aside / checkpoint.path.parent.relative_to(parent))
                _move(checkpoint.path, parent, aside)
        if back:
            _bring_back(parent, back, back_step, aside)
        for below in BELOW:
            _point_trackers(parent / below, max(step, back_step), up=bool(back))
    return sorted(_names(aside)), epoch


def set_aside_checkpoints(parent: Path, asides: Iterable[str]) -> dict[str, Checkpoint]:
    """What lies in these folders of earlier roll-backs, by its path from here; nobody resumes from it, and no retention
    counts or removes it."""
    found = [one for aside in sorted(asides) for one in complete_checkpoints(parent / aside)]
    return {str(one.path.relative_to(parent)): one for one in found}


def _bring_back(parent: Path, back: str, step: int, aside: Path) -> None:
    """The one that was asked for, then the older ones of its folder. What is in the way is torn, or the same step saved once
    more."""
    source = parent / back.partition("/")[0]
    chosen, there = parent / back, complete_checkpoints(source)
    if chosen.exists() and chosen not in [one.path for one in there]:
        raise StorageError(f"{chosen} is no complete checkpoint any more")
    for path in [*(one.path for one in there if one.path == chosen), *(one.path for one in there if one.step < step)]:
        in_the_way = parent / path.relative_to(source)
        if in_the_way.exists():
            _move(in_the_way, parent, aside)
        _move(path, source, parent)
    with suppress(OSError):            # there are others of its history in it
        source.rmdir()


def _move(path: Path, source: Path, target: Path) -> None:
    """To the same place below ``target``."""
    moved = target / path.relative_to(source)
    moved.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path, moved)
    fsync_folder(moved.parent)
    fsync_folder(path.parent)


def _names(aside: Path) -> Iterator[str]:
    for below in BELOW:
        if (aside / below).is_dir():
            yield from (f"{below}/{path.name}".lstrip("/") for path in (aside / below).iterdir()
                        if path.is_dir() and path.name not in BELOW)


def _keep_trackers(folder: Path, aside: Path) -> None:
    """Without its tracker Megatron's and DeepSpeed's are not known for complete ones there."""
    for name in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        if (folder / name).is_file() and not (aside / name).exists():
            aside.mkdir(parents=True, exist_ok=True)
            replace_file(aside / name, (folder / name).read_text())


def _point_trackers(folder: Path, step: int, *, up: bool) -> None:
    """Megatron and DeepSpeed load what their tracker names."""
    for name in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        newest = tracked(folder, name)
        if newest is not None and (newest > step or (up and newest < step)):
            replace_file(folder / name, re.sub(r"\d+\s*$", str(step), (folder / name).read_text()))


@contextmanager
def _fence(path: Path) -> Iterator[int]:
    """Its descriptor: whoever holds it may publish and delete checkpoints, and nobody else."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{path} is locked ({error.strerror}): somebody is publishing a checkpoint",
                               hint="the next pass tries again") from None
        yield descriptor
    finally:
        os.close(descriptor)           # closing lets go of the lock


@contextmanager
def _raised_epoch(path: Path) -> Iterator[int]:
    with _fence(path) as descriptor:
        text = os.pread(descriptor, 64, 0).strip()
        epoch = int(text) + 1 if text.isdigit() else 0
        if epoch:                      # without a number nothing has started yet
            os.pwrite(descriptor, f"{epoch:012d}\n".encode(), 0)
            os.fsync(descriptor)
        yield epoch
