"""Where things lie in a user's repository, and the one way to replace a file. Names only; no meaning."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def runs_dir(repository: Path) -> Path:
    return repository / "runs"


def run_dir(repository: Path, tag: str) -> Path:
    return runs_dir(repository) / tag


def job_dir(repository: Path, tag: str) -> Path:
    return repository / "jobs" / tag


def attempt_dir(run: Path, number: int) -> Path:
    return run / "attempts" / f"{number:04d}"


def checkpoint_dir(run: Path) -> Path:
    return run / "checkpoints"


def replace_file(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file so that readers see the old one or the new one, whole: temp + fsync + rename + fsync of the folder."""
    folder = path.parent
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_folder(folder)


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
