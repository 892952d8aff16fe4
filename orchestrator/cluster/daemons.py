"""Writing a cluster's folder and starting its daemons, one at a time.

Owns the folder's secrets: it is 0700 and this user's. Daemons put themselves into the background and are then found by
``processes``. What they say before their log files are open goes to log/NAME.out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cluster import cgroups, config, processes
from orchestrator.cluster.machine import clean_environment, program
from orchestrator.cluster.processes import Role
from orchestrator.cluster.spec import ClusterSpec, Layout, Machine, Tracking, gpus_by_node, node_names
from orchestrator.errors import SlurmError, StorageError

pause = threading.Event().wait
_START_S = 20.0
_LOG_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What cluster.json keeps: what was asked for, and the ports, which stay while a single process of it lives."""

    spec: ClusterSpec
    ports: dict[str, int]
    tracking: Tracking

    def write(self, path: Path) -> None:
        text = json.dumps(
            {"spec": self.spec.to_json(), "ports": self.ports, "tracking": self.tracking.value}, indent=2,
        )
        replace(path, text + "\n")

    @classmethod
    def read(cls, path: Path) -> Record | None:
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            return cls(
                spec=ClusterSpec.from_json(fields["spec"]),
                ports=fields["ports"],
                tracking=Tracking(fields["tracking"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StorageError(f"{path}: cannot be read ({error})", hint="remove the folder and start anew") from error


def replace(path: Path, text: str) -> None:
    """Temp, fsync, rename: readers see the old text or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def make_folder(layout: Layout) -> None:
    """The folder, its parts and, where its own path does not suit Slurm, the short link to it."""
    try:
        layout.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _own(layout.folder)
        if layout.base != layout.folder:
            layout.base.parent.mkdir(mode=0o700, exist_ok=True)
            _own(layout.base.parent)
            layout.base.unlink(missing_ok=True)
            layout.base.symlink_to(layout.folder)
        for name in ("etc", "munge", "state", "spool", "log", "run"):
            (layout.folder / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{layout.folder}: cannot hold a cluster ({error.strerror})") from error


def _own(folder: Path) -> None:
    """Ours and closed to others; a folder that somebody else put there is refused."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise StorageError(f"{folder}: belongs to another user or is no folder", hint="choose another --folder")
    folder.chmod(0o700)


def write_configuration(spec: ClusterSpec, machine: Machine, layout: Layout, ports: dict[str, int]) -> None:
    """etc/*.conf, the munge key, the declared GPUs and the cgroup links."""
    replace(layout.slurm_conf, config.slurm_conf_text(spec, machine, layout, ports))
    replace(layout.gres_conf, config.gres_conf_text(spec, machine, layout))
    replace(layout.cgroup_conf, config.cgroup_conf_text(machine, layout))
    if not layout.munge_key.exists():
        layout.munge_key.touch(mode=0o600)
    if layout.munge_key.stat().st_size == 0:
        layout.munge_key.write_bytes(secrets.token_bytes(128))
    layout.declared_gpus.mkdir(exist_ok=True)
    for device in {device for devices in gpus_by_node(spec, machine, layout).values() for device in devices}:
        link = Path(device)
        if link.parent == layout.declared_gpus and not link.is_symlink():
            link.symlink_to("/dev/null")
    for name in node_names(spec):
        layout.spool(name).mkdir(parents=True, exist_ok=True)


def start_munged(layout: Layout) -> None:
    folder = layout.base / "munge"
    _start(layout, "munged", Role.MUNGED, None, [
        program("munged"), "--force", f"--key-file={layout.munge_key}", f"--socket={layout.munge_socket}",
        f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={layout.logs}/munged.log",
    ])
    if not until(layout.munge_socket.is_socket, _START_S):
        raise failed(layout, "munged", "made no socket")


def start_controller(layout: Layout) -> None:
    _start(layout, "slurmctld", Role.CONTROLLER, None, [program("slurmctld"), "-f", str(layout.slurm_conf)])


def start_node(layout: Layout, name: str, tracking: Tracking) -> None:
    if tracking is Tracking.CGROUP_V1:
        cgroups.make(layout)
    command = [program("slurmd"), "-f", str(layout.slurm_conf), "-N", name]
    _start(layout, f"slurmd-{name}", Role.NODE, name, command)


def _start(layout: Layout, title: str, role: Role, node: str | None, command: list[str]) -> None:
    output = layout.logs / f"{title}.out"
    with output.open("wb") as log:
        try:
            code = subprocess.run(
                command, env=clean_environment(layout.slurm_conf), cwd=layout.base, umask=0o022,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_START_S, start_new_session=True, check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise failed(layout, title, f"did not start within {_START_S:.0f} s") from None
    if code != 0:
        raise failed(layout, title, f"ended with {code}")
    if not until(lambda: is_running(layout, role, node), 2):
        raise failed(layout, title, "ended at once")


def is_running(layout: Layout, role: Role, node: str | None) -> bool:
    return any(member.role is role and member.node == node for member in processes.running(layout))


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time; asked twenty times a second."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        pause(0.05)
    return True


def failed(layout: Layout, title: str, what: str) -> SlurmError:
    """The daemon's own last words: what it said when it was started, else the end of its log; errors if there are any."""
    shown: list[str] = []
    for path in (layout.logs / f"{title}.out", layout.logs / f"{title}.log"):
        shown = shown or (_last_words(path.read_text(errors="replace")) if path.exists() else [])
    log = f"its log is {layout.logs}/{title}.log"
    return SlurmError("\n".join([f"{title} {what}" + (":" if shown else ""), *shown]), hint=log)


def _last_words(text: str) -> list[str]:
    """Every start complains of MPI plugins that are not installed, which ails nobody."""
    lines = [line for line in text.splitlines() if "mpi" not in line.lower()]
    telling = [line for line in lines if "error" in line.lower() or "fatal" in line]
    return (telling or lines)[-_LOG_LINES:]


def changed(old: ClusterSpec, new: ClusterSpec) -> list[str]:
    """The settings in which two specs differ, in words."""
    return [
        f"{field.name} {_setting(getattr(old, field.name))}, not {_setting(getattr(new, field.name))}"
        for field in dataclasses.fields(ClusterSpec)
        if field.name != "folder" and getattr(old, field.name) != getattr(new, field.name)
    ]


def _setting(value: object) -> str:
    """None: as the machine has it."""
    return "as found" if value is None else str(value)
