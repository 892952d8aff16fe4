"""Reading ``trainer.jsonl``, the trainer's own lines (docs/protocol.md). Only the end of a long file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TAIL_BYTES = 64 * 1024


def last_lines(attempt_dir: Path) -> list[dict[str, Any]]:
    """The latest events, oldest first; a torn last line and lines that are no events are left out."""
    try:
        with (attempt_dir / "trainer.jsonl").open("rb") as file:
            file.seek(0, 2)
            begin = max(0, file.tell() - _TAIL_BYTES)
            file.seek(begin)
            data = file.read()
    except OSError:
        return []
    whole = data.rpartition(b"\n")[0].splitlines()[1 if begin else 0:]
    events = []
    for line in whole:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event and isinstance(event.get("t"), (int, float)):
            events.append(event)
    return events


def last_of(events: list[dict[str, Any]], *names: str) -> dict[str, Any] | None:
    """The latest event of one of these names."""
    return next((event for event in reversed(events) if event["event"] in names), None)
