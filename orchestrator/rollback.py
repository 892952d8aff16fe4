"""Setting newer checkpoints aside: renamed, never deleted, under the fence.

The epoch is raised first, so that a trainer which lives on where nobody sees it publishes nothing any more.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.checkpoints import complete_checkpoints
from orchestrator.errors import StorageError
from orchestrator.folders import checkpoint_dir, fsync_folder, replace_file
from orchestrator.layouts import DEEPSPEED_TRACKER, MEGATRON_TRACKER, tracked


def set_aside_newer(run_dir: Path, step: int, into: str) -> tuple[list[str], int]:
    """Move complete checkpoints of later steps into the folder ``into`` beside them; the names of all that lie there, and the
    epoch up to which starts are of the history that is left.

    What was moved before by a call that was killed is among them. Raises StorageError while another process holds the
    fence, OSError when a folder cannot be renamed.
    """
    parent = checkpoint_dir(run_dir)
    aside = parent / into
    with _raised_epoch(run_dir / "epoch") as epoch:
        newer = [one for one in complete_checkpoints(parent) if one.step > step]
        for checkpoint in newer:
            aside.mkdir(exist_ok=True)
            os.rename(checkpoint.path, aside / checkpoint.path.name)
            fsync_folder(aside)
        for folder in {parent, *(checkpoint.path.parent for checkpoint in newer)}:
            _point_trackers(folder, step)
            fsync_folder(folder)
    return sorted(os.listdir(aside)) if aside.is_dir() else [], epoch


def _point_trackers(folder: Path, step: int) -> None:
    """Megatron and DeepSpeed load what their tracker names."""
    for name in (MEGATRON_TRACKER, DEEPSPEED_TRACKER):
        newest = tracked(folder, name)
        if newest is not None and newest > step:
            replace_file(folder / name, re.sub(r"\d+\s*$", str(step), (folder / name).read_text()))


@contextmanager
def _raised_epoch(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"{path} is locked ({error.strerror}): somebody is publishing a checkpoint",
                               hint="the next pass tries again") from None
        text = os.pread(descriptor, 64, 0).strip()
        epoch = int(text) + 1 if text.isdigit() else 0
        if epoch:                      # without a number nothing has started yet
            os.pwrite(descriptor, f"{epoch:012d}\n".encode(), 0)
            os.fsync(descriptor)
        yield epoch
    finally:
        os.close(descriptor)           # closing lets go of the lock
