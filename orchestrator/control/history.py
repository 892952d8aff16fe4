"""Reading what happened to a run, for its timeline: the journal, and what the trainers of its attempts said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator import folders, journal
from orchestrator.attempt_files import read_record
from orchestrator.model import Run
from orchestrator.records import EndRecord
from orchestrator.views.timeline import Moment, Saves, moments, saves_of

READ_AT_MOST_BYTES = 16 << 20  # of one attempt's lines
_PROGRESS = b'"event": "progress"'


def history_of(
    repository: Path, run: Run, news: Sequence[journal.Event] = (),
) -> tuple[list[Moment], dict[int, Saves]]:
    """The run's moments in order, and the saves of each attempt. ``news``: what the journal does not know yet."""
    run_dir = folders.run_dir(repository, run.spec.tag)
    said = {number: _said(folders.attempt_dir(run_dir, number)) for number in sorted({a.number for a in run.attempts})}
    events, _ = journal.read(run_dir)
    return moments(run, [*events, *news], said), {number: saves_of(lines) for number, lines in said.items() if lines}


def _said(attempt_dir: Path) -> list[dict[str, Any]]:
    """The trainer's lines but those of progress, which are nearly all; a notice that no trainer heard of comes from the
    supervisor's record."""
    try:
        with (attempt_dir / "trainer.jsonl").open("rb") as file:
            data = file.read(READ_AT_MOST_BYTES)
    except OSError:
        data = b""
    lines = [event for line in data.splitlines() if _PROGRESS not in line and (event := _event(line)) is not None]
    end = read_record(attempt_dir / "end.json", EndRecord)
    if end is not None and end.notice and end.notice_at is not None and not any(e["event"] == "notice" for e in lines):
        lines.append({"t": end.notice_at, "event": "notice", "reason": end.notice})
    return lines


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("t"), (int, float)) and isinstance(event.get("event"), str)
    return event if known else None
