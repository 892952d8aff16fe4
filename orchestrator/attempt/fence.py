"""The fence: ends what older starts of this run left on this host. Other hosts are fenced by the epoch alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from orchestrator.attempt.processes import Process, describe, label, send
from orchestrator.attempt.take import starts
from orchestrator.host import all_pids, boot_id, environment_of, is_alive, read_stat

GONE_WITHIN_S = 10.0


def fence(run_dir: Path, epoch: int) -> tuple[list[str], list[str]]:
    """Kill them and wait until they are gone: (ended, still there), named."""
    ended: dict[int, str] = {}
    give_up = time.monotonic() + GONE_WITHIN_S
    while True:
        older = _older(run_dir, epoch)
        for process in older:
            ended.setdefault(process.pid, label(describe(process)))
            send(process.pid, process.start, signal.SIGKILL)
        if not older or time.monotonic() >= give_up:
            return list(ended.values()), [label(describe(p)) for p in older]
        time.sleep(0.05)


def _older(run_dir: Path, epoch: int) -> list[Process]:
    boot = boot_id()
    found = {s.pid: Process(s.pid, 0, s.pid_start, "supervisor") for s in starts(run_dir)
             if s.epoch < epoch and s.boot_id == boot and s.pid != os.getpid() and is_alive(s.pid, s.pid_start)}
    kept = _ancestry(os.getpid())
    for pid in all_pids():
        if pid not in kept and pid not in found and _is_older(pid, run_dir, epoch):
            stat = read_stat(pid)
            if stat is not None and stat[2] not in "ZX":
                found[pid] = Process(pid, stat[0], stat[1], stat[3])
    return list(found.values())


def _is_older(pid: int, run_dir: Path, epoch: int) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
    except OSError:
        return False
    environment = environment_of(pid)
    theirs = environment.get("ORCH_EPOCH", "")
    return environment.get("ORCH_RUN_DIR") == str(run_dir) and theirs.isdigit() and int(theirs) < epoch


def _ancestry(pid: int) -> set[int]:
    """This process and those above it: whoever started us is not a leftover."""
    chain = set()
    while pid > 0 and pid not in chain:
        chain.add(pid)
        stat = read_stat(pid)
        pid = stat[0] if stat else 0
    return chain
