"""Taking the run: the epoch raised, the newest checkpoint read, the start record linked into place; under the epoch's lock.

The gate is asked before (a successor that stands down must fence nobody), and what it was told is checked again under the
lock: of two supervisors that both had leave, the second finds a newer start than the one it asked about, and asks anew; so
does one that was stopped meanwhile, and finds that the journal has grown: its run may be held by now.
From the raised epoch on nobody older publishes or deletes, so what is newest then is what there is to resume from.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import journal
from orchestrator.attempt.papers import say
from orchestrator.attempt.resume import choose
from orchestrator.attempt_files import read_record
from orchestrator.folders import attempt_dir, fsync_folder, replace_file
from orchestrator.host import boot_id, pid_namespace, start_of
from orchestrator.records import AttemptSpec, StartRecord

LOCK_WAIT_S = 60.0
EPOCHS_BEGIN = 1_577_836_800           # 2020-01-01: what is left of the clock stays well within the twelve digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This execution, as Slurm names it."""

    job_id: str
    restart_count: int
    host: str


class NotTaken(Exception):
    """Somebody else has this attempt, or the lock; the message says who."""


class Overtaken(Exception):
    """A newer start appeared since the gate was asked, or the journal has grown."""


def starts(run_dir: Path) -> list[StartRecord]:
    """All start records of the run, by epoch; one that cannot be read is none."""
    try:
        names = os.listdir(run_dir / "attempts")
    except FileNotFoundError:
        return []
    found = (read_record(run_dir / "attempts" / name / "start.json", StartRecord) for name in names)
    return sorted((start for start in found if start is not None), key=lambda s: s.epoch)


def settle_number(spec: AttemptSpec, me: Identity) -> AttemptSpec:
    """The attempt this execution takes: the one it was submitted for, or a new one when Slurm runs the job again: requeued by
    the site, or after slurmctld lost what it knew of the first time (then the restart count is the same). Whether the first
    is over, the gate finds out.

    Raises NotTaken when the attempt is another job's.
    """
    run_dir = Path(spec.run_dir)
    taken = read_record(attempt_dir(run_dir, spec.number) / "start.json", StartRecord)
    if taken is None:
        return spec
    if taken.job_id != me.job_id or taken.restart_count > me.restart_count:
        raise NotTaken(f"attempt {spec.number} was taken by job {taken.job_id} (restart {taken.restart_count})")
    number = spec.number + 1
    while not _claim(attempt_dir(run_dir, number)):
        number += 1
    moved = replace(spec, number=number)
    replace_file(attempt_dir(run_dir, number) / "spec.json", moved.to_json())
    _redirect_output(attempt_dir(run_dir, number) / "out.log")
    say(f"orch: job {me.job_id} is run again (restart {me.restart_count}): this is attempt {number}")
    return moved


def _claim(folder: Path) -> bool:
    """A folder of one's own: whoever makes it has it. One that was prepared for another submission is passed over."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _redirect_output(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def take(
    spec: AttemptSpec, me: Identity, asked_about: int, journal_length: int, *, deadline: float | None, started_at: float,
) -> StartRecord:
    """Raise the epoch and link the start record. ``asked_about`` is the epoch the gate's answer was about, and
    ``journal_length`` how long the journal was that it rests on.

    Raises NotTaken or Overtaken; then nothing was changed.
    """
    run_dir = Path(spec.run_dir)
    folder = attempt_dir(run_dir, spec.number)
    with _epoch_locked(run_dir / "epoch") as descriptor:
        before = starts(run_dir)
        newest = max((s.epoch for s in before), default=0)
        if newest > asked_about or journal.length(run_dir) != journal_length:
            raise Overtaken
        if (folder / "start.json").exists():
            raise NotTaken(f"attempt {spec.number} has been taken by another job")
        epoch = _next_epoch(max(_read_epoch(descriptor), newest), started_at)
        os.pwrite(descriptor, f"{epoch:012d}\n".encode(), 0)
        os.ftruncate(descriptor, 13)
        os.fsync(descriptor)
        checkpoint, wrong = choose(run_dir, before, spec.local_dir)
        for words in wrong:
            say(f"orch: {words}")
        record = StartRecord(
            number=spec.number, submission_id=spec.submission_id, job_id=me.job_id, restart_count=me.restart_count,
            epoch=epoch, host=me.host, boot_id=boot_id(), pid=os.getpid(), pid_start=start_of(os.getpid()),
            pid_namespace=pid_namespace(), started_at=started_at, deadline=deadline,
            resume_from=str(checkpoint.path) if checkpoint else None,
            resume_step=checkpoint.step if checkpoint else None)
        _link(folder, record)
    return record


def _link(folder: Path, record: StartRecord) -> None:
    temporary = folder / f".start-{record.job_id}-{record.restart_count}-{record.pid}"
    replace_file(temporary, record.to_json())
    try:
        os.link(temporary, folder / "start.json")
    except FileExistsError:
        raise NotTaken(f"attempt {record.number} has been taken by another job") from None
    finally:
        temporary.unlink()
    fsync_folder(folder)


def _next_epoch(known: int, started_at: float) -> int:
    """One more than any that is known of. The first of a run folder is the clock's: if an earlier folder of this name was
    deleted, a trainer of it may live on, and its epoch (begun the same way, one more a start) must be the lower one."""
    return known + 1 if known > 0 else max(1, int(started_at) - EPOCHS_BEGIN)


def _read_epoch(descriptor: int) -> int:
    text = os.pread(descriptor, 64, 0).strip()
    return int(text) if text.isdigit() else 0


@contextlib.contextmanager
def _epoch_locked(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    give_up = time.monotonic() + LOCK_WAIT_S
    try:
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= give_up:
                    raise NotTaken(f"{path} has been locked for {LOCK_WAIT_S:.0f} s ({error.strerror})") from None
            time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)           # closing lets go of the lock
