"""The checks of ``ops/try-on-your-cluster`` that need no job: commands, settings, this host's view of the file system."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from try_files import Lock, file_system
from try_report import Result, fine, judged, untried, wrong

from orchestrator.attempt.commands import run
from orchestrator.errors import OrchError, SlurmUnreachable, StorageError
from orchestrator.folders import replace_file
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.versions import NEWEST, OLDEST

PASS_EVERY_S = 30.0
SLOW_S = 5.0


def ask_config() -> dict[str, str]:
    """``scontrol show config`` as a dictionary. Raises SlurmUnreachable."""
    code, output, errors = run(["scontrol", "show", "config"], 30.0)
    if code != 0:
        raise SlurmUnreachable(" ".join(errors.split()) or "scontrol show config failed")
    pairs = (re.match(r"(\S+)\s+= (.*)", line) for line in output.splitlines())
    return {pair.group(1): pair.group(2).strip() for pair in pairs if pair}


def ask_partition(name: str) -> dict[str, str]:
    """``scontrol show partition``; empty where it does not answer."""
    code, output, _ = run(["scontrol", "-o", "show", "partition", name], 30.0)
    return dict(word.split("=", 1) for word in output.split() if "=" in word) if code == 0 else {}


def versions(folder: Path, config: Mapping[str, str], nodes: int) -> dict[str, str]:
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.MULTILINE)
    _, magic, _ = run(["stat", "-f", "-c", "%T", str(folder)], 10.0)
    return {"Slurm": config.get("SLURM_VERSION", "unknown"), "Python": platform.python_version(),
            "system": f"{name.group(1) if name else platform.system()}, Linux {platform.release()}",
            "file system of the folder": f"{file_system(folder)} (stat -f: {magic.strip() or 'unknown'})",
            "nodes tried": str(nodes)}


# --- commands ---------------------------------------------------------------------------------------------------------

def commands_answer(slurm: SlurmCommands) -> Result:
    took: dict[str, float] = {}
    for name, ask in (("squeue", slurm.jobs), ("scontrol", ask_config), ("sinfo", slurm.offers)):
        began = time.monotonic()
        try:
            ask()
        except OrchError as error:
            return wrong("commands", f"{name}: {error.message}", "orch cannot ask this Slurm anything")
        took[name] = time.monotonic() - began
    found = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items())
    return judged("commands", max(took.values()) < SLOW_S, found, needed=False, means=(
        "a slow Slurm: orch backs off by itself; set `slurm: {timeout: 60s}` and `daemon: {every: 2m}` in orch.yaml"))


def slurm_version(config: Mapping[str, str]) -> Result:
    text = config.get("SLURM_VERSION", "")
    found = re.match(r"(\d+)\.(\d+)", text)
    if not found:
        return untried("Slurm's version", f"scontrol says {text!r}", needed=False)
    known = OLDEST <= (int(found.group(1)), int(found.group(2))) <= NEWEST
    return judged("Slurm's version", known, text, "orch was tried on 22.05 to 26.05; please send this table", needed=False)


# --- this host's view of the file system -------------------------------------------------------------------------------

def local_lock(folder: Path) -> Result:
    """A lock held by this process is refused to another one, and free again once it is let go of."""
    lock = Lock.open(folder / "lock-here")
    try:
        lock.take(0.0)
        refused = not _child_gets(lock.path)
        lock.release()
        free = _child_gets(lock.path)
    except StorageError as error:
        return wrong("locks on this host", error.message, f"orch refuses such a folder: {error.hint}")
    finally:
        lock.close()
    found = f"held: {'refused' if refused else 'given'} to another process; let go of: {'free' if free else 'kept'}"
    return judged("locks on this host", refused and free, found, (
        "two daemons could write one journal: keep the repository on another file system, or mount this one with locks (NFS "
        "with lockd, Lustre with -o flock)"))


def _child_gets(path: Path) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if Lock.open(path).take(0.0) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def local_writes(folder: Path) -> Result:
    """Hard links that exist once, and files that are replaced whole: what records and markers rest on."""
    first, second, took = folder / "link-a", folder / "link-b", []
    try:
        for number in range(20):
            began = time.monotonic()
            replace_file(first, f"{number}\n")
            took.append(time.monotonic() - began)
        os.link(first, second)
        replace_file(first, "other\n")
        kept = second.read_text() == "19\n" and first.read_text() == "other\n"
        try:
            os.link(first, second)
            kept = False
        except FileExistsError:
            pass
    except OSError as error:
        return wrong("link, rename, fsync", f"{error.strerror}", "attempts are taken by a hard link: use another file system")
    median_s = statistics.median(took)
    if not kept:
        return wrong("link, rename, fsync", "a link did not keep its file, or was made twice",
                     "two jobs could take one attempt: use another file system")
    return judged("link, rename, fsync", median_s < 1.0, f"as POSIX has them; a file is replaced in {median_s * 1000:.0f} ms",
                  "each event of a journal waits for this: raise `daemon: every`", needed=False)


# --- settings: what ``scontrol show config`` and the partition say ------------------------------------------------------

def settings(config: Mapping[str, str], partition: Mapping[str, str]) -> list[Result]:
    return [memory_of_jobs(config), kill_wait(config), preemption(config, partition), tracking(config), unkillable(config),
            limits(config, partition)]


def memory_of_jobs(config: Mapping[str, str]) -> Result:
    age_s = seconds(config.get("MinJobAge", ""))
    accounting = not config.get("AccountingStorageType", "").endswith(("none", "(null)"))
    found = f"MinJobAge {config.get('MinJobAge', 'unknown')}, accounting {'yes' if accounting else 'no'}"
    if age_s is None:
        return untried("how long Slurm remembers", found, needed=False)
    remedy = f"set `daemon: {{every: {age_s / 2:.0f}s}}` or ask for MinJobAge=300" if age_s >= 10 else "ask for MinJobAge=300"
    return judged("how long Slurm remembers", age_s >= 2 * PASS_EVERY_S, found, needed=False, means=(
        f"an ended job may be forgotten before a pass (every {PASS_EVERY_S:.0f} s) looks; its own record tells how it ended, "
        f"unless its supervisor was killed: {remedy}"))


def kill_wait(config: Mapping[str, str]) -> Result:
    wait_s = seconds(config.get("KillWait", ""))
    if wait_s is None:
        return untried("KillWait", config.get("KillWait", "unknown"), needed=False)
    return judged("KillWait", wait_s >= 30, f"{wait_s:.0f} s from SIGTERM to SIGKILL", needed=False, means=(
        f"after a scancel {wait_s:.0f} s are all there is to save; end runs with `orch cancel`, which saves first"))


def preemption(config: Mapping[str, str], partition: Mapping[str, str]) -> Result:
    kind = config.get("PreemptType", "unknown").removeprefix("preempt/")
    mode = partition.get("PreemptMode", config.get("PreemptMode", "unknown")).upper()
    grace_s = seconds(partition.get("GraceTime", "0")) or 0.0
    if kind in ("none", "(null)") or mode == "OFF":
        return fine("preemption", "jobs of this partition are not preempted")
    left_s = grace_s + (seconds(config.get("KillWait", "")) or 0.0)
    found = f"{kind}, PreemptMode={mode}, GraceTime={grace_s:.0f} s" + (" (a QOS may have its own)" if kind == "qos" else "")
    if "SUSPEND" in mode:
        return fine("preemption", found, "a suspended training stands still on its node and is not called hung")
    return judged("preemption", left_s >= 30, found, needed=False, means=(
        f"a preempted training has {left_s:.0f} s (GraceTime and KillWait) to save; where that is too short it goes on from "
        "its checkpoint, and the interval is set by what that costs"))


def tracking(config: Mapping[str, str]) -> Result:
    kind = config.get("ProctrackType", "unknown").removeprefix("proctrack/")
    tasks = config.get("TaskPlugin", "")
    found = f"proctrack {kind}, TaskPlugin {tasks or 'none'}"
    if kind == "pgid":
        return wrong("process tracking", found, "children in sessions of their own outlive their job; orch ends what an "
                     "older attempt left only when the next one starts on the same node", needed=False)
    means = "" if "cgroup" in tasks else "memory limits and GPUs may not be enforced: one job may use another's"
    return fine("process tracking", found, means)


def unkillable(config: Mapping[str, str]) -> Result:
    wait_s = seconds(config.get("UnkillableStepTimeout", ""))
    if wait_s is None:
        return untried("UnkillableStepTimeout", config.get("UnkillableStepTimeout", "unknown"), needed=False)
    return fine("UnkillableStepTimeout", f"{wait_s:.0f} s", "" if wait_s > 120 else (
        f"a node whose job ends while slurmctld is away for longer than {wait_s:.0f} s may be drained by Slurm itself"))


def limits(config: Mapping[str, str], partition: Mapping[str, str]) -> Result:
    of_partition = partition.get("OverTimeLimit", "NONE")
    over = config.get("OverTimeLimit", "0 min") if of_partition == "NONE" else f"{of_partition} min"
    most = config.get("MaxJobCount", "unknown")
    found = f"OverTimeLimit {over}, MaxJobCount {most}"
    if (seconds(most) or 1000) < 1000:
        return wrong("limits", found, "the whole cluster holds few jobs, and successors count: set `successors_ahead: 0` "
                     "where submissions are refused", needed=False)
    return fine("limits", found, "" if seconds(over) == 0 else "a job may outlive its limit; the notice comes before that")


def delays(config: Mapping[str, str]) -> str:
    """Settings that let a successor wait although its place is free, in words; '' if there are none."""
    words = [word for word in config.get("SchedulerParameters", "").split(",") if _delays(word)]
    complete_s = seconds(config.get("CompleteWait", "")) or 0.0
    message_us = seconds(config.get("EpilogMsgTime", "")) or 0.0   # in microseconds
    words += [f"CompleteWait={complete_s:.0f}s"] if complete_s > 0 else []
    words += [f"EpilogMsgTime={message_us:.0f}us"] if message_us > 10_000 else []
    return ", ".join(words)


def _delays(word: str) -> bool:
    name, _, value = word.partition("=")
    above = {"sched_interval": 60, "batch_sched_delay": 3, "bf_interval": 60, "sched_min_interval": 2_000_000}
    return name == "defer" or (name in above and value.isdigit() and int(value) > above[name])


def seconds(text: str) -> float | None:
    """The number at the head of Slurm's ``30 sec``, ``0 min``, ``2000 usec``, or a clock; None if there is none."""
    clock = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if clock:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
    found = re.match(r"(\d+)", text)
    return float(found.group(1)) if found else None
