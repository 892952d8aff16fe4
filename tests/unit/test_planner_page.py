"""The report: one well-formed page without scripts, with what people look for marked in its plots."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.plan_files import read_catalog
from orchestrator.planner.plan import Training
from orchestrator.planner.report import Wanted, report
from orchestrator.planner.size import size_of_bytes_per_param
from orchestrator.planner.tradeoff import Job
from orchestrator.views.plan_page import report_page
from orchestrator.views.svg import HEIGHT, WIDTH, Axis, Line, Mark, decades_axis, linear_axis, plot, time_axis

SIZE = size_of_bytes_per_param(124.45e9, 14, nodes=32)
JOB = Job(size_bytes=SIZE.size_bytes, nodes=32, mtbi_s=720_000, keep=4, price_usd_per_h=142.416, stall_s=5.0)
WANTED = Wanted(
    title="A <title> & more", size=SIZE, job=JOB, training=Training(stall_s=5, mtbi_s=720_000, step_s=1.2),
    catalog=read_catalog(None), write_range_s=(30.0, 1200.0), today_interval_s=1500.0, today_write_s=1200.0,
    restart_given=False, priced=True)


def parsed(page: str) -> ElementTree.Element:
    """As XML, which is stricter than HTML; the two void tags are closed first."""
    return ElementTree.fromstring(re.sub(r"<(meta[^>]*)>", r"<\1/>", page.replace("<!DOCTYPE html>\n", "")))


@pytest.mark.parametrize("wanted", [
    WANTED, replace(WANTED, today_write_s=None, today_interval_s=None), replace(WANTED, priced=False),
    replace(WANTED, job=replace(JOB, stall_s=None)), replace(WANTED, job=replace(JOB, limit_s=86_400.0),
                                                             training=replace(WANTED.training, limit_s=86_400.0)),
    replace(WANTED, job=replace(JOB, mtbi_s=3600.0), training=replace(WANTED.training, mtbi_s=3600.0))],
    ids=["all", "nothing today", "no price", "synchronous", "limit", "M of an hour"])
def test_the_page_is_one_whole_file(wanted: Wanted) -> None:
    page = report_page(report(wanted))
    root = parsed(page)
    assert len(root.findall(".//svg")) == (4 if wanted.priced else 2)
    assert "<script" not in page and "http" not in page and "@import" not in page and 'src="' not in page
    assert not re.search(r"\b(nan|inf|None)\b", page), re.search(r".{60}\b(nan|inf|None)\b.{60}", page)
    assert "A &lt;title&gt; &amp; more" in page
    for path in root.findall(".//path"):
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
        assert all(-1 <= n <= max(WIDTH, HEIGHT) + 1 for n in numbers)


def test_without_a_price_no_write_is_called_the_best() -> None:
    nothing_today = replace(WANTED, today_write_s=None, today_interval_s=None)
    for wanted, said in ((WANTED, "today 20m"), (nothing_today, "planned 3m10s")):
        words = texts(report_page(report(replace(wanted, priced=False))))
        assert said in words and [word for word in words if word.startswith("best ")] == ["best 44m43s"]


def texts(page: str) -> list[str]:
    return [element.text or "" for element in parsed(page).findall(".//text")]


def test_what_is_marked() -> None:
    made = report(WANTED)
    words = texts(report_page(made))
    for mark in ("best 44m43s", "today 25m", "best 4m02s", "today 20m", "at most 5 % more stalls and rework",
                 "within 2 % of the best", "GPUs standing still", "lost work", "storage"):
        assert mark in words, mark
    assert made.best.total_usd == pytest.approx(261_001, abs=1) and made.flat_write_s == pytest.approx((242, 484), abs=0.1)
    assert made.today_plan is not None and made.today_plan.waste_exact > made.plan.waste_exact


def test_the_best_interval_is_the_lowest_point_of_the_curve() -> None:
    made = report(WANTED)
    lowest = min(made.waste_by_interval, key=lambda point: point[1])
    assert lowest[0] == pytest.approx(made.plan.training.interval_s, rel=0.03)
    assert all(math.isfinite(w) for _, w in made.waste_by_interval)


def test_a_plot_with_its_line_inside() -> None:
    x, y = time_axis(10, 1000, "t", str), linear_axis(7, "n", str)
    picture = plot("p", x, y, [Line(points=[(10, 0), (1000, 7)], name="line", colour=1)],
                   marks=[Mark(at=(100, 3), text="here")])
    root = ElementTree.fromstring(picture)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == "p"
    line = next(p for p in root.findall("path") if "line" in p.attrib["class"])
    points = re.findall(r"[\d.]+", line.attrib["d"])
    assert float(points[0]) < float(points[2]) and float(points[1]) > float(points[3])  # right is more, up is more


@given(st.floats(1e-9, 1e12))
def test_linear_axes_hold_their_values_in_round_steps(high: float) -> None:
    axis = linear_axis(high, "", str)
    assert axis.high >= high * (1 - 1e-9) and axis.low == 0 and 2 <= len(axis.ticks) <= 12 and axis.share(high) <= 1


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e6))
def test_decades_hold_their_values(low: float, factor: float) -> None:
    axis = decades_axis(low, low * factor, "", str)
    assert axis.low <= low * (1 + 1e-9) and axis.high >= low * factor * (1 - 1e-9) and list(axis.ticks) == sorted(axis.ticks)


def test_shares_stay_inside() -> None:
    axis = Axis(low=1, high=100, label="", ticks=(), text=str, logarithmic=True)
    assert axis.share(10) == pytest.approx(0.5) and axis.share(0.01) == 0 and axis.share(1e9) == 1
