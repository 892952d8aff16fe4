"""Reading what a supervisor leaves in its attempt's folder; the daemon and the next supervisor's gate read alike.

Never writes (``attempt.papers`` does) and never judges (``core.endings`` does). Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator.records import Record, StartRecord

if TYPE_CHECKING:
    from orchestrator.checkpoints import Checkpoint

R = TypeVar("R", bound=Record)


def read_record(path: Path, kind: type[R]) -> R | None:
    """The record in this file; None if there is none, or none of this kind."""
    try:
        return kind.from_json(path.read_text())
    except (OSError, ValueError):
        return None


def read_heartbeat(folder: Path) -> float | None:
    """When the attempt's heart last beat, in epoch seconds by its own host's clock; None if it never did."""
    try:
        return float((folder / "heartbeat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def newest_epoch(run_dir: Path) -> int | None:
    """The epoch of the run's newest start; 0 before the first one, None where it cannot be read."""
    try:
        return int((run_dir / "epoch").read_text())
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None


def saved_after_notice(notice_at: float | None, start: StartRecord, checkpoint: Checkpoint | None) -> bool:
    """Whether a complete checkpoint of this very start came after its notice. A framework's own bears no epoch; the fence has
    ended whoever else could have written it."""
    return (notice_at is not None and checkpoint is not None
            and checkpoint.epoch in (start.epoch, 0) and checkpoint.saved_at >= notice_at)
