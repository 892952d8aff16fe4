"""``orch status``: one dense line a run, and one run whole. Values in, lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo

from orchestrator.checkpoints import Checkpoint
from orchestrator.core.pending import as_written
from orchestrator.core.reliability import Setting, restarts
from orchestrator.core.script import dependency_jobs, jobs_in_words
from orchestrator.model import Canary, Phase, Run, Submission
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_duration, format_size
from orchestrator.views.facts import METRICS_SHOWN, Progress, Shown, how_to_go_on, metrics_in_words, state_word, why_waiting
from orchestrator.views.interval import interval_lines, measured_lines
from orchestrator.views.reasons import job_in_words, start_in_words
from orchestrator.views.text import Line, Span, Style, day_and_time, one_line, table, wrapped
from orchestrator.views.timeline import Moment, Saves, attempt_table, moment_lines

FOLDED_AFTER_S = 24 * 3600.0
ATTEMPTS_SHOWN = 12
MOMENTS_SHOWN = 24
MOMENTS_AT_LEAST = 4

STATES: dict[str, Style] = {"running": "good", "starting": "good", "waiting": "warn", "held": "bad", "cancelling": "warn",
                            "cancelled": "faint", "finished": "faint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """For whom lines are made."""

    now: float
    width: int | None = None           # columns of the terminal; None: nothing is cut or wrapped
    height: int | None = None          # lines that there is room for; None: any number
    zone: tzinfo | None = None         # of the times shown; None: this machine's
    everything: bool = False           # nothing is folded


def at_rest(run: Run) -> bool:
    """Nothing happens to it until a person asks for something."""
    return run.live is None and (run.over or run.phase == Phase.HELD)


def status_lines(rows: Sequence[Shown], view: View) -> list[Line]:
    """A header, a line a run, and one for those that ended long ago."""
    older = _folded(rows, view)
    tags = {run.spec.tag for run in older}
    kept = [row for row in rows if row.run.spec.tag not in tags]
    progress = any(row.run.live is not None and row.run.phase != Phase.HELD for row in kept)
    names = ("TAG", "STATE", "FOR", *(("STEP", "LOSS", "LEFT", "ATTEMPT") if progress else ("NOTE",)))
    cells: list[tuple[Span, ...]] = [tuple((name, "title") for name in names)]
    cells += [run_row(row, view.now) for row in kept]
    lines = table(cells, view.width) if kept else []
    if older:
        counts = {phase: sum(run.phase == phase for run in older) for phase in (Phase.FINISHED, Phase.CANCELLED)}
        words = ", ".join(f"{count} {phase}" for phase, count in counts.items() if count)
        more = "and " if kept else ""
        lines += wrapped(f"{more}{words} earlier: `orch status --all`", view.width, style="faint")
    return lines


def _folded(rows: Sequence[Shown], view: View) -> list[Run]:
    """Runs that are only counted: those that ended more than a day ago, and the oldest that have no room."""
    if view.everything:
        return []
    over = sorted((row.run for row in rows if row.run.over), key=lambda run: run.phase_since)
    count = sum(view.now - run.phase_since > FOLDED_AFTER_S for run in over)
    if view.height is not None and len(rows) - count + 2 > view.height:  # the header and the line that counts
        count = min(len(over), len(rows) + 2 - view.height)
    return over[:count]


def run_row(shown: Shown, now: float) -> tuple[Span, ...]:
    """Tag, state, for how long; then step, loss, time left and attempt of a run that trains, a note of any other."""
    run, progress = shown.run, shown.progress
    live, word = run.live, state_word(run, shown.jobs)
    since = live.started_at if live is not None and run.phase != Phase.HELD else run.phase_since
    head: tuple[Span, ...] = (
        (run.spec.tag, ""), (word, STATES.get(word, "")), (format_duration(max(0.0, now - since)), ""))
    if live is None or run.phase == Phase.HELD:
        return (*head, (note(shown), "faint" if run.over else ""))
    following = [s.job_id for s in run.waiting if s.job_id]
    attempt = f"{live.number} on {live.host}, job {live.job_id}" + (f", next {following[0]}" if following else "")
    return (*head, (progress.steps or "-", ""), (f"{progress.loss:.4g}" if progress.loss is not None else "-", ""),
            (time_left(progress, now) or "-", ""), (one_line(attempt), ""))


def time_left(progress: Progress, now: float) -> str:
    """``2h10m``, by the trainer's word of its progress."""
    return format_duration(max(0, round(progress.done_at - now))) if progress.done_at is not None else ""


def note(shown: Shown) -> str:
    """What a reader wants to know next about a run that does not train."""
    run, live = shown.run, shown.run.live
    if run.metrics:
        return metrics_in_words(run.metrics, METRICS_SHOWN)
    if run.phase != Phase.ACTIVE:
        return one_line(run.phase_reason) + (f"; attempt {live.number} still runs (job {live.job_id})" if live else "")
    return why_waiting(shown)


# --- one run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All that is shown of one run."""

    shown: Shown
    checkpoints: Sequence[Checkpoint] = ()
    set_aside: Mapping[str, Checkpoint] = field(default_factory=dict)  # by roll-backs, as `orch rollback --to` names them
    setting: Setting | None = None
    saves: dict[int, Saves]            # of each attempt, by number
    moments: Sequence[Moment] = ()
    silent: str | None = None          # why Slurm said nothing


def run_lines(whole: Whole, view: View) -> list[Line]:
    """One run: what it is, its attempts, what happened when, what waits, its checkpoints, M and T*."""
    run, width = whole.shown.run, view.width
    lines = _head(whole, view)
    if run.attempts:
        at_most = None if view.everything else ATTEMPTS_SHOWN
        lines += [(), *attempt_table(run.attempts, whole.saves, whole.shown.progress.step, view.now, width, at_most)]
    if whole.moments:
        lines += [(), *moment_lines(whole.moments, run.spec.tag, _moments_at_most(whole, view), width, view.zone)]
    if run.waiting and not run.over:
        lines.append(())
        for s in run.waiting:
            lines += wrapped(_waiting_line(whole, s, view), width)
    paragraphs = [_checkpoints(whole.checkpoints, view.now) + _set_aside(whole.set_aside, run.spec.tag)]
    if whole.setting is not None:
        paragraphs.append(measured_lines(whole.setting.measured, restarts(run)) if run.over else
                          interval_lines(whole.setting, restarts(run), whole.shown.progress.interval_s))
    for paragraph in paragraphs:
        lines += [()] if paragraph else []
        for words in paragraph:
            lines += wrapped(words, width)
    return lines


def _moments_at_most(whole: Whole, view: View) -> int | None:
    """On a low terminal fewer of the older ones, rather than anything else."""
    if view.everything:
        return None
    shown = min(MOMENTS_SHOWN, len(whole.moments))
    if view.height is None:
        return shown
    missing = len(run_lines(whole, replace(view, height=None))) - view.height
    return max(MOMENTS_AT_LEAST, shown - missing - 1) if missing > 0 else shown  # the line that counts them needs room too


def _head(whole: Whole, view: View) -> list[Line]:
    """The first lines: state, why and what helps, what it is, progress or result."""
    run, progress = whole.shown.run, whole.shown.progress
    word = state_word(run, whole.shown.jobs)
    every = f", checkpoint every {format_duration(progress.interval_s)}" if progress.interval_s is not None else ""
    since = f" since {day_and_time(run.phase_since, view.zone, view.now)}" if run.phase != Phase.ACTIVE else ""
    lines: list[Line] = [(
        (run.spec.tag, "title"), (": ", ""), (word, STATES.get(word, "")),
        (f"{since}, profile {run.spec.profile.name}{every}", ""))]
    after = ", ".join((*as_written(run.spec.after_tags), *run.spec.after_jobs))
    texts: list[tuple[str, Style]] = [
        (one_line(run.phase_reason), "bad" if run.phase == Phase.HELD else ""),
        (how_to_go_on(run) if run.phase == Phase.HELD else "", "warn"),
        (one_line(run.spec.what), ""), (f"after {after}" if after else "", ""), (_proof_words(run), "warn"),
        (f"result: {metrics_in_words(run.metrics)}" if run.metrics else "", "good"),
        (_progress_words(progress, view, live=run.live is not None), ""),
        (f"Slurm does not answer: {one_line(whole.silent)}" if whole.silent else "", "bad")]
    for text, style in texts:
        lines += wrapped(text, view.width, style=style) if text else []
    return lines


def _proof_words(run: Run) -> str:
    """What is still to come of ``--prove-resume``; a verdict stands in the timeline."""
    if run.canary not in (Canary.WANTED, Canary.STOPPING):
        return ""
    return "it ended before its resume could be proven" if run.over else "its resume is still to be proven"


def _progress_words(progress: Progress, view: View, *, live: bool) -> str:
    if progress.step is None:
        return ""
    words = [f"step {progress.step}"]
    if progress.of:
        words[0] += f" of {progress.of} ({100 * progress.step // progress.of} %)"
    words += [f"loss {progress.loss:.4g}"] if progress.loss is not None else []
    words += [f"{progress.steps_per_s:.3g} steps/s"] if progress.steps_per_s else []
    if live and progress.done_at is not None:
        words.append(f"{time_left(progress, view.now)} left (until {day_and_time(progress.done_at, view.zone, view.now)})")
    words += [f"memory {format_size(progress.memory_bytes)}"] if progress.memory_bytes is not None else []
    words += [f"GPU memory {format_size(progress.gpu_memory_bytes)}"] if progress.gpu_memory_bytes is not None else []
    return ", ".join(words)


def _waiting_line(whole: Whole, submission: Submission, view: View) -> str:
    jobs = whole.shown.jobs
    job, name = jobs.get(submission.id), f"next: attempt {submission.number}, job {submission.job_id or '?'}"
    if job is None:
        return name if whole.silent else f"{name}, not seen in Slurm yet"
    behind = jobs_in_words(dependency_jobs(job.dependency))
    words = job_in_words(whole.shown.run, submission, jobs)
    why = f" behind job {behind}" if behind and job.reason in ("", "Dependency") else f", {words}" if words else ""
    guess = f", {start_in_words(job, day_and_time(job.start_at, view.zone, view.now))}" if job.start_at is not None else ""
    return f"{name}, {job.state.lower()}{why}" + (guess if job.state in WAITING_STATES else "")


def _checkpoints(checkpoints: Sequence[Checkpoint], now: float) -> list[str]:
    if not checkpoints:
        return []
    newest = checkpoints[-1]
    steps = ", ".join(str(c.step) for c in checkpoints[-5:])
    more = f"{len(checkpoints)}, the newest at " if len(checkpoints) > 5 else ""
    return [f"complete checkpoints: {more}step {steps} ({format_size(newest.size_bytes)} each, the newest "
            f"{format_duration(max(0.0, now - newest.saved_at))} old)"]


def _set_aside(aside: Mapping[str, Checkpoint], tag: str) -> list[str]:
    if not aside:
        return []
    name, newest = max(aside.items(), key=lambda one: one[1].saved_at)
    steps = ", ".join(str(c.step) for c in list(aside.values())[-5:])
    more = f"{len(aside)}, the last of them " if len(aside) > 5 else ""
    size = format_size(sum(c.size_bytes for c in aside.values()))
    return [f"set aside by roll-backs, nothing resumes from these: {more}step {steps} ({size} in all); "
            f"`orch rollback {tag} --to {name} --why ...` goes back to step {newest.step}"]


def checkpoints_as_json(whole: Whole) -> list[dict[str, object]]:
    """Those that count, oldest step first, then those set aside."""
    return [{"step": c.step, "path": str(c.path), "saved_at": c.saved_at, "size_bytes": c.size_bytes, "set_aside": aside}
            for aside, several in ((False, whole.checkpoints), (True, whole.set_aside.values())) for c in several]
