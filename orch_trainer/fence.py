"""The fence: only the newest start of a run may publish.

After a node failure the old trainer may live on beside its successor. Each start has a number, the epoch, in
`runs/TAG/epoch`; whoever publishes holds that file's lock while doing so and finds no greater number in it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

EPOCH_BYTES = 64


class Fenced(Exception):
    """A newer start of this run exists: write nothing, exit 76."""

    def __init__(self, epoch: int) -> None:
        super().__init__("epoch {} has taken this run".format(epoch))
        self.epoch = epoch


class Fence:
    """The lock on the epoch file. Without a file (outside orch) nothing is fenced."""

    def __init__(self, path: Path | None, epoch: int) -> None:
        self._path = path
        self.epoch = epoch
        # A POSIX lock belongs to the whole process, so threads need one of their own; it also guarantees that
        # nobody here closes a second descriptor of the file, which would drop the lock.
        self._threads = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Publish inside this block. Raises Fenced, or OSError where the epoch cannot be read."""
        with self._threads:
            if self._path is None:
                yield
                return
            descriptor = os.open(str(self._path), os.O_RDWR)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
                newest = _parse(os.pread(descriptor, EPOCH_BYTES, 0), self._path)
                if newest > self.epoch:
                    raise Fenced(newest)
                yield
            finally:
                os.close(descriptor)                    # drops the lock


def _parse(data: bytes, path: Path) -> int:
    text = data.decode("ascii", "replace").strip()
    if not text.isdigit():
        raise OSError(errno.EIO, "not an epoch: {!r}".format(text), str(path))
    return int(text)
