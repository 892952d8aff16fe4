"""What differs between Slurm's releases, 22.05 to 26.05, as far as orch meets it: one table, nowhere else.

Most differences are not asked after at all: what is printed is read by its shape, what changed is avoided. Where a release
has to be known, its commands are asked (``--version``), and ``has`` says what it can do. docs/slurm-versions.md shows this
table; states and flags of jobs have their own (orchestrator/states.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]

OLDEST: Version = (22, 5)
NEWEST: Version = (26, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    name: str
    since: Version
    is_so: str                         # from ``since`` on
    was: str                           # before
    ours: str                          # what orch does
    probed: str = ""                   # how it finds out; "": it need not know


DIFFERENCES = (
    Difference(
        name="exit-code-pair", since=(23, 2),
        is_so="squeue --Format=exit_code prints CODE:SIGNAL", was="the raw wait status",
        ours="both are read (states.exit_code)", probed="by its shape"),
    Difference(
        name="raised-signal", since=(23, 2),
        is_so="a script killed by a signal has the reason RaisedSignal:9(Killed)",
        was="JobLaunchFailure, as if it had not started",
        ours="the exit code is what counts"),
    Difference(
        name="missing-output-folder", since=(23, 2),
        is_so="a missing folder of --output is no failure", was="the job fails at once with 0:53 and without a word",
        ours="the folder is made before sbatch"),
    Difference(
        name="job-end-time", since=(23, 2),
        is_so="jobs have SLURM_JOB_END_TIME", was="they have not",
        ours="the deadline is start + limit, kept by the supervisor"),
    Difference(
        name="rate-limit", since=(23, 2),
        is_so="a site may limit requests (rl_enable); commands wait and try again by themselves", was="no limit",
        ours="one squeue a pass; its refusal counts as silence"),
    Difference(
        name="gres-slash", since=(23, 11),
        is_so="squeue shows a request as gres/gpu:1", was="gres:gpu:1",
        ours="both are read (fields.gres_counts)", probed="by its shape"),
    Difference(
        name="multifactor-by-default", since=(23, 11),
        is_so="PriorityType is priority/multifactor: without weights every job has priority 1, and --nice does nothing",
        was="priority/basic: --nice counts",
        ours="private clusters ask for priority/basic; at a site without weights `queue: finish_first` has no effect"),
    Difference(
        name="reason-none", since=(23, 11),
        is_so="a job that waits for resources may show no reason (seen on 23.11, not on 24.11)", was="Resources",
        ours="nothing rests on a reason; without one none is told"),
    Difference(
        name="bare-stepd", since=(23, 11),
        is_so="slurmstepd's environment cannot be read from outside", was="it shows SLURM_CONF",
        ours="a private cluster knows it by its socket and its cgroup", probed="by what it has"),
    Difference(
        name="cgroup-disabled", since=(24, 5),
        is_so="slurmd wants a cgroup plugin; without cgroups CgroupPlugin=disabled", was="no such value, and no need",
        ours="written to a private cluster's cgroup.conf where there are no cgroups of its own", probed="slurmctld -V"),
    Difference(
        name="nobody-refused", since=(25, 11),
        is_so='SlurmUser=nobody is refused ("Invalid user")', was="a user like any other",
        ours="a private cluster cannot be nobody's"),
    Difference(
        name="expediting", since=(25, 11),
        is_so="EXPEDITING: a requeued job that is to start before all others", was="no such state",
        ours="it waits (orchestrator/states.py)", probed="by the word"),
    Difference(
        name="memory-resize", since=(26, 5),
        is_so="the memory of a running job can be changed, where it has an extern step", was="a refusal: no longer pending",
        ours="`orch update` changes waiting jobs alone; either refusal means that one has just started"),
)


def version_of(text: str) -> Version | None:
    """From ``slurm 24.11.5``, ``slurm-wlm 22.05.8``, ``26.05.0-0rc1``, and pyslurm's ``25.5.0``; None for anything else."""
    match = re.search(r"\b(\d\d)\.(\d\d?)(\.\d+)?\b", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def has(version: Version, name: str) -> bool:
    """Whether this release is one that ``DIFFERENCES`` calls changed."""
    return version >= next(d.since for d in DIFFERENCES if d.name == name)
