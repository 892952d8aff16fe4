"""One task of the notice step: a process on each node that Slurm signals at preemption, before it tells the batch process.

It reports on standard output, which srun carries to the supervisor, and on nodes other than the supervisor's it hands the
notice on, once to each: to the trainers that registered there, or, where no trainer registered at all, to a step's programs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from orchestrator.attempt.processes import send, signal_number
from orchestrator.attempt.steps import step_programs
from orchestrator.attempt.trainer import asks, here, registered

POLL_S = 1.0


def main(words: list[str]) -> int:
    """ATTEMPT_DIR EPOCH SUPERVISOR_HOST SIGNAL. Lives until it is ended, or until the attempt has an end record."""
    folder, epoch, lead_host, name = Path(words[0]), int(words[1]), words[2], words[3]
    host = os.uname().nodename
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda *_: None)
    _report(f"ready {host} {os.environ.get('SLURM_STEP_ID', '?')}")
    told: set[tuple[int, int]] = set()
    while True:
        if signal.SIGTERM in _signals(read_end):
            _report(f"term {host} {time.time():.3f}")
        if host != lead_host:
            for pid in deliver_here(folder, epoch, host, signal_number(name), told):
                _report(f"signalled {host} {pid}")
        if os.getppid() == 1 or ((folder / "end.json").exists() and _ended(folder)):
            return 0


def deliver_here(folder: Path, epoch: int, host: str, number: int, told: set[tuple[int, int]]) -> list[int]:
    """Signal the trainers registered on this host, if there is a notice for it; whom it was sent to just now."""
    try:
        wanted = host in json.loads((folder / "notice.json").read_text())["deliver"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not wanted:
        return []
    entries = registered(folder / "trainers", epoch)
    programs = here([e for e in entries if not asks(e)], host) if entries or told else step_programs(folder, epoch)
    fresh = [process for process in programs if (process.pid, process.start) not in told]
    told.update((process.pid, process.start) for process in fresh)
    return [process.pid for process in fresh if send(process.pid, process.start, number)]


def _ended(folder: Path) -> bool:
    try:
        return not json.loads((folder / "end.json").read_text()).get("provisional", False)
    except (OSError, ValueError):
        return False


def _signals(read_end: int) -> bytes:
    import select
    ready, _, _ = select.select([read_end], [], [], POLL_S)
    return os.read(read_end, 64) if ready else b""


def _report(text: str) -> None:
    try:
        os.write(1, f"orch-notice {text}\n".encode())
    except OSError:
        sys.exit(0)                    # nobody listens any more
