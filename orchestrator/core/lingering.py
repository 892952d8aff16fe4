"""Jobs that do not come to their end: Slurm calls them COMPLETING until the node's epilog is over and none of their processes
is left, and one that hangs on a file system can put that off for hours. Somebody is to know, once; orch can do nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.observation import Observation
from orchestrator.model import Run

# Beyond KillWait, UnkillableStepTimeout (60 s) and an ordinary epilog.
LINGERS_AFTER_S = 300.0


def news(run: Run, seen: Observation, now: float) -> Iterator[dict[str, object]]:
    """Jobs that linger, and those that did and are gone."""
    if seen.silent is not None:
        return
    ending = {submission_id: job for submission_id, job in seen.jobs.items() if job.state == "COMPLETING"}
    known = {one.submission_id for one in run.lingering}
    for one in run.lingering:
        if one.submission_id not in ending:
            yield {"event": "lingers", "submission_id": one.submission_id, "job_id": one.job_id, "over": True}
    for submission_id, job in sorted(ending.items()):
        since = job.end_at
        if submission_id not in known and since is not None and (seen.asked_at or now) - since > LINGERS_AFTER_S:
            yield {"event": "lingers", "submission_id": submission_id, "job_id": job.job_id, "since": since,
                   "nodes": job.nodes}
