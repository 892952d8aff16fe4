"""A Slurm in memory whose clock is moved by hand; it passes the same contract tests as a real one (tests/contract).

It reads the ``#SBATCH`` lines of the very script that a real sbatch would get, keeps pending, running and ended jobs, and
tells a ``Machines`` what begins, what is signalled and what is killed. Nothing happens but in ``tick``: call it after the
clock was moved. Faults of the *line* to Slurm (silence, lost replies) are not here but in ``simulation.line``; faults of the
nodes and of the site (node down, requeue, preemption, lost state) are.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from orchestrator.core.observation import NodeSeen
from orchestrator.errors import NoAccounting, NoRoom, SubmissionRejected
from orchestrator.model import ENDED_STATES
from orchestrator.sightings import Execution, JobSeen, QueuedJob
from orchestrator.slurm.protocol import NodeOffer, Site

NEVER = float("inf")
REQUEUE_DELAY_S = 121.0                # measured: DESIGN section 1


@dataclass(slots=True, kw_only=True)
class Job:
    """One job as slurmctld keeps it. ``state`` is what squeue shows; ``final`` what a completing job will be."""

    job_id: int
    name: str
    comment: str
    script: str
    environment: dict[str, str]
    submitted_at: float
    output: str = ""
    dependency: list[str] = field(default_factory=list)
    begin_at: float = 0.0
    nice: int = 0
    memory_mib: int = 0
    time_s: float = NEVER
    gres: str = ""
    held: bool = False
    state: str = "PENDING"
    final: str = ""
    node: str = ""
    start_at: float | None = None
    end_at: float | None = None
    kill_at: float = NEVER
    epilog_s: float = 0.0              # how long it is COMPLETING when its batch process has ended
    restart_count: int = 0
    doubled: bool = False              # a fault made it: the second job of one sbatch
    seen: JobSeen | None = None        # what it was shown as last, and what that depended on
    seen_as: tuple[object, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def in_allocation(self) -> bool:
        return self.state in ("RUNNING", "COMPLETING")


class Machines(Protocol):
    """What runs the jobs. ``Slurm.exited`` is called back when a job's batch process has ended by itself."""

    def begin(self, job: Job) -> None: ...

    def terminate(self, job: Job, why: str) -> None:
        """TERM to all processes of the job; ``why`` is PREEMPTED for a TERM to its steps alone."""

    def kill(self, job: Job) -> None: ...


class SimulatedSlurm:
    """Obeys ``orchestrator.slurm.protocol.Slurm``."""

    def __init__(self, machines: Machines, *, nodes: tuple[str, ...] = ("n1", "n2"), partition: str = "main",
                 kill_wait_s: float = 30.0, min_job_age_s: float = 300.0, now: float = 0.0,
                 accounting: bool = False) -> None:
        self.machines = machines
        self.now = now
        self.up = dict.fromkeys(nodes, True)
        self.booted_at: dict[str, float] = {}
        self.jobs_by_id: dict[int, Job] = {}
        self.accepted: list[tuple[int, str]] = []      # every job ever accepted: (id, comment), doubled ones left out
        self._partition, self._kill_wait_s, self._min_job_age_s = partition, kill_wait_s, min_job_age_s
        self.jobs_at_most: int | None = None           # no more than these are taken
        self._last_id = 0
        self._accounts: list[Execution] | None = [] if accounting else None    # of what has ended

    # --- the protocol ---------------------------------------------------------------------------------------------------

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        return [self._seen(job) for job in self.jobs_by_id.values() if job.comment.startswith(commented)]

    def job(self, job_id: str) -> JobSeen | None:
        job = self._find(job_id)
        return None if job is None else self._seen(job)

    def queue(self) -> list[QueuedJob]:
        return [QueuedJob(
            job_id=str(job.job_id), user="user", partition=self._partition, state=job.state,
            priority=0 if job.held else 10_000 - job.nice - job.job_id, reason=self._reason(job), nodes=job.node,
            dependency=self._seen(job).dependency, start_at=job.start_at, name=job.name, comment=job.comment)
            for job in self.jobs_by_id.values() if not job.ended]

    def offers(self) -> list[NodeOffer]:
        return [NodeOffer(node=node, partition=self._partition, default=True, cpus=8, memory_bytes=4 << 30, gres="gpu:1",
                          state="idle" if up else "down", time_limit_s=None) for node, up in self.up.items()]

    def nodes(self, names: str) -> list[NodeSeen]:
        asked = names.split(",")
        return [NodeSeen(name=name, state="IDLE" if up else "DOWN", booted_at=self.booted_at.get(name))
                for name, up in self.up.items() if name in asked]

    def executions(self, job_ids: Collection[str]) -> list[Execution]:
        if self._accounts is None:
            raise NoAccounting("Slurm accounting storage is disabled")
        going_on = [self._execution(job, job.state) for job in self.jobs_by_id.values() if not job.ended]
        return [one for one in (*self._accounts, *going_on) if one.job_id in job_ids]

    def site(self) -> Site:
        return Site(version="22.05.8", cluster="c", accounting=self._accounts is not None, min_job_age_s=self._min_job_age_s)

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        return self.accept(script.read_text(), environment)

    def cancel(self, job_id: str) -> None:
        job = self._find(job_id)
        if job is None or job.ended:
            return
        if job.state == "PENDING":
            self._finalize(job, "CANCELLED")
        elif job.state == "RUNNING":
            self._terminate(job, "CANCELLED", self._kill_wait_s)
        self.tick(self.now)

    def stop(self, job_id: str) -> None:
        """TERM to the batch process alone; what becomes of the job is its own matter."""
        job = self._find(job_id)
        if job is not None and job.state == "RUNNING":
            self.machines.terminate(job, "STOPPED")

    def set_dependency(self, job_id: str, dependency: str) -> None:
        job = self._find(job_id)
        if job is not None and job.state == "PENDING":
            job.dependency = self._known(dependency)
            self.tick(self.now)

    def hold(self, job_id: str) -> None:
        job = self._find(job_id)
        if job is not None and job.state == "PENDING":
            job.held = True

    def release(self, job_id: str) -> None:
        job = self._find(job_id)
        if job is not None and job.state == "PENDING":
            job.held = False
            self.tick(self.now)

    def change(self, job_id: str, *, memory_bytes: int | None = None, time_s: float | None = None,
               nice: int | None = None) -> None:
        job = self._find(job_id)
        if job is None or job.ended:
            return
        if time_s is not None:
            job.time_s = -(-time_s // 60) * 60         # also of one that runs, unlike the others
        if job.state != "PENDING":
            return
        job.memory_mib = job.memory_mib if memory_bytes is None else -(-memory_bytes // 2**20)
        if nice is not None:
            job.nice, job.held = nice, False
        self.tick(self.now)

    def top(self, job_id: str) -> None:
        job = self._find(job_id)
        waiting = [other for other in self.jobs_by_id.values() if other.state == "PENDING"]
        if job in waiting:
            job.nice = min(other.nice for other in waiting) - 1

    def estimate(self, script: str) -> float:
        options = read_options(script)
        self._check(options)
        ends = sorted(job.start_at + job.time_s for job in self.jobs_by_id.values() if job.in_allocation and job.start_at)
        return max(self.now if self._free_node() is not None else ends[0], self._begin_at(options.get("begin", "")))

    # --- submission -----------------------------------------------------------------------------------------------------

    def accept(self, text: str, environment: Mapping[str, str], *, doubled: bool = False) -> str:
        """What sbatch does with a script's text. Raises SubmissionRejected in Slurm's own words."""
        options = read_options(text)
        self._check(options)
        if self.jobs_at_most is not None and sum(not job.ended for job in self.jobs_by_id.values()) >= self.jobs_at_most:
            raise NoRoom("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        self._last_id += 1
        minutes = options.get("time")
        job = Job(
            job_id=self._last_id, name=options.get("job-name", "sbatch"), comment=options.get("comment", ""), script=text,
            environment=dict(environment), submitted_at=self.now, output=options.get("output", ""),
            dependency=self._known(options.get("dependency", "")), begin_at=self._begin_at(options.get("begin", "")),
            nice=int(options.get("nice", 0)), time_s=float(minutes) * 60 if minutes else NEVER,
            gres=options.get("gres", ""), memory_mib=int(options.get("mem", "0").rstrip("M")), held="hold" in options,
            doubled=doubled)
        self.jobs_by_id[job.job_id] = job
        if not doubled:
            self.accepted.append((job.job_id, job.comment))
        self.tick(self.now)
        return str(job.job_id)

    def _check(self, options: Mapping[str, str]) -> None:
        partition = options.get("partition", self._partition)
        if partition != self._partition:
            raise SubmissionRejected(f"sbatch: error: invalid partition specified: {partition}")

    def _begin_at(self, text: str) -> float:
        match = re.fullmatch(r"now\+(\d+)", text)
        return self.now + int(match.group(1)) if match else self.now

    def _known(self, text: str) -> list[str]:
        """The conditions of a dependency, one by one. One on an unknown job is dropped, as Slurm does."""
        conditions = []
        for part in filter(None, text.split(",")):
            kind, _, ids = part.partition(":")
            if kind == "singleton":
                conditions.append(kind)
            conditions += [f"{kind}:{number}" for number in filter(None, ids.split(":")) if int(number) in self.jobs_by_id]
        return conditions

    # --- time -----------------------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """When ``tick`` has something to do by itself."""
        times = [NEVER]
        for job in self.jobs_by_id.values():
            if job.state == "PENDING":
                if job.begin_at > self.now:
                    times.append(job.begin_at)
            elif job.state == "RUNNING" and job.start_at is not None:
                times.append(job.start_at + job.time_s)
                times.append(job.kill_at)
            elif job.state == "COMPLETING":
                times.append(job.kill_at)
        return min(times)

    def tick(self, now: float) -> None:
        """Do what is due at this time."""
        self.now = now
        for job in list(self.jobs_by_id.values()):
            if job.state == "RUNNING" and job.start_at is not None and now >= job.start_at + job.time_s:
                self._terminate(job, "TIMEOUT", self._kill_wait_s)
            if job.in_allocation and now >= job.kill_at:
                self.machines.kill(job)
                self._finalize(job, job.final)
            if job.ended and job.end_at is not None and now > job.end_at + self._min_job_age_s:
                self.jobs_by_id.pop(job.job_id, None)  # an ending in this tick may have forgotten it already
        self._start_what_may()

    def _start_what_may(self) -> None:
        waiting = [job for job in self.jobs_by_id.values() if job.state == "PENDING"]
        for job in sorted(waiting, key=lambda j: (j.nice, j.job_id)):
            if job.held or job.begin_at > self.now:
                continue
            node = self._free_node()
            if node is None:
                return
            job.dependency = [part for part in job.dependency if not self._met(job, part)]
            if job.dependency or job.state != "PENDING":
                continue
            job.state, job.node, job.start_at, job.end_at = "RUNNING", node, self.now, None
            job.final, job.kill_at = "", NEVER
            if job.output and not Path(job.output.replace("%%", "%")).parent.is_dir():
                self._finalize(job, "FAILED")          # 22.05: in silence, 0:53
            else:
                self.machines.begin(job)

    def _met(self, job: Job, part: str) -> bool:
        if part == "singleton":
            return not any(
                other.name == job.name and (other.in_allocation or (other.state == "PENDING" and other.job_id < job.job_id))
                for other in self.jobs_by_id.values() if other is not job)
        other = self.jobs_by_id.get(int(part.partition(":")[2]))
        return other is None or other.ended

    def _free_node(self) -> str | None:
        busy = {job.node for job in self.jobs_by_id.values() if job.in_allocation}
        return next((node for node, up in self.up.items() if up and node not in busy), None)

    # --- what machines, sites and accidents do --------------------------------------------------------------------------

    def exited(self, job: Job, code: int) -> None:
        """The batch process of this job has ended."""
        if self.jobs_by_id.get(job.job_id) is job and job.in_allocation:
            job.final = job.final or ("COMPLETED" if code == 0 else "FAILED")
            if job.epilog_s:
                job.state, job.end_at, job.kill_at = "COMPLETING", self.now, self.now + job.epilog_s
                job.epilog_s = 0.0
            else:
                self._finalize(job, job.final)
            self.tick(self.now)

    def out_of_memory(self, job: Job) -> None:
        if job.state == "RUNNING":
            job.final = "OUT_OF_MEMORY"

    def preempt(self, job: Job, grace_s: float) -> None:
        """TERM to the steps at once, to the whole job when the grace is over."""
        if job.state == "RUNNING" and job.kill_at == NEVER:
            job.final, job.kill_at = "PREEMPTED", self.now + grace_s
            self.machines.terminate(job, "PREEMPTED")

    def node_down(self, node: str) -> list[Job]:
        """The node does not answer: its jobs are NODE_FAIL at once. Whether their processes live is the machines' matter."""
        self.up[node] = False
        lost = [job for job in self.jobs_by_id.values() if job.in_allocation and job.node == node]
        for job in lost:
            self._finalize(job, "NODE_FAIL" if job.state == "RUNNING" else job.final)
        self.tick(self.now)
        return lost

    def node_up(self, node: str) -> None:
        self.up[node] = True
        self.tick(self.now)

    def requeue(self, job: Job) -> None:
        """A site's ``scontrol requeue``, which also revives a job that has ended."""
        ran = job.in_allocation
        if not ran and (not job.ended or job.start_at is None):
            return
        if ran:
            self._account(job, "REQUEUED")
        job.state, job.final, job.node, job.start_at, job.end_at = "PENDING", "", "", None, None
        job.kill_at, job.submitted_at, job.begin_at = NEVER, self.now, self.now + REQUEUE_DELAY_S
        if ran:
            self.machines.kill(job)
        job.restart_count += 1
        self.tick(self.now)

    def lose_state(self, *, ids_again: bool) -> list[Job]:
        """slurmctld's state is gone: every job is forgotten, and ids may be given a second time."""
        lost = list(self.jobs_by_id.values())
        for job in lost:
            if not job.ended:
                self._account(job, "UNKNOWN")          # what slurmctld, started anew, writes off
        self.jobs_by_id.clear()
        if ids_again:
            self._last_id = 0
        return lost

    def forget(self, job: Job) -> None:
        """This one job is no longer known."""
        self.jobs_by_id.pop(job.job_id, None)
        self.tick(self.now)

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _find(self, job_id: str) -> Job | None:
        return self.jobs_by_id.get(int(job_id)) if job_id.isdigit() else None

    def _terminate(self, job: Job, final: str, wait_s: float) -> None:
        job.final, job.state, job.kill_at = final, "COMPLETING", self.now + wait_s
        self.machines.terminate(job, final)

    def _finalize(self, job: Job, state: str) -> None:
        job.state, job.end_at, job.kill_at = state, self.now, NEVER
        self._account(job, state)

    def _account(self, job: Job, state: str) -> None:
        if self._accounts is not None:
            self._accounts.append(replace(self._execution(job, state), end_at=self.now))

    def _execution(self, job: Job, state: str) -> Execution:
        return Execution(job_id=str(job.job_id), state=state, submitted_at=job.submitted_at, start_at=job.start_at,
                         end_at=job.end_at, nodes=job.node)

    def _seen(self, job: Job) -> JobSeen:
        now = (job.state, self._reason(job), job.node, *job.dependency, job.start_at, job.end_at, job.restart_count)
        if job.seen is None or job.seen_as != now:
            job.seen, job.seen_as = self._look(job), now
        return job.seen

    def _look(self, job: Job) -> JobSeen:
        return JobSeen(
            job_id=str(job.job_id), state=job.state, reason=self._reason(job), comment=job.comment, name=job.name,
            nodes=job.node, dependency=",".join(f"{part}(unfulfilled)" for part in job.dependency),
            gres=f"gres/{job.gres}" if job.gres else "", start_at=job.start_at, end_at=job.end_at,
            restart_count=job.restart_count)

    def _reason(self, job: Job) -> str:
        if job.state != "PENDING":
            return ""
        if job.held:
            return "JobHeldUser"
        if job.begin_at > self.now:
            return "BeginTime"
        return "Dependency" if job.dependency else "Resources"


_MARKS = re.compile(r"['\"\\]")


@functools.lru_cache(maxsize=8)
def read_options(script: str) -> dict[str, str]:
    """The ``#SBATCH`` lines of a script, as sbatch reads them."""
    options: dict[str, str] = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            rest = line.removeprefix("#SBATCH ")
            for word in shlex.split(rest) if _MARKS.search(rest) else rest.split():
                name, _, value = word.removeprefix("--").partition("=")
                options[name] = value
    return options
