"""This host's part of the meeting with the job on a compute node (``try_probe``), and what the two found together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from try_files import KINDS, Lock, Seen, exchange, wait_for_file
from try_jobs import Jobs
from try_report import Result, fine, judged, untried, wrong

from orchestrator.errors import StorageError
from orchestrator.host import boot_id

CACHES_S = 65.0         # after so long every cache of an ordinary mount has looked again
LATE_S = 10.0
ONE_MACHINE = "this host and the node are one machine, so nothing between machines was tried"
NO_LOCKS = ("two hosts could write one journal, and an old trainer publish beside a new one: mount it with locks that reach "
            "across hosts (NFS with lockd and without nolock or local_lock, Lustre with -o flock), or use another file "
            "system")


@dataclass
class Met:
    """What this side saw. ``refused``: the node's lock was refused here."""

    refused: bool = False
    got_at: float | None = None        # when the node's lock was handed over
    stamp: float | None = None         # the node's clock at that moment
    seen: Seen | None = None


def meet(folder: Path, held: Lock, jobs: Jobs, waiting: Callable[[], bool]) -> Met:
    """Wait for the node's lock, let go of ours, get the node's, then change files and watch the node's.

    ``waiting()`` is false once it has been waited for long enough; the node tells why it does not come in ``facts.json``.
    """
    lock, met = Lock.open(folder / "lock-node"), Met()
    try:
        while not met.refused:
            if lock.take(0.0):
                lock.release()
                if jobs.over("probe") or not waiting() or _will_not_come(folder):
                    return met
                jobs.look()
                time.sleep(0.2)
            else:
                met.refused = True
        held.release_stamped()
        if lock.take(30.0):
            met.got_at, met.stamp = time.time(), lock.stamp()
            met.seen = exchange(folder / "login", folder / "node", 60.0)
    except StorageError:
        pass                           # said by the check of locks on this host
    finally:
        lock.close()
    return met


def _will_not_come(folder: Path) -> bool:
    facts = _read_facts(folder)
    return bool(facts.get("no_orch") or facts.get("done_at") or facts.get("lock_error"))


def _read_facts(folder: Path) -> dict[str, Any]:
    """As they are now; {} while there are none."""
    try:
        facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    except (OSError, ValueError):
        return {}
    return facts


def facts_of(folder: Path, jobs: Jobs, waiting: Callable[[], bool]) -> dict[str, Any]:
    """What the node noted: all of it, or as much as there is when its job is over and caches have had their time."""
    give_up: float | None = None
    facts: dict[str, Any] = {}
    while "done_at" not in facts and "no_orch" not in facts:
        facts = _read_facts(folder) or facts
        if jobs.over("probe") and give_up is None:
            give_up = time.monotonic() + (CACHES_S if facts else 20.0)
        if (give_up is not None and time.monotonic() > give_up) or not waiting():
            break
        jobs.look()
        time.sleep(0.2)
    return facts


# --- results ----------------------------------------------------------------------------------------------------------

def place_on_node(facts: Mapping[str, Any], exit_code: str, why: str) -> Result:
    """Interpreter, folder and orch on the node; with no facts Slurm's exit code says what was missing."""
    check = "folder, Python and orch on the node"
    missing = {
        "78:0": "the recorded Python does not exist there: install orch on the shared file system",
        "2:0": "this folder is not there under the same name: keep the repository where nodes see it",
        "0:53": "the folder for output is not there under the same name: keep the repository where nodes see it"}
    if not facts and exit_code in missing:
        return wrong(check, f"the job ended with {exit_code}", missing[exit_code])
    if not facts:
        return untried(check, why or f"the job left nothing (exit code {exit_code or 'unknown'})")
    if "no_orch" in facts:
        return wrong(check, facts["no_orch"], "orch itself is not there: install it on the shared file system")
    old = tuple(int(part) for part in facts["python"].split(".")[:2]) < (3, 11)
    found = f"all at the same path; Python {facts['python']}, {facts.get('file_system', 'unknown')}"
    return judged(check, not old, found, "orch needs Python 3.11 or newer on nodes too")


def locks(facts: Mapping[str, Any], met: Met) -> Result:
    check = "locks between this host and the node"
    if facts.get("lock_error"):
        return wrong(check, facts["lock_error"], NO_LOCKS)
    if facts.get("refused") is None:
        return untried(check, "the job did not come so far")
    there, here = facts["refused"], met.refused
    if not (there and here):
        given = " and ".join(["the node"] * (not there) + ["this host"] * (not here))
        return wrong(check, f"a lock that the other side held was given to {given}", NO_LOCKS)
    if met.got_at is None or not facts["met"]:
        return wrong(check, "one that was let go of did not come free on the other side", NO_LOCKS)
    if offset_s(facts, met) is None:
        return wrong(check, "they hold, but what was written under one is not seen by its next holder", NO_LOCKS)
    return fine(check, "held on one side: refused on the other, both ways; let go of: handed over",
                ONE_MACHINE if one_machine(facts) else "")


def one_machine(facts: Mapping[str, Any]) -> bool:
    return facts.get("boot_id") == boot_id()


def offset_s(facts: Mapping[str, Any], met: Met) -> float | None:
    """The node's clock less ours, from two locks handed over in opposite directions; good to some 0.05 s."""
    stamps = (facts.get("got_at"), facts.get("stamp"), met.stamp, met.got_at)
    if any(stamp is None for stamp in stamps):
        return None
    got_there, left_here, left_there, got_here = (float(stamp) for stamp in stamps if stamp is not None)
    return ((got_there - left_here) + (left_there - got_here)) / 2


def clocks(facts: Mapping[str, Any], met: Met) -> Result:
    offset = offset_s(facts, met)
    if offset is None:
        return untried("clocks", "needs a lock that was handed over with a time stamp in it")
    if one_machine(facts):
        return fine("clocks", "the same", ONE_MACHINE)
    return judged("clocks", abs(offset) <= 5, f"the node's is {offset:+.2f} s from this host's", needed=abs(offset) > 30,
                  means="deadlines, heartbeats and exposure are compared across hosts: have both set by NTP")


def caches(facts: Mapping[str, Any], met: Met) -> list[Result]:
    offset = offset_s(facts, met)
    there = Seen(**facts["seen"]) if facts.get("seen") else None
    sides = (("changes made here, seen on the node", there, -1.0), ("changes made on the node, seen here", met.seen, 1.0))
    return [_cache(check, seen, sign * offset, facts) if seen is not None and offset is not None
            else untried(check, "the two sides did not meet") for check, seen, sign in sides]


def _cache(check: str, seen: Seen, correction_s: float, facts: Mapping[str, Any]) -> Result:
    late_s = {kind: late + correction_s for kind, late in seen.late_s.items()}
    missing = [kind for kind in KINDS if kind not in late_s]
    found = ", ".join(f"{kind} {max(0.0, late):.2f} s" for kind, late in late_s.items()) or "nothing"
    found += f"; not within a minute: {', '.join(missing)}" if missing else ""
    if seen.torn:
        return wrong(check, f"{found}; half of a file that was replaced whole was seen {seen.torn} times",
                     "records and checkpoint markers could be read torn: use another file system")
    if seen.gone:
        found += f"; a file that was being replaced was missing for a moment {seen.gone} times (orch reads again)"
    worst_s = max([*late_s.values(), 60.0 if missing else 0.0])
    if worst_s <= LATE_S:
        return fine(check, found, ONE_MACHINE if one_machine(facts) else "")
    return wrong(check, found, needed=bool(missing), means=(
        f"notices for other nodes, new intervals and end records come {worst_s:.0f} s late: make `lead` longer than the "
        f"slowest save and {worst_s:.0f} s, or mount with a smaller actimeo"))


def commands_on_node(facts: Mapping[str, Any]) -> Result:
    if "commands" not in facts:
        return untried("commands on the node", "the job did not come so far", needed=False)
    trouble = [f"{name}: {why}" for name, why in facts["commands"].items() if why]
    found = "; ".join(trouble) or "scontrol and squeue answer, scancel and srun are there"
    return judged("commands on the node", not trouble, found, needed=False, means=(
        "without scontrol a successor knows how its predecessor ended from its record alone; without srun there is no "
        "notice step"))


def step_in_job(facts: Mapping[str, Any], nodes: int) -> Result:
    check = "notice step, and a TERM to it"
    if "step" not in facts:
        return untried(check, "the job did not come so far", needed=False)
    step = facts["step"]
    means = ("a preemption is heard of only when its grace is over, and trainers on other nodes are told by scancel: give "
             "the training one node, or ask for `srun --overlap` inside jobs")
    if step["ready"] < nodes:
        return wrong(check, f"srun --overlap reached {step['ready']} of {nodes} nodes: {step['detail']}", means, needed=False)
    heard = len(step["heard_s"])
    if not step["signalled"] or heard < nodes:
        said = "heard" if step["signalled"] else "scancel --signal was refused there; heard"
        return wrong(check, f"ready on {nodes}; {said} on {heard} of {nodes}", means, needed=False)
    return fine(check, f"ready after {step['ready_s']:.1f} s on {nodes} of {nodes} nodes; `scancel --signal=TERM JOB.STEP` "
                       f"from inside was heard on all, the last after {max(step['heard_s']):.2f} s")


def memory_count(facts: Mapping[str, Any]) -> Result:
    if "cgroup" not in facts:
        return untried("out-of-memory kills", "the job did not come so far", needed=False)
    found = f"cgroup {facts['cgroup']}" if facts["cgroup"] else "the job has no memory cgroup of its own"
    found += ", kills are counted" if facts["oom_readable"] else ", no count of kills"
    return judged("out-of-memory kills", facts["oom_readable"], found, needed=False, means=(
        "a process that was killed for memory may look like a crash, which is repeated with the same memory"))


def gpu(facts: Mapping[str, Any], gres: str) -> Result | None:
    """Only where a GPU was asked for."""
    if "gpu" not in gres:
        return None
    if "device" not in facts:
        return untried("GPU on the node", "the job did not come so far")
    if facts["device_error"]:
        return wrong("GPU on the node", facts["device_error"], "every attempt would be held as a setup failure")
    count = facts["gpus"]
    found = f"visible as {facts['device']}; nvidia-smi shows {count or 'none'}"
    return judged("GPU on the node", bool(count), found, needed=False, means=(
        "orch notes no GPU memory (no NVIDIA driver there, or a nvidia-smi that does not answer)"))


def left_over(folder: Path, facts: Mapping[str, Any]) -> Result:
    """Whether the child that the probe left behind was ended with its job. Asked some time after it."""
    check = "what a job leaves behind"
    if "done_at" not in facts:
        return untried(check, "the job did not come so far", needed=False)
    text = wait_for_file(folder / "stray", 5.0) or ""
    lived_s = float(text) - facts["done_at"] if text.strip() else 0.0
    found = "a child in a session of its own " + (
        "was ended with its job" if lived_s < 8 else f"was alive {lived_s:.0f} s after its job")
    return judged(check, lived_s < 8, found, needed=False, means=(
        "orch's supervisor ends all that it started; what is left where it was killed itself runs on until the next attempt "
        "starts on that node, and can publish nothing"))
