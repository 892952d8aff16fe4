"""Sending the notice: one signal to each trainer, none to its workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.attempt import commands, target
from orchestrator.attempt.processes import Process, descendants, describe, label, send, signal_number
from orchestrator.attempt.steps import step_programs
from orchestrator.attempt.trainer import asks, here, registered

STEPS_AGAIN_S = 10.0


class Delivery:
    """Whom this attempt's notice has gone to; each is told once, however often it is asked."""

    def __init__(self, folder: Path, epoch: int, host: str, job_id: str, signal_name: str,
                 event: Callable[..., None]) -> None:
        self._folder = folder
        self._epoch = epoch
        self._host = host
        self._job_id = job_id
        self._signal_name = signal_name
        self._event = event
        self._unregistered_told = False
        self._next_steps_at = 0.0
        self.told: dict[int, Process] = {}
        self.hosts: list[str] = [host]
        self.step_hosts: set[str] = set()              # where a notice task listens

    def deliver(self, job_pid: int, helpers: set[int]) -> None:
        """Tell all registered trainers that have not been told; without any, the program that was found to be one."""
        entries = registered(self._folder / "trainers", self._epoch)
        self.hosts = sorted({self._host, *self.step_hosts} | {str(entry.get("host")) for entry in entries})
        local = here(entries, self._host)
        for process in here([entry for entry in entries if asks(entry)], self._host):
            self.told.setdefault(process.pid, process)
        for process in local:
            self._send(process, "registered")
        # one that registers only after it was told as an unregistered program is not told twice: `told` knows it
        # a name that no notice task bears is a container's own
        elsewhere = any(entry.get("host") in self.step_hosts - {self._host} for entry in entries)
        # who was told and has left leaves no heir: its launcher (torchrun) is not told in its place
        if local or elsewhere or self._unregistered_told or self.told:
            return
        family = self.family(helpers)
        if target.has_client(family):
            self._tell_steps()
            return
        for process in target.choose(family, roots(family, job_pid)):
            self._unregistered_told = True
            self._send(process, target.program(process))

    def family(self, helpers: set[int]) -> list[Process]:
        """Everything below the supervisor but its own helpers."""
        return [describe(process) for process in family_of(os.getpid(), helpers)]

    def _send(self, process: Process, how: str) -> None:
        known = self.told.get(process.pid)
        if known is not None and known.start == process.start:
            return
        self.told[process.pid] = process
        if send(process.pid, process.start, signal_number(self._signal_name)):
            self._event("signalled", pid=process.pid, how=how, process=label(describe(process)), signal=self._signal_name)

    def _tell_steps(self) -> None:
        """The program of each task on this host; others' by their notice tasks; Slurm itself where none is found."""
        for process in step_programs(self._folder, self._epoch):
            self._unregistered_told = True
            self._send(process, "step")
        if self._unregistered_told or self.step_hosts - {self._host} or time.monotonic() < self._next_steps_at:
            return
        self._next_steps_at = time.monotonic() + STEPS_AGAIN_S
        for step in commands.steps_of(self._job_id):
            if commands.signal_step(step, self._signal_name):
                self._unregistered_told = True
                self._event("signalled", step=step, how="scancel", signal=self._signal_name)


def family_of(supervisor: int, helpers: set[int]) -> list[Process]:
    """Descendants without the supervisor's own helpers and what is below those."""
    left_out = set(helpers)
    kept = []
    for process in descendants(supervisor):        # nearest first: parents come before their children
        if process.pid in left_out or process.parent in left_out:
            left_out.add(process.pid)
        else:
            kept.append(process)
    return kept


def roots(family: list[Process], job_pid: int) -> set[int]:
    """Where to look from: job.sh, or what it left to the supervisor once it is gone."""
    pids = {process.pid for process in family}
    if job_pid in pids:
        return {job_pid}
    return {process.pid for process in family if process.parent == os.getpid()}


def notice_json(at: float, reason: str, deadline: float | None, hosts: list[str]) -> dict[str, Any]:
    return {"at": at, "reason": reason, "deadline": deadline, "deliver": hosts}
