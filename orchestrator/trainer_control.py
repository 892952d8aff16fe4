"""``control.json``, the file that a running trainer re-reads (docs/protocol.md).

Rewritten in place, never renamed: a trainer on another node then sees new content under the name and inode it knows. A
sequence number and a checksum tell a reader that caught it half-written to look again.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from orchestrator.core.observation import Control

NAME = "control.json"
_PADDED_BYTES = 256


def read_control(run_dir: Path) -> Control | None:
    """The present content; None if there is none or it cannot be read whole."""
    try:
        data = json.loads((run_dir / NAME).read_text())
        checksum = data.pop("sum")
        if checksum != _checksum(data):
            return None
        return Control(seq=int(data["seq"]), interval_s=float(data["interval_s"]), stop=data.get("stop"),
                       save=int(data.get("save", 0)), local_interval_s=data.get("local_interval_s"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_control(run_dir: Path, control: Control) -> None:
    """Raises OSError when it cannot be written."""
    data: dict[str, object] = {"seq": control.seq, "interval_s": control.interval_s, "stop": control.stop,
                              "save": control.save}
    if control.local_interval_s is not None:
        data["local_interval_s"] = control.local_interval_s
    text = json.dumps({**data, "sum": _checksum(data)})
    content = text.ljust(_PADDED_BYTES).encode() + b"\n"
    descriptor = os.open(run_dir / NAME, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(data: dict[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True, separators=(',', ':')).encode()):08x}"
