"""The journal of a run: ``journal.jsonl``, only ever appended to, by whoever holds the run's lock.

Appending writes one line and fsyncs it. A line without its newline was torn by a crash: reading leaves it out, and the next
append cuts it off and keeps its text in a ``note``, so that nothing is lost without a word. Anything else that cannot be read
is an error that names the line: guessing about a training is worse than stopping.

Invariant: the file's length is its version. A pass notes it before it looks at Slurm, and acts only if it is still that long.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.errors import JournalError, RunLocked, StorageError

SCHEMA = 1
LINE_AT_MOST_BYTES = 1 << 20

Event = dict[str, Any]

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def journal_path(run_dir: Path) -> Path:
    return run_dir / "journal.jsonl"


def length(run_dir: Path) -> int:
    """The journal's version: its length in bytes, 0 if there is none."""
    try:
        return journal_path(run_dir).stat().st_size
    except FileNotFoundError:
        return 0


def read(run_dir: Path) -> tuple[list[Event], str]:
    """All whole events, and the torn rest of the last line ('' nearly always).

    Raises JournalError for a line in the middle that is no event, and for a newer schema.
    """
    path = journal_path(run_dir)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    whole, _, torn = data.rpartition(b"\n")
    events = [_parse(path, number, line) for number, line in enumerate(whole.splitlines(), 1) if line.strip()]
    schema = events[0].get("schema", SCHEMA) if events else SCHEMA
    if not isinstance(schema, int):
        raise JournalError(f"{path}:1: the schema is {schema!r}, no number", hint="repair line 1 by hand")
    if schema > SCHEMA:
        raise JournalError(
            f"{path}:1: written by a newer orch (schema {schema}, this one reads {SCHEMA})",
            hint="use that newer orch here too; nothing was changed")
    if events and events[0].get("event") != "submit":
        raise JournalError(
            f'{path}:1: a journal begins with "submit", this one with "{events[0].get("event")}"',
            hint="its beginning was cut off; restore the file from a copy, nothing was changed")
    return events, torn.decode(errors="replace")


def _parse(path: Path, number: int, line: bytes) -> Event:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or "event" not in event or "t" not in event:
        shown = line[:60].decode(errors="replace")
        raise JournalError(
            f"{path}:{number}: not an event: {shown!r}",
            hint=f"delete or repair line {number} by hand; orch will not guess and leaves this run alone until then")
    return event


class LockedJournal:
    """The journal while this process holds the run's lock; the only way to append."""

    def __init__(self, run_dir: Path, clock: Callable[[], float]) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._appended: list[Event] = []

    def length(self) -> int:
        return length(self._run_dir)

    def append(self, event: str, **context: Any) -> Event:
        """Write one event and fsync it; what was written is returned.

        Raises StorageError if it could not be written whole; the journal is then as long as before.
        """
        entry: Event = {"event": event, "t": round(self._clock(), 3), **context}
        events, line = [entry], _line(entry)
        assert len(line) <= LINE_AT_MOST_BYTES, f"a journal line of {len(line)} bytes"
        path = journal_path(self._run_dir)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}; the event was not recorded and nothing was done") from error
        try:
            size = os.fstat(descriptor).st_size
            torn = self._cut_torn_line(descriptor, size)
            if torn:
                size = os.fstat(descriptor).st_size
                note: Event = {"event": "note", "t": entry["t"], "text": f"dropped a torn line: {torn}"}
                events = [note, entry] if size else [entry, note]  # "submit" stays the first event
                line = b"".join(map(_line, events))
            _write_or_undo(descriptor, line, size, path)
        finally:
            os.close(descriptor)
        self._appended += events
        return entry

    def take_appended(self) -> list[Event]:
        """What was written since this was asked last, in order, a note about a torn line among it: whoever holds the lock and
        the fold of what was there before folds these, and need not read the journal again."""
        events, self._appended = self._appended, []
        return events

    @staticmethod
    def _cut_torn_line(descriptor: int, size: int) -> str:
        if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
            return ""
        tail = os.pread(descriptor, LINE_AT_MOST_BYTES, max(0, size - LINE_AT_MOST_BYTES))
        torn = tail.rpartition(b"\n")[2]
        os.ftruncate(descriptor, size - len(torn))
        return torn.decode(errors="replace")[:2000]


def _line(entry: Event) -> bytes:
    """One line; names that are no UTF-8 (a folder's, a variable's) come back as they were."""
    return _ENCODER.encode(entry).encode(errors="surrogatepass") + b"\n"


def _write_or_undo(descriptor: int, line: bytes, size: int, path: Path) -> None:
    try:
        written = os.write(descriptor, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, size)
        raise StorageError(
            f"{path}: {error.strerror}; the event was not recorded and nothing was done",
            hint="make room (or repair the disk) and run the same command again") from error


@contextmanager
def locked(run_dir: Path, *, wait_s: float, clock: Callable[[], float] = time.time) -> Iterator[LockedJournal]:
    """Hold the run's lock (``runs/TAG/lock``, ``fcntl.lockf``) and give the journal to append to.

    Waits up to ``wait_s``; raises JournalError when another process keeps it, StorageError where locks do not work.
    """
    path = run_dir / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    try:
        take_lock(descriptor, path, wait_s)
        yield LockedJournal(run_dir, clock)
    finally:
        os.close(descriptor)  # closing lets go of the lock


def take_lock(descriptor: int, path: Path, wait_s: float) -> None:
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StorageError(
                    f"{path}: this file system has no locks ({error.strerror})",
                    hint="keep the repository on a file system with POSIX locks (NFS with lockd, Lustre with -o flock)"
                ) from error
        if time.monotonic() >= give_up:
            raise RunLocked(f"{path}: another orch process has held this run's lock for {wait_s:.0f} s",
                               hint="try again; `fuser -v` on that file names the process")
        time.sleep(0.05)
