"""Jobs as pyslurm knows them, as lines of JSON: a program of its own, started by ``bindings``, that needs pyslurm alone.

    reader.py version              which pyslurm this is, once it has found this Slurm's configuration
    reader.py user [COMMENT...]    the user's jobs in every state whose comment begins with one of these
    reader.py job ID               one job; exit code 1 with Slurm's words where it knows none

It has to be a process: libslurm is set up by the environment when it is imported, ends its process where it finds no
configuration, and waits for slurmctld as long as it likes. The facts are those of the commands' squeue (fields.parse_jobs).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def fields(job: Any) -> dict[str, Any]:
    """What ``model.JobSeen`` holds, by its names."""
    return {
        "job_id": str(job.id), "state": text(job, "state"), "reason": text(job, "state_reason"), "name": text(job, "name"),
        "comment": text(job, "comment"), "nodes": text(job, "allocated_nodes"), "dependency": dependency(job.dependencies),
        "gres": gres(job), "start_at": job.start_time, "end_at": job.end_time, "restart_count": job.requeue_count,
        "exit_code": exit_code(job)}


def exit_code(job: Any) -> str:
    """``CODE:SIGNAL``, "" where it cannot be told: pyslurm takes 128 from codes above, so that 9 may be 137."""
    return "" if job.exit_code else f"0:{job.exit_code_signal}"


def text(job: Any, name: str) -> str:
    """A string of somebody's, which may be in no encoding that we know: then it is not ours."""
    try:
        return getattr(job, name) or ""
    except UnicodeDecodeError:
        return ""


def dependency(conditions: dict[str, Any] | None) -> str:
    """As it is written for sbatch; pyslurm tells no more of ``singleton`` once a job waits for it."""
    if not conditions:
        return ""
    kinds = [f"{kind}:{':'.join(str(job) for job in jobs)}" for kind, jobs in conditions.items()
             if kind.startswith("after") and jobs]
    singleton = ["singleton"] if conditions["singleton"] else []
    return ("?" if conditions["satisfy"] == "any" else ",").join(kinds + singleton)


def gres(job: Any) -> str:
    return ",".join(f"{name}:{count}" for name, count in job.gres_per_node.items())


def read(pyslurm: Any, words: list[str]) -> Any:
    match words:
        case ["version"]:
            return pyslurm.__version__
        case ["job", number]:
            return fields(pyslurm.Job.load(int(number)))
        case ["user", *commented]:
            jobs = (job for job in pyslurm.Jobs.load().values() if job.user_id == os.getuid())
            return [fields(job) for job in jobs if not commented or text(job, "comment").startswith(tuple(commented))]
    raise SystemExit(f"reader.py: {words} is no question")


def main(words: list[str]) -> int:
    try:
        import pyslurm  # found where orch is installed with its extra of that name
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        print(json.dumps(read(pyslurm, words)))
    except pyslurm.RPCError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
