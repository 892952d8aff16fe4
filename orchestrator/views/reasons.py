"""Why a job waits, in words. Pure; what the reasons mean is core.waiting's."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.waiting import Evidence, Kind, Why, evidence_of, look_up, why
from orchestrator.model import Run, Submission
from orchestrator.sightings import JobSeen
from orchestrator.views.text import one_line


def reason_in_words(reason: str) -> str:
    """``waits for free resources (Resources)``; what is not known as Slurm says it, '' where it gives no reason."""
    found = look_up(reason)
    return _with_reason(found[0].sentence.format(**found[1]) if found is not None else "", reason)


def job_in_words(run: Run, submission: Submission, jobs: Mapping[str, JobSeen]) -> str:
    """What a waiting submission's job waits for, by squeue's word; '' where that has none."""
    evidence = evidence_of(run, submission, jobs)
    return why_in_words(why(evidence), evidence) if evidence is not None else ""


def why_in_words(told: Why, evidence: Evidence) -> str:
    """The sentence, with the reason that it was made from; whether it can never start is said first."""
    never = told.kind is Kind.NEVER and not told.sentence.startswith("can never")
    return ("will never start like this: " if never else "") + _with_reason(told.sentence, evidence.reason)


# Slurm's own sentence, which ours says word by word.
_SAID_ALREADY = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


def _with_reason(sentence: str, reason: str) -> str:
    shown = one_line(reason, 200)
    if sentence and shown.replace("_", " ") == _SAID_ALREADY:
        return sentence
    return f"{sentence} ({shown})" if sentence and shown else sentence or shown


def start_in_words(job: JobSeen, at: str) -> str:
    """Slurm's StartTime of a waiting job: a plan that changes, or the time that it was told to begin after."""
    return f"not before {at}" if job.reason.startswith("BeginTime") else f"about {at} by Slurm's guess"
