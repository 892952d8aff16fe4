"""The order in which Slurm considers jobs, from everybody's queue, and what comes before one job. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.core.waiting import Kind, look_up
from orchestrator.sightings import QueuedJob

# What waits for something other than its turn has no place in the order.
_IN_LINE = frozenset({Kind.TURN, Kind.SITE, Kind.PASSING, Kind.UNKNOWN})


def in_order(jobs: Sequence[QueuedJob]) -> list[tuple[QueuedJob, int | None]]:
    """Running ones first, by their start; then those that wait, in the order in which Slurm considers them, with their place
    in it (within their partition); then those that wait for something else."""
    running = sorted((job for job in jobs if job.state != "PENDING"), key=lambda job: (job.start_at or 0.0, _number(job)))
    waiting = sorted((job for job in jobs if job.state == "PENDING"),
                     key=lambda job: (0, -job.priority, _number(job)) if _in_line(job) else (1, 0, _number(job)))
    places: dict[str, int] = {}
    found: list[tuple[QueuedJob, int | None]] = [(job, None) for job in running]
    for job in waiting:
        if _in_line(job):
            places[job.partition] = places.get(job.partition, 0) + 1
        found.append((job, places[job.partition] if _in_line(job) else None))
    return found


def ahead_of(job_id: str, jobs: Sequence[QueuedJob]) -> int | None:
    """How many waiting jobs of its partitions Slurm considers before this one; None if it has no place in the order."""
    ours = next((job for job in jobs if job.job_id == job_id), None)
    if ours is None or ours.state != "PENDING" or not _in_line(ours):
        return None
    partitions = set(ours.partition.split(","))
    order = [job for job, place in in_order(jobs) if place is not None]
    return sum(not partitions.isdisjoint(job.partition.split(",")) for job in order[:order.index(ours)])


def _in_line(job: QueuedJob) -> bool:
    found = look_up(job.reason)
    return job.priority > 0 and (found[0].kind if found is not None else Kind.UNKNOWN) in _IN_LINE


def _number(job: QueuedJob) -> tuple[int, str]:
    digits = re.match(r"\d*", job.job_id)
    return int(digits[0]) if digits and digits[0] else 0, job.job_id
