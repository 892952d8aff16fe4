"""What tests see of a run that a real daemon takes through its attempts."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from repositories import Repository

from orchestrator.cluster import processes
from orchestrator.cluster.processes import Member, Role
from orchestrator.cluster.spec import layout_of


def run_dir(made: Repository, tag: str) -> Path:
    return made.folder / "runs" / tag


def attempt_dir(made: Repository, tag: str, number: int = 1) -> Path:
    return run_dir(made, tag) / "attempts" / f"{number:04d}"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def first_start(made: Repository, tag: str) -> dict[str, Any]:
    return read(attempt_dir(made, tag) / "start.json")


def trained(made: Repository, tag: str) -> bool:
    """Whether its first attempt has a checkpoint and hears of a preemption."""
    return bool(list((run_dir(made, tag) / "checkpoints").glob("step-*/COMPLETE"))) and \
        '"notice_step"' in (attempt_dir(made, tag) / "supervisor.jsonl").read_text()


def go_on(made: Repository, tag: str) -> None:
    """Its trainer need wait no longer."""
    (run_dir(made, tag) / "go").touch()


def successor_of(made: Repository, tag: str) -> str:
    """Its waiting job, once there is one."""
    found: str = made.until(lambda: next((s for s in made.status(tag)["jobs"] if s["state"] == "PENDING"), None),
                            f"the waiting job of {tag}")["job_id"]
    return found


def events(made: Repository, tag: str, name: str, **fields: object) -> list[dict[str, Any]]:
    """Of its journal."""
    return [e for e in made.journal(tag) if e["event"] == name and all(e.get(key) == value for key, value in fields.items())]


def stood_down(made: Repository, tag: str) -> list[str]:
    return [read(path)["reason"] for path in (run_dir(made, tag) / "attempts").glob("*/stood-down-*.json")]


def memory_is_limited(made: Repository) -> bool:
    return "cgroup" in made.slurm.run("scontrol", "show", "config").partition("TaskPlugin ")[2].partition("\n")[0]


def finished(made: Repository, tag: str, steps: int, timeout_s: float = 240, over: tuple[str, ...] = ("finished", "held"),
             torn: bool = False) -> list[dict[str, Any]]:
    """Its attempts, once it is finished; each after the first resumed from what was newest when the one before ended.
    ``torn``: a kill may have come between a checkpoint and the line that tells of it."""
    made.until(lambda: made.status(tag)["state"] in over, f"{tag} to finish", timeout_s)
    run = made.status(tag)
    assert run["state"] == "finished", run
    attempts: list[dict[str, Any]] = run["attempts"]
    assert run["metrics"] == {"state": steps}
    for earlier, later in pairwise(attempts):
        folder = attempt_dir(made, tag, earlier["attempt"])
        lines = [json.loads(line) for line in (folder / "trainer.jsonl").read_text().splitlines()]
        newest = max(line["step"] for line in lines if line["event"] == "saved")
        assert later["resume_step"] == earlier["checkpoint_step"]
        assert later["resume_step"] == newest or (torn and newest < later["resume_step"])
    return attempts


def kill_all_of(made: Repository, job_id: str) -> None:
    """SIGKILL to everything of this job, what watches it for Slurm before it: nobody is left to tell slurmctld."""
    layout = layout_of(made.slurm.folder)
    left = processes.kill_all(
        lambda: [m for m in processes.running(layout) if m.role in (Role.STEP, Role.JOB) and _of(m, job_id)])
    assert left == []


def _of(member: Member, job_id: str) -> bool:
    if member.role is Role.STEP:
        return any(f"[{job_id}." in word for word in member.process.command)
    return member.process.environment.get("SLURM_JOB_ID") == job_id


def processes_of(folder: Path) -> list[bytes]:
    """Command lines of whatever still runs with a run folder below this one in its environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"ORCH_RUN_DIR={folder}/".encode() in Path("/proc", name, "environ").read_bytes():
                found.append(Path("/proc", name, "cmdline").read_bytes())
        except OSError:
            continue                   # ended meanwhile
    return found
