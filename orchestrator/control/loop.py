"""The daemon: passes, one after another. What woke it never matters; a pass depends on what it sees.

Passes come ``every_s`` apart with a tenth of jitter, back off up to ten times while Slurm is silent, and come at once when an
attempt's start or end record appears or somebody asks (SIGHUP). Nothing is kept in memory between passes but when to look
next and what has been said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from orchestrator import folders
from orchestrator.control.checks import remembers
from orchestrator.control.passes import Line, PassReport, pass_over_all
from orchestrator.control.ports import Ports
from orchestrator.control.publish import publish_state
from orchestrator.control.tell import tell
from orchestrator.errors import Refused, RunLocked, SlurmError, UserError, storage_error
from orchestrator.journal import take_lock
from orchestrator.model import Phase
from orchestrator.sd_notify import Manager

T = TypeVar("T")

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
    say: Callable[[str, str], None]    # tag, line; a Line where programs are to know what it is
    manager: Manager                   # systemd, where it started us
    silent_since: float | None = None
    looked_at: str | None = None       # the Slurm that was asked how it is set up
    accounting: bool = True            # it keeps accounts, as far as is known
    failures: int = 0
    said: dict[str, str] = field(default_factory=dict)
    awaited: dict[Path, int] = field(default_factory=dict)  # records, as they were before the last pass looked

    def run(self, sleep: Callable[[float], None], stopping: Callable[[], bool], asked: Callable[[], bool]) -> None:
        """Passes until ``stopping()``; one at once when somebody has ``asked()`` for it."""
        self.manager.ready()
        while not stopping():
            self._reload()
            self.manager.alive()
            report = self.one_pass()
            self.manager.status(self._in_one_line(report))
            until = self.monotonic() + self.pause_s()
            while not stopping() and self.monotonic() < until and not self._woken(report):
                if asked():
                    self.said.clear()          # whoever asks wants to hear what is still wrong
                    self.say("", Line("asked to read orch.yaml and pass at once", "reload"))
                    break
                self.manager.alive()
                sleep(LOOK_EVERY_S)
        self.manager.stopping()

    def _woken(self, report: PassReport) -> bool:
        return self.awaited != records_awaited(self.ports.repository, report)

    def _reload(self) -> None:
        """orch.yaml may be edited at any time; while it is wrong the last good one stays in force."""
        trouble = ""
        try:
            ports, self.every_s = self.reload()
            self.ports = replace(ports, accounting=self.accounting or ports.slurm_name != self.looked_at)
        except UserError as error:
            hint = f" ({error.hint})" if error.hint else ""
            trouble = f"{error}{hint}; going on with what was read before"
        self._say_once("orch.yaml", trouble)

    def pause_s(self) -> float:
        factor = min(2 ** self.failures, BACKOFF_AT_MOST) if self.failures else 1
        return self.every_s * factor * (1 + 0.1 * self.jitter())

    def one_pass(self) -> PassReport:
        """One pass over everything; what it did and could not do is said, each trouble once."""
        before = {path: _written(path) for path in self.awaited}
        report = self._pass()
        if report is None:
            return PassReport(runs=(), snapshot=None)
        # what was written while the pass was at it wakes the next one, as what comes from now on does
        self.awaited = {path: before.get(path, 0) for path in records_awaited(self.ports.repository, report)}
        self._note_silence(report)
        self._look_at_slurm(report)
        for run in report.runs:
            for line in run.lines:
                self.say(run.tag, line)
            self._say_once(run.tag, f"{type(run.error).__name__}: {run.error}" if run.error is not None else "")
        self.manager.alive()
        told = tell(self.ports, report)
        for sentence in told.lines:
            self.say("", sentence)
        self._say_once("notify", told.trouble)
        self._guarded("ops/STATE.md", lambda: publish_state(self.ports, report, self.silent_since))
        return report

    def _pass(self) -> PassReport | None:
        return self._guarded("pass", lambda: pass_over_all(self.ports, self.manager.alive))

    def _guarded(self, what: str, act: Callable[[], T]) -> T | None:
        """A file server that is away for a moment, or a mistake of ours, is said once and does not end the daemon."""
        done, trouble = None, ""
        try:
            done = act()
        except OSError as error:
            trouble = str(storage_error(error))
        except Exception as error:
            trouble = f"a mistake in orch: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        self._say_once(what, trouble)
        return done

    def _say_once(self, tag: str, trouble: str) -> None:
        if trouble and self.said.get(tag) != trouble:
            self.say(tag, Line(trouble, "error"))
        self.said[tag] = trouble

    def _note_silence(self, report: PassReport) -> None:
        silent = report.snapshot.silent if report.snapshot is not None else None
        if silent is None:
            if self.silent_since is not None:
                self.say("", Line(f"Slurm answers again after {self.ports.clock() - self.silent_since:.0f} s", "answers"))
            self.silent_since, self.failures = None, 0
            return
        self.failures += 1
        if self.silent_since is None:
            self.silent_since = self.ports.clock()
            self.say("", Line(f"Slurm does not answer: {silent}; nothing is decided until it does", "silent"))

    def _look_at_slurm(self, report: PassReport) -> None:
        """How Slurm is set up is asked once, after a pass in which it answered; whether it has accounts is known then."""
        snapshot = report.snapshot
        if snapshot is None or snapshot.silent is not None:
            return
        trouble = snapshot.answers.accounting_silent
        self._say_once("accounting", trouble and (
            f"it does not answer, and how an attempt ended is read from its own record: {trouble}"))
        if self.looked_at == self.ports.slurm_name:
            return
        self.looked_at, self.accounting = self.ports.slurm_name, True
        try:
            site = self.ports.slurm.site()
        except SlurmError:
            return                     # nothing depends on it
        self.accounting = site.accounting
        if words := remembers(site, self.every_s):
            self.say("", Line(words, "site"))

    def _in_one_line(self, report: PassReport) -> str:
        """For ``systemctl status``."""
        runs = [one.run for one in report.runs if one.run is not None]
        running, trouble = sum(run.live is not None for run in runs), sum(one.error is not None for one in report.runs)
        waiting = sum(run.live is None and run.phase == Phase.ACTIVE for run in runs)
        words = [f"{running} running, {waiting} waiting" if running or waiting else "nothing under way",
                 f"{trouble} in trouble" if trouble else "", "Slurm is silent" if self.silent_since is not None else "",
                 f"passed at {time.strftime('%H:%M:%S', time.localtime(self.ports.clock()))}"]
        return "; ".join(word for word in words if word)


def records_awaited(repository: Path, report: PassReport) -> dict[Path, int]:
    """The end records of live attempts and the start records of waiting ones, and when each was written (0: not yet); any
    change wakes a pass."""
    written: dict[Path, int] = {}
    for run in (one.run for one in report.runs if one.run is not None):
        awaited = [(s.number, "start.json") for s in run.waiting] + ([(run.live.number, "end.json")] if run.live else [])
        for number, name in awaited:
            path = folders.attempt_dir(folders.run_dir(repository, run.spec.tag), number) / name
            written[path] = _written(path)
    return written


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
