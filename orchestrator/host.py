"""This host as /proc tells of it: which boot, which processes, and whether anything of an attempt's start is left here.

The daemon and the supervisor look alike. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from orchestrator.folders import attempt_dir
from orchestrator.records import StartRecord


def boot_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def pid_namespace() -> str:
    """In which namespace a process id means what it means here; another one in a container."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_stat(pid: int) -> tuple[int, int, str, str] | None:
    """Parent, start time, state and name; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return int(fields[1]), int(fields[19]), fields[0], name


def is_alive(pid: int, start: int) -> bool:
    """Whether this very process runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and stat[1] == start and stat[2] not in "ZX"


def start_of(pid: int) -> int:
    stat = read_stat(pid)
    return stat[1] if stat else 0


def environment_of(pid: int) -> dict[str, str]:
    """The environment this process was started with; empty if it may not be read or there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries if b"=" in entry)
    return {key: value for key, _, value in pairs}


# --- what is left of a start ------------------------------------------------------------------------------------------


def supervisor_lives(start: StartRecord) -> bool:
    """Whether it is certain that this start's supervisor is there: it is a process of this very host."""
    here = boot_id()
    return bool(here and start.pid_namespace) and (start.host, start.boot_id, start.pid_namespace) == (
        os.uname().nodename, here, pid_namespace()) and is_alive(start.pid, start.pid_start)


def nothing_there(run_dir: Path, start: StartRecord) -> str:
    """Why it is certain that nothing of this start, or of an older one, is left on its host; '' while it is not certain.

    Only that host itself can be certain: of a supervisor that is stopped or whose machine slept the process is there, and
    another container or another user sees no processes but its own.
    """
    folder = attempt_dir(run_dir, start.number)
    here = boot_id()
    if start.host != os.uname().nodename or not (here and start.boot_id):
        return ""
    if start.boot_id != here:
        return f"{start.host} was started anew since"
    if start.pid_namespace != pid_namespace() or not _sees_processes_of_its_writer(folder / "start.json"):
        return ""
    # twice, since a process in the middle of an exec shows no environment
    if is_alive(start.pid, start.pid_start) or _registered_lives(folder) or any(
            _carries(pid, run_dir, start.epoch) for _ in range(2) for pid in all_pids()):
        return ""
    return f"its supervisor, process {start.pid} on {start.host}, is gone, and so is all that it started"


def _sees_processes_of_its_writer(record: Path) -> bool:
    try:
        return os.getuid() in (0, record.stat().st_uid)
    except OSError:
        return False


def _registered_lives(folder: Path) -> bool:
    """A trainer may have written its own title over its environment."""
    for path in (folder / "trainers").glob("[!.]*.json"):
        try:
            entry = json.loads(path.read_text())
            if entry["host"] == os.uname().nodename and is_alive(int(entry["pid"]), int(entry["pid_start"])):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue                   # as a power cut leaves it
    return False


def _carries(pid: int, run_dir: Path, epoch: int) -> bool:
    environment = environment_of(pid)
    if environment.get("ORCH_RUN_DIR") != str(run_dir):
        return False
    theirs = environment.get("ORCH_EPOCH", "")
    stat = read_stat(pid)
    return (not theirs.isdigit() or int(theirs) <= epoch) and stat is not None and stat[2] not in "ZX"
