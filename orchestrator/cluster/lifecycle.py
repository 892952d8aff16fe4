"""A private cluster from up to down.

``up`` starts what is missing and nothing else: after a power cut that is everything, with slurmctld's state kept, so that
queued jobs are still queued. Jobs that ran are dead then, and Slurm alone would call them RUNNING until a slurmd registers
for the second time, many minutes later: ``up`` sees that nothing of a node is left, and says so to slurmctld. ``down`` is
an orderly end: the partitions are closed, so that no successor starts; jobs get SIGTERM (but never an srun client, which
would kill its tasks at once), and SIGKILL when the grace is over; Slurm notes how they ended; then slurmctld, the slurmds and
munged end. Jobs are not cancelled, and what was queued is queued at the next up. ``kill`` is the power cut: SIGKILL to
daemons and jobs at once.

Each operation holds the folder's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cluster import cgroups, commands, config, daemons, processes
from orchestrator.cluster.commands import Node
from orchestrator.cluster.daemons import Record
from orchestrator.cluster.machine import free_ports, is_free, look_at
from orchestrator.cluster.processes import Member, Role
from orchestrator.cluster.spec import ClusterSpec, Layout, Machine, Tracking, layout_of, node_names
from orchestrator.errors import Refused, SlurmError, StorageError, TimedOut, UserError

_READY_S = 60.0
_LOCK_S = 120.0
_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """munged, slurmctld, or the slurmd of a node."""

    name: str
    pid: int | None

    @property
    def alive(self) -> bool:
        return self.pid is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Which daemons live and what Slurm says of the nodes."""

    folder: Path
    slurm_conf: Path
    daemons: tuple[Daemon, ...]
    nodes: tuple[Node, ...]

    @property
    def running(self) -> bool:
        return bool(self.daemons) and all(daemon.alive for daemon in self.daemons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What ``up`` leaves behind."""

    spec: ClusterSpec
    slurm_conf: Path
    tracking: Tracking
    started: tuple[str, ...]         # the daemons that this call started; none if all were up

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.slurm_conf)}


def up(spec: ClusterSpec) -> Cluster:
    """Start what is missing of the cluster and wait until every node answers."""
    _check(spec)
    layout = layout_of(spec.folder)
    spec = dataclasses.replace(spec, folder=layout.folder)
    machine = look_at(layout)
    daemons.make_folder(layout)
    with _locked(layout):
        record = Record.read(layout.record)
        if processes.running(layout):
            record = _same(record, spec, layout)
            started = _start_missing(record, layout)
        else:
            record, started = _start_all(spec, machine, layout, record)
    return Cluster(spec=spec, slurm_conf=layout.slurm_conf, tracking=record.tracking, started=tuple(started))


def _check(spec: ClusterSpec) -> None:
    smallest = {"nodes": 1, "gpus": 0, "cpus": 1, "memory_mib": 1, "min_job_age_s": 2, "slurmd_timeout_s": 1}
    for name, least in smallest.items():
        value = getattr(spec, name)
        if value is not None and value < least:
            raise UserError(f"{name} is {value}, and must be at least {least}")


def _same(record: Record | None, spec: ClusterSpec, layout: Layout) -> Record:
    """The record of a cluster of which something runs; its settings cannot change under it."""
    if record is None:
        raise StorageError(f"{layout.folder}: processes of this cluster run, but cluster.json is gone")
    differing = daemons.changed(record.spec, spec)
    if differing:
        raise Refused(
            f"the cluster in {layout.folder} runs with other settings: {'; '.join(differing)}",
            hint="`orch cluster down` first, which ends its running jobs; then once more",
        )
    return record


def _configure(spec: ClusterSpec, machine: Machine, layout: Layout, before: Record | None) -> Record:
    """Write everything anew while nothing runs; the ports are kept where they are still free."""
    names = [config.CONTROLLER, *node_names(spec)]
    ports = before.ports if before else {}
    if set(ports) != set(names) or not all(is_free(port) for port in ports.values()):
        ports = free_ports(names, layout)
    daemons.write_configuration(spec, machine, layout, ports)
    record = Record(spec=spec, ports=ports, tracking=machine.tracking)
    record.write(layout.record)
    return record


def _start_all(
    spec: ClusterSpec, machine: Machine, layout: Layout, before: Record | None,
) -> tuple[Record, list[str]]:
    """With cgroups where they seem usable; without, where Slurm could not use them after all."""
    record = _configure(spec, machine, layout, before)
    try:
        return record, _start_missing(record, layout)
    except SlurmError:
        if machine.tracking is Tracking.LINUXPROC:
            raise
    _kill_all(layout)
    plain = dataclasses.replace(machine, tracking=Tracking.LINUXPROC, swap_limit=False)
    record = _configure(spec, plain, layout, record)
    return record, _start_missing(record, layout)


def _start_missing(record: Record, layout: Layout) -> list[str]:
    """Start the daemons that do not run and wait until every node answers; the names of those started."""
    running = processes.running(layout)
    alive = {(member.role, member.node) for member in running}
    started = []
    if (Role.MUNGED, None) not in alive:
        daemons.start_munged(layout)
        started.append("munged")
    if (Role.CONTROLLER, None) not in alive:
        daemons.start_controller(layout)
        started.append("slurmctld")
    if layout.has_jobs:
        _tell_of_the_dead(layout, _dead_nodes(record, running))
    for name in node_names(record.spec):
        if (Role.NODE, name) not in alive:
            daemons.start_node(layout, name, record.tracking)
            started.append(f"slurmd-{name}")
    _wait_ready(record, layout)
    return started


def _dead_nodes(record: Record, running: list[Member]) -> list[str]:
    """Nodes of which nothing lives, neither slurmd nor a job: after a power cut all. None while one cannot be told apart."""
    alive = {member.node for member in running if member.role in (Role.NODE, Role.STEP, Role.JOB)}
    return [] if None in alive else [name for name in node_names(record.spec) if name not in alive]


def _tell_of_the_dead(layout: Layout, dead: list[str]) -> None:
    """The jobs that slurmctld remembers as running on these nodes have ended with them.

    Said before their slurmds start, so that no job can be hit that has just begun; registering takes the nodes back.
    """
    if not dead:
        return
    if not daemons.until(lambda: bool(commands.ask_nodes(layout)), _READY_S):
        raise daemons.failed(layout, "slurmctld", "does not answer")
    reasons = {node.name: node.reason for node in commands.ask_nodes(layout)}
    for name in commands.nodes_with_jobs(layout):
        if name in dead:
            commands.set_node(layout, name, "down", reasons.get(name) or "its jobs were gone when the node was started")


def _wait_ready(record: Record, layout: Layout) -> None:
    names = node_names(record.spec)
    if daemons.until(lambda: _ready(names, layout) or not _all_alive(names, layout), _READY_S) and _ready(names, layout):
        return
    for title, role, node in _expected(names):
        if not daemons.is_running(layout, role, node):
            raise daemons.failed(layout, title, "ended")
    nodes = commands.ask_nodes(layout)
    if not nodes:
        raise daemons.failed(layout, "slurmctld", "does not answer")
    bad = next(node for node in nodes if not commands.is_ready(node))
    raise daemons.failed(layout, f"slurmd-{bad.name}", f"is not ready ({bad.state} {bad.reason})".replace(" )", ")"))


def _expected(names: list[str]) -> list[tuple[str, Role, str | None]]:
    nodes: list[tuple[str, Role, str | None]] = [(f"slurmd-{name}", Role.NODE, name) for name in names]
    return [("munged", Role.MUNGED, None), ("slurmctld", Role.CONTROLLER, None), *nodes]


def _all_alive(names: list[str], layout: Layout) -> bool:
    alive = {(member.role, member.node) for member in processes.running(layout)}
    return all((role, node) in alive for _, role, node in _expected(names))


def _ready(names: list[str], layout: Layout) -> bool:
    nodes = {node.name: node for node in commands.ask_nodes(layout)}
    return all(name in nodes and commands.is_ready(nodes[name]) for name in names)


def status(folder: Path) -> ClusterStatus:
    """Which daemons live, and what Slurm says of the nodes."""
    layout = layout_of(folder)
    record = _record(layout)
    names = node_names(record.spec)
    pids = {(member.role, member.node): member.process.pid for member in processes.running(layout)}
    found = tuple(Daemon(name=title, pid=pids.get((role, node))) for title, role, node in _expected(names))
    answered = {node.name: node for node in (commands.ask_nodes(layout) if (Role.CONTROLLER, None) in pids else [])}
    nodes = tuple(answered.get(name, Node(name=name, state="unknown")) for name in names)
    return ClusterStatus(folder=layout.folder, slurm_conf=layout.slurm_conf, daemons=found, nodes=nodes)


def down(folder: Path, *, grace_s: float = 10.0) -> int:
    """End the cluster in order and leave its state on disk; the number of processes that there were."""
    layout = layout_of(folder)
    if not layout.folder.exists():
        return 0
    with _locked(layout):
        found = _not_from_inside(layout)
        _end_jobs(layout, grace_s)
        for role in (Role.CONTROLLER, Role.NODE):
            processes.end([member for member in found if member.role is role], timeout_s=10)
        _kill_all(layout, (Role.CONTROLLER, Role.CONTROLLER_HELPER, Role.NODE, Role.STEP, Role.JOB))
        processes.end([member for member in found if member.role is Role.MUNGED], timeout_s=5)
        _kill_all(layout)
        _tidy(layout)
    return len(found)


def _end_jobs(layout: Layout, grace_s: float) -> None:
    """SIGTERM to every process of a job, SIGKILL after the grace, and time for Slurm to note how each job ended."""
    jobs = [member.process for member in processes.running(layout) if member.role is Role.JOB]
    if not jobs:
        return
    # without slurmctld nothing can start and nobody takes the note
    answers = daemons.is_running(layout, Role.CONTROLLER, None)
    if answers:
        commands.close_partitions(layout, config.partition_names(_record(layout).spec))
    for process in jobs:
        if process.name != "srun":
            processes.send(process, signal.SIGTERM)
    processes.wait_gone(jobs, grace_s)
    _kill_all(layout, (Role.JOB,))
    if answers:
        daemons.until(lambda: _settled(layout), _SETTLE_S)


def _settled(layout: Layout) -> bool:
    try:
        return commands.jobs_on_nodes(layout) == 0
    except SlurmError:
        return True


def kill(folder: Path) -> int:
    """The power cut: SIGKILL to every daemon and every process of every job; the number of processes that there were."""
    layout = layout_of(folder)
    with _locked(layout):
        found = _not_from_inside(layout)
        _kill_all(layout)
        _tidy(layout)
    return len(found)


def _not_from_inside(layout: Layout) -> list[Member]:
    found = processes.running(layout)
    if any(member.process.pid == os.getpid() for member in found):
        raise Refused("this command runs inside a job of the very cluster that it would end", hint="run it outside")
    return found


def _kill_all(layout: Layout, roles: tuple[Role, ...] = tuple(Role)) -> None:
    cgroups.thaw(layout)
    left = processes.kill_all(lambda: [member for member in processes.running(layout) if member.role in roles])
    if left:
        pids = ", ".join(f"{member.process.name} {member.process.pid}" for member in left)
        raise TimedOut(f"would not die: {pids}", hint="a process in state D waits for a device or a file server")


def _tidy(layout: Layout) -> None:
    """What lies outside the folder: the empty cgroups and the short link."""
    cgroups.remove(layout)
    if layout.base != layout.folder:
        shutil.rmtree(layout.base.parent, ignore_errors=True)


def start_node(folder: Path, name: str) -> None:
    """Start a node's slurmd and wait until the node answers."""
    layout, record = _node(folder, name)
    with _locked(layout):
        if not daemons.is_running(layout, Role.NODE, name):
            daemons.start_node(layout, name, record.tracking)
        answers = daemons.until(
            lambda: any(node.name == name and not node.state.endswith("*") for node in commands.ask_nodes(layout)), _READY_S,
        )
        if not answers:
            raise daemons.failed(layout, f"slurmd-{name}", "does not answer")


def stop_node(folder: Path, name: str, *, kill_jobs: bool) -> None:
    """SIGKILL a node's slurmd, with ``kill_jobs`` its steps and their processes too, as if the node had lost power."""
    layout, _ = _node(folder, name)
    roles = (Role.NODE, Role.STEP, Role.JOB) if kill_jobs else (Role.NODE,)
    with _locked(layout):
        processes.kill_all(
            lambda: [member for member in processes.running(layout) if member.node == name and member.role in roles],
        )


def set_node(folder: Path, name: str, state: str, reason: str = "set by orch") -> None:
    """scontrol update: state is down, drain, resume, ..."""
    layout, _ = _node(folder, name)
    commands.set_node(layout, name, state, reason)


def stop_controller(folder: Path) -> None:
    """End slurmctld in order; jobs run on."""
    layout = layout_of(folder)
    with _locked(layout):
        chosen = [member for member in processes.running(layout) if member.role is Role.CONTROLLER]
        processes.end(chosen, timeout_s=10)


def start_controller(folder: Path) -> None:
    """Start slurmctld and wait until it answers."""
    layout = layout_of(folder)
    with _locked(layout):
        if not daemons.is_running(layout, Role.CONTROLLER, None):
            daemons.start_controller(layout)
        if not daemons.until(lambda: bool(commands.ask_nodes(layout)), _READY_S):
            raise daemons.failed(layout, "slurmctld", "does not answer")


def slurm_conf(folder: Path) -> Path:
    return layout_of(folder).slurm_conf


def environment(folder: Path) -> dict[str, str]:
    """What to export so that Slurm's commands speak to this cluster."""
    return {"SLURM_CONF": str(slurm_conf(folder))}


def recorded_spec(folder: Path) -> ClusterSpec | None:
    """What the cluster in this folder was last started with."""
    record = Record.read(layout_of(folder).record)
    return record.spec if record else None


def _record(layout: Layout) -> Record:
    record = Record.read(layout.record)
    if record is None:
        raise UserError(f"{layout.folder}: no cluster here", hint="start one: orch cluster up")
    return record


def _node(folder: Path, name: str) -> tuple[Layout, Record]:
    layout = layout_of(folder)
    record = _record(layout)
    if name not in node_names(record.spec):
        raise UserError(f"no node {name} in this cluster: it has {', '.join(node_names(record.spec))}")
    return layout, record


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """One operation at a time on a folder; the kernel drops the lock of a process that dies."""
    with layout.lock.open("a") as file:
        def free() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not daemons.until(free, _LOCK_S):
            raise TimedOut(f"{layout.lock}: another orch works on this cluster")
        yield
