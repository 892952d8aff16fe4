"""Text in columns: spans with a style, widths as a terminal shows them, and what others wrote made harmless. Pure.

A line is a row of spans; a style says what a span means (good, bad, ...), never a colour: the command line maps it.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Literal

Style = Literal["", "title", "good", "busy", "warn", "bad", "faint"]
Span = tuple[str, Style]
Line = tuple[Span, ...]

GAP = "  "
FIRST_AT_LEAST = 12    # columns that a name keeps when a table must be narrower
FAR_S = 300 * 86400.0  # from now a date needs its year
LAST_AT_LEAST = 24     # columns that a name may take from the words behind it before it is cut


def one_line(value: object, at_most: int = 1000) -> str:
    """Somebody's words on one line, without anything that a terminal or a page would obey; cut to ``at_most`` columns."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value)[:4 * at_most])
    return cut(" ".join(text.split()), at_most)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(_columns(letter) for letter in text)


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, at_most: int) -> str:
    """The text if it fits, else its beginning and an ellipsis."""
    if columns(text) <= at_most:
        return text
    kept, used = "", 0
    for letter in text:
        used += _columns(letter)
        if used > at_most - 1:
            break
        kept += letter
    return kept.rstrip() + "…" if at_most > 0 else ""


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def table(rows: Sequence[Sequence[Span]], width: int | None = None) -> list[Line]:
    """Aligned columns. The last cell of a row is free: it has no width of its own, and a shorter row's last cell reaches over
    the columns that it lacks. With ``width`` the first column and the last cell are cut so that each line fits."""
    count = max((len(row) for row in rows), default=1) - 1
    widths = [max((columns(row[c][0]) for row in rows if len(row) > c + 1), default=0) for c in range(count)]
    if width is not None and widths:
        missing = sum(widths) + len(GAP) * count + LAST_AT_LEAST - width
        widths[0] = min(widths[0], max(FIRST_AT_LEAST, widths[0] - max(0, missing)))
    return [_aligned(row, widths, width) for row in rows]


def _aligned(row: Sequence[Span], widths: Sequence[int], width: int | None) -> Line:
    spans: list[Span] = []
    used = 0
    for (text, style), wanted in zip(row[:-1], widths, strict=False):
        shown = cut(text, wanted)
        spans += [(shown, style), (" " * (wanted - columns(shown)) + GAP, "")]
        used += wanted + len(GAP)
    spans.append(row[-1])
    return tuple(spans) if width is None else _trimmed(spans, width)


def _trimmed(spans: Sequence[Span], width: int) -> Line:
    trimmed: list[Span] = []
    for text, style in spans:
        trimmed.append((cut(text, width), style))
        width -= columns(trimmed[-1][0])
    return tuple(trimmed)


def wrapped(text: str, width: int | None, *, style: Style = "", indent: int = 2) -> list[Line]:
    """Prose as lines of at most ``width`` columns, those after the first indented; one line without a width."""
    if width is None or columns(text) <= width:
        return [((text, style),)]
    return [((line, style),) for line in textwrap.wrap(
        text, max(width, indent + 20), subsequent_indent=" " * indent, break_on_hyphens=False)]


def fitting(lines: Sequence[Line], height: int | None) -> list[Line]:
    """As many lines as there is room for, the last of them saying how many there are more."""
    if height is None or len(lines) <= height:
        return list(lines)
    kept = max(1, height - 1)
    return [*lines[:kept], ((f"… {len(lines) - kept} lines more: `orch status`", "faint"),)]


def minute_utc(at: float) -> str:
    """``2026-12-01T05:47Z``."""
    return moment(at, UTC, "%Y-%m-%dT%H:%MZ")


def day_and_time(at: float, zone: tzinfo | None, now: float | None = None) -> str:
    """``12-01 05:47:09`` in that zone; None: the zone of this machine. With the year where that is far from ``now``: a job
    without a limit ends a year from now, by Slurm's word."""
    return moment(at, zone, "%Y-%m-%d %H:%M:%S" if now is not None and abs(at - now) > FAR_S else "%m-%d %H:%M:%S")


def moment(at: float, zone: tzinfo | None, form: str) -> str:
    try:
        return datetime.fromtimestamp(at, zone).strftime(form)
    except (OverflowError, ValueError, OSError):
        return "unknown time"
