"""Values for tests: a run's journal and an observation, each from as few words as the test needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.core.fold import fold
from orchestrator.core.observation import AttemptSeen, Observation
from orchestrator.core.script import comment
from orchestrator.model import Policy, Profile, Run, RunSpec
from orchestrator.records import EndRecord, StartRecord
from orchestrator.sightings import JobSeen

POLICY = Policy(checkpoint_interval_s=1800.0)
SPEC = RunSpec(
    tag="a", repository="/repo", python="/usr/bin/python3",
    profile=Profile(name="p", gres="gpu:1", time_s=3600, lead_s=60), script_sha256="0")


def event(name: str, t: float = 0.0, **context: Any) -> dict[str, Any]:
    return {"event": name, "t": t, **context}


def submit(spec: RunSpec = SPEC, t: float = 0.0) -> dict[str, Any]:
    return event("submit", t, schema=1, spec=asdict(spec))


def queued(number: int, t: float = 0.0, **context: Any) -> list[dict[str, Any]]:
    return [event("queueing", t, submission_id=f"s{number}", number=number, dependency="singleton", **context),
            event("queued", t, submission_id=f"s{number}", job_id=str(100 + number))]


def started(number: int, t: float = 0.0, resume_step: int | None = None) -> dict[str, Any]:
    return event("started", t, number=number, submission_id=f"s{number}", job_id=str(100 + number), restart_count=0,
                 epoch=number, host="n1", started_at=t, resume_step=resume_step)


def ended(number: int, ending: str, t: float = 0.0, **context: Any) -> dict[str, Any]:
    return event("ended", t, epoch=number, number=number, ended_at=t, ending=ending, **context)


def run_of(*events: dict[str, Any] | list[dict[str, Any]], spec: RunSpec = SPEC) -> Run:
    flat = [submit(spec)]
    for item in events:
        flat.extend(item if isinstance(item, list) else [item])
    run = fold(flat)
    assert run is not None
    return run


def job(number: int, state: str, **context: Any) -> JobSeen:
    return JobSeen(job_id=str(100 + number), state=state, comment=comment(SPEC, number, f"s{number}"), **context)


def seen(*jobs: JobSeen, **context: Any) -> Observation:
    return Observation(jobs={j.comment.rpartition(":")[2]: j for j in jobs}, **context)


def start_record(number: int, **context: Any) -> StartRecord:
    values: dict[str, Any] = {
        "number": number, "submission_id": f"s{number}", "job_id": str(100 + number), "restart_count": 0,
        "epoch": number, "host": "n1", "boot_id": "b", "pid": 1, "pid_start": 1, "started_at": 10.0 * number}
    return StartRecord(**{**values, **context})


def end_record(number: int, **context: Any) -> EndRecord:
    values: dict[str, Any] = {
        "number": number, "job_id": str(100 + number), "restart_count": 0, "epoch": number, "ended_at": 10.0 * number + 5}
    return EndRecord(**{**values, **context})


def attempt_seen(number: int, end: EndRecord | None = None, **context: Any) -> AttemptSeen:
    return AttemptSeen(start=start_record(number), end=end, heartbeat_at=10.0 * number, **context)
