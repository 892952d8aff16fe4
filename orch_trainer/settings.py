"""Where this process stands: the ORCH_ variables of docs/protocol.md, or defaults outside orch. Pure: no file is read."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

PROTOCOL = "1"
INTERVAL_S_DEFAULT = 600.0
KEEP_DEFAULT = 3
LOCAL_INTERVAL_S_DEFAULT = 60.0


class Settings(NamedTuple):
    tag: str                        # "" outside orch
    attempt: int
    epoch: int
    run_dir: Path                   # result.json goes here
    attempt_dir: Path | None        # None outside orch: no trainer.jsonl, no notice.json, no registration
    checkpoint_dir: Path
    resume_from: Path | None        # what orch says; None: see `resume_newest`
    resume_newest: bool             # outside orch: the newest complete checkpoint in checkpoint_dir
    epoch_file: Path | None         # None outside orch: no fence
    control_file: Path | None
    interval_s: float
    deadline: float | None          # epoch seconds
    signals: tuple[signal.Signals, ...]
    keep: int                       # complete checkpoints
    lead_s: float | None = None     # between the notice and the time limit
    save_steps: tuple[int, ...] = ()            # at which a checkpoint is saved whatever the interval
    save_times: tuple[tuple[int, int], ...] = ()    # hour and minute of this host's day
    local_dir: Path | None = None   # this run's folder on a disk or in the memory of this node: the first of two levels
    local_interval_s: float | None = None


def read_settings(
    environ: Mapping[str, str], checkpoint_dir: Path | str | None, interval_s: float | None, keep: int | None,
) -> Settings:
    """Arguments given to Training win over the environment."""
    kept = keep if keep is not None else int(environ.get("ORCH_CHECKPOINTS_KEPT") or KEEP_DEFAULT)
    if "ORCH_RUN_DIR" not in environ:
        return _outside_orch(environ, checkpoint_dir, interval_s, kept)
    protocol = environ.get("ORCH_PROTOCOL", PROTOCOL)
    if protocol != PROTOCOL:
        raise RuntimeError("ORCH_PROTOCOL={}: this orch_trainer speaks protocol {}; install the one that came with "
                           "this orch".format(protocol, PROTOCOL))
    run_dir = Path(environ["ORCH_RUN_DIR"])
    attempt = int(environ.get("ORCH_ATTEMPT", "1"))
    resume_from = environ.get("ORCH_RESUME_FROM", "")
    return Settings(
        tag=environ.get("ORCH_TAG", run_dir.name),
        attempt=attempt,
        epoch=int(environ.get("ORCH_EPOCH", "0")),
        run_dir=run_dir,
        attempt_dir=Path(environ.get("ORCH_ATTEMPT_DIR") or run_dir / "attempts" / "{:04d}".format(attempt)),
        checkpoint_dir=Path(checkpoint_dir or environ.get("ORCH_CHECKPOINT_DIR") or run_dir / "checkpoints").absolute(),
        resume_from=Path(resume_from) if resume_from else None,
        resume_newest=False,
        epoch_file=run_dir / "epoch" if "ORCH_EPOCH" in environ else None,
        control_file=Path(environ.get("ORCH_CONTROL_FILE") or run_dir / "control.json"),
        interval_s=_interval(environ, interval_s),
        deadline=float(environ["ORCH_DEADLINE"]) if environ.get("ORCH_DEADLINE") else None,
        signals=_signals(environ),
        keep=kept,
        lead_s=float(environ["ORCH_LEAD_S"]) if environ.get("ORCH_LEAD_S") else None,
        local_dir=Path(environ["ORCH_LOCAL_DIR"]) if environ.get("ORCH_LOCAL_DIR") else None,
        local_interval_s=float(environ.get("ORCH_LOCAL_INTERVAL_S") or LOCAL_INTERVAL_S_DEFAULT),
        save_steps=tuple(int(word) for word in environ.get("ORCH_SAVE_AT", "").split() if word.isdigit()),
        save_times=tuple((int(hour), int(minute)) for word in environ.get("ORCH_SAVE_AT", "").split()
                         for hour, colon, minute in [word.partition(":")] if colon),
    )


def next_time(times: Sequence[tuple[int, int]], wall: float) -> float | None:
    """When the first of these times of day comes after this moment, by this host's zone; None without any."""
    day = time.localtime(wall)
    found = [time.mktime((day.tm_year, day.tm_mon, day.tm_mday + later, hour, minute, 0, 0, 0, -1))
             for later in (0, 1) for hour, minute in times]
    return min((at for at in found if at > wall), default=None)


def _outside_orch(
    environ: Mapping[str, str], checkpoint_dir: Path | str | None, interval_s: float | None, keep: int,
) -> Settings:
    folder = Path(checkpoint_dir or "checkpoints").absolute()
    return Settings(
        tag="", attempt=1, epoch=0, run_dir=folder.parent, attempt_dir=None, checkpoint_dir=folder,
        resume_from=None, resume_newest=True, epoch_file=None, control_file=None,
        interval_s=_interval(environ, interval_s), deadline=None, signals=_signals(environ), keep=keep,
    )


def _interval(environ: Mapping[str, str], given_s: float | None) -> float:
    if given_s is not None:
        return float(given_s)
    return float(environ.get("ORCH_CHECKPOINT_INTERVAL_S") or INTERVAL_S_DEFAULT)


def _signals(environ: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """SIGTERM always: Slurm sends it besides whichever signal the site chose for the notice."""
    name = environ.get("ORCH_SIGNAL") or "TERM"
    try:
        chosen = signal.Signals["SIG" + name.upper()]
    except KeyError:
        raise RuntimeError("ORCH_SIGNAL={}: not a signal (write TERM, USR1, USR2 or INT)".format(name)) from None
    return (signal.SIGTERM,) if chosen == signal.SIGTERM else (signal.SIGTERM, chosen)
