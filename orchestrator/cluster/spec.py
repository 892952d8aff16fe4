"""What a private cluster is: what was asked for, what this machine offers, and where everything lies.

Pure but for ``layout_of``, which makes a path absolute, and ``Layout.has_jobs``, which looks for a file.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Slurm opens unix sockets below its spool folder (spool/n1/n1_1234567.4294967291) and the kernel cuts their paths at 108
_BASE_LENGTH_MAX = 60
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/+@~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What was asked for. Counts are per node; None means what this machine has."""

    folder: Path
    nodes: int = 1
    gpus: int | None = None          # None: the NVIDIA GPUs found here; more than those are declared only
    cpus: int | None = None
    memory_mib: int | None = None
    min_job_age_s: int = 300         # Slurm forgets an ended job after this
    slurmd_timeout_s: int = 60       # a silent node is down after this
    kill_wait_s: int = 30            # SIGTERM to SIGKILL at a limit or a cancel
    preemption: bool = False         # adds the partitions low (cancelled with 20 s of grace) and high
    extra_conf: str = ""             # lines appended to slurm.conf

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ClusterSpec:
        return cls(**{**fields, "folder": Path(fields["folder"])})


class Tracking(enum.Enum):
    """How Slurm keeps hold of a job's processes. Never by process group: that loses children in sessions of their own."""

    CGROUP_V1 = "cgroup/v1"          # memory limits are enforced too
    LINUXPROC = "linuxproc"          # by parentage; memory is counted by nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine offers, found once at ``up``."""

    hostname: str
    user: str
    cpus: int
    memory_mib: int
    gpu_devices: tuple[str, ...]
    tracking: Tracking
    swap_limit: bool                 # the kernel can limit swap as well as memory
    slurm_version: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything lies. Slurm is told ``base``: the folder, or a short link to it where its path is long or odd."""

    folder: Path
    base: Path
    tag: str                         # names this cluster where a name is shared with others, as in the cgroup tree

    @property
    def slurm_conf(self) -> Path:
        return self.base / "etc" / "slurm.conf"

    @property
    def gres_conf(self) -> Path:
        return self.base / "etc" / "gres.conf"

    @property
    def cgroup_conf(self) -> Path:
        return self.base / "etc" / "cgroup.conf"

    @property
    def munge_key(self) -> Path:
        return self.base / "munge" / "key"

    @property
    def munge_socket(self) -> Path:
        return self.base / "munge" / "socket"

    @property
    def logs(self) -> Path:
        return self.base / "log"

    @property
    def declared_gpus(self) -> Path:
        return self.base / "etc" / "gpus"

    @property
    def cgroup_mount(self) -> Path:
        return self.base / "etc" / "cgroup"

    @property
    def record(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def has_jobs(self) -> bool:
        """Whether a slurmctld has kept its queue here before."""
        return (self.folder / "state" / "job_state").exists()

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def spool(self, node: str) -> Path:
        return self.base / "spool" / node


def layout_of(folder: Path) -> Layout:
    """The layout of a folder; the same one for every caller, whatever its environment.

    The short link lies in /tmp and not in XDG_RUNTIME_DIR: that is emptied when its user logs out, and unset in cron.
    """
    folder = Path(os.path.realpath(folder))
    tag = f"orch-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]}"
    plain = len(os.fsencode(folder)) <= _BASE_LENGTH_MAX and _PLAIN_PATH.fullmatch(str(folder))
    base = folder if plain else Path("/tmp") / tag / "c"
    return Layout(folder=folder, base=base, tag=tag)


def node_names(spec: ClusterSpec) -> list[str]:
    return [f"n{number}" for number in range(1, spec.nodes + 1)]


def gpus_by_node(spec: ClusterSpec, machine: Machine, layout: Layout) -> dict[str, list[str]]:
    """The device files of each node: real GPUs dealt out one by one, each to one node; the rest declared only.

    A declared GPU is a link to /dev/null of its own, since Slurm refuses the same file twice.
    """
    names = node_names(spec)
    dealt = {
        name: list(machine.gpu_devices[position :: spec.nodes]) for position, name in enumerate(names)
    }
    if spec.gpus is None:
        return dealt
    for name, devices in dealt.items():
        del devices[spec.gpus :]
        devices += [str(layout.declared_gpus / f"gpu{i}") for i in range(len(devices), spec.gpus)]
        dealt[name] = devices
    return dealt
