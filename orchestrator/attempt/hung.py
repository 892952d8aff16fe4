"""What is done with a trainer that hangs: its stacks into the attempt's folder, then TERM, then KILL."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.attempt import commands, target
from orchestrator.attempt.processes import Process, catches, describe, send
from orchestrator.attempt.trainer import here, registered
from orchestrator.host import is_alive, read_stat

DUMP_WITHIN_S = 3.0


@dataclass(slots=True)
class Dumps:
    """Stacks that were asked for: of whom, and into which file."""

    awaited: dict[int, Path] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class HungTrainer:
    """From the verdict to the last KILL. ``dumped`` is asked until it is true, then come ``to_term`` and ``kill_steps``."""

    def __init__(self, folder: Path, epoch: int, host: str, job_id: str, event: Callable[..., None]) -> None:
        self._folder, self._job_id, self._event = folder, job_id, event
        entries = registered(folder / "trainers", epoch)
        self.trainers = here(entries, host)
        self._signals = {e["pid"]: e.get("stacks_signal") for e in entries}
        self._host = host
        self._dumps = Dumps()
        self._began = time.monotonic()
        self._steps_killed = False
        for process in self.trainers:
            self._ask(process)
        elsewhere = sorted({str(e.get("host")) for e in entries} - {host})
        if elsewhere:
            self._dumps.notes.append(f"no stacks from {', '.join(elsewhere)}")

    def _ask(self, process: Process) -> None:
        """Signal it only where a handler waits for that: the signal would end it otherwise."""
        stat = read_stat(process.pid)
        state, number = stat[2] if stat else "", self._signals.get(process.pid)
        why = {"T": "it is stopped (SIGSTOP)", "t": "it is being traced",
               "D": "it waits in the kernel (uninterruptible sleep)"}.get(state, "")
        if not why and not (isinstance(number, int) and catches(process.pid, number)):
            why = "it has no handler for that"
        if why:
            self._dumps.notes.append(f"no stacks of {process.pid}: {why}")
            return
        assert isinstance(number, int)
        path = self._folder / f"stacks-{self._host}-{process.pid}.txt"
        self._dumps.sizes[process.pid] = _size(path)
        if send(process.pid, process.start, number):
            self._dumps.awaited[process.pid] = path

    def dumped(self) -> bool:
        """Whether all stacks are written, or have had their time."""
        dumps = self._dumps
        late = time.monotonic() - self._began >= DUMP_WITHIN_S
        missing = [pid for pid, path in dumps.awaited.items() if _size(path) <= dumps.sizes[pid]]
        if missing and not late:
            return False
        written = [path.name for pid, path in dumps.awaited.items() if pid not in missing]
        dumps.notes += [f"no stacks of {pid}: not written within {DUMP_WITHIN_S:.0f} s" for pid in missing]
        self._event("stacks", files=written, missing=dumps.notes)
        return True

    def words(self) -> str:
        return "; ".join(self._dumps.notes)

    def to_term(self, family: list[Process]) -> list[Process]:
        """Everything of the job's but srun clients: a TERM to one kills its tasks at once."""
        clients = [p for p in family if target.program(p) in target.CLIENTS]
        left_out = {p.pid for p in clients}
        return [*self.left(), *(p for p in family if p.pid not in left_out)]

    def left(self) -> list[Process]:
        """The trainers of this host that are still there: those of a job step are no descendants of the supervisor."""
        return [p for p in self.trainers if is_alive(p.pid, p.start)]

    def kill_steps(self, family: list[Process]) -> None:
        """Once, where a step runs: Slurm reaches its tasks on every node."""
        if self._steps_killed or not target.has_client([describe(p) for p in family]):
            return
        self._steps_killed = True
        for step in commands.steps_of(self._job_id):
            commands.signal_step(step, signal.SIGKILL.name.removeprefix("SIG"))
            self._event("signalled", step=step, how="scancel", signal="KILL")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
