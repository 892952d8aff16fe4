"""What people are told, in words: of a run's journal since it was last told, of the queue, of Slurm. Values in, messages out.

Progress is never a message: each run has one living message that is edited (``living``). Many messages at once become a few
(``grouped``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from itertools import pairwise
from math import isfinite

from orchestrator.core.fold import Event, apply
from orchestrator.message import Kind, Message, SlurmTold
from orchestrator.model import Attempt, Ending, Phase, Run
from orchestrator.units import format_duration
from orchestrator.views.facts import METRICS_SHOWN, Progress, how_to_go_on, metrics_in_words, state_word
from orchestrator.views.interval import hours
from orchestrator.views.text import moment, one_line

LEAVES = frozenset({Kind.FINISHED, Kind.HELD, Kind.CANCELLED})
TEXT_AT_MOST = 300                     # columns of one piece of foreign text
LISTED_AT_MOST = 20                    # lines of a list
GROUPS_AT_MOST = 3
SINGLY_AT_MOST = 5                     # messages that are due at once and still come one by one


def run_messages(events: Sequence[Event], begin: int, left: Sequence[Run] | None) -> list[Message]:
    """What the events from index ``begin`` on tell; ``left`` are the runs that are in the queue now, None: nobody knows.

    The events must fold (``core.fold.fold`` has accepted them)."""
    folded: list[Run] = []
    run: Run | None = None
    for event in events:
        run = apply(run, event)
        if run is not None:
            folded.append(run)
    told = enumerate(zip(pairwise(folded), events[-len(folded):][1:], strict=True), 1)
    return [
        message for index, ((before, after), event) in told if index >= begin
        for message in (*_of_event(before, after, index, left), *_of_saves(before, after, index, event),
                        *_of_lingering(before, after, index, event))]


def _of_event(before: Run, after: Run, index: int, left: Sequence[Run] | None) -> Iterator[Message]:
    failed = next((a for a, b in zip(after.attempts, before.attempts, strict=False)
                   if a.ending == Ending.NODE_FAILURE and b.ending is None), None)
    if failed is not None:
        yield _node_out(after, failed, f"{_name(after)}/{index}/{Kind.NODE_OUT}")
    kind = {Phase.FINISHED: Kind.FINISHED, Phase.CANCELLED: Kind.CANCELLED, Phase.HELD: Kind.HELD}.get(after.phase)
    if kind is not None and before.phase != after.phase:
        yield _leaves(after, kind, f"{_name(after)}/{index}/{kind}", left)


def _of_saves(before: Run, after: Run, index: int, event: Event) -> Iterator[Message]:
    """The trainer cannot save, or can again."""
    if before.saves_told_at == after.saves_told_at:
        return
    tag, newest = after.spec.tag, event.get("checkpoint_step")
    kept = f"its newest complete checkpoint is step {newest}" if newest is not None else "it has no complete checkpoint"
    kind = Kind.SAVES_FAIL if after.saves_fail else Kind.SAVES_AGAIN
    headline = f"{tag} cannot save{_with(foreign(event.get('reason', '')))}" if after.saves_fail else f"{tag} saves again"
    lines = (f"training goes on, and {kept}", "what an interruption would cost grows until there is space again") \
        if after.saves_fail else (kept,)
    yield Message(key=f"{_name(after)}/{index}/{kind}", kind=kind, at=after.saves_told_at or 0.0, tag=tag, headline=headline,
                  lines=lines)


def _of_lingering(before: Run, after: Run, index: int, event: Event) -> Iterator[Message]:
    """A job that does not come to its end."""
    tag, behind = after.spec.tag, ", ".join(s.job_id for s in after.waiting if s.job_id)
    for one in after.lingering:
        if one in before.lingering:
            continue
        where = f" on {foreign(one.nodes)}" if one.nodes else ""
        yield Message(
            key=f"{_name(after)}/{index}/{Kind.LINGERS}", kind=Kind.LINGERS, at=event["t"], tag=tag,
            headline=f"job {one.job_id} of {tag} has been ending for {_lasted(event['t'] - one.since)}{where}",
            lines=(f"Slurm waits until nothing of it is left{f', and job {behind} waits with it' if behind else ''}",
                   f"`scontrol show job {one.job_id}` and `sinfo -R` say where it hangs: an epilog, or a process that cannot "
                   "be killed", "whoever manages the node frees it by setting it down, and up again"))


def _name(run: Run) -> str:
    """The run, told from an earlier one of the same tag."""
    return f"{run.spec.tag}/{run.submitted_at:.0f}"


def _leaves(run: Run, kind: Kind, key: str, left: Sequence[Run] | None) -> Message:
    tag = run.spec.tag
    lines: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    if kind == Kind.FINISHED:
        headline, lines = f"{tag} is finished{_with(result(run))}", (_effort(run),)
        facts = _table(run.metrics) if len(run.metrics) > METRICS_SHOWN else ()
    elif kind == Kind.HELD:
        headline = f"{tag} is held{_with(foreign(run.phase_reason))}"
        lines = (how_to_go_on(run), *([f"`orch logs {tag}` shows what it printed"] if run.attempts else []))
    else:
        headline = f"{tag} is cancelled{_with(foreign(run.phase_reason))}"
    if run.live is not None:
        lines = (*lines, f"attempt {run.live.number} still runs (job {run.live.job_id})")
    return Message(key=key, kind=kind, at=run.phase_since, tag=tag, headline=headline, facts=facts,
                   lines=(*(line for line in lines if line), what_is_left(left)))


def _with(words: str) -> str:
    return f": {words}" if words else ""


def _effort(run: Run) -> str:
    """What it took."""
    trained_s = sum(max(0.0, a.ended_at - a.started_at) for a in run.attempts if a.ended_at is not None)
    lost_s = sum(a.lost_s or 0.0 for a in run.attempts)
    count = len(run.attempts)
    lost = f", of it {_lasted(lost_s)} of lost work" if lost_s >= 1 else ""
    return f"{count} attempt{'s' if count != 1 else ''}, {_lasted(trained_s)}{lost}" if count else ""


def what_is_left(left: Sequence[Run] | None) -> str:
    if left is None:
        return "what is left in the queue is unknown: a run's journal cannot be read"
    if not left:
        return "nothing that could train is left in the queue"
    names = ", ".join(f"{run.spec.tag} ({state_word(run)})" for run in left[:5])
    return f"{len(left)} left in the queue: {names}{', ...' if len(left) > 5 else ''}"


def _node_out(run: Run, attempt: Attempt, key: str) -> Message:
    tag, node = run.spec.tag, foreign(attempt.nodes or attempt.host or "a node")
    step = f" (step {attempt.checkpoint_step})" if attempt.checkpoint_step is not None else ""
    return Message(
        key=key, kind=Kind.NODE_OUT, at=attempt.ended_at or 0.0, tag=tag,
        headline=f"{node} is out: it failed under attempt {attempt.number} of {tag}{_with(foreign(attempt.reason))}",
        lines=(f"{tag} goes on from its newest complete checkpoint{step}", "`sinfo -R` shows why Slurm has taken nodes out"))


# --- the whole repository -------------------------------------------------------------------------------------------------


def one_left(left: Sequence[Run], now: float) -> Message:
    """The queue runs low: what is left of it."""
    run = left[0]
    doing = f"{state_word(run)}, attempt {run.live.number}" if run.live is not None else state_word(run)
    return Message(key=f"queue/{now:.0f}/{Kind.ONE_LEFT}", kind=Kind.ONE_LEFT, at=now, tag=run.spec.tag,
                   headline=f"one run is left in the queue: {run.spec.tag} ({doing})",
                   lines=(_queue_the_next(run.spec.tag),))


def drained(runs: Sequence[Run], since: float, now: float) -> Message:
    """Nothing trains, and nothing will by itself: what has ended since ``since``, for how long the GPU has been idle, and
    what queues the next run."""
    ended = sorted((run for run in runs if (run.over and run.phase_since > since) or run.phase == Phase.HELD),
                   key=lambda run: run.phase_since)
    waiting = [run for run in runs if not run.over and run.phase != Phase.HELD]
    lines = [_ending_line(run) for run in ended[-LISTED_AT_MOST:]]
    if len(ended) > LISTED_AT_MOST:
        lines.insert(0, f"{len(ended) - LISTED_AT_MOST} before these; `orch status` shows all")
    if waiting:
        lines.append(f"waiting for a held one: {', '.join(run.spec.tag for run in waiting[:5])}")
    trained = [run for run in runs if run.attempts]
    finished = [run for run in trained if run.phase == Phase.FINISHED]
    latest = max(finished or trained, key=lambda run: run.phase_since, default=None)
    lines.append(_queue_the_next(latest.spec.tag if latest is not None else ""))
    return Message(key=f"queue/{now:.0f}/{Kind.DRAINED}", kind=Kind.DRAINED, at=now,
                   headline=f"the queue has drained{_idle(runs, now)}", lines=tuple(lines))


def _ending_line(run: Run) -> str:
    words = result(run) if run.phase == Phase.FINISHED else foreign(run.phase_reason)
    helps = f" ({how_to_go_on(run)})" if run.phase == Phase.HELD else ""
    return f"{run.spec.tag} {run.phase}{_with(words)}{helps}"


def _idle(runs: Sequence[Run], now: float) -> str:
    ends = [a.ended_at for run in runs for a in run.attempts if a.ended_at is not None]
    if not ends:
        return ""
    what = "the GPU has been idle" if any(run.spec.profile.gres for run in runs) else "nothing has trained"
    return f": {what} for {_lasted(max(0.0, now - max(ends)))}, since {clock(max(ends))}"


def _queue_the_next(like: str) -> str:
    source = f" --from {like}" if like else ""
    return f"the next one: `orch new TAG{source}`, then `orch submit TAG`"


def slurm_message(before: SlurmTold, words: str, now: float) -> Message:
    """Slurm has been silent for long, or answers again after that: ``before`` is what was known until this pass."""
    since = before.troubled_since if before.troubled_since is not None else now
    lasted = format_duration(round(max(0.0, now - since)))
    if before.told:
        return Message(key=f"slurm/{since:.0f}/{Kind.SLURM_ANSWERS}", kind=Kind.SLURM_ANSWERS, at=now,
                       headline=f"Slurm answers again; it was away {'on and off ' if before.on_and_off else ''}from "
                                f"{clock(since)} to {clock(before.silent_at)}")
    how = "answered only now and then" if before.on_and_off else "not answered"
    return Message(key=f"slurm/{since:.0f}/{Kind.SLURM_SILENT}", kind=Kind.SLURM_SILENT, at=now,
                   headline=f"Slurm has {how} for {lasted}{_with(foreign(words))}",
                   lines=("jobs go on by themselves; nothing is decided until it answers",))


# --- a run's living message -----------------------------------------------------------------------------------------------


def living(run: Run, progress: Progress, now: float) -> Message:
    """Where a run stands: state, step, loss, rate, attempt, M and the checkpoint interval."""
    tag, live = run.spec.tag, run.live
    words = [state_word(run)]
    if run.phase == Phase.FINISHED:
        words += [result(run)] if run.metrics else []
    elif progress.step is not None:
        of = f" of {progress.of}" if progress.of is not None else ""
        words += [f"step {progress.step}{of}", *([f"loss {progress.loss:.4g}"] if progress.loss is not None else [])]
    facts: list[tuple[str, str]] = []
    if live is not None:
        facts.append(("attempt", f"{live.number} on {foreign(live.host)}, job {live.job_id}"))
        if progress.steps_per_s:
            facts.append(("rate", f"{progress.steps_per_s:.3g} steps/s"))
        if progress.left_s is not None:
            facts.append(("time left", format_duration(round(progress.left_s))))
    elif run.attempts:
        facts.append(("took", _effort(run)))
    if not run.over:
        facts += _reliability(run)
    return Message(key=f"{_name(run)}/{Kind.PROGRESS}", kind=Kind.PROGRESS, tag=tag,
                   at=run.phase_since if run.over else now if progress.at is None else progress.at,
                   headline=f"{tag}: {', '.join(words)}", facts=tuple(facts),
                   lines=(foreign(run.phase_reason),) if run.phase_reason and run.phase != Phase.FINISHED else ())


def _reliability(run: Run) -> list[tuple[str, str]]:
    mtbi_h = run.interval.get("mtbi_h")
    facts = [("M", hours(float(mtbi_h)))] if isinstance(mtbi_h, (int, float)) else []
    return facts + ([("checkpoint every", format_duration(run.interval_s))] if run.interval_s is not None else [])


# --- many at once ---------------------------------------------------------------------------------------------------------


def batches(count: int) -> list[int]:
    """How many of ``count`` messages that are due go into each one that is sent, oldest first: a few come singly, more in
    groups, and of very many the oldest become one."""
    if count <= SINGLY_AT_MOST:
        return [1] * count
    groups = min(-(-count // LISTED_AT_MOST), GROUPS_AT_MOST)
    if count <= GROUPS_AT_MOST * LISTED_AT_MOST:
        return [count // groups + (number < count % groups) for number in range(groups)]
    return [count - (groups - 1) * LISTED_AT_MOST] + [LISTED_AT_MOST] * (groups - 1)


def grouped(messages: Sequence[Message]) -> Message:
    """Several messages as one; a single one stays what it is."""
    if len(messages) == 1:
        return messages[0]
    counts = Counter(message.kind for message in messages)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    listed = messages[-LISTED_AT_MOST:]
    lines = [_short(message) for message in listed]
    if len(listed) < len(messages):
        lines.insert(0, f"{len(messages) - len(listed)} before these; `orch status` shows how things stand")
    return Message(key=f"{messages[0].key} to {messages[-1].key}", kind=Kind.GROUP, at=messages[-1].at, lines=tuple(lines),
                   headline=f"{len(messages)} messages since {clock(messages[0].at)}: {kinds}")


def _short(message: Message) -> str:
    helps = f" ({message.lines[0]})" if message.kind == Kind.HELD and message.lines else ""
    return f"{clock(message.at)} {message.title}{helps}"


def again(message: Message) -> Message:
    """The same message, whose first delivery nobody can be sure of."""
    return replace(message, again=True)


# --- pieces of text -------------------------------------------------------------------------------------------------------


def result(run: Run) -> str:
    """The first metrics, in a few words."""
    return foreign(metrics_in_words(run.metrics, METRICS_SHOWN))


def _table(metrics: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((foreign(name), foreign(f"{value:.4g}" if isinstance(value, float) else value))
                 for name, value in list(metrics.items())[:LISTED_AT_MOST])


def foreign(value: object) -> str:
    """Text that is not ours: one line, no control characters, no backticks, not too long."""
    return one_line(value, TEXT_AT_MOST).replace("`", "'")


def _lasted(seconds: float) -> str:
    return format_duration(round(seconds)) if isfinite(seconds) else "unknown time"


def clock(at: float) -> str:
    """A moment, to the minute, in UTC: readers sit in several time zones."""
    return moment(at, UTC, "%H:%M UTC")
