"""Which processes on this host belong to a cluster, and ending them and no others.

No pid file is ever believed: after a power cut it is stale and its number may be somebody else's. A process belongs to a
cluster by what it carries: this cluster's slurm.conf or munge socket in its command line, this slurm.conf together with
SLURMD_NODENAME in its environment (Slurm gives that to jobs alone, so a shell where a person exported SLURM_CONF does
not count), its cgroup, or its parent. It is signalled by a pidfd, after its start time has been compared.
"""

from __future__ import annotations

import enum
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cluster.spec import Layout

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A living process (no zombie) as /proc shows it."""

    pid: int
    parent: int
    started: int                     # clock ticks since boot; pid and this together name a process for good
    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    cgroups: str
    sockets: tuple[str, ...]         # paths of its unix sockets; read for slurmstepd only


class Role(enum.Enum):
    MUNGED = "munged"
    CONTROLLER = "slurmctld"
    CONTROLLER_HELPER = "slurmscriptd"
    NODE = "slurmd"
    STEP = "slurmstepd"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of this cluster, its part in it, and the node it works for."""

    process: Process
    role: Role
    node: str | None = None


def members(processes: Iterable[Process], layout: Layout) -> list[Member]:
    """The processes that belong to this cluster: by their own evidence, then by their parents. Pure."""
    everyone = sorted(processes, key=lambda process: process.started)
    found: dict[int, Member] = {}
    for process in everyone:
        member = _by_evidence(process, layout)
        if member:
            found[process.pid] = member
    grown = True
    while grown:
        before = len(found)
        for process in everyone:
            if process.pid not in found and process.parent in found:
                found[process.pid] = _child(process, found[process.parent])
        grown = len(found) > before
    return list(found.values())


def _by_evidence(process: Process, layout: Layout) -> Member | None:
    conf = str(layout.slurm_conf)
    program = Path(process.command[0]).name if process.command else ""
    if program == "munged" and f"--socket={layout.munge_socket}" in process.command:
        return Member(process=process, role=Role.MUNGED)
    if program == "slurmctld" and conf in process.command:
        return Member(process=process, role=Role.CONTROLLER)
    if program == "slurmd" and conf in process.command and "-N" in process.command[:-1]:
        return Member(process=process, role=Role.NODE, node=process.command[process.command.index("-N") + 1])
    of_conf = process.environment.get("SLURM_CONF") == conf
    if process.name == "slurmscriptd" and of_conf:
        return Member(process=process, role=Role.CONTROLLER_HELPER)
    confined = f"/{layout.tag}/slurm_" in process.cgroups
    if process.name == "slurmstepd" and (of_conf or confined or _spools_of(process, layout)):
        return Member(process=process, role=Role.STEP, node=_node_of(process, layout))
    if confined or (of_conf and "SLURMD_NODENAME" in process.environment):
        return Member(process=process, role=Role.JOB, node=_node_of(process, layout))
    return None


def _node_of(process: Process, layout: Layout) -> str | None:
    if "SLURMD_NODENAME" in process.environment:
        return process.environment["SLURMD_NODENAME"]
    confined = re.search(rf"/{re.escape(layout.tag)}/slurm_([^/\n]+)", process.cgroups)
    if confined:
        return confined.group(1)
    return next(iter(_spools_of(process, layout)), None)


def _spools_of(process: Process, layout: Layout) -> list[str]:
    """The nodes in whose spool folder it has a socket; from 23.11 on a slurmstepd shows no environment."""
    spools = [Path(path).parent for path in process.sockets]
    return [spool.name for spool in spools if spool.parent == layout.spool("n").parent]


def _child(process: Process, parent: Member) -> Member:
    if parent.role in (Role.CONTROLLER, Role.CONTROLLER_HELPER):
        return Member(process=process, role=Role.CONTROLLER_HELPER)
    role = Role.STEP if process.name == "slurmstepd" else Role.JOB
    return Member(process=process, role=role, node=parent.node)


def running(layout: Layout) -> list[Member]:
    """This cluster's processes now."""
    return members(read_processes(), layout)


def read_processes() -> list[Process]:
    """Every living process of this user; of every user for root."""
    paths = _unix_sockets()
    uid = os.getuid()
    found = []
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        try:
            if uid in (0, (_PROC / name).stat().st_uid):
                found.append(_read_process(int(name), paths))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue                 # ended between being listed and being read, or became another user's
    return [process for process in found if process]


def _read_process(pid: int, socket_paths: dict[str, str]) -> Process | None:
    folder = _PROC / str(pid)
    stat = _stat(pid)
    if stat is None:
        return None
    name, parent, started = stat
    pairs = (part.partition("=") for part in _text(folder / "environ").split("\0"))
    command = tuple(_text(folder / "cmdline").rstrip("\0").split("\0"))
    return Process(
        pid=pid, parent=parent, started=started, name=name, command=command,
        environment={key: value for key, equals, value in pairs if equals},
        cgroups=_text(folder / "cgroup"),
        sockets=_sockets_of(folder, socket_paths) if name == "slurmstepd" else (),
    )


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Name, parent and start time; None for a zombie. The name may hold blanks and parentheses."""
    head, _, tail = _text(_PROC / str(pid) / "stat").rpartition(")")
    fields = tail.split()
    if not fields or fields[0] in "ZX":
        return None
    return head.partition("(")[2], int(fields[1]), int(fields[19])


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except PermissionError:          # a process that hides its environment shows its command line still
        return ""


def _unix_sockets() -> dict[str, str]:
    rows = (line.split() for line in _text(_PROC / "net" / "unix").splitlines()[1:])
    return {f"socket:[{row[6]}]": row[7] for row in rows if len(row) > 7}


def _sockets_of(folder: Path, socket_paths: dict[str, str]) -> tuple[str, ...]:
    paths = []
    for name in os.listdir(folder / "fd"):
        try:
            paths.append(socket_paths.get(os.readlink(folder / "fd" / name)))
        except FileNotFoundError:
            continue                 # closed since: the process itself is still there
    return tuple(path for path in paths if path is not None)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal this very process; False when it is gone, be its pid another's by now."""
    descriptor = _open(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open(process: Process) -> int | None:
    """A pidfd of this very process. Opened first and compared then, so that the pid cannot change hands between."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    try:
        stat = _stat(process.pid)
    except (FileNotFoundError, ProcessLookupError):
        stat = None
    if stat is None or stat[2] != process.started:
        os.close(descriptor)
        return None
    return descriptor


def wait_gone(processes: Iterable[Process], timeout_s: float) -> bool:
    """Whether all of them ended in time. A process that nobody reaps has ended too."""
    end = time.monotonic() + timeout_s
    for process in processes:
        descriptor = _open(process)
        if descriptor is None:
            continue
        try:
            waiter = select.poll()
            waiter.register(descriptor, select.POLLIN)
            if not waiter.poll(max(0.0, end - time.monotonic()) * 1000):
                return False
        finally:
            os.close(descriptor)
    return True


def end(chosen: Iterable[Member], timeout_s: float) -> None:
    """SIGTERM, and SIGKILL to what is left after the timeout."""
    processes = [member.process for member in chosen]
    for process in processes:
        send(process, signal.SIGTERM)
    if not wait_gone(processes, timeout_s):
        for process in processes:
            send(process, signal.SIGKILL)
        wait_gone(processes, 10)


def kill_all(find: Callable[[], list[Member]], rounds: int = 50) -> list[Member]:
    """SIGKILL whatever ``find`` finds, daemons before jobs, until it finds nothing; what would not die is returned."""
    order = list(Role)
    for _ in range(rounds):
        found = sorted(find(), key=lambda member: order.index(member.role))
        if not found:
            return []
        for member in found:
            send(member.process, signal.SIGKILL)
        wait_gone([member.process for member in found], 0.2)
    return find()
