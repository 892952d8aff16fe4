"""The programs of job steps on this host: srun's tasks are slurmstepd's children, not ours, and known by their environment.

``scancel --signal`` to a step would reach data-loader workers too, and first; so each task's program is signalled by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.attempt.processes import Process, describe
from orchestrator.attempt.target import choose
from orchestrator.host import all_pids, environment_of, read_stat


def step_programs(folder: Path, epoch: int) -> list[Process]:
    """One program for each task of this attempt's steps on this host."""
    wanted = {"ORCH_ATTEMPT_DIR": str(folder), "ORCH_EPOCH": str(epoch)}
    tasks = [describe(process) for process in (_of_step(pid, wanted) for pid in all_pids()) if process is not None]
    pids = {process.pid for process in tasks}
    found = []
    for root in (process.pid for process in tasks if process.parent not in pids):
        found += choose(tasks, {root})
    return found


def _of_step(pid: int, wanted: dict[str, str]) -> Process | None:
    """This process, if it is of this attempt and runs in a step. The notice step's own have no ORCH_ variables."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
    except OSError:
        return None
    environment = environment_of(pid)
    if not environment.get("SLURM_STEP_ID", "").isdigit() or any(environment.get(k) != v for k, v in wanted.items()):
        return None
    stat = read_stat(pid)
    return None if stat is None or stat[2] in "ZX" else Process(pid, stat[0], stat[1], stat[3])
