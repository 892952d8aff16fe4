"""The end record, and what the supervisor says and returns at the end. What the facts mean, core.endings decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.attempt.resume import local_checkpoints, of_this_history
from orchestrator.attempt.take import starts
from orchestrator.attempt.trainer import TrainerLog
from orchestrator.attempt_files import saved_after_notice
from orchestrator.checkpoints import newest_complete
from orchestrator.core.endings import Evidence, classify
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.model import EXIT_CONTINUE, EXIT_FINISHED, EXIT_STOOD_DOWN, Ending
from orchestrator.records import AttemptSpec, EndRecord, StartRecord
from orchestrator.sightings import JobGone, SlurmSilent

_TO_BE_CONTINUED = frozenset({Ending.LIMIT_SAVED, Ending.LIMIT_UNSAVED, Ending.PREEMPTED_SAVED, Ending.PREEMPTED_UNSAVED})


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was seen of this attempt so far."""

    notice: str | None = None
    notice_at: float | None = None
    job_status: int | None = None      # wait status codes as subprocess has them: -15 for SIGTERM
    trainer_status: int | None = None  # of a trainer that outlived job.sh
    ended_by_us: str = ""              # why job.sh was ended, '' if it ended by itself
    oom_kills: int = 0
    hung: bool = False
    hung_detail: str = ""              # why the trainer was called hung
    left_behind: list[str] = field(default_factory=list)


def own_status(outcome: Outcome, word: str | None) -> int | None:
    """The status that counts: job.sh's, unless a signal took it and its trainer lived on, or we ended it."""
    status = outcome.job_status
    if outcome.ended_by_us:
        return EXIT_FINISHED if word == "finished" else EXIT_CONTINUE
    if status is not None and status < 0 and outcome.trainer_status is not None:
        return outcome.trainer_status
    return status


def end_record(spec: AttemptSpec, start: StartRecord, outcome: Outcome, log: TrainerLog, *, now: float,
               provisional: bool) -> EndRecord:
    run_dir = Path(spec.run_dir)
    local = local_checkpoints(spec.local_dir, of_this_history(run_dir, starts(run_dir))) if spec.local_dir else []
    checkpoint = newest_complete(checkpoint_dir(run_dir), *local, start=start)
    status = None if provisional else own_status(outcome, log.last_word)
    saved = saved_after_notice(outcome.notice_at, start, checkpoint) or (
        checkpoint is not None and outcome.notice_at is not None and (          # nothing to save since the last one:
            (log.stopped_step is not None and checkpoint.step >= log.stopped_step)
            or (log.saved_at is not None and log.saved_at >= outcome.notice_at)))       # a script saves that step again
    return EndRecord(
        number=spec.number, job_id=start.job_id, restart_count=start.restart_count, epoch=start.epoch, ended_at=now,
        provisional=provisional,
        exit_code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        trainer=log.last_word, knows_orch=log.speaks,
        # a trainer that says it stopped has not finished, whatever ran after it and whatever file that left
        finished_file=log.last_word != "stopped" and finished_file(spec, start),
        notice=outcome.notice, notice_at=outcome.notice_at, saved_after_notice=saved,
        checkpoint_step=checkpoint.step if checkpoint else None, trainer_at=log.started_at,
        first_step_at=log.first_step_at,
        last_step=log.last_step, oom_kills=outcome.oom_kills, hung=outcome.hung, left_behind=outcome.left_behind,
        detail=outcome.hung_detail or outcome.ended_by_us)


def finished_file(spec: AttemptSpec, start: StartRecord) -> bool:
    """Whether the `finished_when` file is there, is this run's, and is newer than this attempt's start.

    A name in the repository could be another run's file, so it counts only with ``{tag}`` in it. What is newer is seen by
    the start record's own time on disk: the files' times come from the same file server, the clock here may be another.
    """
    if not spec.finished_when:
        return False
    folder = attempt_dir(Path(spec.run_dir), spec.number)
    name = spec.finished_when.replace("{tag}", spec.tag)
    places = [Path(spec.run_dir, name), folder / name]     # an absolute name is itself in each of them
    if "{tag}" in spec.finished_when:
        places.append(Path(spec.repository, name))
    since = _modified_at(folder / "start.json") or start.started_at
    return any((_modified_at(place) or 0.0) >= since for place in places)


def _modified_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def last_line(record: EndRecord) -> tuple[str, int]:
    """The last line on standard output, and the exit code."""
    verdict = classify(Evidence(job=SlurmSilent(), end=record, checkpoint_step=record.checkpoint_step))
    settled = verdict is not None
    if verdict is None:                # a stop signal, and Slurm has yet to say why; the rest is known
        verdict = classify(Evidence(job=JobGone(), end=record, checkpoint_step=record.checkpoint_step))
    ending = verdict.ending if verdict else None
    reason = verdict.reason if verdict else ""
    word = ending if settled or ending not in _TO_BE_CONTINUED else "signal"
    step = "" if record.last_step is None else f" step={record.last_step}"
    code = 128 + record.signal if record.signal is not None else record.exit_code or 0
    if ending == Ending.FINISHED:
        return f"FINISHED attempt={record.number}{step}", EXIT_FINISHED
    if record.exit_code == EXIT_STOOD_DOWN:
        return f"STOPPED attempt={record.number}{step} fenced: a newer start exists", EXIT_STOOD_DOWN
    if record.trainer == "stopped" or ending in _TO_BE_CONTINUED:
        kept = "" if record.checkpoint_step is None else f" checkpoint={record.checkpoint_step}"
        return f"STOPPED attempt={record.number}{step}{kept} {word}: {reason}", EXIT_CONTINUE
    return f"FAILED attempt={record.number}{step} exit={code} {word}: {reason}", code
