"""Runs on a compute node as a job of ``ops/try-on-your-cluster``: ``python -I try_probe.py FOLDER/spec.json``.

Submitted by the same script text as orch's attempts, with this file in the supervisor's place. What it finds goes into
``facts.json``, replaced after each part, so that a part that hangs does not take the others along. It leaves one child behind
on purpose, in a session of its own, that ends by itself: Slurm should end it with the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

STEP_READY_S, STEP_HEARD_S, GPU_S, MEET_S = 15.0, 10.0, 10.0, 40.0
STRAY_S = 40

_STRAY = """
import sys, time
began = time.time()
while time.time() < began + float(sys.argv[2]):
    with open(sys.argv[1], "w") as file:
        file.write(f"{time.time():.3f}\\n")
    time.sleep(0.5)
"""


def main(spec_path: str) -> int:
    spec = json.loads(Path(spec_path).read_text())
    sys.path.insert(0, spec["package"])
    sys.path.insert(0, str(Path(__file__).parent))
    folder = Path(spec["folder"])
    facts: dict[str, Any] = {"python": platform.python_version(), "started_at": time.time()}
    try:
        from orchestrator.folders import replace_file
    except ImportError as error:
        (folder / "facts.json").write_text(json.dumps({**facts, "no_orch": str(error)}))
        return 78

    def keep() -> None:
        replace_file(folder / "facts.json", json.dumps(facts))

    facts |= _about_the_node(folder, spec["gres"])
    keep()
    facts["commands"] = _commands()
    keep()
    facts["step"] = _step(folder, int(spec["nodes"]))
    keep()
    facts |= _files(folder)
    facts["done_at"] = time.time()
    keep()
    subprocess.Popen([sys.executable, "-I", "-c", _STRAY, str(folder / "stray"), str(STRAY_S)], start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 0


def _about_the_node(folder: Path, gres: str) -> dict[str, Any]:
    from try_files import file_system

    from orchestrator.attempt import memory
    from orchestrator.attempt.setup import SetupError, check_device
    from orchestrator.host import boot_id

    cgroup = memory.own_cgroup()
    facts: dict[str, Any] = {"boot_id": boot_id(), "file_system": file_system(folder), "device": "", "device_error": ""}
    facts["cgroup"] = f"v{cgroup[0]}" if cgroup else ""
    facts["oom_readable"] = cgroup is not None and _counts_kills(cgroup[1] / (
        "memory.events" if cgroup[0] == 2 else "memory.oom_control"))
    try:
        facts["device"] = check_device(gres, os.environ)
    except SetupError as error:
        facts["device_error"] = str(error)
    facts["gpus"] = len(_gpus()) if "gpu" in gres else None
    return facts


def _counts_kills(path: Path) -> bool:
    try:
        return any(line.startswith("oom_kill ") for line in path.read_text().splitlines())
    except OSError:
        return False


def _gpus() -> list[tuple[str, int, int]]:
    """What nvidia-smi shows within ten seconds."""
    from orchestrator.attempt.memory import GpuQuery

    query, give_up = GpuQuery(), time.monotonic() + GPU_S
    query.begin(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    while query.pid is not None and not query.ended and time.monotonic() < give_up:
        time.sleep(0.1)
    found = query.answer() or []
    query.end()
    return found


def _commands() -> dict[str, str]:
    """Each of the commands that a supervisor may use, and why it is of no use here; '' if it is."""
    from orchestrator.attempt.commands import look_at_job, run, there
    from orchestrator.sightings import JobSeen

    job_id = os.environ["SLURM_JOB_ID"]
    trouble = {name: "" if there(name) else "not installed" for name in ("scontrol", "squeue", "scancel", "srun")}
    if not trouble["scontrol"]:
        seen = look_at_job(job_id)
        trouble["scontrol"] = "" if isinstance(seen, JobSeen) else getattr(seen, "message", "does not know this job")
    if not trouble["squeue"]:
        code, _, errors = run(["squeue", "-s", "-h", "-j", job_id, "-o", "%i %j"], 8.0)
        trouble["squeue"] = "" if code == 0 else errors.strip()[:200] or f"exit {code}"
    return trouble


def _step(folder: Path, nodes: int) -> dict[str, Any]:
    """orch's notice step on every node of this job, and a TERM to it, as Slurm sends one when a preemption begins."""
    from orchestrator.attempt.commands import signal_step
    from orchestrator.attempt.launch import NoticeStep

    step = NoticeStep(folder, 0, os.uname().nodename, "TERM")
    began = time.monotonic()
    ready: list[list[str]] = []
    heard_s: list[float] = []
    signalled = None
    while step.descriptor is not None and len(ready) < nodes and time.monotonic() - began < STEP_READY_S:
        ready += [words for words in step.read() if words[0] == "ready"]
        time.sleep(0.02)
    ready_s = time.monotonic() - began
    if ready:
        signalled_at = time.monotonic()
        signalled = signal_step(f"{os.environ['SLURM_JOB_ID']}.{ready[0][2]}", "TERM")
        while step.descriptor is not None and len(heard_s) < len(ready) and time.monotonic() - signalled_at < STEP_HEARD_S:
            heard_s += [time.monotonic() - signalled_at for words in step.read() if words[0] == "term"]
            time.sleep(0.02)
    step.end()
    if step.process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.process.wait(timeout=10)
    return {"ready": len(ready), "ready_s": ready_s, "signalled": signalled, "heard_s": heard_s,
            "detail": "" if len(ready) >= nodes else step.detail or "its tasks did not report"}


def _files(folder: Path) -> dict[str, Any]:
    """Locks, clocks and caches, together with the other side (``try_across.meet``)."""
    from try_files import Lock, exchange, prepare_marks

    from orchestrator.errors import StorageError
    from orchestrator.folders import fsync_folder

    prepare_marks(folder / "node")
    fsync_folder(folder)
    here, there = Lock.open(folder / "lock-node"), Lock.open(folder / "lock-login")
    facts: dict[str, Any] = {"refused": None, "lock_error": "", "met": False}
    try:
        facts["refused"] = not there.take(0.0)             # the login host has held it since before this job was submitted
        if not facts["refused"] or not here.take(5.0):
            return facts
        facts["met"] = there.take(MEET_S)                  # it lets go once our lock was refused there
        if not facts["met"]:
            return facts
        facts |= {"got_at": time.time(), "stamp": there.stamp()}
        here.release_stamped()
        facts["seen"] = asdict(exchange(folder / "node", folder / "login", 60.0))
    except StorageError as error:
        facts["lock_error"] = error.message
    return facts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
