"""Every change the library makes to a file system goes through here, one named operation at a time.

Tests hand in a subclass whose `before` kills the process or raises at the n-th operation; nothing else is faked.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
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
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.before("write", path)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest):]
            self.before("fsync", path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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

    def remove(self, path: Path) -> None:
        """Remove one file that may be gone already."""
        self.before("unlink", path)
        try:
            os.unlink(str(path))
        except FileNotFoundError:
            pass

    def remove_tree(self, path: Path) -> None:
        """Remove a folder. Somebody else may be removing it too; what is left over is nobody's checkpoint."""
        self.before("remove", path)
        shutil.rmtree(str(path), ignore_errors=True)


def sync_tree(files: Files, folder: Path) -> list[str]:
    """fsync all files and folders below and including `folder`; the files' relative paths. Other ranks may still be writing:
    a file of theirs that gets its final name meanwhile is left to them."""
    found: list[str] = []
    for root, _, names in os.walk(str(folder), topdown=False, onerror=_raise):
        for name in names:
            path = Path(root, name)
            try:
                files.sync(path)
            except FileNotFoundError:
                continue
            found.append(path.relative_to(folder).as_posix())
        files.sync(Path(root))
    return found


def size_by_name(path: Path) -> int:
    """Asked of the open file: opening makes a network file system look again, where a stat may answer from a cache."""
    descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _raise(error: OSError) -> None:
    raise error


def nobody_elses(folder: Path) -> bool:
    """Whether nobody but this user and root can write there, or replace what is there. Raises OSError."""
    for path in (folder, *folder.parents):
        status = path.stat()
        others_write = status.st_mode & 0o022 and not (status.st_mode & stat.S_ISVTX and path != folder)
        if others_write or not {status.st_uid, path.lstat().st_uid} <= {0, os.getuid()}:
            return False
    return True


def is_disk_trouble(error: BaseException, folder: Path) -> bool:
    """Whether the storage is at fault: the error says so, or a small write into the same folder fails now.

    Some libraries say it in words alone (safetensors), some without an errno (numpy's tofile) or as a RuntimeError
    (torch.save): for these a write is tried.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in DISK_ERRORS:
            return True
        if isinstance(seen, Exception) and any(os.strerror(number) in str(seen) for number in DISK_ERRORS):
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
