"""The records that supervisors leave in an attempt's folder, as value types and as JSON.

``spec.json`` is written at submission and tells the supervisor all it needs; ``start.json`` says that an attempt was
taken; ``end.json`` how it ended (a provisional one is written at the first stop signal, so that a kill right after it is
no riddle); ``stood-down-ID.json`` that a submission started and did nothing. Each has one writer and is replaced whole.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields
from typing import Any, Self

SCHEMA = 1
_ENCODER = json.JSONEncoder(sort_keys=True)


class Record:
    """A frozen dataclass that is one JSON object; keys of a newer writer are ignored, missing ones take their default."""

    def to_json(self) -> str:
        values = {name: getattr(self, name) for name in self._types()}
        return _ENCODER.encode({"schema": SCHEMA, **values}) + "\n"

    @classmethod
    @functools.cache
    def _types(cls) -> dict[str, str]:
        """The fields, each with its type as it is written here."""
        return {field.name: str(field.type) for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError when the text is no such record."""
        try:
            data: Any = json.loads(text)
            known = cls._types()
            values = {key: value for key, value in data.items() if key in known}
            wrong = [key for key, value in values.items()
                     if not isinstance(value, (int, float)) and known[key] in ("int", "float")]
            if wrong:
                raise TypeError(f"{', '.join(wrong)}: no number")
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a {cls.__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec(Record):
    """What a submission asks its supervisor to do (``spec.json`` in the attempt's folder)."""

    tag: str
    repository: str
    run_dir: str
    number: int
    submission_id: str
    lead_s: float
    signal: str
    time_limit_s: float
    interval_s: float
    interval_steps: int | None = None  # the same in steps; None while none is measured
    keep: int = 3
    gres: str = ""
    finished_when: str | None = None
    env_file: str | None = None
    local_dir: str = ""                # this run's folder on the node, for the first of two levels; "": one level
    local_interval_s: float = 60.0
    save_at: list[str] | tuple[str, ...] = ()
    hung_after_s: float | None = None  # without a sign of life for so long a trainer is hung; None: learnt from it


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord(Record):
    """An attempt was taken. Linked into place as ``start.json``, so that there is one per attempt and never half of one."""

    number: int
    submission_id: str
    job_id: str
    restart_count: int
    epoch: int
    host: str
    boot_id: str
    pid: int
    pid_start: int                     # field 22 of /proc/PID/stat: a pid is only this process with this number
    pid_namespace: str = ""            # where the pid means this process; '' as an older supervisor wrote it
    started_at: float
    deadline: float | None = None      # when Slurm's time limit strikes, or the reservation ends
    resume_from: str | None = None
    resume_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord(Record):
    """Facts about how an attempt ended; what they mean is decided by ``core.endings`` alone."""

    number: int
    job_id: str
    restart_count: int
    epoch: int
    ended_at: float
    provisional: bool = False
    exit_code: int | None = None       # of job.sh, or of the supervisor itself when job.sh never ran
    signal: int | None = None          # that killed job.sh
    trainer: str | None = None         # the trainer's last word: "finished", "stopped", "failed"; None: it said nothing
    knows_orch: bool = False           # a trainer wrote trainer.jsonl at all
    finished_file: bool = False        # the `finished_when` file exists and is newer than the attempt's start
    notice: str | None = None          # reason of the notice: limit, preempt, cancel, signal
    notice_at: float | None = None
    saved_after_notice: bool = False   # a complete checkpoint, of a step not older than the notice
    checkpoint_step: int | None = None  # of the newest complete checkpoint, whoever wrote it
    trainer_at: float | None = None    # its first START: what came before was queueing and start-up
    first_step_at: float | None = None
    last_step: int | None = None
    oom_kills: int = 0
    hung: bool = False
    setup_error: str = ""              # why job.sh was never started, in words
    left_behind: list[str] | tuple[str, ...] = ()  # processes that had to be killed, named
    detail: str = ""                   # one sentence for people


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodDown(Record):
    """A submission started, and did nothing: no attempt, no exposure."""

    submission_id: str
    job_id: str
    at: float
    reason: str
