"""``control.json``: one inode, rewritten in place; a half-written one is never believed. And the trainer's lines."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.observation import Control
from orchestrator.trainer_control import NAME, read_control, write_control
from orchestrator.trainer_lines import last_of, read_lines

CONTROL = Control(seq=3, interval_s=90.0, stop="cancel", save=2)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_control(tmp_path) is None
    write_control(tmp_path, CONTROL)
    assert read_control(tmp_path) == CONTROL
    write_control(tmp_path, Control(seq=4, interval_s=0.5))
    assert read_control(tmp_path) == Control(seq=4, interval_s=0.5)


def test_the_inode_and_the_length_stay(tmp_path: Path) -> None:
    """A trainer on another node holds the file open; on NFS a renamed one would be stale to it."""
    write_control(tmp_path, Control(seq=1, interval_s=1800))
    before = (tmp_path / NAME).stat()
    write_control(tmp_path, Control(seq=2, interval_s=12.345678, stop="preempt"))
    after = (tmp_path / NAME).stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)


def test_a_longer_leftover_does_not_show_through(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("x" * 10_000)
    write_control(tmp_path, CONTROL)
    assert read_control(tmp_path) == CONTROL


@given(st.data())
@settings(max_examples=30)
def test_half_written_is_never_believed(data: st.DataObject) -> None:
    """Any mix of an old and a new content is the old one, the new one, or nothing."""
    old, new = Control(seq=1, interval_s=1800.0), Control(seq=2, interval_s=99.5, stop="cancel", save=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_control(folder, old)
        before = (folder / NAME).read_bytes()
        write_control(folder, new)
        after = (folder / NAME).read_bytes()
        cut = data.draw(st.integers(0, len(after)))
        (folder / NAME).write_bytes(after[:cut] + before[cut:])
        assert read_control(folder) in (old, new, None)


def test_what_is_no_control_file_is_none(tmp_path: Path) -> None:
    whole = None
    for text in ("", "{}", "[]", "null", '{"seq": 1, "sum": "0"}', '{"sum": 5}', "\x00" * 257):
        (tmp_path / NAME).write_text(text)
        assert read_control(tmp_path) is None
    write_control(tmp_path, CONTROL)
    whole = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**whole, "interval_s": 1.0}))
    assert read_control(tmp_path) is None


# --- trainer.jsonl ------------------------------------------------------------------------------------------------------


def test_the_trainers_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path) == []
    (tmp_path / "trainer.jsonl").write_bytes(
        b'{"event": "start", "t": 1}\ngarbage\n[1]\n{"t": 2}\n{"event": "progress", "t": 3, "step": 4}\n\xff\xfe\n'
        b'{"event": "saved", "t": 4}\n{"event": "finished", "t"')
    events = read_lines(tmp_path)
    assert [e["event"] for e in events] == ["start", "progress", "saved"]
    assert last_of(events, "progress", "start") == {"event": "progress", "t": 3, "step": 4}
    assert last_of(events, "finished") is None


@pytest.mark.parametrize("count", [1, 500, 1700, *range(1770, 1790), 20_000])
def test_of_a_long_file_the_begin_and_the_end_are_read(tmp_path: Path, count: int) -> None:
    lines = [json.dumps({"event": "progress", "t": n, "step": n}) for n in range(count)]
    (tmp_path / "trainer.jsonl").write_text("\n".join(lines) + "\n")
    steps = [e["step"] for e in read_lines(tmp_path)]
    left_out = count - len(steps)
    assert bool(left_out) == ((tmp_path / "trainer.jsonl").stat().st_size > 80 * 1024)
    head = next((n for n, step in enumerate(steps) if n != step), count)
    assert steps == [*range(head), *range(head + left_out, count)], "each once, and whole"
    assert not left_out or (100 < head < 500 and 1000 < len(steps) - head < 2000)
