"""One save, from the empty temp folder to a complete checkpoint or to nothing, by one rank or by several together.

    begin -> (the user writes) -> left -> complete: the rest written? -> sync -> all ranks fine? -> publish under the fence

`begin`, `left` and `complete` hold collectives and belong to the loop's thread. `complete_alone` holds none: ranks hear of
each other by notes in the folder (shards.py), so a thread can do it while training goes on.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Sequence

from orch_trainer.checkpoint import Checkpoints
from orch_trainer.complete import Checkpoint
from orch_trainer.fence import Fence, Fenced
from orch_trainer.files import is_disk_trouble
from orch_trainer.ranks import Team
from orch_trainer.shards import Note, leave_note, read_note

FINE, TROUBLE, FAILED, FENCED = range(4)                # by severity: the worst rank's grade counts for all
POLL_S = 0.05
NOTE_AGAIN_S = 1.0


class Save:
    """Grades instead of exceptions, because every rank has to come to the same end."""

    def __init__(self, step: int, levels: Sequence[Checkpoints], level: int, fence: Fence, team: Team,
                 monotonic: Callable[[], float]) -> None:
        self.step = step
        self.level = level                              # index into `levels`; rank 0's counts
        self.is_last = False                            # begun after the notice, as rank 0 knows it
        self.folder = Path()
        self.checkpoint: Checkpoint | None = None       # on rank 0, once complete
        self.error: BaseException | None = None
        self.newer_epoch = 0                            # of the start that fenced us
        self.began = monotonic()
        self.written = self.durable = self.began
        self._levels = levels
        self._checkpoints = levels[level]
        self._fence = fence
        self._team = team
        self._monotonic = monotonic
        self._no_folder: OSError | None = None
        self._names: list[str] = []                     # of the files that this rank sees

    def begin(self, *, is_last: bool) -> int:
        """Make the temp folder (rank 0) and tell every rank which; FINE or FENCED."""
        told = [0, 0, 0, 0]
        if self._team.leads:
            self._make_folder(self._checkpoints.temporary(self.step, os.getpid()))
            told = [os.getpid(), self.newer_epoch, self.level, int(is_last)]
        pid, self.newer_epoch, self.level, last = self._team.agree(told)
        self.is_last = bool(last)
        self._checkpoints = self._levels[self.level]
        self.folder = self._checkpoints.temporary(self.step, pid)
        return FENCED if self.newer_epoch else FINE

    def left(self, error: BaseException | None) -> int:
        """The user's block is over; the grade on which all ranks agree."""
        self.written = self._monotonic()
        return self._together(FINE if error is None else self._grade(error))

    def complete(self, rest: Any, now: Callable[[], float]) -> int:
        """To the end with all ranks together, in the loop's thread; the grade on which they agree."""
        grade = self._write(rest)
        if not self._team.leads:
            grade = max(grade, self._leave_note(grade))
        grade = self._together(grade)
        if grade == FINE and self._team.leads:
            grade = self._publish(now)
        grade = self._together(grade)
        self.durable = self._monotonic()
        return grade

    def complete_alone(self, rest: Any, now: Callable[[], float]) -> int:
        """To the end in a thread, without a collective; this rank's grade, and on rank 0 everybody's."""
        grade = self._write(rest)
        if rest is not None:
            self.written = self._monotonic()
        if not self._team.leads:
            while self._leave_note(grade) != FINE and self.folder.exists():
                time.sleep(NOTE_AGAIN_S)                # rank 0 waits for it
        elif grade == FINE:
            grade = self._publish(now)
        else:
            with suppress(OSError):
                self._wait_for_others()                 # they write into the folder that goes now
        self.durable = self._monotonic()
        return grade

    def discard(self) -> None:
        self._checkpoints.discard(self.folder)

    def _make_folder(self, folder: Path) -> None:
        """A block cannot be skipped, so where no folder can be made the user's writing fails, and is forgiven."""
        try:
            with self._fence.held():
                pass                                    # do not write gigabytes that could not be published
            self._checkpoints.begin(folder)
        except Fenced as fenced:
            self.newer_epoch = fenced.epoch
        except OSError as error:
            if not is_disk_trouble(error, folder.parent):
                raise
            self._no_folder = error

    def _write(self, rest: Any) -> int:
        """Wait for the rest of the writing and bring it to the disk; this rank's grade."""
        try:
            _finish(rest)
            self._names = self._checkpoints.sync(self.folder)
        except BaseException as error:                  # also the program's own, which is raised in the loop
            return self._grade(error)
        return FINE

    def _leave_note(self, grade: int) -> int:
        words = "" if grade == FINE else "{}: {}".format(type(self.error).__name__, self.error)
        try:
            leave_note(self._checkpoints.files, self.folder, self._team.rank, Note(self._names, words, grade == TROUBLE))
        except OSError as error:
            return self._grade(error)
        return FINE

    def _wait_for_others(self) -> list[Note]:
        notes = []
        for rank in range(1, self._team.size):
            note = read_note(self.folder, rank)
            while note is None:
                if not self.folder.exists():
                    raise FileNotFoundError("the folder is gone: {}".format(self.folder))
                time.sleep(POLL_S)
                note = read_note(self.folder, rank)
            notes.append(note)
        return notes

    def _publish(self, now: Callable[[], float]) -> int:
        """On rank 0."""
        names = list(self._names)
        try:
            for rank, note in enumerate(self._wait_for_others(), 1):
                if note.error:
                    words = "rank {}: {}".format(rank, note.error)
                    raise OSError(errno.EIO, words) if note.is_disk_trouble else RuntimeError(words)
                names += note.files
            if not names:
                raise ValueError("saving({}): nothing was written into {}".format(self.step, self.folder))
            self.checkpoint = self._checkpoints.publish(self.step, self.folder, names, now(), ranks=self._team.size)
        except (Fenced, OSError, ValueError, RuntimeError) as error:
            return self._grade(error)
        return FINE

    def _together(self, grade: int) -> int:
        grade, self.newer_epoch = self._team.agree([grade, self.newer_epoch])
        return grade

    def _grade(self, error: BaseException) -> int:
        self.error = error
        fenced = self._newer_start(error)
        if fenced is not None:
            self.newer_epoch = fenced.epoch
            return FENCED
        if self._no_folder is not None and isinstance(error, Exception):
            self.error = self._no_folder
            return TROUBLE
        return TROUBLE if is_disk_trouble(error, self.folder) else FAILED

    def _newer_start(self, error: BaseException) -> Fenced | None:
        """A newer start may have swept our temp folder away while we wrote: then that is the reason."""
        if isinstance(error, Fenced):
            return error
        try:
            with self._fence.held():
                return None
        except Fenced as fenced:
            return fenced
        except OSError:
            return None


def _finish(rest: Any) -> None:
    """A future is waited for, a function is called; torch's answers to async_save hold the future in a field of theirs."""
    rest = getattr(rest, "upload_completion", rest)
    if rest is None:
        return
    if hasattr(rest, "result"):
        rest.result()
    else:
        rest()
