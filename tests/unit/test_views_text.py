"""Text in columns: widths as a terminal shows them, cutting, and foreign words made harmless."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.views.text import columns, cut, day_and_time, fitting, minute_utc, one_line, plain, table, wrapped


@pytest.mark.parametrize(("text", "shown"), [
    ("a\nb\r\nc\td", "a b c d"), ("\x1b[31mred\x1b[0m", "[31mred [0m"), ("a\u202eb\u2028c\u200bd", "a b c d"),
    ("\ud800x", "x"), ("  a  b ", "a b"), ("modèle-训练", "modèle-训练"), (None, "None"), ("x" * 30, "x" * 9 + "…")])
def test_foreign_text_becomes_one_harmless_line(text: object, shown: str) -> None:
    assert one_line(text, 10) == shown if len(str(text)) >= 30 else one_line(text) == shown


@given(st.text(), st.integers(1, 40))
def test_what_is_cut_fits_and_can_be_written_anywhere(text: str, at_most: int) -> None:
    shown = one_line(text, at_most)
    assert columns(shown) <= at_most and "\n" not in shown and shown.isprintable()
    shown.encode()


def test_four_kib_names_cost_little_and_fit() -> None:
    assert columns(one_line("n" * 4096, 100)) == 100


def test_widths_are_those_of_a_terminal() -> None:
    assert columns("abc") == 3 and columns("训练") == 4 and columns("e\u0301") == 1
    assert cut("训练训练", 5) == "训练…" and cut("abc", 3) == "abc" and cut("abcd", 3) == "ab…" and cut("abc", 0) == ""


def test_a_table_aligns_wide_letters_and_lets_a_short_row_reach_over() -> None:
    rows = [["NAME", "N", "NOTE"], ["训练", "1", "x"], ["ab", "all the rest"]]
    lines = table([[(cell, "") for cell in row] for row in rows])
    assert [plain(line) for line in lines] == ["NAME  N  NOTE", "训练  1  x", "ab    all the rest"]


def test_styles_stay_with_their_words() -> None:
    [line] = table([(("a", "bad"), ("b", "good"))])
    assert [(text, style) for text, style in line if style] == [("a", "bad"), ("b", "good")]


def test_prose_is_wrapped_on_a_terminal_alone() -> None:
    text = "one two three four five six seven"
    assert [plain(line) for line in wrapped(text, 22)] == ["one two three four", "  five six seven"]
    assert [plain(line) for line in wrapped(text, None)] == [text]


def test_lines_that_have_no_room_are_counted() -> None:
    lines = [((str(n), ""),) for n in range(10)]
    assert [plain(line) for line in fitting(lines, 4)] == ["0", "1", "2", "… 7 lines more: `orch status`"]  # type: ignore[arg-type]
    assert len(fitting(lines, None)) == len(fitting(lines, 10)) == 10  # type: ignore[arg-type]


def test_moments() -> None:
    assert minute_utc(1796013354.7) == "2026-11-30T04:35Z" and day_and_time(1796013354.7, UTC) == "11-30 04:35:54"
    assert minute_utc(1e300) == "unknown time" == day_and_time(float("nan"), UTC)
