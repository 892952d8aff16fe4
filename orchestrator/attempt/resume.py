"""Which checkpoint an attempt resumes from: the newest complete one whose content is as it was written.

Beside what the checkpoint folder lists, the names count that the attempts before wrote down when they saved: a successor
starts within a second, and a network file system's listing may be half a minute old. Where the run saves to this node too,
the newest of both levels counts; on another node, or in memory after a reboot, nothing lies there, and the shared one is it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from orchestrator import journal
from orchestrator.checkpoints import Checkpoint, complete_checkpoints, damage
from orchestrator.core.fold import fold
from orchestrator.errors import JournalError
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.records import StartRecord
from orchestrator.trainer_lines import read_lines

ATTEMPTS_READ = 3


def choose(run_dir: Path, before: Sequence[StartRecord], local_dir: str = "") -> tuple[Checkpoint | None, list[str]]:
    """None if there is none; and what is wrong with newer ones, each in a sentence. Reads at most about 1 GiB of each."""
    before = of_this_history(run_dir, before)
    numbers = sorted({start.number for start in before})[-ATTEMPTS_READ:]
    told = {Path(str(line["path"])) for number in numbers for line in read_lines(attempt_dir(run_dir, number))
            if line["event"] == "saved" and line.get("path") and line.get("level") != "local"}
    found = complete_checkpoints(checkpoint_dir(run_dir), told) + local_checkpoints(local_dir, before)
    wrong: list[str] = []
    for checkpoint in sorted(found, key=lambda c: (c.step, c.saved_at), reverse=True):
        why = damage(checkpoint.path)
        if not why:
            return checkpoint, wrong
        wrong.append(f"not resumed from step {checkpoint.step}, which is damaged ({checkpoint.path}): {why}")
    return None, wrong


def local_checkpoints(local_dir: str, starts: Sequence[StartRecord]) -> list[Checkpoint]:
    """Those on this node that a start of this run has written: an earlier run of the same name had lower epochs."""
    first = min((start.epoch for start in starts), default=None)
    with contextlib.suppress(OSError):
        if local_dir and first is not None and nobody_elses(Path(local_dir)):
            return [one for one in complete_checkpoints(Path(local_dir)) if one.epoch >= first]
    return []


def nobody_elses(folder: Path) -> bool:
    """Whether nobody but this user and root can have put something there: who loads a checkpoint may run what is in it, and
    /dev/shm is everybody's. Raises OSError for a folder that is not there."""
    for path in (folder, *folder.parents):
        status = path.stat()
        others_write = status.st_mode & 0o022 and not (status.st_mode & stat.S_ISVTX and path != folder)
        if others_write or not {status.st_uid, path.lstat().st_uid} <= {0, os.getuid()}:
            return False
    return True


def remove_strangers(local_dir: str, starts: Sequence[StartRecord]) -> None:
    """What an earlier run of the same name left on this node, or this one before it was rolled back: it would stand in the
    way of new saves of those steps."""
    kept = {one.path for one in local_checkpoints(local_dir, starts)}
    with contextlib.suppress(OSError):
        if local_dir and nobody_elses(Path(local_dir)):
            for path in set(Path(local_dir).iterdir()) - kept:
                shutil.rmtree(path, ignore_errors=True)


def of_this_history(run_dir: Path, starts: Sequence[StartRecord]) -> list[StartRecord]:
    """Those since the run was rolled back last: what was saved before is what nobody resumes from any more, also where this
    node has a copy of its own. By epochs: a node's clock may be another than the one that the roll-back was noted by."""
    try:
        run = fold(journal.read(run_dir)[0])
    except (JournalError, OSError):
        run = None
    left = run.rolled_back_epoch if run is not None else 0
    return [start for start in starts if start.epoch > left]
