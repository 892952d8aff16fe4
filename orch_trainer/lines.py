"""What the trainer says: JSON lines in `trainer.jsonl` for orch, short lines on stdout for people.

`put` never touches a file: a bounded queue takes the line, a thread calls `flush`. `write` is for the few lines that
must be on the disk before training goes on. A line that cannot be kept is counted; the next one carries the count.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, Deque, Mapping, Tuple

QUEUE_LINES_MAX = 1000
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]+")
Entry = Tuple[Mapping[str, Any], str]                   # the JSON line, and the text for people or ""


class Lines:
    """The only writer of this attempt's trainer.jsonl. Without a path (outside orch) only people are told."""

    def __init__(self, path: Path | None, *, silent: bool = False) -> None:
        self._queue: Deque[Entry] = deque()
        self._dropped = 0
        self._silent = silent                           # ranks other than 0 say nothing
        self._lock = threading.Lock()                   # the file, never the queue
        self._descriptor = _open(path) if path is not None and not silent else None

    def put(self, event: Mapping[str, Any], text: str = "") -> None:
        """Queue a line; no file access, no waiting."""
        if self._silent:
            return
        if len(self._queue) >= QUEUE_LINES_MAX:
            self._dropped += 1
        else:
            self._queue.append((event, text))

    def write(self, event: Mapping[str, Any], text: str = "") -> None:
        """All queued lines and this one, on the disk when this returns."""
        if self._silent:
            return
        with self._lock:
            self._drain()
            self._emit(event, text)
            if self._descriptor is not None:
                try:
                    os.fsync(self._descriptor)
                except OSError as error:
                    _say("orch: trainer.jsonl: {}".format(error))

    def flush(self) -> None:
        with self._lock:
            self._drain()

    def say(self, text: str) -> None:
        """For people only, in the order of the lines."""
        if not self._silent:
            _say(text)

    def _drain(self) -> None:
        while self._queue:
            self._emit(*self._queue.popleft())

    def _emit(self, event: Mapping[str, Any], text: str) -> None:
        if text:
            _say(text)
        if self._descriptor is None:
            return
        line = dict(event, dropped=self._dropped) if self._dropped else event
        if _append(self._descriptor, json.dumps(plain(line)).encode() + b"\n"):
            self._dropped -= line.get("dropped", 0)
        else:
            self._dropped += 1


def plain(value: Any) -> Any:
    """The same as strict JSON: numpy and torch scalars as numbers, NaN and infinity as null."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    item = getattr(value, "item", None)
    if callable(item):
        try:
            return plain(item())
        except (TypeError, ValueError, RuntimeError):
            return str(value)
    return str(value)


def _open(path: Path) -> int:
    """Open for appending, less a torn last line that an earlier process of this attempt left."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)
    return descriptor


def _append(descriptor: int, line: bytes) -> bool:
    """Append the whole line or nothing."""
    before = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, line) == len(line):
            return True
    except OSError:
        pass                                            # counted by the caller; training goes on
    try:
        os.ftruncate(descriptor, before)
    except OSError:
        pass
    return False


def _say(text: str) -> None:
    """One line, whatever is in the text: an error's message has several, a value may hold a carriage return."""
    line = _CONTROL.sub(" ", text) + "\n"
    try:
        try:
            sys.stdout.write(line)
        except UnicodeEncodeError:
            sys.stdout.write(line.encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()
    except Exception:                                   # nobody listens any more, or a stdout of the program's own fails
        pass
