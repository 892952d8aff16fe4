"""Writing into the attempt's folder, in such a way that no fault of the disk ever stops the training.

What cannot be written is said once on standard output; the training goes on and its code is passed on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.folders import replace_file
from orchestrator.records import Record

JSON = dict[str, Any]


def say(line: str) -> None:
    """One line on the attempt's out.log; a closed or full output is no reason to end."""
    try:
        os.write(1, (line + "\n").encode())
    except OSError:
        return


class Papers:
    """The files of one attempt that its supervisor writes."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self._clock = clock
        self._said: set[str] = set()

    def event(self, event: str, **context: Any) -> None:
        line = json.dumps({"t": round(self._clock(), 3), "event": event, **context}) + "\n"
        self._try("supervisor.jsonl", lambda path: _append(path, line))

    def heartbeat(self) -> bool:
        """The heart's last beat in epoch seconds, rewritten in place: the content says how fresh it is."""
        text = f"{self._clock():.3f}\n"
        return self._try("heartbeat", lambda path: _overwrite(path, text))

    def memory(self, line: str) -> None:
        self._try("memory.csv", lambda path: _append(path, line))

    def notice(self, notice: JSON) -> None:
        self._try("notice.json", lambda path: replace_file(path, json.dumps(notice) + "\n"))

    def life(self, life: JSON) -> None:
        self._try("life.json", lambda path: replace_file(path, json.dumps(life) + "\n"))

    def record(self, name: str, record: Record) -> bool:
        return self._try(name, lambda path: replace_file(path, record.to_json()))

    def _try(self, name: str, write: Callable[[Path], None]) -> bool:
        try:
            write(self.folder / name)
            return True
        except OSError as error:
            reason = error.strerror or str(error)
            if reason not in self._said:
                self._said.add(reason)
                say(f"orch: cannot write {self.folder / name}: {reason}; the training goes on without it")
            return False


def _append(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _overwrite(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, text.encode(), 0)
    finally:
        os.close(descriptor)
