"""What a shared file system is asked on both sides, on the login host and on a compute node: the very same code there.

Locks carry the meeting of the two sides, since a lock is decided by the file server and never by a cache: a side knows that
the other is there when a lock is refused, and a time stamp that is written before a lock is let go of is read by whoever gets
it next. So clocks can be compared before anything is known about caches. Standard library and orch's own alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import RunLocked
from orchestrator.folders import replace_file
from orchestrator.journal import take_lock

KINDS = ("replaced", "rewritten", "appended", "new")
MARK = "mark "
_MARK_AT_S, _REPLACED_UNTIL_S, _POLL_S = 0.5, 2.5, 0.05      # soon after the other side has looked, and so filled its cache
_WHOLE_LINES = 1000


@dataclass(frozen=True)
class Lock:
    """An open lock file. ``fcntl`` locks belong to the process: never open and close the same file elsewhere in it."""

    path: Path
    descriptor: int

    @classmethod
    def open(cls, path: Path) -> Lock:
        return cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def take(self, wait_s: float) -> bool:
        """Whether it was got. Raises StorageError where there are no locks."""
        try:
            take_lock(self.descriptor, self.path, wait_s)
        except RunLocked:
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def release_stamped(self) -> None:
        """Let go of it, leaving the time for whoever gets it next."""
        self._write(time.time())
        self.release()

    def unstamped(self) -> None:
        """A file as long as it will ever be, as the epoch's is."""
        self._write(0.0)

    def _write(self, at: float) -> None:
        os.pwrite(self.descriptor, f"{at:017.6f}\n".encode(), 0)
        os.fsync(self.descriptor)

    def stamp(self) -> float | None:
        """The time that was left in it; None: it is not seen although the lock is held."""
        text = os.pread(self.descriptor, 64, 0).decode(errors="replace").strip()
        return (float(text) or None) if re.fullmatch(r"\d+\.\d+", text) else None

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass
class Seen:
    """What one side saw of the other's files: when each mark came into sight, by both clocks; and what was torn or gone."""

    late_s: dict[str, float] = field(default_factory=dict)   # seen by the reader's clock, less written by the writer's
    known: list[str] = field(default_factory=list)           # kinds that were read at least once
    torn: int = 0
    gone: int = 0


def prepare_marks(folder: Path) -> None:
    """Files that the other side has known for a while when they change."""
    folder.mkdir(exist_ok=True)
    for kind in KINDS[:-1]:
        replace_file(folder / kind, _whole("0"))


def exchange(mine: Path, theirs: Path, at_most_s: float) -> Seen:
    """Change one's own files and watch the other's, as orch's readers do: open, read, close, again and again.

    A file that is replaced by rename (records), one rewritten in place (control.json, signs of life), one that grows
    (journals) and a name that was not there (a notice, an end record).
    """
    began, seen, marked, replaced = time.monotonic(), Seen(), False, False
    while (past_s := time.monotonic() - began) < at_most_s and not (replaced and len(seen.late_s) == len(KINDS)):
        if not marked and past_s >= _MARK_AT_S:
            _write_marks(mine)
            marked = True
        elif marked and not replaced:
            replaced = past_s >= _REPLACED_UNTIL_S
            replace_file(mine / "replaced", _whole(f"{MARK}{time.time():.6f}" if replaced else f"{past_s}"))
        for kind in KINDS:
            if kind not in seen.late_s:
                _look(theirs / kind, kind, seen)
        time.sleep(_POLL_S)
    return seen


def _write_marks(mine: Path) -> None:
    for kind, flags in (("rewritten", 0), ("appended", os.O_APPEND), ("new", os.O_CREAT)):
        descriptor = os.open(mine / kind, os.O_WRONLY | flags, 0o644)
        try:
            os.write(descriptor, f"{MARK}{time.time():.6f}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _look(path: Path, kind: str, seen: Seen) -> None:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        if kind in seen.known and error.errno in (errno.ENOENT, errno.ESTALE):
            seen.gone += 1
        return
    if kind not in seen.known:
        seen.known.append(kind)
    if kind == "replaced" and not _is_whole(text):
        seen.torn += 1
        return
    found = re.search(rf"{MARK}(\d+\.\d+)\n", text)
    if found:
        seen.late_s[kind] = time.time() - float(found.group(1))


def _whole(line: str) -> str:
    """Content of which a part can be told from the whole."""
    return f"{line}\n" * _WHOLE_LINES


def _is_whole(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) == _WHOLE_LINES and len(set(lines)) == 1


# Options that decide about locks and caches; addresses and names of servers are nobody's business.
_TELLING = re.compile(
    r"vers=.*|proto=.*|hard|soft|noac|ac(reg|dir)(min|max)=.*|actimeo=.*|lookupcache=.*|local_lock=.*|nolock|nosharecache"
    r"|flock|noflock|localflock|nocto|async|sync|cache=.*")


def file_system(path: Path) -> str:
    """Type and telling mount options of the file system that holds the path, from /proc/self/mountinfo."""
    real = os.path.realpath(path)
    best, words = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal.group(1), 8)), left.split()[4])
        if len(point) >= len(best) and (real == point or real.startswith(point.rstrip("/") + "/")):
            kind, _, options = right.split(" ", 2)
            telling = [option for option in options.split(",") if _TELLING.fullmatch(option)]
            best, words = point, " ".join([kind, *telling])
    return words


def wait_for_file(path: Path, at_most_s: float) -> str | None:
    """The content of a file that another host has written or is about to; None if it does not come into sight."""
    give_up = time.monotonic() + at_most_s
    while True:
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace")
        if time.monotonic() >= give_up:
            return None
        time.sleep(0.2)
