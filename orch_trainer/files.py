"""Every change the library makes to a file system goes through here, one named operation at a time.

Tests hand in a subclass whose `before` kills the process or raises at the n-th operation; nothing else is faked.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

DISK_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.ESTALE))
PROBE_BYTES = 1 << 20


class Files:
    """Create, sync, rename, remove. No operation retries; each raises what the system said."""

    def before(self, operation: str, path: Path) -> None:
        """Called before each operation; the seam for faults."""

    def make_folder(self, path: Path) -> None:
        self.before("mkdir", path)
        path.mkdir(parents=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file and bring it to the disk."""
        self.before("create", path)
        with open(str(path), "wb") as file:
            self.before("write", path)
            file.write(data)
            file.flush()
            self.before("fsync", path)
            os.fsync(file.fileno())

    def sync(self, path: Path) -> None:
        """fsync one file or one folder."""
        self.before("fsync", path)
        descriptor = os.open(str(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.before("rename", source)
        os.rename(str(source), str(target))

    def remove_tree(self, path: Path) -> None:
        """Remove a folder. Somebody else may be removing it too; what is left over is nobody's checkpoint."""
        self.before("remove", path)
        shutil.rmtree(str(path), ignore_errors=True)


def sync_tree(files: Files, folder: Path) -> dict[str, int]:
    """fsync all files and folders below and including `folder`; sizes by relative path."""
    sizes: dict[str, int] = {}
    for root, _, names in os.walk(str(folder), topdown=False):
        for name in names:
            path = Path(root, name)
            files.sync(path)
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        files.sync(Path(root))
    return sizes


def is_disk_trouble(error: BaseException, folder: Path) -> bool:
    """Whether the storage is at fault: the error says so, or a small write into the same folder fails now.

    The second question is for libraries that report a full disk without an errno (numpy's tofile) or as a
    RuntimeError (torch.save).
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in DISK_ERRORS:
            return True
        seen = seen.__cause__ or seen.__context__
    return isinstance(error, (OSError, RuntimeError)) and not _writable(folder)


def _writable(folder: Path) -> bool:
    probe = folder / ".probe"
    try:
        with open(str(probe), "wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        return error.errno not in DISK_ERRORS
    return True
