"""Progress bars in a log: what a terminal shows in the end."""

from __future__ import annotations

import pytest

from orchestrator.views.terminal import ShownLines, as_shown


@pytest.mark.parametrize(("line", "shown"), [
    ("plain", "plain"),
    ("\r 1%|\r 50%|#\r100%|##|", "100%|##|"),
    ("windows\r", "windows"),
    ("longer text\rshort", "shortr text"),
    ("longer text\rshort\x1b[K", "short\x1b[K"),
    ("gone\r    \r", ""),
    ("", ""),
])
def test_a_line_in_the_end(line: str, shown: str) -> None:
    assert as_shown(line) == shown


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_the_bytes_come(size: int) -> None:
    data = "first µ\r\n\r 1%|é\r 2%|ü longer\r 3%|\nlast, 4\r5".encode()
    lines, shown = ShownLines(), list[str]()
    for begin in range(0, len(data), size):
        shown += lines.take(data[begin:begin + size])
    assert shown == ["first µ", " 3%|ü longer"]
    assert lines.end() == ["5ast, 4"] and lines.end() == []


def test_a_bar_that_is_drawn_for_hours_takes_the_room_of_one_line() -> None:
    lines = ShownLines()
    for step in range(20_000):
        assert lines.take(f"\r{step:6d} steps".encode()) == []
    assert len(lines._rest) < 100
    assert lines.take(b"\n") == [" 19999 steps"]
