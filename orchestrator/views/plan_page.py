"""``orch plan report``: one page with the pictures that a decision needs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from orchestrator.planner.frameworks import settings_for
from orchestrator.planner.plan import Plan as IntervalPlan
from orchestrator.planner.report import TOLERATED, Report
from orchestrator.planner.tradeoff import FLAT, Plan
from orchestrator.views.interval import plain
from orchestrator.views.page import cards, heading, html_table, page, paragraph
from orchestrator.views.plan import decimal, duration, hours, left_alone, people_count, percent, usd
from orchestrator.views.plan_storage import named
from orchestrator.views.svg import Band, Line, Mark, linear_axis, plot, stacks, time_axis


def report_page(report: Report) -> str:
    wanted, best = report.wanted, report.best
    size, job = wanted.size, wanted.job
    kind = "asynchronous" if job.stall_s is not None else "synchronous"
    body = [
        f"<h1>{escape(wanted.title)}</h1>",
        paragraph(f"{decimal(size.size_bytes)} a checkpoint ({people_count(size.params)} parameters of "
                  f"{size.bytes_per_param:.3g} bytes), {size.nodes} nodes, {kind} saves, an interruption every "
                  f"{hours(job.mtbi_s)}.", "quiet"),
        cards(_headline(report)), *_interval_part(report), *_storage_part(report), *_choices_part(report),
        *_settings_part(report), *_assumptions_part(report)]
    if not wanted.priced:
        body.insert(3, paragraph("No price of GPU time was given (gpu_hourly_usd), so nothing is weighed against storage."))
    body.append(f'<footer class="quiet">{escape(wanted.catalog.name)}, {escape(wanted.catalog.region)}, prices of '
                f"{escape(wanted.catalog.price_date)}; those marked * were computed back from yearly figures. "
                f"Best file system: {escape(named(best.system))}. Written by <code>orch plan report</code>.</footer>")
    return page(wanted.title, body)


def _headline(report: Report) -> list[tuple[str, str]]:
    plan, best = report.plan, report.best
    steps = f", {plan.interval_steps:,} steps" if plan.interval_steps is not None else ""
    found = [(duration(plan.training.interval_s), f"from save to save{steps}"),
             (percent(plan.waste_exact), "of GPU time wasted" + (f"; today {percent(report.today_plan.waste_exact)}"
                                                                 if report.today_plan else "")),
             (duration(plan.lost_work_mean_s), "of work lost at an interruption, on average"),
             (f"{usd(best.system.monthly_usd)} USD", f"a month for {named(best.system)}")]
    if report.wanted.priced:
        found.append((f"{_money(best.total_usd)} USD", "a year for wasted GPU time and storage"))
    return found


def _interval_part(report: Report) -> list[str]:
    plan, today = report.plan, report.today_plan
    low_s, high_s = report.flat_interval_s
    x = time_axis(report.waste_by_interval[0][0], report.waste_by_interval[-1][0], "checkpoint interval", duration)
    highest = max(w for _, w in [*report.waste_by_interval, *report.today_by_interval])
    marks = [Mark(at=(plan.training.interval_s, plan.waste_exact), text=f"best {duration(plan.training.interval_s)}")]
    if today is not None:
        marks.append(Mark(at=(today.training.interval_s, today.waste_exact), colour=2,
                          text=f"today {duration(today.training.interval_s)}"))
    picture = plot(
        "Waste against the checkpoint interval", x, linear_axis(highest, "share of GPU time", percent),
        [Line(points=report.waste_by_interval, name="all waste", colour=1),
         *([Line(points=report.today_by_interval, name="all waste with today's write", colour=2)]
           if report.today_by_interval else []),
         Line(points=report.stall_by_interval, name="stalls", colour=4),
         Line(points=report.rework_by_interval, name="rework", colour=3)],
        marks=marks, bands=[Band(low=low_s, high=high_s, text=f"at most {percent(TOLERATED)} more stalls and rework")])
    text = (f"Saving more often costs stalls, saving less often costs rework; sqrt(2 C M) balances them. Anything from "
            f"{duration(low_s)} to {duration(high_s)} is as good.")
    return [heading("How often to save"), paragraph(text), *_today_text(report), picture, *_parts_table(plan, today)]


def _today_text(report: Report) -> list[str]:
    plan, today = report.plan, report.today_plan
    if today is None:
        return []
    write = f" with a write of {duration(today.training.write_s)}" if report.today_by_interval else ""
    extra = max(0.0, today.waste_exact - plan.waste_exact)
    found = [paragraph(f"Today, every {duration(today.training.interval_s)}{write}, {percent(today.waste_exact)} of "
                       f"the GPU time is wasted, {percent(extra)} more than need be.")]
    if today.overlap:
        found.append(paragraph("Note: such a write is not over when the next save begins. Either that save waits, and "
                               "training stands still for longer than is counted here, or memory holds two.", "warn"))
    return found


def _parts_table(plan: IntervalPlan, today: IntervalPlan | None) -> list[str]:
    names = [("stalls", "stall", "C / T"), ("rework", "rework", "T / 2M"),
             ("not durable yet", "not_yet_durable", "t / M"), ("restarts", "restart", "R / M"),
             ("planned stops", "planned", "(C + write + R) at every limit")]
    rows = []
    for name, field, formula in names:
        value = getattr(plan.waste, field)
        if value or field != "planned":
            rows.append([name, percent(value), *([percent(getattr(today.waste, field))] if today else []), formula])
    rows.append(["all, to first order", percent(plan.waste.total), *([percent(today.waste.total)] if today else []), ""])
    rows.append(["all, exactly", percent(plan.waste_exact), *([percent(today.waste_exact)] if today else []), ""])
    head = ["waste", "best", *(["today"] if today else []), "formula"]
    return [html_table(head, rows, "lrrl" if today else "lrl", best=len(rows) - 1),
            *(paragraph(f"Note: {text}", "warn") for text in plan.warnings)]


def _storage_part(report: Report) -> list[str]:
    wanted, best, today = report.wanted, report.best, report.today
    x = time_axis(*wanted.write_range_s, "time to write a checkpoint", duration)
    body = [heading("How fast to write")]
    if wanted.priced:
        low_s, high_s = report.flat_write_s
        body.append(paragraph(
            "A faster file system costs more and loses less. Its capacity comes in units, so the cost moves in steps; writes "
            f"of {duration(low_s)} to {duration(high_s)} cost within {percent(FLAT)} of the best one."))
        most = max(plan.total_usd for plan in report.by_write)
        marks = _write_marks(report, lambda plan: plan.total_usd)
        body.append(plot(
            "Cost against write time", x, linear_axis(most, "USD a year", _money),
            [Line(points=[(p.write_s, p.total_usd) for p in report.by_write], name="together", colour=1),
             Line(points=[(p.write_s, p.stopped_usd + p.lost_work_usd) for p in report.by_write], name="wasted GPU time",
                  colour=2),
             Line(points=[(p.write_s, p.storage_usd) for p in report.by_write], name="storage", colour=3, steps=True)],
            marks=marks, bands=[Band(low=low_s, high=high_s, text=f"within {percent(FLAT)} of the best")]))
    most_waste = max(plan.waste.total for plan in report.by_write)
    body.append(plot(
        "Waste against write time", x, linear_axis(most_waste, "GPU time wasted", percent),
        [Line(points=[(p.write_s, p.waste.total) for p in report.by_write], name="", colour=1)],
        marks=_write_marks(report, lambda plan: plan.waste.total)))
    if wanted.priced:
        chosen = next(i for i, plan in enumerate(report.stacked) if plan is best)
        near = (today is not None and abs(plan.write_s / today.write_s - 1) < 0.02 for plan in report.stacked)
        labels = [duration(plan.write_s) + (" (today)" if is_today else "")
                  for plan, is_today in zip(report.stacked, near, strict=True)]
        body += [heading("What it is made of"), stacks(
            "Cost by write time", linear_axis(max(p.total_usd for p in report.stacked) * 1.04, "USD a year", _money), labels,
            [(p.stopped_usd, p.lost_work_usd, p.storage_usd) for p in report.stacked],
            ("GPUs standing still", "lost work" if wanted.job.limit_s is None else "lost work, stops", "storage"),
            under="time to write a checkpoint", marked=chosen)]
    return body


def _write_marks(report: Report, value: Callable[[Plan], float]) -> list[Mark]:
    word = "best" if report.wanted.priced else "today" if report.today is not None else "planned"  # no price, no best one
    marks = [Mark(at=(report.best.write_s, value(report.best)), text=f"{word} {duration(report.best.write_s)}")]
    if report.today is not None and abs(report.today.write_s / report.best.write_s - 1) > 0.02:
        near = 0.5 < report.today.write_s / report.best.write_s < 2
        marks.append(Mark(at=(report.today.write_s, value(report.today)), colour=2, below=near,
                          text=f"today {duration(report.today.write_s)}"))
    return marks


def _money(value: float) -> str:
    if value >= 0.9995e9:
        return f"{plain(value / 1e9)} bn"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value / 1e3:.0f} k" if value >= 1e3 else f"{value:.0f}"


def _choices_part(report: Report) -> list[str]:
    rows = []
    for plan in report.stacked:
        system = plan.system
        star = "*" if system.offer.price == "derived" else ""
        efa = " EFA" if system.offer.efa else ""
        rows.append([duration(plan.write_s), f"{system.offer.throughput_class:g}{efa}", f"{system.capacity_gib:,}",
                     decimal(system.baseline_bytes_per_s, "B/s"),
                     usd(system.monthly_usd) + star, duration(plan.interval_s), duration(plan.restart_s),
                     percent(plan.waste.total), *([usd(plan.total_usd)] if report.wanted.priced else [])])
    head = ["write", "MB/s/TiB", "GiB", "baseline", "USD a month", "interval", "restart", "waste",
            *(["USD a year in all"] if report.wanted.priced else [])]
    best = next((i for i, plan in enumerate(report.stacked) if plan is report.best), None)
    return [heading("File systems"), html_table(head, rows, "rrrrrrrrr"[:len(head)], best=best)]


def _settings_part(report: Report) -> list[str]:
    step_s = report.plan.training.step_s
    if step_s is None:
        return []
    found = settings_for(report.plan.training.interval_s, step_s, asynchronous=report.wanted.job.stall_s is not None)
    rows = [[s.framework.name, "\n".join(s.settings), f"{s.framework.default}; {left_alone(s)}"] for s in found]
    return [heading("As settings"), html_table(["framework", "settings", "its default, left alone"], rows, "lll", code=1)]


def _assumptions_part(report: Report) -> list[str]:
    wanted, training, best = report.wanted, report.plan.training, report.best
    restart = "given" if wanted.restart_given else "10m and reading the checkpoint at the baseline's rate"
    rows = [["C, stall", duration(training.stall_s), "given" if wanted.job.stall_s is not None else "the whole write"],
            ["t, until a save is usable", duration(training.durable_s), "C + write" if training.write_s else "C"],
            ["M, between interruptions", hours(training.mtbi_s), "given"],
            ["R, restart", duration(training.restart_s), restart],
            ["generations kept", str(wanted.job.keep), "the one being written among them"],
            ["notice needed before a planned stop", duration(training.lead_needed_s), "step + C + write + exit"]]
    if training.limit_s is not None:
        rows.append(["time limit of a launch", duration(training.limit_s), "given; it does not enter M"])
    if wanted.priced:
        rows.append(["GPU time a year", f"{usd(wanted.job.usd_per_year)} USD",
                     f"{wanted.job.price_usd_per_h:,.10g} USD an hour for {wanted.job.gpus_per_price} GPUs, 8,760 h"])
    rows.append(["throughput needed", decimal(wanted.size.size_bytes / best.write_s, "B/s"), "S / write"])
    return [heading("What it rests on"), html_table(["", "value", "from"], rows, "lrl")]
