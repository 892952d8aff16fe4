"""What happened to a run and when: a table of its attempts, and its moments in order. Pure.

The moments come from the journal, and from what each attempt's trainer said; saves that follow each other are counted, not
listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

from orchestrator.model import INTERRUPTIONS, Attempt, Canary, Ending, Run
from orchestrator.units import format_duration
from orchestrator.views.facts import METRICS_SHOWN, idle_s, metrics_in_words
from orchestrator.views.interval import hours
from orchestrator.views.text import Line, Span, Style, day_and_time, one_line, table, wrapped

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The complete saves of one attempt."""

    count: int = 0
    last_step: int | None = None
    last_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened. ``attempt``: while that one ran, by its trainer's word."""

    at: float
    words: str
    style: Style = ""
    attempt: int | None = None
    saved_step: int | None = None      # it was a save


def saves_of(lines: Sequence[Event]) -> Saves:
    """From an attempt's ``trainer.jsonl`` lines."""
    saved = [line for line in lines if line["event"] == "saved"]
    if not saved:
        return Saves()
    return Saves(count=len(saved), last_step=_int(saved[-1].get("step")), last_at=float(saved[-1]["t"]))


def moments(run: Run, events: Iterable[Event], said: Mapping[int, Sequence[Event]]) -> list[Moment]:
    """From the journal's events and, by attempt, the trainers' lines. In order of time; saves in a row are one moment."""
    found = [moment for event in events for moment in _from_journal(run, event)]
    found += [moment for number, lines in said.items() for moment in _from_trainer(number, lines)]
    return _counted(sorted(found, key=lambda moment: moment.at))


def _counted(found: Sequence[Moment]) -> list[Moment]:
    """Saves of one attempt with nothing between them as one moment, at the time of the last."""
    counted: list[Moment] = []
    row = 0
    for moment in found:
        before = counted[-1] if counted else None
        alike = before is not None and moment.saved_step is not None and before.saved_step is not None \
            and before.attempt == moment.attempt
        row = row + 1 if alike else 1
        if alike:
            counted[-1] = replace(moment, words=f"{row} saves, the last at step {moment.saved_step}")
        else:
            counted.append(moment)
    return counted


# --- the journal's ----------------------------------------------------------------------------------------------------------


def _from_journal(run: Run, event: Event) -> Iterator[Moment]:
    words = _JOURNAL.get(str(event["event"]))
    if words is not None:
        yield from words(run, event)


def _said(sentence: str, style: Style = "") -> Callable[[Run, Event], Iterator[Moment]]:
    """A moment of its own name, with the reason if one was given that says more than "by hand"."""
    def moment(run: Run, event: Event) -> Iterator[Moment]:
        reason = one_line(event.get("reason", ""))
        yield Moment(at=float(event["t"]), words=f"{sentence}: {reason}" if reason else sentence, style=style)
    return moment


def _started(run: Run, event: Event) -> Iterator[Moment]:
    index = _index(run, event)
    if index is None:
        return
    attempt = run.attempts[index]
    idle = idle_s(run.attempts[index - 1], attempt) if index else None
    job = attempt.job_id + (f", restart {attempt.restart_count}" if attempt.restart_count else "")
    yield Moment(
        at=attempt.started_at, style="good",
        words=f"attempt {attempt.number} started on {one_line(attempt.host)} (job {job})"
        + (f" from step {attempt.resume_step}" if attempt.resume_step is not None else "")
        + (f" after {format_duration(idle)} idle" if idle is not None else ""))


def _ended(run: Run, event: Event) -> Iterator[Moment]:
    index = _index(run, event)
    attempt = run.attempts[index] if index is not None else None
    if attempt is None or attempt.ended_at is None:
        return
    planned = attempt.ending in (Ending.LIMIT_SAVED, Ending.PREEMPTED_SAVED)  # what was lost is the time it took to stop
    lost = f"; {format_duration(attempt.lost_s)} of work lost" if attempt.lost_s and not planned else ""
    yield Moment(at=attempt.ended_at, style=_ending_style(attempt),
                 words=f"attempt {attempt.number} ended: {ending_in_words(attempt, with_reason=not planned)}{lost}")


def _index(run: Run, event: Event) -> int | None:
    return next((i for i, attempt in enumerate(run.attempts) if attempt.epoch == event.get("epoch")), None)


def _dropped(run: Run, event: Event) -> Iterator[Moment]:
    reason = one_line(event.get("reason", ""))
    submission = run.submission(str(event.get("submission_id")))
    if submission is None or reason == "cancelled by orch":
        return
    stood_down = event.get("why") == "stood down"
    how = "stood down" if stood_down else "is gone"
    yield Moment(at=float(event["t"]), style="faint" if stood_down else "warn",
                 words=f"job {submission.job_id} of attempt {submission.number} {how}" + (f": {reason}" if reason else ""))


def _interval(run: Run, event: Event) -> Iterator[Moment]:
    every, mtbi_h = event.get("interval_s"), event.get("mtbi_h")
    if event.get("kept") or not isinstance(every, (int, float)):
        return
    known = f" (M {hours(mtbi_h)})" if isinstance(mtbi_h, (int, float)) else ""
    local = event.get("local_interval_s")
    node = f", to the node every {format_duration(local)}," if isinstance(local, (int, float)) and local < every else ""
    yield Moment(at=float(event["t"]), style="faint",
                 words=f"checkpoint every {format_duration(every)}{node} from now on{known}")


def _saves(run: Run, event: Event) -> Iterator[Moment]:
    """Its failures are told by the trainer's own lines."""
    if not event.get("fail"):
        yield Moment(at=float(event["t"]), words="saves again")


def _finished(run: Run, event: Event) -> Iterator[Moment]:
    metrics = metrics_in_words(dict(event.get("metrics") or {}), METRICS_SHOWN)
    yield Moment(at=float(event["t"]), words=f"finished: {metrics}" if metrics else "finished", style="good")


def _canary(run: Run, event: Event) -> Iterator[Moment]:
    """A broken one is told by the hold that follows it."""
    attempt, state, reason = event.get("attempt"), event.get("state"), one_line(event.get("reason", ""))
    if state == Canary.STOPPING:
        yield Moment(at=float(event["t"]), words=f"attempt {attempt} is stopped to prove that it resumes", style="faint")
    elif state == Canary.PROVEN:
        yield Moment(at=float(event["t"]), words=f"its resume is proven: {reason}", style="good")


def _rollback(run: Run, event: Event) -> Iterator[Moment]:
    yield Moment(at=float(event["t"]), style="warn",
                 words=f"goes back to step {event.get('to_step')}: {one_line(event.get('reason', ''))}")


def _note(run: Run, event: Event) -> Iterator[Moment]:
    yield Moment(at=float(event["t"]), words=f"note: {one_line(event.get('text', ''))}", style="faint")


_JOURNAL: dict[str, Callable[[Run, Event], Iterator[Moment]]] = {
    "submit": _said("submitted"), "reopened": _said("opened again"), "rejected": _said("Slurm refused a job of it", "bad"),
    "lost": _said("a submission never reached Slurm", "warn"), "held": _said("held", "bad"), "released": _said("released"),
    "cancel": _said("cancel was asked for", "warn"), "cancelled": _said("cancelled"), "adjusted": _said("adjusted", "warn"),
    "canary": _canary, "rollback": _rollback, "updated": _said("changed by hand"), "unchanged": _said("not changed", "bad"),
    "started": _started, "ended": _ended, "dropped": _dropped, "interval": _interval, "saves": _saves,
    "finished": _finished, "note": _note}


# --- the trainers' ----------------------------------------------------------------------------------------------------------


def _from_trainer(number: int, lines: Sequence[Event]) -> Iterator[Moment]:
    reason = None
    for line in lines:
        at, name = float(line["t"]), line["event"]
        if name == "saved":
            step = _int(line.get("step"))
            yield Moment(at=at, words=f"saved step {step}", attempt=number, saved_step=step or 0, style="faint")
        elif name == "save_failed":
            yield Moment(at=at, words=f"a save failed: {one_line(line.get('error', ''))}", attempt=number, style="bad")
        elif name == "notice" and line.get("reason") != reason:
            reason = line.get("reason")
            yield Moment(at=at, words=f"notice: {one_line(reason)}{_lead(line)}", attempt=number, style="warn")
        elif name == "failed":
            yield Moment(at=at, words=f"failed: {one_line(line.get('error', ''))}", attempt=number, style="bad")
        elif name == "fenced":
            yield Moment(at=at, words="fenced: a newer start exists, nothing was written", attempt=number, style="warn")


def _lead(line: Event) -> str:
    deadline = line.get("deadline")
    return f", {format_duration(max(0.0, deadline - line['t']))} ahead" if isinstance(deadline, (int, float)) else ""


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


# --- as lines ---------------------------------------------------------------------------------------------------------------


def moment_lines(
    found: Sequence[Moment], tag: str, at_most: int | None, width: int | None, zone: tzinfo | None,
) -> list[Line]:
    """A line a moment, what happened within an attempt indented; only the latest ``at_most``."""
    shown = found if at_most is None else found[-at_most:]
    lines: list[Line] = [(("TIME            EVENT", "title"),)]
    if len(shown) < len(found):
        lines.append(((f"… {len(found) - len(shown)} earlier ones: `orch status {tag} --all`", "faint"),))
    for moment in shown:
        stamp = day_and_time(moment.at, zone) + "  "
        begin = stamp + ("  " if moment.attempt is not None else "")
        [first, *rest] = wrapped(begin + moment.words, width, style=moment.style, indent=len(begin) + 2)
        lines.append(((stamp, "faint"), (first[0][0].removeprefix(stamp), moment.style)))
        lines += rest
    return lines


def attempt_table(
    attempts: Sequence[Attempt], saves: Mapping[int, Saves], step: int | None, now: float, width: int | None,
    at_most: int | None = None,
) -> list[Line]:
    """A row an attempt, with the work that its ending cost and the idle time after it; of many the latest. ``step`` is the
    live one's."""
    header = ("ATT", "JOB", "ON", "RAN", "STEPS", "SAVES", "LOST", "IDLE", "ENDING")
    rows: list[tuple[Span, ...]] = [tuple((name, "title") for name in header)]
    left_out = max(0, len(attempts) - at_most) if at_most is not None else 0
    if left_out:
        rows.append((("…", "faint"), (f"{left_out} earlier ones", "faint")))
    for index, attempt in enumerate(attempts):
        if index < left_out:
            continue
        later = attempts[index + 1] if index + 1 < len(attempts) else None
        rows.append(_attempt_row(attempt, later, saves.get(attempt.number), step, now))
    return table(rows, width)


def _attempt_row(
    attempt: Attempt, later: Attempt | None, saves: Saves | None, step: int | None, now: float,
) -> tuple[Span, ...]:
    idle = idle_s(attempt, later) if later else None
    job = attempt.job_id + (f".{attempt.restart_count}" if attempt.restart_count else "")
    first, last = attempt.resume_step or 0, step if attempt.live else attempt.last_step
    ran = format_duration(max(0.0, (attempt.ended_at or now) - attempt.started_at))
    ending = ending_in_words(attempt, with_reason=attempt.exit_code not in (0, 75, None))
    texts = (str(attempt.number), job, one_line(attempt.host, 20), ran, f"{first}-{last if last is not None else ''}",
             str(saves.count) if saves is not None else "",
             format_duration(attempt.lost_s) if attempt.lost_s is not None else "",
             format_duration(idle) if idle is not None else "")
    return (*((text, "") for text in texts), (ending, _ending_style(attempt)))


def ending_in_words(attempt: Attempt, *, with_reason: bool) -> str:
    if attempt.ending is None:
        return "runs"
    return f"{attempt.ending} ({one_line(attempt.reason)})" if with_reason and attempt.reason else str(attempt.ending)


def _ending_style(attempt: Attempt) -> Style:
    if attempt.ending is None or attempt.ending == Ending.FINISHED:
        return "good"
    return "bad" if attempt.ending in INTERRUPTIONS | {Ending.SETUP_FAILURE, Ending.NO_RESULT} else "warn"
