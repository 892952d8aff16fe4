"""The machine under this process: its device, and how much memory is free and used. torch is asked, never imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Tuple

READ_EVERY_S = 10.0
STALE_S = 120.0                     # the supervisor measures every 30 s; an older row says nothing of now
TAIL_BYTES = 512


class Device(NamedTuple):
    name: str                       # "cpu", or the GPU that torch uses
    free_bytes: int | None          # of the host, within what Slurm gave to the job
    gpu_free_bytes: int | None


def find_device(environ: Mapping[str, str]) -> Device:
    """What START shows. The supervisor has checked the device; what torch does not see is said as cpu."""
    free = _quietly(lambda: _free_bytes(environ))
    cuda = _cuda()
    try:
        if cuda is not None and cuda.is_available():
            return Device(str(cuda.get_device_name()), free, int(cuda.mem_get_info()[0]))
    except (RuntimeError, AttributeError, AssertionError):
        pass
    return Device("cpu", free, None)


class Memory:
    """Used bytes of the attempt as the supervisor measures them (memory.csv); where it does not, of this process.

    `read_if_due` is for the watch's thread: the file may lie on a server that hangs. `used` opens nothing there.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._next = 0.0
        self._row: Tuple[float, int | None, int | None] | None = None

    def read_if_due(self, now: float) -> None:
        """`now` is monotonic."""
        if self._path is None or now < self._next:
            return
        self._next = now + READ_EVERY_S
        try:
            self._row = _last_row(self._path)
        except (OSError, ValueError, IndexError):
            pass                                        # not there yet, or its first row is being written

    def used(self, wall: float) -> Tuple[int | None, int | None]:
        """The host's memory and the GPU's; None where nobody knows."""
        row = self._row
        memory, gpu = row[1:] if row is not None and abs(wall - row[0]) < STALE_S else (None, None)
        return (_quietly(_resident_bytes) if memory is None else memory), (_torch_used_bytes() if gpu is None else gpu)


def _last_row(path: Path) -> Tuple[float, int | None, int | None]:
    with open(str(path), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        words = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2].decode().split(",")
    return float(words[0]), _number(words[1]), _number(words[2])


def _number(word: str) -> int | None:
    return int(word) if word else None


def _torch_used_bytes() -> int | None:
    cuda = _cuda()
    try:
        if cuda is None or not cuda.is_initialized():
            return None
        free, total = cuda.mem_get_info()
        return int(total) - int(free)
    except (RuntimeError, AttributeError, AssertionError):
        return None


def _cuda() -> Any:
    return getattr(sys.modules.get("torch"), "cuda", None)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _free_bytes(environ: Mapping[str, str]) -> int:
    limit = environ.get("SLURM_MEM_PER_NODE", "")       # in MiB; 0 is the whole node
    free = _available_bytes()
    return min(free, int(limit) << 20) if limit.isdigit() and int(limit) else free


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no MemAvailable")


def _quietly(read: Callable[[], int]) -> int | None:
    try:
        return read()
    except (OSError, ValueError):
        return None
