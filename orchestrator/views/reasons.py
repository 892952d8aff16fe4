"""Why a job waits: Slurm's words for it, said in a sentence. Pure.

Matched by their first word, since releases and sites add details (``ReqNodeNotAvail, UnavailableNodes:d[001-032]``); what is
not known here is shown as Slurm says it.
"""

from __future__ import annotations

import re

from orchestrator.views.text import one_line

_SENTENCES = {
    "Resources": "waits for free resources",
    "Priority": "other jobs come first",
    "Dependency": "waits for the end of another job",
    "DependencyNeverSatisfied": "waits for what can never happen any more",
    "JobHeldUser": "held in Slurm by its user",
    "JobHeldAdmin": "held in Slurm by an administrator",
    "BeginTime": "its time to begin has not come",
    "JobArrayTaskLimit": "as many of its array run as may",
    "Licenses": "waits for a licence",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Nodes": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "asks for more nodes than its partition allows",
    "PartitionTimeLimit": "asks for more time than its partition allows",
    "BadConstraints": "no node is as it asks for",
    "Prolog": "its node is being prepared",
    "Cleaning": "what it left on its node is being cleared away",
    "SystemFailure": "Slurm or a node failed",
}
_FAMILIES = (
    ("QOS", "a limit of its QOS is reached"), ("Assoc", "a limit of its account is reached"),
    ("Max", "a limit of its account is reached"), ("InvalidAccount", "its account is not valid"),
    ("InvalidQOS", "its QOS is not valid"))


def reason_in_words(reason: str) -> str:
    """``waits for free resources (Resources)``; '' where Slurm gives no reason."""
    shown = one_line(reason, 200)
    word = re.split(r"[^A-Za-z]", shown, maxsplit=1)[0]
    sentence = _SENTENCES.get(word) or next((words for start, words in _FAMILIES if word.startswith(start)), "")
    return f"{sentence} ({shown})" if sentence else shown
