"""The simulated world: one clock, hosts with processes, one Slurm, and the truth that the invariants are held against.

``seams`` puts the world under the production code that it exercises: fsync costs nothing and is an instant at which an actor
may be killed, locks know which actor holds them (all actors live in one process here), a host's boot id and processes are the
simulated ones.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import heapq
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.slurm import Job, SimulatedSlurm
from simulation.supervisor import Plan, Process, Supervisor, Trainer

from orchestrator import folders, journal
from orchestrator.attempt import take, witness
from orchestrator.checkpoints import newest_complete
from orchestrator.control import observe, ports
from orchestrator.core.fold import apply, fold
from orchestrator.errors import SlurmUnreachable, SubmissionRejected
from orchestrator.model import JobGone, JobSeen, JobSighting, Phase, Run, SlurmSilent
from orchestrator.planner import reliability as planner_reliability
from orchestrator.records import StartRecord

BEGAN_AT = 1_700_000_000.0


class Killed(BaseException):
    """The actor was killed at this instant; nothing of ours may catch it."""


class Broken(AssertionError):
    """An invariant of DESIGN section 8 does not hold."""


@dataclass(slots=True)
class Host:
    name: str
    boot: str
    offset_s: float = 0.0


@dataclass(slots=True)
class Actor:
    """A daemon or a person at the command line: its clock, and what will go wrong while it acts."""

    name: str
    offset_s: float = 0.0
    effects_left: int | None = None    # it is killed at the effect after these
    torn: bool = False                 # ... in the middle of a journal line, if that is where it is
    reads: str = ""                    # silent, stale
    submits: str = ""                  # lost, reply-lost, delayed, doubled, rejected
    answered: str = "honest"           # what its latest squeue was


@dataclass(slots=True)
class Truth:
    """What really happened to one run, told by nobody's record."""

    newest_saved: int = -1
    newest_epoch: int = 0
    starts: int = 0
    held: Run | None = None            # the incremental fold of its journal
    read_to: int = 0


@dataclass(slots=True, kw_only=True)
class World:
    repository: Path
    seed: int
    now: float = BEGAN_AT
    target_steps: int = 150
    calm: bool = False                 # no mishap strikes a start from now on
    outage: bool = False               # slurmctld answers nobody
    daemons: dict[str, Actor] = field(default_factory=dict)
    truths: dict[str, Truth] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    history: list[tuple[float, list[JobSeen]]] = field(default_factory=list)
    late: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)   # sbatches that reach slurmctld later
    actor: Actor | None = None         # who acts just now
    machine: Process | None = None     # whose code runs just now
    slurm: SimulatedSlurm = None  # type: ignore[assignment]
    _heap: list[tuple[float, int, int, Process]] = field(default_factory=list)
    _pids: int = 100
    _accepted: int = 0                 # submissions that were compared with one another already
    _turns: int = 0

    def __post_init__(self) -> None:
        self.hosts = {name: Host(name, f"{name}-boot-0") for name in ("n1", "n2")}
        self.slurm = SimulatedSlurm(self, nodes=tuple(self.hosts), now=self.now)

    # --- time -----------------------------------------------------------------------------------------------------------

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def clock_of(self, host: Host) -> float:
        return round(self.now + host.offset_s, 3)

    def wake(self, process: Process, after_s: float) -> None:
        self._turns += 1
        process.turn = self._turns
        heapq.heappush(self._heap, (max(self.now + after_s, process.stopped_until), self._turns, process.turn, process))

    def advance(self, by_s: float) -> None:
        end = self.now + by_s
        heap, slurm = self._heap, self.slurm
        while True:
            while heap and (heap[0][2] != heap[0][3].turn or not heap[0][3].alive):
                heapq.heappop(heap)
            at = min(heap[0][0] if heap else end + 1, slurm.next_at(), self.late[0][0] if self.late else end + 1)
            if at > end:
                break
            self.now = slurm.now = max(self.now, at)
            if self.late and self.late[0][0] <= self.now:
                _, text, environment = self.late.pop(0)
                slurm.accept(text, environment)
            elif heap and heap[0][0] <= self.now:
                heapq.heappop(heap)[3].step()
            else:
                slurm.tick(self.now)
        self.now = end
        slurm.tick(end)

    # --- Machines, for Slurm --------------------------------------------------------------------------------------------

    def begin(self, job: Job) -> None:
        Supervisor(self, self.hosts[job.node], job)

    def _of(self, job: Job) -> list[Supervisor]:
        return [p for p in self.processes.values()
                if isinstance(p, Supervisor) and p.job is job and p.restart_count == job.restart_count]

    def terminate(self, job: Job, why: str) -> None:
        for supervisor in self._of(job):
            supervisor.terminate(why)

    def kill(self, job: Job) -> None:
        for supervisor in self._of(job):
            if supervisor.trainer is not None:
                supervisor.trainer.kill()
            supervisor.kill()

    # --- what befalls hosts and processes ------------------------------------------------------------------------------

    def node_down(self, name: str, *, lives_on: bool) -> None:
        host = self.hosts[name]
        if not self.slurm.up[name]:
            return
        self.slurm.node_down(name)
        if not lives_on:
            self._power_off(host)

    def power_cut(self, name: str) -> None:
        """slurmctld hears nothing of it, and goes on calling the jobs running until their limit."""
        self._power_off(self.hosts[name])

    def _power_off(self, host: Host) -> None:
        for process in [p for p in self.processes.values() if p.host is host]:
            process.alive = False      # nobody is told, nothing is written
            self.processes.pop(process.pid)
            if isinstance(process, Trainer):
                process.training = False
        host.boot = f"{host.name}-boot-{self._turns}"

    def fence(self, supervisor: Supervisor) -> None:
        """What ``attempt.fence`` does: older starts of this run on this host are ended."""
        assert supervisor.start is not None
        for process in list(self.processes.values()):
            older = process.start if isinstance(process, (Supervisor, Trainer)) else None
            if (older is not None and process is not supervisor and process.host is supervisor.host
                    and process.boot == supervisor.boot and older.epoch < supervisor.start.epoch
                    and process.run_dir == supervisor.run_dir):  # type: ignore[attr-defined]
                process.kill()

    def trainers(self, tag: str) -> list[Trainer]:
        return [p for p in self.processes.values() if isinstance(p, Trainer) and p.training and p.run_dir.name == tag]

    def plan_of(self, tag: str, start: StartRecord) -> Plan:
        from simulation.campaign import draw_plan
        return Plan() if self.calm else draw_plan(self.seed, tag, self.truths[tag].starts)

    # --- the truth ------------------------------------------------------------------------------------------------------

    def taken(self, supervisor: Supervisor, start: StartRecord) -> None:
        """A supervisor has taken the run: had it any right to?"""
        truth = self.truth(supervisor.tag)
        run = self.fold_of(supervisor.tag)
        if run is None or run.phase != Phase.ACTIVE:
            raise Broken(f"{supervisor.tag}: a start was taken while the run is {run.phase if run else 'unknown'}")
        if start.epoch <= truth.newest_epoch:
            raise Broken(f"{supervisor.tag}: epoch {start.epoch} after {truth.newest_epoch}")
        if (start.resume_step if start.resume_step is not None else -1) != truth.newest_saved:
            raise Broken(f"{supervisor.tag}: resumes from {start.resume_step}, newest complete is {truth.newest_saved}")
        truth.newest_epoch = start.epoch
        truth.starts += 1

    def publishes(self, trainer: Trainer, what: str) -> None:
        truth = self.truth(trainer.run_dir.name)
        if trainer.start.epoch != truth.newest_epoch:
            raise Broken(f"{trainer.run_dir.name}: epoch {trainer.start.epoch} publishes {what} under {truth.newest_epoch}")

    def saved(self, trainer: Trainer, step: int) -> None:
        truth = self.truth(trainer.run_dir.name)
        truth.newest_saved = max(truth.newest_saved, step)

    def check_newest(self, tag: str) -> None:
        """Asked whenever a checkpoint was made or removed, and at the end."""
        newest = newest_complete(folders.checkpoint_dir(folders.run_dir(self.repository, tag)))
        if (newest.step if newest else -1) != self.truth(tag).newest_saved:
            raise Broken(f"{tag}: newest complete checkpoint is {newest}, {self.truth(tag).newest_saved} was saved")

    def truth(self, tag: str) -> Truth:
        return self.truths.setdefault(tag, Truth())

    def fold_of(self, tag: str) -> Run | None:
        """The run as one who never forgets folds it: each new line once."""
        truth = self.truth(tag)
        path = journal.journal_path(folders.run_dir(self.repository, tag))
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return None
        if size > truth.read_to:
            with open(path, "rb") as file:
                file.seek(truth.read_to)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                for line in whole.splitlines():
                    truth.held = apply(truth.held, json.loads(line))
                truth.read_to += len(whole) + 1
        return truth.held

    def check(self) -> None:
        """What must hold at every instant."""
        for tag in self.truths:
            inside = [t for t in self.trainers(tag) if t.supervisor.alive and t.supervisor.in_allocation]
            if len(inside) > 1:
                raise Broken(f"{tag}: two attempts train, jobs {[t.start.job_id for t in inside]}")
            run = self.fold_of(tag)
            if run is None:
                continue
            if inside and run.over:
                raise Broken(f"{tag}: job {inside[0].start.job_id} trains, and the run is {run.phase}")
        if len(self.slurm.accepted) == self._accepted:
            return
        self._accepted = len(self.slurm.accepted)
        by_comment: dict[str, int] = {}
        for job_id, comment in self.slurm.accepted:
            if comment in by_comment:
                raise Broken(f"jobs {by_comment[comment]} and {job_id} are one submission: {comment}")
            by_comment[comment] = job_id
        numbers = [comment.rpartition(":")[0] for comment in by_comment]
        if len(set(numbers)) < len(numbers):
            raise Broken(f"an attempt number was submitted twice: {sorted(numbers)}")

    def noted(self, tag: str, event: dict[str, Any]) -> None:
        """A fact went into a journal: was it so? Asked only of an actor that was told the truth at the right time."""
        actor = self.actor
        if actor is None or event["event"] not in ("ended", "dropped", "lost"):
            return
        running = [p for p in self.processes.values() if isinstance(p, Supervisor) and p.tag == tag and p.in_allocation]
        if event["event"] == "ended":
            alive = [p for p in running if p.start is not None and p.start.epoch == event["epoch"] and p.alive]
            if alive and (actor.answered == "silent" or (actor.answered == "honest" and abs(actor.offset_s) < 30)):
                raise Broken(f"{tag}: attempt {event['number']} noted as ended ({event['ending']}) while it runs")
        elif actor.answered == "silent" and event.get("why") != "stood down":
            raise Broken(f"{tag}: {event} was concluded from Slurm's silence")
        elif actor.answered == "honest":
            waiting = [j for j in self.slurm.jobs_by_id.values()
                       if j.comment.endswith(":" + event["submission_id"]) and not j.ended and not j.doubled]
            if waiting and event.get("why") != "stood down" and abs(actor.offset_s) < 30:
                raise Broken(f"{tag}: submission {event['submission_id']} {event['event']}, and job "
                             f"{waiting[0].job_id} is {waiting[0].state}")

    # --- whose code runs ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        before = self.machine, self.actor
        self.machine, self.actor = process, None
        try:
            yield
        finally:
            self.machine, self.actor = before

    def effect(self) -> None:
        """An instant at which the actor may be killed."""
        actor = self.actor
        if actor is None or actor.effects_left is None:
            return
        if actor.effects_left <= 0:
            actor.effects_left = None
            raise Killed
        actor.effects_left -= 1

    def look_at_job(self, job_id: str) -> JobSighting:
        """The ``scontrol show job`` of a supervisor."""
        if self.outage:
            return SlurmSilent("outage")
        return self.slurm.job(job_id) or JobGone()

    def nothing_there(self, run_dir: Path, start: StartRecord) -> str:
        """``host.nothing_there``, as the host of the supervisor that asks finds out, or n1 for daemons and people."""
        here = self.machine.host if self.machine is not None else self.hosts["n1"]
        if start.host != here.name:
            return ""
        left = [p for p in self.processes.values() if isinstance(p, (Supervisor, Trainer)) and p.start is not None
                and p.host is here and p.run_dir == run_dir and p.start.epoch <= start.epoch]
        return "" if start.boot_id == here.boot and left else "nothing of it is there"

    def alive(self, pid: int) -> bool:
        process = self.processes.get(pid)
        assert self.machine is not None
        return process is not None and process.alive and process.host is self.machine.host


# --- the seams --------------------------------------------------------------------------------------------------------------

_world: World | None = None


def _here() -> World:
    assert _world is not None
    return _world


class _Locks:
    """``fcntl`` where all actors are one process: a lock is held as long as its descriptor is open."""

    LOCK_EX, LOCK_NB = 2, 4

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def lockf(self, descriptor: int, flags: int) -> None:
        inode = os.fstat(descriptor).st_ino
        holder = self._held.get(inode)
        if holder is not None and holder != descriptor:
            with contextlib.suppress(OSError):
                if os.fstat(holder).st_ino == inode:
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


class _Os:
    """``os`` with the pid of the simulated process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def getpid() -> int:
        machine = _here().machine
        assert machine is not None
        return machine.pid


class _Commands:
    @staticmethod
    def look_at_job(job_id: str) -> JobSighting:
        return _here().look_at_job(job_id)


class _Events(list[journal.Event]):
    """What a journal held, with the run it tells of once somebody has folded it."""

    run: Run | None = None


class _Memory:
    """``journal.read`` and ``fold`` are pure in the journal's bytes; the bytes read last are not parsed and folded again.

    That is three quarters of a schedule's time. ``Campaign._after`` compares with the real ones.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[bytes, _Events]] = {}

    def read(self, run_dir: Path) -> tuple[list[journal.Event], str]:
        path = journal.journal_path(run_dir)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return [], ""
        whole, _, torn = data.rpartition(b"\n")
        before, events = self._known.get(path, (b"", None))
        if events is None or not whole.startswith(before):
            events, _ = _read(run_dir)
            events = _Events(events)
        elif len(whole) > len(before):
            fresh = [json.loads(line) for line in whole[len(before):].splitlines() if line]
            longer = _Events([*events, *fresh])
            if events.run is not None:
                run: Run | None = events.run
                for event in fresh:
                    run = apply(run, event)
                longer.run = run
            events = longer
        self._known[path] = whole, events
        return events, torn.decode(errors="replace")

    @staticmethod
    def fold(events: list[journal.Event]) -> Run | None:
        if not isinstance(events, _Events):
            return fold(events)
        if events.run is None:
            events.run = fold(events)
        return events.run


_read = journal.read
_append = journal.LockedJournal.append


def _append_and_tell(self: journal.LockedJournal, event: str, **context: Any) -> journal.Event:
    world = _here()
    world.effect()
    run_dir = self._run_dir
    entry = _append(self, event, **context)
    try:
        world.effect()
    except Killed:
        if world.actor is not None and world.actor.torn:
            path = journal.journal_path(run_dir)
            os.truncate(path, path.stat().st_size - 7)
        raise
    world.noted(run_dir.name, entry)
    return entry


@contextlib.contextmanager
def seams() -> Iterator[None]:
    """Put simulated worlds under the production code of this process, until left."""
    locks, moments, memory = _Locks(), _Time(), _Memory()
    changes: list[tuple[Any, str, Any]] = [
        (os, "fsync", lambda descriptor: None),
        *((folders, name, functools.cache(getattr(folders, name))) for name in ("run_dir", "attempt_dir", "checkpoint_dir")),
        (journal, "journal_path", functools.cache(journal.journal_path)),
        (planner_reliability, "gamma_quantile", lambda *given: 1.0),        # milliseconds of mathematics, tested elsewhere
        (journal, "fcntl", locks), (journal, "time", moments),
        (journal.LockedJournal, "append", _append_and_tell),
        (journal, "read", memory.read), (ports, "fold", memory.fold), (witness, "fold", memory.fold),
        (folders, "fsync_folder", lambda folder: _here().effect()),
        (take, "fsync_folder", lambda folder: None),
        (take, "boot_id", lambda: _here().machine.boot),  # type: ignore[union-attr]
        (take, "start_of", lambda pid: pid), (take, "os", _Os()), (take, "say", lambda line: None),
        (take, "_redirect_output", lambda path: None),
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
def world_of(world: World) -> Iterator[World]:
    global _world
    _world = world
    try:
        yield world
    finally:
        _world = None


class Line:
    """An actor's line to Slurm (obeys ``slurm.protocol.Slurm``): it can be silent, late, or lose what it carries."""

    def __init__(self, world: World, actor: Actor, meanwhile: Any = None) -> None:
        self._world, self._actor, self._meanwhile = world, actor, meanwhile

    def _ask(self) -> None:
        self._world.effect()
        if self._world.outage:
            raise SlurmUnreachable("outage")

    def jobs(self, commented: str = "") -> list[JobSeen]:
        self._actor.answered = "silent"
        self._ask()
        if self._actor.reads == "silent":
            raise SlurmUnreachable("no answer in time")
        world = self._world
        answer = world.slurm.jobs(commented)
        self._actor.answered = "honest"
        if self._actor.reads == "stale":
            older = [jobs for at, jobs in world.history if at <= world.now - 60]
            answer, self._actor.answered = (older[-1] if older else []), "stale"
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            world.actor = None         # what happens meanwhile is not this actor's doing, and not killed with it
            meanwhile()
            world.actor = self._actor
        world.effect()
        return answer

    def job(self, job_id: str) -> JobSeen | None:
        self._ask()
        return self._world.slurm.job(job_id)

    def offers(self) -> Any:
        return self._world.slurm.offers()

    def nodes(self, names: str) -> Any:
        self._ask()
        return self._world.slurm.nodes(names)

    def submit(self, script: Path, environment: Any) -> str:
        self._ask()
        world, fault = self._world, self._actor.submits
        self._actor.submits = ""
        text = script.read_text()
        if fault == "lost":
            raise SlurmUnreachable("sbatch gave no answer within 30 s")
        if fault == "rejected":
            raise SubmissionRejected("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        if fault == "delayed":
            world.late.append((world.now + 5.0 + world.seed % 120, text, dict(environment)))
            world.late.sort(key=lambda item: item[0])
            raise SlurmUnreachable("sbatch gave no answer within 30 s")
        job_id = world.slurm.accept(text, environment)
        if fault == "doubled":
            world.slurm.jobs_by_id[int(job_id)].doubled = True
            job_id = world.slurm.accept(text, environment, doubled=True)
        if fault == "reply-lost":
            raise SlurmUnreachable("sbatch gave no answer within 30 s")
        world.effect()
        return job_id

    def cancel(self, job_id: str) -> None:
        self._ask()
        self._world.slurm.cancel(job_id)
        self._world.effect()

    def set_dependency(self, job_id: str, dependency: str) -> None:
        self._ask()
        self._world.slurm.set_dependency(job_id, dependency)
        self._world.effect()

    def hold(self, job_id: str) -> None:
        self._ask()
        self._world.slurm.hold(job_id)
        self._world.effect()

    def release(self, job_id: str) -> None:
        self._ask()
        self._world.slurm.release(job_id)
        self._world.effect()
