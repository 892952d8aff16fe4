"""``orch reliability -o FILE.html``: the record of all runs with pictures. Pure."""

from __future__ import annotations

from orchestrator.planner.record import Record
from orchestrator.views.interval import hours, plain
from orchestrator.views.page import cards, heading, html_table, page, paragraph
from orchestrator.views.plan import counted, percent
from orchestrator.views.reliability import change_line, in_m, shape_line
from orchestrator.views.svg import Axis, Line, decades_axis, intervals, linear_axis, plot

NODES_SHOWN = 25


def reliability_page(record: Record) -> str:
    title = "Interruptions over all runs"
    known = record.by_nodes[-1].known
    body = [f"<h1>{title}</h1>", cards([
        (f"{record.interruptions:,}",
         f"interruption{'' if record.interruptions == 1 else 's'} in {counted(record.attempts, 'attempt')}"),
        (hours(record.hours), f"of running, {plain(record.node_hours)} node-hours"),
        (hours(known.mtbi_h), f"M of a run on {counted(known.nodes, 'node')}"),
        (percent(known.nodes * known.platform.mean / known.rate_per_h), "of that rate from the platform")])]
    body += [heading("M, and how well it is known"), paragraph(
        "The mean time between interruptions for each number of nodes, with its 95 % interval: the platform's rate per "
        "node-hour, shared by all runs, and the runs' own rate per hour."), _mtbi_picture(record)]
    body += [heading("Has it changed?"), paragraph(_sentence(change_line(record))), *_count_picture(record)]
    body += [heading("How attempts ended"), _endings(record), heading("Runs"), _runs(record)]
    body += [heading("Nodes"), paragraph(
        "Interruptions that a node may be to blame for, at attempts that it was in, against what chance would give; p is "
        "corrected for the number of nodes."), _nodes(record)]
    body += [heading("Shape of the intervals"), paragraph(_sentence(shape_line(record)))]
    return page(title, body)


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _mtbi_picture(record: Record) -> str:
    rows = [(counted(n.nodes, "node"), n.known.mtbi95_h[0], n.known.mtbi_h, n.known.mtbi95_h[1])
            for n in record.by_nodes]
    axis = decades_axis(min(row[1] for row in rows), max(row[3] for row in rows), "M in hours", lambda h: f"{h:,.3g}")
    return intervals("M and its interval for each number of nodes", axis, rows)


def _count_picture(record: Record) -> list[str]:
    total = len(record.places)
    if total < 2:
        return []
    steps = [(0.0, 0.0), *((place, float(number)) for number, place in enumerate(record.places, 1)), (1.0, float(total))]
    x = Axis(low=0.0, high=1.0, label="share of all running, weighted with each run's rate", ticks=[0, 0.25, 0.5, 0.75, 1],
             text=lambda share: f"{share:.0%}")
    return [plot("Interruptions as time went by", x, linear_axis(total, "interruptions", lambda n: f"{n:g}"), [
        Line(points=[(0.0, 0.0), (1.0, float(total))], name="", colour=3),
        Line(points=steps, name="", colour=1, steps=True)]),
        paragraph("Steps: counted. Straight line: one steady rate.", "quiet")]


def _endings(record: Record) -> str:
    rows = [[name, str(count), in_m(name)] for name, count in record.endings.items()]
    return html_table(["ending", "attempts", "in M as"], rows, "lrl")


def _runs(record: Record) -> str:
    rows = [[r.tag, str(r.nodes), hours(r.hours), str(r.platform_interruptions), str(r.own_interruptions),
             hours(r.known.mtbi_h), f"{hours(r.known.mtbi95_h[0])} to {hours(r.known.mtbi95_h[1])}"] for r in record.runs]
    return html_table(["run", "nodes", "ran", "platform's", "own", "M", "95 %"], rows, "lrrrrrr")


def _nodes(record: Record) -> str:
    rows = [[s.node, hours(s.hours), str(s.interruptions), plain(s.expected), f"{s.p_holm:.2g}",
             "worse than chance" if s.worse else ""] for s in record.suspects[:NODES_SHOWN]]
    return html_table(["node", "ran", "interruptions", "expected", "p", ""], rows, "lrrrrl")
