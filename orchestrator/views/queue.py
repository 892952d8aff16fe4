"""``orch queue``: everybody's jobs of this Slurm, in their order. Values in, lines out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from orchestrator.core.line import in_order
from orchestrator.core.script import dependency_jobs, jobs_in_words, parse_comment, repository_key
from orchestrator.sightings import QueuedJob
from orchestrator.views.reasons import reason_in_words
from orchestrator.views.status import View
from orchestrator.views.text import Line, Span, Style, day_and_time, one_line, table

NAME_AT_MOST = 40      # columns of somebody else's job name


def project_of(job: QueuedJob) -> str:
    """``REPOSITORY/TAG`` of a job of orch's, the name of anybody else's."""
    parsed = parse_comment(job.comment)
    if parsed is None:
        return one_line(job.name, NAME_AT_MOST) or "-"
    return f"{re.sub(r'-[0-9a-f]{8}$', '', parsed[0])}/{parsed[1]}"


def queue_lines(jobs: Sequence[QueuedJob], repository: str, view: View) -> list[Line]:
    """A header and a line a job; those of this repository stand out."""
    ours = repository_key(repository)
    header = ("PROJECT", "#", "JOB", "USER", "STATE", "START", "WHY")
    rows: list[tuple[Span, ...]] = [tuple((name, "title") for name in header)]
    partitions = len({job.partition for job in jobs}) > 1
    for job, place in in_order(jobs):
        parsed = parse_comment(job.comment)
        rows.append((
            (project_of(job), "title" if parsed is not None and parsed[0] == ours else ""),
            (str(place) if place is not None else "", ""), (one_line(job.job_id, 20), ""), (one_line(job.user, 16), ""),
            (job.state.lower(), _style(job)), (_start(job, view), "faint" if job.state == "PENDING" else ""),
            (_why(job, view, partitions), "")))
    return table(rows, view.width)


def _style(job: QueuedJob) -> Style:
    return {"RUNNING": "good", "PENDING": "warn"}.get(job.state, "")  # type: ignore[return-value]


def _start(job: QueuedJob, view: View) -> str:
    if job.start_at is None:
        return ""
    return ("~" if job.state == "PENDING" else "") + day_and_time(job.start_at, view.zone, view.now)[:-3]


def _why(job: QueuedJob, view: View, partitions: bool) -> str:
    where = f"{one_line(job.partition, 30)}: " if partitions else ""
    if job.state != "PENDING":
        until = f" until {day_and_time(job.end_at, view.zone, view.now)[:-3]}" if job.end_at is not None else ""
        return f"{where}on {one_line(job.nodes, 100)}{until}"
    behind = jobs_in_words(dependency_jobs(job.dependency))
    return where + (f"behind {behind}" if behind and job.reason == "Dependency" else reason_in_words(job.reason))


def queue_json(jobs: Sequence[QueuedJob]) -> list[dict[str, Any]]:
    """For programs, in the same order."""
    return [
        {"place": place, "job_id": job.job_id, "user": job.user, "partition": job.partition, "state": job.state,
         "priority": job.priority, "reason": job.reason, "nodes": job.nodes, "dependency": job.dependency,
         "start_at": job.start_at, "start_is_a_guess": job.state == "PENDING" and job.start_at is not None,
         "limit_at": job.end_at if job.state != "PENDING" else None, "project": project_of(job), "name": job.name}
        for job, place in in_order(jobs)]
