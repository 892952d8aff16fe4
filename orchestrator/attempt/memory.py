"""Memory of the attempt: what its cgroup counts (v1 and v2), else the sum over its processes; the GPU's by nvidia-smi."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from orchestrator.attempt.processes import descendants, resident_bytes

_JOB_PART = re.compile(r"(?:^|/)job_\d+(?=/|$)")
HEADER = "t,memory_bytes,gpu_memory_bytes\n"


def job_cgroup(membership: str, root: Path = Path("/sys/fs/cgroup")) -> tuple[int, Path] | None:
    """Version and folder of the job's cgroup, from /proc/self/cgroup; None where Slurm made none for it."""
    for line in membership.splitlines():
        number, controllers, path = line.split(":", 2)
        job = _JOB_PART.search(path)
        if not job:
            continue
        below = path[:job.end()].lstrip("/")
        if "memory" in controllers.split(","):
            return 1, root / "memory" / below
        if number == "0" and not controllers:
            base = root if (root / below).exists() else root / "unified"
            if (base / below / "memory.stat").exists():
                return 2, base / below
    return None


def own_cgroup() -> tuple[int, Path] | None:
    try:
        return job_cgroup(Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return None


def used_bytes(cgroup: tuple[int, Path] | None, supervisor: int) -> int:
    """anon + shmem: what counts against the limit and cannot be dropped (page cache can)."""
    if cgroup is not None:
        version, folder = cgroup
        numbers = _numbers(folder / "memory.stat")
        wanted = ("anon", "shmem") if version == 2 else ("total_rss", "total_shmem")
        if wanted[0] in numbers:
            return sum(numbers.get(name, 0) for name in wanted)
    return sum(resident_bytes(process.pid) for process in descendants(supervisor))


class OomKills:
    """How many processes of the job were killed for memory since this was made. To be looked at often: a step's group
    goes with the step."""

    def __init__(self, cgroup: tuple[int, Path] | None) -> None:
        self._cgroup = cgroup
        self._most: dict[str, int] = {}
        self._before = 0
        self._before = self.count()

    def count(self) -> int:
        self._most.update(_oom_kills(self._cgroup))
        return max(0, sum(self._most.values()) - self._before)


def _oom_kills(cgroup: tuple[int, Path] | None) -> dict[str, int]:
    """By group: version 1 counts in the victim's own only."""
    if cgroup is None:
        return {}
    version, folder = cgroup
    if version == 2:
        return {"": _numbers(folder / "memory.events").get("oom_kill", 0)}
    return {place: _numbers(Path(place) / "memory.oom_control").get("oom_kill", 0) for place, _, _ in os.walk(folder)}


def _numbers(path: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {words[0]: int(words[1]) for words in pairs if len(words) == 2}
    except (OSError, ValueError):
        return {}


class GpuQuery:
    """nvidia-smi, asked without waiting: an ill GPU lets it hang, and nobody may hang with it."""

    def __init__(self) -> None:
        self._command = shutil.which("nvidia-smi")
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def begin(self, visible: str) -> None:
        if self._command is None or self._process is not None:
            return
        chosen = ["-i", visible] if re.fullmatch(r"[\w,-]+", visible) else []
        query = [self._command, *chosen, "--query-gpu=name,memory.used,memory.free", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                             stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self._command = None

    def answer(self) -> list[tuple[str, int, int]] | None:
        """Name, used and free bytes of each visible GPU; None while there is no answer."""
        if self._process is None or self._process.poll() is None:
            return None
        output = self._process.stdout.read() if self._process.stdout else ""
        self.end()
        return parse_gpus(output)

    def end(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            if self._process.stdout:
                self._process.stdout.close()
            self._process = None


def parse_gpus(output: str) -> list[tuple[str, int, int]]:
    found = []
    for line in output.splitlines():
        words = [word.strip() for word in line.rsplit(",", 2)]
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            found.append((words[0], int(words[1]) << 20, int(words[2]) << 20))
    return found


def free_memory_bytes() -> int | None:
    available = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return int(available.group(1)) << 10 if available else None
