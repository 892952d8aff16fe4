"""What this machine offers a cluster: read once, at ``up``."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

from orchestrator.cluster import cgroups
from orchestrator.cluster.spec import Layout, Machine, Tracking
from orchestrator.errors import OrchError
from orchestrator.slurm.versions import Version, version_of

_NEEDED = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol")
_KEPT = ("HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_PORT_FIRST, _PORT_LAST = 20000, 32000      # below the range from which the kernel takes ports for clients


def search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def program(name: str) -> str:
    """Where a program lies; daemons are in sbin, which an ordinary user's PATH lacks."""
    found = shutil.which(name, path=search_path())
    if not found:
        raise not_installed([name])
    return found


def missing_programs() -> list[str]:
    return [name for name in _NEEDED if not shutil.which(name, path=search_path())]


def not_installed(missing: Iterable[str]) -> OrchError:
    return OrchError(
        f"Slurm is not installed here: {', '.join(missing)} not found",
        hint="run ops/slurm/install, or: sudo apt-get install -y slurm-wlm munge",
    )


def clean_environment(conf: Path | None = None) -> dict[str, str]:
    """What daemons and Slurm's commands get: a few names that they need. Nothing of an outer Slurm, and no secrets."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("LC_")}
    kept["PATH"] = search_path()
    return kept | {"SLURM_CONF": str(conf)} if conf else kept


def look_at(layout: Layout) -> Machine:
    """The facts that the configuration is made of."""
    missing = missing_programs()
    if missing:
        raise not_installed(missing)
    confined = cgroups.usable(layout)
    return Machine(
        hostname=socket.gethostname().partition(".")[0],
        user=_user(),
        cpus=os.cpu_count() or 1,
        memory_mib=_memory_mib(),
        gpu_devices=tuple(str(path) for path in _gpu_devices()),
        tracking=Tracking.CGROUP_V1 if confined else Tracking.LINUXPROC,
        swap_limit=confined and cgroups.swap_limit(),
        slurm_version=_slurm_version(),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise OrchError(f"uid {os.getuid()} has no name on this machine, and Slurm asks for one") from None


def _memory_mib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def _gpu_devices() -> list[Path]:
    devices = [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return sorted(devices, key=lambda path: int(path.name.removeprefix("nvidia")))


def _slurm_version() -> Version:
    answer = subprocess.run(
        [program("slurmctld"), "-V"], capture_output=True, text=True, timeout=10, env=clean_environment(), check=False,
    )
    version = version_of(answer.stdout)
    if version is None:
        raise OrchError(f"slurmctld -V says {answer.stdout.strip() or answer.stderr.strip()!r}, which is no version")
    return version


def free_ports(names: list[str], layout: Layout) -> dict[str, int]:
    """A free loopback port for each name; clusters start looking at different places, so that two rarely meet."""
    span = _PORT_LAST - _PORT_FIRST
    first = zlib.crc32(layout.tag.encode()) % span
    candidates = (_PORT_FIRST + (first + step) % span for step in range(span))
    free = (port for port in candidates if is_free(port))
    try:
        return {name: next(free) for name in names}
    except (StopIteration, RuntimeError):
        raise OrchError(f"no free port between {_PORT_FIRST} and {_PORT_LAST} on 127.0.0.1") from None


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
