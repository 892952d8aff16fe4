"""How the production code is put on a simulated world.

The disk is one in memory (``disk``), and fsync costs nothing; each call that changes something on it is an instant at which
an actor may be killed, in the middle of what it writes too; locks know which descriptor holds them (all actors live in one
process here); a host's boot id and its processes are the simulated ones. What is replaced stands in one list, in ``seams``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

from simulation import campaign, memory, supervisor
from simulation.disk import Disk
from simulation.supervisor import Killed
from simulation.world import World

from orch_trainer import fence
from orchestrator import checkpoints, folders, journal, layouts, rollback, trainer_control
from orchestrator.attempt import ending, papers, resume, take, trainer, witness
from orchestrator.control import checks, observe, ports, requests
from orchestrator.planner import pooled
from orchestrator.sightings import JobSighting

_DISK = Disk()
_MEMORY = memory.Memory(_DISK)
_world: World | None = None


def _here() -> World:
    assert _world is not None
    return _world


# --- the operating system ---------------------------------------------------------------------------------------------------


def _instant_before(name: str) -> Any:
    call = getattr(_DISK, name)

    def changed(*given: Any) -> Any:
        _here().instant()
        return call(*given)
    return changed


def _torn_before(name: str) -> Any:
    """As above; killed there, half of the data, or all but its end, may have been written."""
    call = getattr(_DISK, name)

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
        _DISK.unlink(path)


def _getpid() -> int:
    machine = _here().machine
    assert machine is not None
    return machine.pid


_numbers = itertools.count()


def _mkstemp(*, prefix: str, dir: Path) -> tuple[int, str]:
    _here().instant()
    path = f"{dir}/{prefix}{next(_numbers)}"
    return _DISK.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path


_QUIET = SimpleNamespace(**{
    **{name: value for name, value in vars(os).items() if name.startswith("O_")},
    **{name: getattr(_DISK, name) for name in (
        "open", "close", "fstat", "pread", "write", "pwrite", "ftruncate", "fdopen", "listdir", "rename", "replace", "link",
        "unlink", "stat")},
    "fsync": lambda descriptor: None, "chmod": lambda path, mode: None, "getpid": _getpid})
_OS = SimpleNamespace(**{
    **vars(_QUIET), "write": _torn_before("write"), "pwrite": _torn_before("pwrite"),
    **{name: _instant_before(name) for name in ("ftruncate", "rename", "replace", "link")}, "unlink": _unlink})
_ON_PATHS = {
    "read_text": _DISK.read_text, "read_bytes": _DISK.read_bytes, "write_text": _DISK.write_text, "open": _DISK.open_file,
    "stat": _DISK.stat, "exists": _DISK.exists, "is_dir": _DISK.is_dir, "mkdir": _DISK.mkdir, "unlink": _DISK.unlink,
    "iterdir": _DISK.iterdir}


def _method(call: Any) -> Any:
    """A bound method would not be given the path, which is all that these ask for."""
    if call.__name__ in ("stat", "exists", "is_dir", "read_bytes", "unlink", "iterdir"):
        return lambda path: call(path)
    return lambda path, *given, **more: call(path, *given, **more)


class _Locks:
    """``fcntl`` where all actors are one process: a lock is held as long as its descriptor is open."""

    LOCK_EX, LOCK_NB = 2, 4

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def lockf(self, descriptor: int, flags: int) -> None:
        file = _DISK.number_of(descriptor)
        holder = self._held.get(file)
        if holder is not None and holder != descriptor and _DISK.number_of(holder) == file:
            raise BlockingIOError(errno.EAGAIN, "held")
        self._held[file] = descriptor


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

_append, _fence, _raised_epoch = journal.LockedJournal.append, rollback._fence, rollback._raised_epoch
_parent = PurePath.parent.fget


def _append_and_tell(self: journal.LockedJournal, event: str, **context: Any) -> journal.Event:
    entry = _append(self, event, **context)
    _here().truths.noted(self._run_dir.name, entry)
    return entry


@contextlib.contextmanager
def _fence_and_tell(path: Path) -> Iterator[int]:
    held = _here().fences_held
    with _fence(path) as descriptor:
        held.add(path.parent)
        try:
            yield descriptor
        finally:
            held.remove(path.parent)


@contextlib.contextmanager
def _raise_and_tell(path: Path) -> Iterator[int]:
    with _raised_epoch(path) as epoch:
        _here().truths.raised(path.parent.name, epoch)
        yield epoch


@contextlib.contextmanager
def seams() -> Iterator[None]:
    """Put simulated worlds under the production code of this process, until left."""
    locks = _Locks()
    changes: list[tuple[Any, str, Any]] = [
        *((module, "os", _OS) for module in (folders, journal, rollback, trainer_control, take)),
        *((module, "os", _QUIET) for module in (checkpoints, fence, layouts, observe, papers, ports, supervisor)),
        *((Path, name, _method(call)) for name, call in _ON_PATHS.items()),
        *((module, "open", _DISK.open_file) for module in (supervisor, trainer)),
        (folders, "tempfile", SimpleNamespace(mkstemp=_mkstemp)),
        *((module, "fsync_folder", lambda folder: None) for module in (folders, rollback, take)),
        *((module, "fcntl", locks) for module in (fence, journal, rollback, take)), (journal, "time", _Time()),
        (journal.LockedJournal, "append", _append_and_tell), (rollback, "_fence", _fence_and_tell),
        (rollback, "_raised_epoch", _raise_and_tell),
        # pure, and asked again and again
        (PurePath, "__truediv__", functools.cache(PurePath.__truediv__)),
        (PurePath, "parent", property(functools.cache(_parent))),
        *((folders, name, functools.cache(getattr(folders, name))) for name in ("run_dir", "attempt_dir", "checkpoint_dir")),
        (journal, "journal_path", functools.cache(journal.journal_path)),
        (pooled, "sum_quantile", functools.lru_cache(4096)(pooled.sum_quantile)),
        (checks, "check_script", lambda path: None),
        # read once: see ``memory``
        (journal, "read", _MEMORY.read), (observe, "newest_epoch", _MEMORY.epoch),
        (observe, "read_metrics", _MEMORY.metrics),
        *((module, "fold", memory.fold_known) for module in (ports, resume, witness)),
        *((module, "read_control", _MEMORY.control) for module in (observe, trainer, supervisor)),
        *((module, "read_lines", _MEMORY.read_lines) for module in (observe, resume)),
        *((module, "read_record", _MEMORY.record) for module in (observe, take, witness)),
        *((module, "complete_checkpoints", _MEMORY.checkpoints)
          for module in (campaign, checkpoints, requests, resume, rollback, supervisor)),
        *((module, "newest_complete", _MEMORY.newest_checkpoint) for module in (ending, observe, witness)),
        # a supervisor's machine
        (take, "boot_id", lambda: _here().machine.boot),  # type: ignore[union-attr]
        (take, "start_of", lambda pid: pid), (take, "pid_namespace", lambda: ""),
        (take, "say", lambda line: None), (take, "_redirect_output", lambda path: None),
        (witness, "boot_id", lambda: _here().machine.boot),  # type: ignore[union-attr]
        (witness, "is_alive", lambda pid, start: _here().alive(pid)), (witness, "commands", _Commands),
        *((module, "nothing_there", lambda run_dir, start: _here().nothing_there(run_dir, start))
          for module in (witness, observe)),
    ]
    missing = object()
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def world_of(seed: int) -> Iterator[World]:
    """A world with an empty disk; within ``seams``."""
    global _world
    _DISK.wipe()
    _MEMORY.wipe()
    _world = made = World(disk=_DISK, memory=_MEMORY, seed=seed)
    try:
        yield made
    finally:
        _world = None
