"""Reading ``trainer.jsonl``, the trainer's own lines (docs/protocol.md). Of a long file the begin and the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HEAD_BYTES = 16 * 1024                # START, the first step and the first losses: told once, and asked for hours later too
_TAIL_BYTES = 64 * 1024


def read_lines(attempt_dir: Path) -> list[dict[str, Any]]:
    """The first and the latest events, oldest first; of a short file all. Lines that are torn or no events are left out."""
    events = []
    for line in _ends(attempt_dir / "trainer.jsonl").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event and isinstance(event.get("t"), (int, float)):
            events.append(event)
    return events


def _ends(path: Path) -> bytes:
    """Whole lines."""
    try:
        with path.open("rb") as file:
            begin = file.seek(0, 2) - _TAIL_BYTES
            file.seek(0)
            if begin <= _HEAD_BYTES:
                return file.read().rpartition(b"\n")[0]
            head = file.read(_HEAD_BYTES).rpartition(b"\n")[:2]
            file.seek(begin)
            return b"".join(head) + file.read().partition(b"\n")[2].rpartition(b"\n")[0]
    except OSError:
        return b""


def last_of(events: list[dict[str, Any]], *names: str) -> dict[str, Any] | None:
    """The latest event of one of these names."""
    return next((event for event in reversed(events) if event["event"] in names), None)
