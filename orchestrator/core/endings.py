"""How an attempt ended: a pure function from evidence to an ending, used by the daemon and by the gate alike.

The attempt's own record is the first witness and Slurm's state the second (DESIGN section 6): exit 75 shows as FAILED, a
pipe into tee hides it, a saved limit never shows as TIMEOUT. None means "not ended, or not to be told yet".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.core.observation import NodeSeen
from orchestrator.model import ENDED_STATES, EXIT_CONTINUE, EXIT_SETUP, Ending
from orchestrator.records import EndRecord
from orchestrator.sightings import JobGone, JobSeen, JobSighting

# Exit codes with which programs say that they were called wrongly: argparse's 2, sysexits' 78, the shell's 126 and 127.
_CALLED_WRONGLY = frozenset({2, EXIT_SETUP, 126, 127})

# Without an end record and unknown to Slurm, an attempt whose heart has not beaten for this long has vanished (the
# supervisor beats every 30 s).
SILENCE_UNTIL_VANISHED_S = 90.0
# Of another host only Slurm can tell whether it is still there; it is asked when the heart has been silent for this long.
SILENCE_UNTIL_NODE_ASKED_S = 300.0

# Of a program that ignored its notice: the next attempts would end in the same way.
_DEAF = "; the program had not stopped when Slurm killed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that bears on how one attempt ended."""

    job: JobSighting
    end: EndRecord | None = None
    heartbeat_age_s: float | None = None
    checkpoint_step: int | None = None
    saved_after_notice: bool = False   # as seen now: a save may complete after the provisional record was written
    cancel_requested: bool = False     # the journal has a cancel
    nothing_there: str = ""            # why it is certain that nothing of the attempt is left, whatever Slurm says
    node_failed: str = ""              # what Slurm says of a node of it that is down, or was rebooted since its last beat


@dataclass(frozen=True, slots=True)
class Verdict:
    """An ending and, in a few words, what it was read from."""

    ending: Ending
    reason: str


def classify(evidence: Evidence) -> Verdict | None:
    """How the attempt ended; None while it has not, or while nobody can say."""
    end = evidence.end
    if end is not None and not end.provisional and not _waits_for_slurm(evidence, end):
        return _from_end_record(evidence, end)
    state = evidence.job.state if isinstance(evidence.job, JobSeen) else None
    if state is not None:
        return _from_slurm(evidence, state) if state in ENDED_STATES else _lost(evidence)
    if isinstance(evidence.job, JobGone):
        return _forgotten(evidence)
    return None


def in_doubt(evidence: Evidence) -> bool:
    """Whether it would matter what Slurm said of a job that it has forgotten: then accounting is asked, and only then."""
    told = (classify(replace(evidence, job=JobSeen(job_id="", state=state))) for state in sorted(ENDED_STATES))
    return len({verdict.ending for verdict in told if verdict is not None}) > 1


def _waits_for_slurm(evidence: Evidence, end: EndRecord) -> bool:
    """A stop signal came and nobody said why: scancel, a preemption and an administrator look alike until Slurm calls the
    job ended."""
    if end.notice != "signal" or evidence.cancel_requested or isinstance(evidence.job, JobGone):
        return False
    if isinstance(evidence.job, JobSeen) and _lost(evidence) is not None:
        return False                   # what Slurm says is not so, and it will say nothing else
    return not (isinstance(evidence.job, JobSeen) and evidence.job.state in ENDED_STATES)


def _from_end_record(evidence: Evidence, end: EndRecord) -> Verdict:
    state = evidence.job.state if isinstance(evidence.job, JobSeen) else ""
    code = _code_words(end)
    if end.hung:
        return Verdict(Ending.HUNG, end.detail or "no heartbeat within its limit")
    if end.setup_error:
        return Verdict(Ending.SETUP_FAILURE, end.setup_error)
    if end.exit_code == 0 and (end.trainer == "finished" or end.finished_file):
        return Verdict(Ending.FINISHED, "")
    if end.oom_kills > 0 or state == "OUT_OF_MEMORY":
        return Verdict(Ending.OUT_OF_MEMORY, f"{max(end.oom_kills, 1)} process(es) killed for memory")
    if end.notice is not None:
        return _after_notice(evidence, end, state)
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return Verdict(Ending.NODE_FAILURE, f"Slurm: {state}")
    if end.exit_code in (0, EXIT_CONTINUE) and end.trainer == "stopped":  # 0 under torchrun, which restarts what has another
        if evidence.cancel_requested:  # the trainer read control.json before its supervisor did
            return Verdict(Ending.CANCELLED, "the trainer stopped when it was asked to")
        return Verdict(Ending.LIMIT_SAVED, "the trainer stopped by itself, to be continued")
    if end.exit_code == 0:
        return Verdict(Ending.NO_RESULT, _no_result(end))
    never_began = end.first_step_at is None if end.knows_orch else end.exit_code in _CALLED_WRONGLY
    if end.signal is None and never_began:
        return Verdict(Ending.SETUP_FAILURE, f"{code} before the first step")
    return Verdict(Ending.CRASH, code)


def _after_notice(evidence: Evidence, end: EndRecord, state: str) -> Verdict:
    saved = end.saved_after_notice or evidence.saved_after_notice
    words = "saved after the notice" if saved else "no checkpoint after the notice"
    if end.provisional and state and not saved:
        words += _DEAF
    if evidence.cancel_requested or end.notice == "cancel" or state == "CANCELLED":
        return Verdict(Ending.CANCELLED, words)
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return Verdict(Ending.NODE_FAILURE, f"Slurm: {state}")
    if end.notice == "limit" or state in ("TIMEOUT", "DEADLINE"):
        return Verdict(Ending.LIMIT_SAVED if saved else Ending.LIMIT_UNSAVED, words)
    # "preempt", or a stop signal whose sender nobody knows: announced, so treated like a preemption
    return Verdict(Ending.PREEMPTED_SAVED if saved else Ending.PREEMPTED_UNSAVED, words)


def _from_slurm(evidence: Evidence, state: str) -> Verdict:
    """The job has ended and left no final record: killed without warning, or at the end of its grace."""
    end = evidence.end
    saved = evidence.saved_after_notice
    deaf = end is not None and end.notice is not None and state in ("TIMEOUT", "DEADLINE", "PREEMPTED")
    words = f"Slurm: {state}" + (", saved after the notice" if saved else _DEAF if deaf else "")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return Verdict(Ending.NODE_FAILURE, words)
    if state == "OUT_OF_MEMORY":
        return Verdict(Ending.OUT_OF_MEMORY, words)
    if state in ("TIMEOUT", "DEADLINE"):
        return Verdict(Ending.LIMIT_SAVED if saved else Ending.LIMIT_UNSAVED, words)
    if state == "PREEMPTED":
        return Verdict(Ending.PREEMPTED_SAVED if saved else Ending.PREEMPTED_UNSAVED, words)
    if state in ("CANCELLED", "REVOKED") or evidence.cancel_requested:
        return Verdict(Ending.CANCELLED, words)
    if end is not None and end.notice is not None:
        return _after_notice(evidence, end, state)
    return Verdict(Ending.CRASH, f"{words}, its supervisor was killed")


def _forgotten(evidence: Evidence) -> Verdict | None:
    """Slurm answered and no longer knows the job, and there is no final record."""
    end = evidence.end
    if not _silent_for(evidence, SILENCE_UNTIL_VANISHED_S):
        return None
    if evidence.cancel_requested:
        return Verdict(Ending.CANCELLED, "gone after a cancel")
    if end is not None and end.notice in ("limit", "preempt", "cancel"):
        return _after_notice(evidence, end, "")
    why = evidence.nothing_there or "Slurm does not know the job"
    return Verdict(Ending.VANISHED, f"no end record, no heartbeat, and {why}")


def _lost(evidence: Evidence) -> Verdict | None:
    """Slurm calls the job running and is wrong: it can go on so for half an hour after a power cut, with the allocation held.
    An ending only where it is certain, or where Slurm itself says so of the node."""
    saved = evidence.saved_after_notice and evidence.end is not None and evidence.end.notice in ("limit", "preempt")
    if evidence.nothing_there and _silent_for(evidence, SILENCE_UNTIL_VANISHED_S):
        if evidence.cancel_requested:
            return Verdict(Ending.CANCELLED, f"gone after a cancel: {evidence.nothing_there}")
        if saved and evidence.end is not None:
            return _after_notice(evidence, evidence.end, "")
        return Verdict(Ending.VANISHED, f"Slurm goes on calling its job running, and {evidence.nothing_there}")
    if evidence.node_failed and _silent_for(evidence, SILENCE_UNTIL_NODE_ASKED_S):
        return Verdict(Ending.NODE_FAILURE, evidence.node_failed)
    return None


def _silent_for(evidence: Evidence, seconds: float) -> bool:
    return evidence.heartbeat_age_s is None or evidence.heartbeat_age_s > seconds


def node_failure(nodes: Iterable[NodeSeen], last_beat_at: float) -> str:
    """Which of an attempt's nodes cannot be running it any more, and why; '' while all of them may. One that does not respond
    may: its slurmd or the network hangs."""
    for node in nodes:
        words = set(re.split(r"[^A-Z_]+", node.state.upper()))
        if "DOWN" in words:
            return f"no heartbeat, and Slurm: {node.name} is down"
        if node.booted_at is not None and node.booted_at > last_beat_at:
            return f"no heartbeat, and Slurm: {node.name} was rebooted since"
    return ""


def _no_result(end: EndRecord) -> str:
    if end.knows_orch:
        return "exit 0, and training.finish() was not called"
    return "exit 0, and neither training.finish() nor a `finished_when` file newer than the attempt's start"


def _code_words(end: EndRecord) -> str:
    if end.signal is not None:
        return f"killed by signal {end.signal}"
    return f"exit {end.exit_code}"
