"""``ops/STATE.md`` and ``ops/state.json``: the repository's state for people and agents, as text. Pure.

Equal states give equal texts: every time is absolute and in UTC, and nothing says "now". The page never grows beyond
``PAGE_AT_MOST`` characters (4,000 tokens): what does not fit is counted, the least urgent of each group first. What others
wrote (reasons, metrics, names of hosts) stands in code spans, on one line, so that it is not taken for the page's own words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model import INTERRUPTIONS, Lingering, Phase, Run
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_duration
from orchestrator.views.facts import Shown, how_to_go_on, metrics_in_words, run_as_json, state_word, why_waiting
from orchestrator.views.interval import hours
from orchestrator.views.reasons import start_in_words
from orchestrator.views.text import minute_utc, one_line

PAGE_AT_MOST = 14_000  # characters: 4,000 tokens of 3.5
FRAME_AT_MOST = 500    # of them: headings, what says how many more there are, empty lines
LATELY_S = 24 * 3600.0
NAMES_AT_MOST = 5      # runs named in the first line
TROUBLES_AT_MOST = 5

HOW_TO_QUEUE = """\
## To queue the next experiment

`orch new NEW --from {like}`; write the command into `jobs/NEW/job.sh`, and what changed and why into `what:` of
`jobs/NEW/job.yaml`; `orch submit NEW` (`--after TAG`: when that run has finished); append a line to `ops/decisions.md`.
More of one run: `orch status TAG`, `orch explain TAG`, `orch logs TAG`. `orch tick` renews this page. Times are UTC.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs in one plight, most important first; ``lines`` are of as many as fit."""

    title: str
    runs: tuple[Shown, ...]
    lines: tuple[str, ...]

    @property
    def left_out(self) -> int:
        return len(self.runs) - len(self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    first: str
    troubles: tuple[str, ...]
    groups: tuple[Group, ...]
    earlier: int                       # runs that ended before those shown
    tail: str                          # how to go on


def page_of(
    shown: Sequence[Shown], troubles: Sequence[str], silent: str | None, now: float, silent_since: float | None = None,
) -> Page:
    """What is to be said. ``troubles``: what could not be read or done; ``silent``: why Slurm does not answer, and since when
    it has not, as far as the caller knows."""
    held = sorted((s for s in shown if s.run.phase == Phase.HELD), key=_newest_first)
    going = sorted((s for s in shown if s.run.phase != Phase.HELD and not s.run.over), key=_submitted)
    running = [s for s in going if s.run.live is not None]
    waiting = [s for s in going if s.run.live is None]
    over = [s for s in shown if s.run.over]
    ended = sorted((s for s in over if now - s.run.phase_since <= LATELY_S), key=_newest_first)
    finished = [s for s in over if s.run.phase == Phase.FINISHED]
    like = max(finished or shown, key=_submitted, default=None)  # nobody wants to begin from a run that is broken
    tail = HOW_TO_QUEUE.format(like=like.run.spec.tag if like is not None else "OLD")
    troubles = [*troubles, *(_lingers(s.run, one) for s in shown for one in s.run.lingering)]
    first = _first(shown, held, waiting, len(ended), len(troubles), _silence(silent, silent_since))
    whole_room = PAGE_AT_MOST - len(first) - sum(map(len, _trouble_lines(troubles))) - len(tail) - FRAME_AT_MOST
    groups, room = [], 0
    for title, runs, line, share in (
        ("Held: nothing of these goes on until somebody acts", held, _held_line, 0.34),
        ("Running", running, _running_line, 0.28),
        ("Waiting", waiting, _waiting_line, 0.20),
        ("Ended in the last 24 hours", ended, _ended_line, 0.18),
    ):
        room += int(share * whole_room)  # and what those before left
        lines = _fitting([line(s) for s in runs], room)
        room -= sum(len(text) + 1 for text in lines)
        groups.append(Group(title=title, runs=tuple(runs), lines=tuple(lines)))
    return Page(first=first, troubles=tuple(troubles), groups=tuple(groups), earlier=len(over) - len(ended), tail=tail)


def _lingers(run: Run, one: Lingering) -> str:
    where = f" on {one.nodes}" if one.nodes else ""
    return (f"{run.spec.tag}: job {one.job_id} has been ending since {minute_utc(one.since)}{where}; 'scontrol show job "
            f"{one.job_id}' and 'sinfo -R' say where it hangs")


def _submitted(shown: Shown) -> tuple[float, str]:
    return shown.run.submitted_at, shown.run.spec.tag


def _newest_first(shown: Shown) -> tuple[float, str]:
    return -shown.run.phase_since, shown.run.spec.tag


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    used = 0
    for index, line in enumerate(lines):
        used += len(line) + 1
        if used > room:
            return list(lines[:index])
    return list(lines)


def state_text(page: Page) -> str:
    """``ops/STATE.md``."""
    lines = [page.first, ""]
    if page.troubles:
        lines += ["## Trouble", "", *_trouble_lines(page.troubles), ""]
    for group in page.groups:
        if group.runs:
            lines += [f"## {group.title}", "", *group.lines]
            lines += [f"- and {group.left_out} more: `orch status`"] if group.left_out else []
            lines.append("")
    if page.earlier:
        lines += [f"{page.earlier} ended before that: `orch status --all`.", ""]
    return "\n".join(lines) + "\n" + page.tail


def _trouble_lines(troubles: Sequence[str]) -> list[str]:
    lines = [f"- {_code(words, 180)}" for words in troubles[:TROUBLES_AT_MOST]]
    more = len(troubles) - TROUBLES_AT_MOST
    return [*lines, f"- and {more} more: `orch tick` shows them"] if more > 0 else lines


def state_json(page: Page) -> str:
    """``ops/state.json``: the same runs for programs; `orch status --json` has all of them, with all attempts."""
    data: dict[str, Any] = {
        "first": page.first, "errors": list(page.troubles), "ended_earlier": page.earlier,
        "left_out": sum(group.left_out for group in page.groups),
        "runs": [_run_as_json(shown) for group in page.groups for shown in group.runs[:len(group.lines)]]}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _run_as_json(shown: Shown) -> dict[str, Any]:
    run, whole = shown.run, run_as_json(shown.run, shown.jobs, shown.progress)
    whole |= {"attempts": len(run.attempts), "attempt": whole["attempts"][-1] if run.attempts else None}
    if run.over:
        return {key: whole[key] for key in ("tag", "state", "since", "reason", "metrics", "attempts", "what")}
    return {**whole, "mtbi_h": run.interval.get("mtbi_h"), "optimum_s": run.interval.get("optimum_s"),
            "helps": how_to_go_on(run) if run.phase == Phase.HELD else None}


# --- the first line ---------------------------------------------------------------------------------------------------------


def _silence(why: str | None, since: float | None) -> str:
    if why is None:
        return ""
    when = f" since {minute_utc(since)}" if since is not None else ""
    return f"**Slurm does not answer{when}** ({_code(why, 160)}): what follows is what was known before."


def _first(
    shown: Sequence[Shown], held: Sequence[Shown], waiting: Sequence[Shown], ended: int, troubles: int, silence: str,
) -> str:
    """All that a reader must know, on one line."""
    parts = [silence] if silence else []
    if troubles:
        parts.append(f"**{troubles} cannot be dealt with**: see Trouble.")
    if held:
        parts.append(f"**{len(held)} held: {_names(held)}**; what helps stands below.")
    parts.append(_activity(shown, waiting))
    if ended:
        parts.append(f"{ended} ended in the last 24 hours.")
    return " ".join(parts)


def _activity(shown: Sequence[Shown], waiting: Sequence[Shown]) -> str:
    live = sorted((s for s in shown if s.run.live is not None), key=_submitted)
    queue_it = "queue the next one as said at the end"
    if live and waiting:
        return f"{len(live)} running: {_names(live)}; {len(waiting)} waiting: {_names(waiting)}."
    if live:
        return f"{len(live)} running: {_names(live)}; **nothing waits behind: {queue_it}**."
    starting = [s for s in waiting if state_word(s.run, s.jobs) == "starting"]
    if starting:
        more = f"; {len(waiting) - len(starting)} waiting" if len(waiting) > len(starting) else ""
        return f"{len(starting)} starting: {_names(starting)}{more}."
    if waiting:
        return (f"**Nothing runs**; {len(waiting)} waiting: {_names(waiting)}, "
                f"the first because of this: {_code(why_waiting(waiting[0]), 160)}.")
    ends = [a.ended_at for s in shown for a in s.run.attempts if a.ended_at is not None]
    idle = "the GPU is idle" if any(s.run.spec.profile.gres for s in shown) else "nothing trains"
    since = f" since {minute_utc(max(ends))}" if ends else ""
    return f"**The queue is empty and {idle}{since}: {queue_it}.**"


def _names(shown: Sequence[Shown]) -> str:
    names = ", ".join(f"`{s.run.spec.tag}`" for s in shown[:NAMES_AT_MOST])
    return names + (f" and {len(shown) - NAMES_AT_MOST} more" if len(shown) > NAMES_AT_MOST else "")


# --- a line a run -----------------------------------------------------------------------------------------------------------


def _held_line(shown: Shown) -> str:
    run, live = shown.run, shown.run.live
    kept = run.attempts[-1].checkpoint_step if run.attempts and live is None else None
    return _line(run, f"since {minute_utc(run.phase_since)}: {_code(run.phase_reason or 'no reason given', 240)}", [
        f"attempt {live.number} still runs (job {live.job_id})" if live is not None else "",
        f"its newest checkpoint has step {kept}" if kept is not None else "",
        f"`orch logs {run.spec.tag}` shows why" if run.attempts and run.held_by != "user" else "", how_to_go_on(run)])


def _running_line(shown: Shown) -> str:
    run, live, progress = shown.run, shown.run.live, shown.progress
    assert live is not None
    of = f" of {progress.of}" if progress.of is not None else ""
    words = [f"step {progress.step}{of}" if progress.step is not None else "no step yet"]
    words += [f"loss {progress.loss:.4g}"] if progress.loss is not None else []
    words += [f"{progress.steps_per_s:.3g} steps/s"] if progress.steps_per_s else []
    words += [f"done about {minute_utc(progress.done_at)}"] if progress.done_at is not None else []
    following = [s.job_id for s in run.waiting if s.job_id]
    state = "" if run.phase == Phase.ACTIVE else f"**{run.phase}**"
    return _line(run, ", ".join(words), [
        state, f"attempt {live.number} since {minute_utc(live.started_at)} on {_code(live.host, 40)} (job {live.job_id}), "
        + (f"its successor waits (job {following[0]})" if following else "no successor queued"), _interval(shown)])


def _interval(shown: Shown) -> str:
    every = shown.progress.interval_s
    if every is None:
        return ""
    known = shown.run.interval
    parts = [f"M {hours(float(m))}" for m in (known.get("mtbi_h"),) if isinstance(m, (int, float))]
    parts += [f"T* {format_duration(float(t))}" for t in (known.get("optimum_s"),) if isinstance(t, (int, float)) and t]
    return f"checkpoint every {format_duration(every)}" + (f" ({', '.join(parts)})" if parts else "")


def _waiting_line(shown: Shown) -> str:
    run = shown.run
    job = shown.jobs.get(run.waiting[0].id) if run.waiting else None
    guess = start_in_words(job, minute_utc(job.start_at)) if (
        job is not None and job.start_at is not None and job.state in WAITING_STATES) else ""
    begin = f"{state_word(run, shown.jobs)} since {minute_utc(run.phase_since)}: {_code(why_waiting(shown), 240)}"
    return _line(run, begin, [guess])


def _ended_line(shown: Shown) -> str:
    run = shown.run
    result = metrics_in_words(run.metrics) or run.phase_reason
    interrupted = sum(a.ending in INTERRUPTIONS for a in run.attempts)
    count = len(run.attempts)
    return _line(run, f"{run.phase} {minute_utc(run.phase_since)}" + (f": {_code(result, 240)}" if result else ""), [
        f"{count} attempt{'s' if count != 1 else ''}, {interrupted} interrupted" if count else "never started"])


def _line(run: Run, begin: str, parts: Sequence[str]) -> str:
    what = f"what: {_code(run.spec.what, 160)}" if run.spec.what else ""
    return f"- `{run.spec.tag}` {'; '.join(part for part in (begin, *parts, what) if part)}"


def _code(text: str, at_most: int) -> str:
    """Somebody else's words in a code span."""
    return f"`{one_line(text, at_most).replace('`', chr(39))}`"


