"""The simulated world: one clock, hosts with processes, one Slurm, and what befalls them.

Whose code runs just now is known (``actor``: a daemon or a person; ``machine``: a process in an allocation), because what
goes wrong is theirs: an actor is killed, or something else happens meanwhile, at an instant that its schedule names. What
must hold is in ``truth``, how the production code is put on this world in ``seams``.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulation.disk import Disk
from simulation.memory import Memory
from simulation.schedule import AT_SQUEUE, NONE, Faults, Plan, Step, draw_plan, draw_taking
from simulation.slurm import Job, SimulatedSlurm
from simulation.supervisor import Killed, Process, Supervisor, Trainer
from simulation.truth import Truths

from orchestrator.errors import NoRoom
from orchestrator.records import StartRecord
from orchestrator.sightings import JobGone, JobSeen, JobSighting, SlurmSilent

BEGAN_AT = 1_700_000_000.0


@dataclass(slots=True)
class Host:
    name: str
    boot: str
    offset_s: float = 0.0
    stepped_at: float = 0.0            # its clock, the last time

    def step_clock(self, offset_s: float, now: float) -> None:
        if offset_s != self.offset_s:
            self.offset_s, self.stepped_at = offset_s, now


@dataclass(slots=True)
class Actor:
    """A daemon or a person at the command line: its clock, what goes wrong while it acts, and what it was told."""

    name: str
    offset_s: float = 0.0
    faults: Faults = NONE
    instants: int = 0                  # passed since it began to act
    dead: bool = False
    submitted: bool = False            # the fault of its sbatch has struck
    answered: str = ""                 # what its latest squeue was: "", silent, stale, honest
    asked_at: float = 0.0              # when that was, by the world's clock
    known: frozenset[int] = frozenset()            # job ids that Slurm had, not ended, when it was asked
    answers: list[tuple[str, str]] = field(default_factory=list)   # sbatches that were answered: tag, submission id
    do: Callable[[Step], None] | None = None       # what carries out ``faults.meanwhile``, once

    def begin(self, faults: Faults, do: Callable[[Step], None]) -> None:
        self.faults, self.do, self.instants, self.dead, self.submitted = faults, do, 0, False, False
        self.answered, self.answers = "", []


@dataclass(slots=True, kw_only=True)
class World:
    disk: Disk
    memory: Memory
    seed: int
    repository: Path = Path("/simulated/repo")
    now: float = BEGAN_AT
    target_steps: int = 150
    calm: bool = False                 # no mishap strikes a start from now on
    outage: bool = False               # slurmctld answers nobody
    refused: int = 0                   # so many of the next changes to jobs
    hosts: dict[str, Host] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    history: list[tuple[float, list[JobSeen]]] = field(default_factory=list)
    fences_held: set[Path] = field(default_factory=set)        # of these runs, by somebody who is in the middle of an act
    late: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)   # sbatches that reach slurmctld later
    actor: Actor | None = None         # who acts just now
    machine: Process | None = None     # whose code runs just now
    struck: Counter[str] = field(default_factory=Counter)      # faults by kind, where they took effect
    truths: Truths = None  # type: ignore[assignment]
    slurm: SimulatedSlurm = None  # type: ignore[assignment]
    _heap: list[tuple[float, int, int, Process]] = field(default_factory=list)
    _pids: int = 100
    _turns: int = 0
    _takes: int = 0

    def __post_init__(self) -> None:
        self.hosts = {name: Host(name, f"{name}-boot-0") for name in ("n1", "n2")}
        self.slurm = SimulatedSlurm(self, nodes=tuple(self.hosts), now=self.now, accounting=self.seed % 2 == 0)
        self.truths = Truths(self)
        self.disk.mkdir(self.repository, parents=True)

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
                with contextlib.suppress(NoRoom):
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
        self.slurm.node_down(name)
        if not lives_on:
            self.power_off(self.hosts[name])

    def power_off(self, host: Host) -> None:
        for process in [p for p in self.processes.values() if p.host is host]:
            process.alive = False      # nobody is told, nothing is written
            self.processes.pop(process.pid)
            if isinstance(process, Trainer):
                process.training = False
        host.boot = f"{host.name}-boot-{self._turns}"
        self.slurm.booted_at[host.name] = self.now

    def fence(self, supervisor: Supervisor) -> None:
        """What ``attempt.fence`` does: older starts of this run on this host are ended."""
        assert supervisor.start is not None
        for process in list(self.processes.values()):
            older = process.start if isinstance(process, (Supervisor, Trainer)) else None
            if (older is not None and process is not supervisor and process.host is supervisor.host
                    and process.boot == supervisor.boot and older.epoch < supervisor.start.epoch
                    and process.run_dir == supervisor.run_dir):  # type: ignore[attr-defined]
                process.kill()

    def proves(self, tag: str) -> bool:
        """Whether this run is submitted with --prove-resume."""
        return (self.seed + ord(tag)) % 4 == 0

    def plan_of(self, tag: str) -> Plan:
        plan = Plan() if self.calm else draw_plan(self.seed, tag, self.truths.of(tag).starts)
        if plan.mishap:
            self.struck[f"trainer: {plan.mishap}"] += 1
        return plan

    # --- whose code runs ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        before = self.machine, self.actor
        self.machine, self.actor = process, None
        try:
            yield
        finally:
            self.machine, self.actor = before

    def before_taking(self, supervisor: Supervisor) -> tuple[float, int | None]:
        """What befalls a supervisor that is about to take its run: see ``draw_taking``."""
        self._takes += 1
        stopped_s, kill = (0.0, None) if self.calm else draw_taking(self.seed, supervisor.tag, self._takes)
        if stopped_s:
            self.struck["supervisor stopped between its gate and its start"] += 1
        return stopped_s, kill

    @contextlib.contextmanager
    def taking(self, supervisor: Supervisor, kill: int | None) -> Iterator[None]:
        """A supervisor takes the run, and may be killed on the way."""
        with self.inside(supervisor):
            self.actor = Actor("supervisor", faults=Faults(kill=kill))
            yield

    def instant(self) -> None:
        """Between two instructions of the actor: here it may be killed, and something else may happen."""
        actor = self.actor
        if actor is None:
            return
        if actor.instants == actor.faults.kill:
            actor.dead = True
            self.struck[f"{actor.name} killed between two instructions"] += 1
            raise Killed
        if actor.instants == actor.faults.at:
            self.meanwhile(actor)
        actor.instants += 1

    def meanwhile(self, actor: Actor) -> None:
        """Something that is not this actor's doing, and not killed with it."""
        do, step, actor.do = actor.do, actor.faults.meanwhile, None
        if do is None or step is None:
            return
        self.actor = None
        self.struck["something else meanwhile, " + ("while squeue was on its way" if actor.faults.at == AT_SQUEUE else
                                                    "between two instructions")] += 1
        do(step)
        self.truths.check()
        self.actor = actor

    def look_at_job(self, job_id: str) -> JobSighting:
        """The ``scontrol show job`` of a supervisor."""
        if self.outage:
            return SlurmSilent("outage")
        return self.slurm.job(job_id) or JobGone()

    def nothing_there(self, run_dir: Path, start: StartRecord) -> str:
        """Of its own host everybody is certain. The daemon A lives on n1, B on a host without jobs."""
        if self.machine is not None:
            host = self.machine.host
        elif self.actor is not None and self.actor.name != "B":
            host = self.hosts["n1"]
        else:
            return ""
        if start.host != host.name:
            return ""
        if start.boot_id != host.boot:
            return f"{host.name} was started anew since"
        lives = any(isinstance(p, (Supervisor, Trainer)) and p.host is host and p.run_dir == run_dir and p.start is not None
                    and p.start.epoch <= start.epoch for p in self.processes.values())
        return "" if lives else f"its supervisor on {host.name} is gone, and so is all that it started"

    def alive(self, pid: int) -> bool:
        process = self.processes.get(pid)
        assert self.machine is not None
        return process is not None and process.alive and process.host is self.machine.host
