"""How the production code is put on a simulated world.

fsync costs nothing; each call that changes something on disk is an instant at which an actor may be killed, in the middle of
what it writes too; locks know which descriptor holds them (all actors live in one process here); a host's boot id and its
processes are the simulated ones. What is replaced stands in one list, in ``seams``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

from simulation import memory, supervisor
from simulation.supervisor import Killed
from simulation.world import World

from orchestrator import folders, journal, records, trainer_control
from orchestrator.attempt import take, trainer, witness
from orchestrator.control import act, observe, passes, ports
from orchestrator.core import script
from orchestrator.core.observation import Control
from orchestrator.model import JobSighting

_world: World | None = None


def _here() -> World:
    assert _world is not None
    return _world


@contextlib.contextmanager
def world_of(world: World) -> Iterator[World]:
    global _world
    _world = world
    try:
        yield world
    finally:
        _world = None


# --- the operating system ---------------------------------------------------------------------------------------------------


def _instant_before(name: str) -> Any:
    call = getattr(os, name)

    def changed(*given: Any, **more: Any) -> Any:
        _here().instant()
        return call(*given, **more)
    return changed


def _torn_before(name: str) -> Any:
    """As above; killed there, half of the data, or all but its end, may have been written."""
    call = getattr(os, name)

    def changed(descriptor: int, data: bytes, *more: int) -> Any:
        world = _here()
        try:
            world.instant()
        except Killed:
            assert world.actor is not None
            if world.actor.faults.torn:
                world.struck["killed in the middle of a write"] += 1
                call(descriptor, data[:(len(data) // 2, -7, -1)[world.seed % 3]], *more)
            raise
        return call(descriptor, data, *more)
    return changed


def _unlink(path: Any) -> None:
    """What a killed one would have tidied up stays."""
    actor = _here().actor
    if actor is None or not actor.dead:
        os.unlink(path)


def _getpid() -> int:
    machine = _here().machine
    assert machine is not None
    return machine.pid


_numbers = itertools.count()


def _mkstemp(*, prefix: str, dir: Path) -> tuple[int, str]:
    _here().instant()
    path = f"{dir}/{prefix}{next(_numbers)}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path


_DISK = SimpleNamespace(**{
    **vars(os), "fsync": lambda descriptor: None, "write": _torn_before("write"), "pwrite": _torn_before("pwrite"),
    **{name: _instant_before(name) for name in ("ftruncate", "replace", "link")}, "unlink": _unlink, "getpid": _getpid})


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0                       # closed since: it holds nothing


def _read_text(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
    """At one stroke: what is read here is small."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 20).decode(encoding or "utf-8", errors or "strict")
    finally:
        os.close(descriptor)


class _Locks:
    """``fcntl`` where all actors are one process: a lock is held as long as its descriptor is open."""

    LOCK_EX, LOCK_NB = 2, 4

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def lockf(self, descriptor: int, flags: int) -> None:
        inode = os.fstat(descriptor).st_ino
        holder = self._held.get(inode)
        if holder is not None and holder != descriptor and _inode(holder) == inode:
            raise BlockingIOError(errno.EAGAIN, "held")
        self._held[inode] = descriptor


class _Time:
    """No waiting for a lock: whoever holds it is further down the same stack."""

    def __init__(self) -> None:
        self._at = 0.0

    def monotonic(self) -> float:
        return self._at

    def sleep(self, by_s: float) -> None:
        self._at += 100.0

    def time(self) -> float:
        return _here().now


class _Commands:
    @staticmethod
    def look_at_job(job_id: str) -> JobSighting:
        return _here().look_at_job(job_id)


# --- what is watched --------------------------------------------------------------------------------------------------------

_append, _write_control = journal.LockedJournal.append, trainer_control.write_control


def _append_and_tell(self: journal.LockedJournal, event: str, **context: Any) -> journal.Event:
    entry = _append(self, event, **context)
    _here().truths.noted(self._run_dir.name, entry)
    return entry


def _write_and_forget(run_dir: Path, control: Control) -> None:
    try:
        _write_control(run_dir, control)
    finally:
        _here().memory.control_changed(run_dir)


@contextlib.contextmanager
def seams() -> Iterator[None]:
    """Put simulated worlds under the production code of this process, until left."""
    key = functools.cache(script.repository_key)
    changes: list[tuple[Any, str, Any]] = [
        *((module, "os", _DISK) for module in (folders, journal, trainer_control, take)),
        (folders, "tempfile", SimpleNamespace(mkstemp=_mkstemp)),
        *((module, "fsync_folder", lambda folder: None) for module in (folders, take)),
        (journal, "fcntl", _Locks()), (journal, "time", _Time()),
        (journal.LockedJournal, "append", _append_and_tell),
        # pure, and asked again and again
        (PurePath, "__truediv__", functools.cache(PurePath.__truediv__)), (Path, "read_text", _read_text),
        (records, "fields", functools.cache(dataclasses.fields)),
        *((folders, name, functools.cache(getattr(folders, name))) for name in ("run_dir", "attempt_dir", "checkpoint_dir")),
        (journal, "journal_path", functools.cache(journal.journal_path)),
        *((module, "repository_key", key) for module in (script, observe, passes)),
        # read once: see ``memory``
        (journal, "read", lambda run_dir: _here().memory.read(run_dir)),
        *((module, "fold", memory.fold_known) for module in (ports, witness)),
        *((module, "read_control", lambda run_dir: _here().memory.control(run_dir))
          for module in (observe, trainer, supervisor)),
        (act, "write_control", _write_and_forget),
        (observe, "last_lines", lambda folder: _here().memory.last_lines(folder)),
        # a supervisor's machine
        (take, "boot_id", lambda: _here().machine.boot),  # type: ignore[union-attr]
        (take, "start_of", lambda pid: pid), (take, "pid_namespace", lambda: ""),
        (take, "say", lambda line: None), (take, "_redirect_output", lambda path: None),
        (witness, "boot_id", lambda: _here().machine.boot),  # type: ignore[union-attr]
        (witness, "is_alive", lambda pid, start: _here().alive(pid)), (witness, "commands", _Commands),
        *((module, "nothing_there", lambda run_dir, start: _here().nothing_there(run_dir, start))
          for module in (witness, observe)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder in memory, and the seams."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="orch-simulation-", dir=base) as name, seams():
        yield Path(name)
