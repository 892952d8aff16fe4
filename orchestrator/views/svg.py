"""Plots as inline SVG: lines, bands, marks, stacked bars. No script, no fonts of its own; colours come from the page's
CSS. Pure.

Coordinates are of a fixed box that scales with the page. Classes of elements: ``s1`` to ``s4`` a series' colour,
``band``, ``grid``, ``axis``, ``mark``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 22, 46

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range, its ticks and how they are written."""

    low: float
    high: float
    label: str
    ticks: Sequence[float]
    text: Callable[[float], str]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, 0 to 1, held inside."""
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series, drawn as a line, or as steps that hold to the next point."""

    points: Sequence[Point]
    name: str
    colour: int
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point with a word beside it, and a thin line down to the axis."""

    at: Point
    text: str
    colour: int = 0
    below: bool = False                # the word under the point, where another stands above


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded range of x."""

    low: float
    high: float
    text: str


def linear_axis(high: float, label: str, text: Callable[[float], str], wanted: int = 5) -> Axis:
    """From 0 to at least ``high``, with ticks at round steps of 1, 2 or 5."""
    raw = max(high, 1e-12) / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * (1 - 1e-9))
    count = max(1, math.ceil(high / step - 1e-9))
    return Axis(low=0.0, high=count * step, label=label, ticks=[i * step for i in range(count + 1)], text=text)


def time_axis(low_s: float, high_s: float, label: str, text: Callable[[float], str]) -> Axis:
    """Logarithmic, with ticks that people say."""
    said = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 86400,
            2 * 86400, 4 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 90 * 86400, 365 * 86400)
    inside = [t for t in said if low_s * 0.999 <= t <= high_s * 1.001]
    every = max(1, math.ceil(len(inside) / 9))
    return Axis(low=low_s, high=high_s, label=label, ticks=inside[::every], text=text, logarithmic=True)


def decades_axis(low: float, high: float, label: str, text: Callable[[float], str]) -> Axis:
    """Logarithmic, from one round number to another, with ticks at 1, 2 and 5 or at tens alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1) for m in steps]
    inside = [t for t in ticks if t <= low][-1:] + [t for t in ticks if low < t < high] + [t for t in ticks if t >= high][:1]
    return Axis(low=inside[0], high=inside[-1], label=label, ticks=inside, text=text, logarithmic=True)


def plot(
    title: str, x: Axis, y: Axis, lines: Sequence[Line], *, marks: Sequence[Mark] = (), bands: Sequence[Band] = (),
) -> str:
    """One figure; ``title`` is read aloud, the page writes its own heading."""
    body = [*_bands(bands, x), *_grid(x, y)]
    for line in lines:
        body.append(f'<path class="s{line.colour} line" d="{_path(line, x, y)}"/>')
    body += _names(lines, marks, x, y)
    for mark in marks:
        body += _mark(mark, x, y)
    return _svg(title, body)


def stacks(
    title: str, y: Axis, labels: Sequence[str], bars: Sequence[Sequence[float]], names: Sequence[str], *, under: str,
    marked: int | None = None,
) -> str:
    """Stacked bars, one for each label, in the order of ``names`` from below; ``marked`` is outlined."""
    x = Axis(low=0, high=len(labels), label=under, ticks=(), text=str)
    body = _grid(x, y)
    slot = (WIDTH - LEFT - RIGHT) / len(labels)
    for index, (label, parts) in enumerate(zip(labels, bars, strict=True)):
        left, wide, base = LEFT + index * slot + slot * 0.16, slot * 0.68, 0.0
        for colour, part in enumerate(parts, 1):
            top, bottom = _y(y, base + part), _y(y, base)
            tip = f"{names[colour - 1]} {y.text(part)}"
            body.append(f'<rect class="s{colour} bar" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" '
                        f'height="{max(0.0, bottom - top):.1f}"><title>{escape(tip)}</title></rect>')
            base += part
        chosen = ' class="chosen"' if index == marked else ""
        body.append(_text(left + wide / 2, _y(y, base) - 6, y.text(base), "middle", chosen))
        body.append(_text(left + wide / 2, HEIGHT - BOTTOM + 16, label, "middle", chosen))
    for colour, name in enumerate(names, 1):
        left = LEFT + 8 + (colour - 1) * 170
        body.append(f'<rect class="s{colour} bar" x="{left}" y="{TOP - 16}" width="11" height="11" rx="2"/>')
        body.append(_text(left + 17, TOP - 6, name, "start"))
    return _svg(title, body)


def intervals(title: str, x: Axis, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """One row each: a label, and low, middle and high as a bar with a dot."""
    step = 34
    height = TOP + BOTTOM + step * len(rows)
    bottom = height - BOTTOM
    body = []
    for tick in x.ticks:
        at = _x(x, tick)
        body += [f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>', _text(at, bottom + 18, x.text(tick), "middle")]
    body += [f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>',
             _text((LEFT + WIDTH - RIGHT) / 2, height - 8, x.label, "middle", ' class="label"')]
    for index, (label, low, middle, high) in enumerate(rows):
        at = TOP + step * (index + 0.5)
        body += [_text(LEFT - 8, at + 4, label, "end"),
                 f'<path class="s1 line wide" d="M{_x(x, low):.1f} {at:.1f}H{_x(x, high):.1f}"/>',
                 f'<circle class="s1 dot" cx="{_x(x, middle):.1f}" cy="{at:.1f}" r="6"/>',
                 _text(_x(x, middle), at - 10, x.text(middle), "middle", ' class="marktext"')]
    return _svg(title, body, height)


def _svg(title: str, body: Sequence[str], height: float = HEIGHT) -> str:
    return (f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
            f'<title>{escape(title)}</title>{"".join(body)}</svg>')


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _grid(x: Axis, y: Axis) -> list[str]:
    body = []
    for tick in y.ticks:
        at = _y(y, tick)
        body.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        body.append(_text(LEFT - 8, at + 4, y.text(tick), "end"))
    for tick in x.ticks:
        at = _x(x, tick)
        body.append(f'<path class="axis" d="M{at:.1f} {HEIGHT - BOTTOM}v5"/>')
        body.append(_text(at, HEIGHT - BOTTOM + 18, x.text(tick), "middle"))
    body.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x.label, "middle", ' class="label"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    body.append(_text(16, middle, y.label, "middle", f' class="label" transform="rotate(-90 16 {middle:.1f})"'))
    return body


def _bands(bands: Sequence[Band], x: Axis) -> list[str]:
    body = []
    for band in bands:
        left, right = _x(x, band.low), _x(x, band.high)
        body.append(f'<rect class="band" x="{left:.1f}" y="{TOP}" width="{max(2.0, right - left):.1f}" '
                    f'height="{HEIGHT - TOP - BOTTOM}"/>')
        body.append(_text((left + right) / 2, TOP - 7, band.text, "middle", ' class="bandtext"'))
    return body


def _path(line: Line, x: Axis, y: Axis) -> str:
    words: list[str] = []
    before = 0.0
    for px, py in line.points:
        at_x, at_y = _x(x, px), _y(y, py)
        if not words:
            words.append(f"M{at_x:.1f} {at_y:.1f}")
        elif line.steps:
            words.append(f"H{at_x:.1f}V{at_y:.1f}" if at_y != before else f"H{at_x:.1f}")
        else:
            words.append(f"L{at_x:.1f} {at_y:.1f}")
        before = at_y
    return "".join(words)


def _names(lines: Sequence[Line], marks: Sequence[Mark], x: Axis, y: Axis) -> list[str]:
    """Each line's name at that end of it, left or right, where other lines and marks are farther."""
    named = [line for line in lines if line.name]
    left = {line.name for line in named if _room(line, named, marks, 0, x, y) > _room(line, named, marks, -1, x, y)}
    return [*_names_at(0, [line for line in named if line.name in left], x, y),
            *_names_at(-1, [line for line in named if line.name not in left], x, y)]


def _names_at(end: int, lines: Sequence[Line], x: Axis, y: Axis) -> list[str]:
    """Above the lines' ends, moved apart if need be."""
    body, lowest = [], -math.inf
    for line in sorted(lines, key=lambda line: _y(y, line.points[end][1])):
        height = _y(y, line.points[end][1])
        lowest = height - 7 if height - 7 >= lowest + 14 else max(height + 16, lowest + 14)  # above it, or else below
        at = _x(x, line.points[end][0])
        body.append(_text(at - 4 if end else at + 6, lowest, line.name, "end" if end else "start",
                          f' class="s{line.colour} name"'))
    return body


def _room(line: Line, lines: Sequence[Line], marks: Sequence[Mark], end: int, x: Axis, y: Axis) -> float:
    """How far other lines and marks are from this one's end, in the plot's units; more is no better than three names."""
    height = _y(y, line.points[end][1])
    others = [_y(y, other.points[end][1]) for other in lines if other is not line]
    others += [_y(y, mark.at[1]) for mark in marks if abs(x.share(mark.at[0]) - (1 if end else 0)) < 0.2]
    return min(abs(other - height) for other in [*others, height + 45])


def _mark(mark: Mark, x: Axis, y: Axis) -> list[str]:
    at_x, at_y = _x(x, mark.at[0]), _y(y, mark.at[1])
    anchor = "end" if at_x > WIDTH - RIGHT - 130 else "start" if at_x < LEFT + 130 else "middle"
    return [f'<path class="mark" d="M{at_x:.1f} {at_y:.1f}V{HEIGHT - BOTTOM}"/>',
            f'<circle class="s{mark.colour} dot" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5"/>',
            _text(at_x, at_y + (20 if mark.below else -11), mark.text, anchor, ' class="marktext"')]
