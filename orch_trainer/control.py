"""What the running trainer is told: `control.json` and `notice.json`. Parsing only; nothing here writes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple


class Control(NamedTuple):
    """The supervisor's and daemon's standing wishes."""

    seq: int
    interval_s: float | None        # None: keep the present one
    stop: str | None                # a reason: save, then stop
    save: int                       # each rise asks for one checkpoint now
    local_interval_s: float | None = None


class Notice(NamedTuple):
    """The announced end of this attempt."""

    reason: str
    deadline: float | None          # epoch seconds


def read_control(path: Path) -> Control | None:
    """None where the file is missing, torn or not ours: keep what you have and read again later."""
    content = _read_object(path)
    if content is None or content.pop("sum", None) != checksum(content):
        return None
    try:
        interval_s = content.get("interval_s")
        stop, local_s = content.get("stop"), content.get("local_interval_s")
        return Control(
            seq=int(content["seq"]),
            interval_s=float(interval_s) if interval_s is not None else None,
            stop=str(stop) if stop is not None else None,
            save=int(content.get("save") or 0),
            local_interval_s=float(local_s) if local_s is not None else None,
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_notice(path: Path) -> Notice | None:
    """The file is replaced by rename, so it is whole or absent; anything else is read again later."""
    content = _read_object(path)
    if content is None:
        return None
    deadline = content.get("deadline")
    return Notice(str(content.get("reason", "signal")), _seconds(deadline))


def checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return format(zlib.crc32(text.encode()) & 0xFFFFFFFF, "08x")


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes().decode())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
