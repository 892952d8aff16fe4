"""This cluster's own subtree of the cgroup v1 hierarchies: whether it can be had, making it, emptying it.

Cgroup v2 is not used: Slurm 22.05 refuses it beside v1, needs systemd's help for it elsewhere, and names its scope after
the node alone, so that two private clusters would share one.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.cluster.spec import Layout

_ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("freezer", "memory")
_LINKED = (*_NEEDED, "cpuset", "devices", "cpu", "cpuacct")


def usable(layout: Layout) -> bool:
    """Found out by trying: root may make a group in each hierarchy that Slurm needs here."""
    if os.getuid() != 0:
        return False
    try:
        for controller in _NEEDED:
            if not (_ROOT / controller / "cgroup.procs").exists():
                return False
            (_ROOT / controller / layout.tag).mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def swap_limit() -> bool:
    return (_ROOT / "memory" / "memory.memsw.limit_in_bytes").exists()


def make(layout: Layout) -> None:
    """The subtree, and the folder of links that cgroup.conf calls the mount point."""
    layout.cgroup_mount.mkdir(parents=True, exist_ok=True)
    for controller in _LINKED:
        if not (_ROOT / controller / "cgroup.procs").exists():
            continue
        group = _ROOT / controller / layout.tag
        group.mkdir(exist_ok=True)
        if controller == "cpuset":   # a new cpuset is empty and takes no process until it is given some
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group / name).write_text((_ROOT / controller / name).read_text())
        link = layout.cgroup_mount / controller
        link.unlink(missing_ok=True)
        link.symlink_to(group)


def thaw(layout: Layout) -> None:
    """A frozen process does not die of SIGKILL until it is thawed."""
    for folder, _, _ in os.walk(_ROOT / "freezer" / layout.tag):
        state = Path(folder) / "freezer.state"
        if state.exists():
            state.write_text("THAWED")


def remove(layout: Layout) -> None:
    """Take the empty subtree away; a group that still holds a process stays."""
    for controller in _LINKED:
        for folder, _, _ in os.walk(_ROOT / controller / layout.tag, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                continue
