"""The daemon: passes, one after another. What woke it never matters; a pass depends on what it sees.

Passes come ``every_s`` apart with a tenth of jitter, back off up to ten times while Slurm is silent, and come at once when an
attempt's end record appears. Nothing is kept in memory between passes but when to look next and what has been said.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import folders
from orchestrator.control.passes import PassReport, pass_over_all
from orchestrator.control.ports import Ports
from orchestrator.control.publish import publish_state
from orchestrator.errors import ConfigError, Refused, RunLocked, storage_error
from orchestrator.journal import take_lock

LOOK_EVERY_S = 1.0
BACKOFF_AT_MOST = 10


def lock_path(repository: Path) -> Path:
    return repository / ".orch" / "daemon.lock"


@contextlib.contextmanager
def only_daemon(repository: Path) -> Iterator[None]:
    """Hold the daemon's lock of this repository; Refused where another daemon has it. (Two daemons on hosts whose file
    system loses locks would still be harmless: every pass works under each run's own lock.)"""
    path = lock_path(repository)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            take_lock(descriptor, path, wait_s=0.0)
        except RunLocked:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            raise Refused(f"a daemon runs here already ({owner or 'unknown'})",
                          hint="one is enough for a repository; `orch status` shows what it does") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class Daemon:
    """The loop's memory: only when to look again, and since when Slurm is silent, so that it is said once."""

    ports: Ports
    every_s: float
    reload: Callable[[], tuple[Ports, float]]  # orch.yaml as it is now; raises ConfigError
    monotonic: Callable[[], float]
    jitter: Callable[[], float]        # in [-1, 1]
    say: Callable[[str, str], None]    # tag, line
    silent_since: float | None = None
    failures: int = 0
    said: dict[str, str] = field(default_factory=dict)

    def run(self, sleep: Callable[[float], None], stopping: Callable[[], bool]) -> None:
        """Passes until ``stopping()``."""
        while not stopping():
            self._reload()
            report = self.one_pass()
            until = self.monotonic() + self.pause_s()
            watched = end_records(self.ports.repository, report)
            while not stopping() and self.monotonic() < until and watched == end_records(self.ports.repository, report):
                sleep(LOOK_EVERY_S)

    def _reload(self) -> None:
        """orch.yaml may be edited at any time; while it is wrong the last good one stays in force."""
        trouble = ""
        try:
            self.ports, self.every_s = self.reload()
        except ConfigError as error:
            trouble = f"{error} ({error.hint}); going on with what was read before"
        self._say_once("orch.yaml", trouble)

    def pause_s(self) -> float:
        factor = min(2 ** self.failures, BACKOFF_AT_MOST) if self.failures else 1
        return self.every_s * factor * (1 + 0.1 * self.jitter())

    def one_pass(self) -> PassReport:
        """One pass over everything; what it did and could not do is said, each trouble once."""
        report = pass_over_all(self.ports)
        self._note_silence(report)
        for run in report.runs:
            for line in run.lines:
                self.say(run.tag, line)
            self._say_once(run.tag, f"{type(run.error).__name__}: {run.error}" if run.error is not None else "")
        trouble = ""
        try:
            publish_state(self.ports.repository)
        except OSError as error:
            trouble = str(storage_error(error))
        self._say_once("", trouble)
        return report

    def _say_once(self, tag: str, trouble: str) -> None:
        if trouble and self.said.get(tag) != trouble:
            self.say(tag, trouble)
        self.said[tag] = trouble

    def _note_silence(self, report: PassReport) -> None:
        silent = report.snapshot.silent if report.snapshot is not None else None
        if silent is None:
            if self.silent_since is not None:
                self.say("", f"Slurm answers again after {self.ports.clock() - self.silent_since:.0f} s")
            self.silent_since, self.failures = None, 0
            return
        self.failures += 1
        if self.silent_since is None:
            self.silent_since = self.ports.clock()
            self.say("", f"Slurm does not answer: {silent}; nothing is decided until it does")


def end_records(repository: Path, report: PassReport) -> dict[Path, int]:
    """The end records of live attempts and when each was written (0: not yet); any change wakes a pass."""
    written: dict[Path, int] = {}
    for one in report.runs:
        live = one.run.live if one.run is not None else None
        if live is not None:
            path = folders.attempt_dir(folders.run_dir(repository, one.tag), live.number) / "end.json"
            try:
                written[path] = path.stat().st_mtime_ns
            except OSError:
                written[path] = 0
    return written
