"""``orch status``: one dense line a run, and one run's attempts. Values in, text out."""

from __future__ import annotations

from orchestrator.checkpoints import Checkpoint
from orchestrator.core.reliability import Setting, restarts
from orchestrator.model import Attempt, JobSeen, Phase, Run
from orchestrator.units import format_duration, format_size
from orchestrator.views.facts import Progress, how_to_go_on, idle_s, state_word
from orchestrator.views.interval import interval_lines

Jobs = dict[str, JobSeen]


def status_lines(rows: list[tuple[Run, Jobs, Progress]], now: float) -> list[str]:
    """A header and a line a run, at most 80 columns wide for tags of ordinary length."""
    table: list[tuple[str, ...]] = [("TAG", "STATE", "ATT", "STEP", "LOSS", "FOR", "NOTE")]
    table += [_row(run, jobs, progress, now) for run, jobs, progress in rows]
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6]]).rstrip()
            for row in table]


def _row(run: Run, jobs: Jobs, progress: Progress, now: float) -> tuple[str, ...]:
    live = run.live
    since = live.started_at if live else run.phase_since
    loss = f"{progress.loss:.4g}" if progress.loss is not None else "-"
    step = str(progress.step) if progress.step is not None else "-"
    return (run.spec.tag, state_word(run, jobs), str(len(run.attempts)), step, loss, format_duration(max(0.0, now - since)),
            note(run, jobs))


def note(run: Run, jobs: Jobs) -> str:
    """What a reader wants to know next about this run."""
    if run.metrics:
        return " ".join(f"{key}={_short(value)}" for key, value in list(run.metrics.items())[:3])
    live = run.live
    if run.phase_reason and run.phase != "active":
        return run.phase_reason + (f"; attempt {live.number} still runs (job {live.job_id})" if live else "")
    if live is not None:
        waiting = [s.job_id for s in run.waiting if s.job_id]
        return f"job {live.job_id} on {live.host}" + (f", next {waiting[0]}" if waiting else "")
    if run.waiting:
        job = jobs.get(run.waiting[0].id)
        after = f" after {', '.join(run.spec.after_tags)}" if run.spec.after_tags and not run.attempts else ""
        return f"job {run.waiting[0].job_id}" + (after or (f" ({job.reason})" if job and job.reason else ""))
    if run.spec.after_tags and not run.attempts:
        return f"after {', '.join(run.spec.after_tags)}"
    return ""


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:16]


def run_lines(
    run: Run, jobs: Jobs, progress: Progress, checkpoints: list[Checkpoint], now: float, setting: Setting | None = None,
) -> list[str]:
    """One run: what it is, its attempts with their endings, its checkpoints, what waits."""
    spec = run.spec
    reason = f" ({run.phase_reason})" if run.phase_reason else ""
    every = f", checkpoint every {format_duration(progress.interval_s)}" if progress.interval_s is not None else ""
    lines = [f"{spec.tag}: {state_word(run, jobs)}{reason}, profile {spec.profile.name}{every}"]
    if spec.what:
        lines.append(spec.what)
    if run.phase == Phase.HELD:
        lines.append(how_to_go_on(run))
    if spec.after_tags or spec.after_jobs:
        lines.append(f"after {', '.join((*spec.after_tags, *spec.after_jobs))}")
    if progress.step is not None:
        loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
        rate = f", {progress.steps_per_s:.1f} steps/s" if progress.steps_per_s else ""
        lines.append(f"step {progress.step}{loss}{rate}")
    lines += ["", *timeline_lines(run.attempts, now, progress.step)] if run.attempts else []
    if run.waiting and not run.over:
        lines += ["", *(_waiting_line(s.number, s.job_id, jobs.get(s.id)) for s in run.waiting)]
    if checkpoints:
        newest = checkpoints[-1]
        steps = ", ".join(str(c.step) for c in checkpoints)
        lines += ["", f"complete checkpoints: step {steps} ({format_size(newest.size_bytes)} each, the newest "
                      f"{format_duration(max(0.0, now - newest.saved_at))} old)"]
    if setting is not None and not run.over:
        lines += ["", *interval_lines(setting, restarts(run), progress.interval_s)]
    if run.metrics:
        lines += ["", "result: " + " ".join(f"{key}={_short(value)}" for key, value in run.metrics.items())]
    return lines


def timeline_lines(attempts: tuple[Attempt, ...], now: float, step: int | None = None) -> list[str]:
    """Attempts in order, with the idle time after each and the work that each ending cost."""
    header = ("ATTEMPT", "JOB", "ON", "RAN", "STEPS", "ENDING", "IDLE AFTER", "LOST")
    table: list[tuple[str, ...]] = [header]
    for index, attempt in enumerate(attempts):
        later = attempts[index + 1] if index + 1 < len(attempts) else None
        table.append(_attempt_row(attempt, later, now, step))
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _attempt_row(attempt: Attempt, later: Attempt | None, now: float, step: int | None) -> tuple[str, ...]:
    idle = idle_s(attempt, later) if later else None
    job = attempt.job_id + (f".{attempt.restart_count}" if attempt.restart_count else "")
    start = attempt.resume_step if attempt.resume_step is not None else 0
    ran = format_duration(max(0.0, (attempt.ended_at or now) - attempt.started_at))
    ending = str(attempt.ending) if attempt.ending else "runs"
    if attempt.ending and attempt.reason and attempt.exit_code not in (0, 75, None):
        ending += f" ({attempt.reason})"
    last_step = step if attempt.live else attempt.last_step
    steps = f"{start}-{last_step if last_step is not None else ''}"
    return (str(attempt.number), job, attempt.host, ran, steps, ending,
            format_duration(idle) if idle is not None else "",
            format_duration(attempt.lost_s) if attempt.lost_s is not None else "")


def _waiting_line(number: int, job_id: str | None, job: JobSeen | None) -> str:
    state = f"{job.state.lower()}{f' ({job.reason})' if job.reason else ''}" if job else "not seen in Slurm yet"
    behind = f", {job.dependency}" if job and job.dependency else ""
    return f"next: attempt {number}, job {job_id or '?'}, {state}{behind}"
