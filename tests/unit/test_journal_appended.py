"""Whoever holds the lock folds what it appended, and does not read the journal again: both must come to the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import journal

SUBMIT = b'{"event": "submit", "t": 1.0}\n'


@pytest.mark.parametrize("before", [b"", SUBMIT, SUBMIT + b'{"event": "fini', b'{"event": "sub'])
def test_what_was_appended_is_what_a_reader_finds_behind_what_was_there(tmp_path: Path, before: bytes) -> None:
    """Also where a line was torn: a note about it stands before the first event, or behind the journal's first."""
    journal.journal_path(tmp_path).write_bytes(before)
    there, torn = journal.read(tmp_path)
    with journal.locked(tmp_path, wait_s=0.0, clock=lambda: 2.0) as locked:
        locked.append("submit", schema=journal.SCHEMA)
        first = locked.take_appended()
        assert [event["event"] for event in first].count("note") == (1 if torn else 0)
        locked.append("cancel", now=True)
        locked.append("cancelled")
        assert [*there, *first, *locked.take_appended()] == journal.read(tmp_path)[0]
        assert locked.take_appended() == []


def test_what_could_not_be_written_was_not_appended(tmp_path: Path) -> None:
    with journal.locked(tmp_path, wait_s=0.0, clock=lambda: 2.0) as locked:
        journal.journal_path(tmp_path).mkdir()
        with pytest.raises(journal.StorageError):
            locked.append("submit")
        assert locked.take_appended() == []
