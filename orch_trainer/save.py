"""One save, from the empty temp folder to a complete checkpoint or to nothing, by one rank or by several together.

    begin -> (the user writes) -> end: sync -> all ranks fine? -> publish under the fence -> all ranks told
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

from orch_trainer.checkpoint import Checkpoint, Checkpoints
from orch_trainer.fence import Fence, Fenced
from orch_trainer.files import is_disk_trouble
from orch_trainer.ranks import Team

FINE, TROUBLE, FAILED, FENCED = range(4)                # by severity: the worst rank's grade counts for all


class Save:
    """Grades instead of exceptions, because every rank has to come to the same end."""

    def __init__(self, step: int, checkpoints: Checkpoints, fence: Fence, team: Team,
                 monotonic: Callable[[], float]) -> None:
        self.step = step
        self.folder = Path()
        self.checkpoint: Checkpoint | None = None       # on rank 0, once complete
        self.error: BaseException | None = None
        self.newer_epoch = 0                            # of the start that fenced us
        self.began = monotonic()
        self.written = self.durable = self.began
        self._checkpoints = checkpoints
        self._fence = fence
        self._team = team
        self._monotonic = monotonic
        self._no_folder: OSError | None = None

    def begin(self) -> int:
        """Make the temp folder (rank 0) and tell every rank which; FINE or FENCED."""
        pid = 0
        if self._team.leads:
            pid = os.getpid()
            self._make_folder(self._checkpoints.temporary(self.step, pid))
        pid, self.newer_epoch = self._team.agree([pid, self.newer_epoch])
        self.folder = self._checkpoints.temporary(self.step, pid)
        return FENCED if self.newer_epoch else FINE

    def end(self, error: BaseException | None, now: float) -> int:
        """Complete the checkpoint, or remove the temp folder; the grade on which all ranks agree."""
        sizes: dict[str, int] = {}
        if error is None:
            try:
                sizes = self._checkpoints.sync(self.folder)
            except OSError as failure:
                error = failure
        self.written = self._monotonic()
        grade = self._together(error)
        if grade == FINE and self._team.leads:
            error = self._publish(sizes, now)
        grade = self._together(error)
        self.durable = self._monotonic()
        if grade in (TROUBLE, FAILED) and self._team.leads:
            self._checkpoints.discard(self.folder)
        return grade

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

    def _publish(self, sizes: dict[str, int], now: float) -> BaseException | None:
        if not sizes:
            return ValueError("saving({}): nothing was written into {}".format(self.step, self.folder))
        try:
            self.checkpoint = self._checkpoints.publish(self.step, self.folder, sizes, now)
        except (Fenced, OSError) as error:
            return error
        return None

    def _together(self, error: BaseException | None) -> int:
        grade, self.newer_epoch = self._team.agree([self._grade(error), self.newer_epoch])
        return grade

    def _grade(self, error: BaseException | None) -> int:
        if error is None:
            return FINE
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
