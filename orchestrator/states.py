"""Every state in which Slurm shows a job, 22.05 to 26.05, and what each means for us. One table; a row has a test.

Slurm keeps one base state and any number of flags, and its commands print one word of it: the first flag in the order of the
table's second half, else the base. A word that is not here is a later release's: it is shown as it is and means "unknown",
never an end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class Stage(StrEnum):
    """Where a job stands, as far as its state tells."""

    WAITING = "waiting"
    ALLOCATED = "allocated"            # it has its nodes; whether anything runs there is for the heartbeat to say
    ENDING = "ending"                  # its processes end, or its files move; how it ended is not told yet
    ENDED = "ended"
    UNKNOWN = "unknown"                # no evidence of anything


class Cause(StrEnum):
    """Why an ended job ended, in Slurm's view; the attempt's own record is the first witness (core/endings)."""

    ITSELF = "itself"                  # its exit code tells
    LIMIT = "limit"
    PREEMPTION = "preemption"
    NODE = "node"
    MEMORY = "memory"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class State:
    word: str
    code: str                          # squeue's %t; "": has none
    stage: Stage
    cause: Cause | None = None         # of the ended ones
    flag: bool = False
    since: tuple[int, int] = (22, 5)


STATES = (
    State("PENDING", "PD", Stage.WAITING),
    State("RUNNING", "R", Stage.ALLOCATED),
    State("SUSPENDED", "S", Stage.ALLOCATED),
    State("COMPLETED", "CD", Stage.ENDED, Cause.ITSELF),
    State("CANCELLED", "CA", Stage.ENDED, Cause.PERSON),
    State("FAILED", "F", Stage.ENDED, Cause.ITSELF),
    State("TIMEOUT", "TO", Stage.ENDED, Cause.LIMIT),
    State("NODE_FAIL", "NF", Stage.ENDED, Cause.NODE),
    State("PREEMPTED", "PR", Stage.ENDED, Cause.PREEMPTION),
    State("BOOT_FAIL", "BF", Stage.ENDED, Cause.NODE),
    State("DEADLINE", "DL", Stage.ENDED, Cause.LIMIT),
    State("OUT_OF_MEMORY", "OOM", Stage.ENDED, Cause.MEMORY),
    # flags, in the order in which Slurm looks for them
    State("COMPLETING", "CG", Stage.ENDING, flag=True),
    State("STAGE_OUT", "SO", Stage.ENDING, flag=True),             # a burst buffer is being emptied
    State("CONFIGURING", "CF", Stage.ALLOCATED, flag=True),        # its nodes boot
    State("EXPEDITING", "", Stage.WAITING, flag=True, since=(25, 11)),  # requeued, to be started before all others
    State("RESIZING", "RS", Stage.ALLOCATED, flag=True),
    State("REQUEUED", "RQ", Stage.WAITING, flag=True),
    State("REQUEUE_FED", "RF", Stage.WAITING, flag=True),
    State("REQUEUE_HOLD", "RH", Stage.WAITING, flag=True),
    State("SPECIAL_EXIT", "SE", Stage.WAITING, flag=True),         # requeued and held
    State("STOPPED", "ST", Stage.ALLOCATED, flag=True),            # by SIGSTOP; it keeps its nodes
    State("REVOKED", "RV", Stage.UNKNOWN, flag=True),              # it runs, if it does, on another cluster of a federation
    State("RESV_DEL_HOLD", "RD", Stage.WAITING, flag=True),        # held, since its reservation was deleted
    State("SIGNALING", "SI", Stage.ALLOCATED, flag=True),
    # flags that JSON alone shows, beside a base state
    State("LAUNCH_FAILED", "", Stage.UNKNOWN, flag=True),
    State("UPDATE_DB", "", Stage.UNKNOWN, flag=True),
    State("RECONFIG_FAIL", "", Stage.UNKNOWN, flag=True),
    State("POWER_UP_NODE", "", Stage.ALLOCATED, flag=True),
    State("GETENV_FAILED", "", Stage.UNKNOWN, flag=True, since=(25, 5)),
)
_BY_WORD = {state.word: state for state in STATES}
_BY_CODE = {state.code: state.word for state in STATES if state.code}

WAITING_STATES, ALLOCATED_STATES, ENDING_STATES, ENDED_STATES = (
    frozenset(state.word for state in STATES if state.stage is stage)
    for stage in (Stage.WAITING, Stage.ALLOCATED, Stage.ENDING, Stage.ENDED))


def state_word(text: str) -> str:
    """Slurm's long word, however it was written: ``CANCELLED by 1000``, ``OUT_OF_ME+``, ``CG``, ``running``. What is none of
    Slurm's words stays as it is, in capitals."""
    if text in _BY_WORD:
        return text
    first = (text.split() or [""])[0].upper()
    word = first.rstrip("+")
    if word in _BY_WORD:
        return word
    if word in _BY_CODE:
        return _BY_CODE[word]
    whole = [known for known in _BY_WORD if known.startswith(word)] if first.endswith("+") and word else []
    return whole[0] if len(whole) == 1 else first


def stage_of(state: str) -> Stage:
    known = _BY_WORD.get(state_word(state))
    return known.stage if known is not None else Stage.UNKNOWN


def cause_of(state: str) -> Cause | None:
    """Why an ended job ended; None for one that has not, or of which nobody can say."""
    known = _BY_WORD.get(state_word(state))
    return known.cause if known is not None else None


# --- exit codes -------------------------------------------------------------------------------------------------------

# Numbers above all signals, with which Slurm's own daemons say what happened (a signal's low seven bits are what is left).
_SLURMS_OWN = {125: "killed for memory", 53: "Slurm could not open its files (is the folder of its output there?)"}


@lru_cache(maxsize=256)
def exit_code(text: str) -> str:
    """``CODE:SIGNAL`` from that very form, or from the raw wait status that squeue printed until 22.05; "" for neither."""
    if re.fullmatch(r"[0-9]+:[0-9]+", text):
        return text
    if re.fullmatch(r"[0-9]{1,9}", text):
        status = int(text)
        return f"{status >> 8 & 0xff}:0" if status & 0x7f == 0 else f"0:{status & 0x7f}"
    return ""


def exit_code_words(code: str) -> str:
    """``0:9`` in words, "" when it says nothing: no code, or an exit without error."""
    number, _, signal = code.partition(":")
    if signal.isdigit() and int(signal):
        return _SLURMS_OWN.get(int(signal), f"killed by signal {int(signal)}")
    return f"exit {int(number)}" if number.isdigit() and int(number) else ""
