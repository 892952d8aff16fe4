"""Text that Slurm's commands print, and what it means. Pure.

Names and comments are anybody's and hold anything, control characters and newlines among them. So every value of a
pass's squeue ends with a mark that is made anew for each call: no value can hold what nobody knew when it was written. The
heading comes first and shows that the answer is one; without it nothing is concluded, least of all that there are no jobs.
Times are asked for as epoch seconds (``SLURM_TIME_FORMAT=%s``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.core.observation import NodeSeen
from orchestrator.errors import SlurmUnreachable
from orchestrator.sightings import Execution, JobSeen, QueuedJob
from orchestrator.slurm.protocol import NodeOffer, Site
from orchestrator.states import exit_code, state_word

UNIT = "\x1f"
# --Format, since --format has neither exit code nor restart count; without a width (":" alone) nothing is cut or filled up
_JOB_FIELDS = ("JobID", "State", "Reason", "StartTime", "EndTime", "NodeList", "Dependency", "tres-per-node", "RestartCnt",
               "exit_code", "Name", "Comment")
_QUEUE_FIELDS = ("JobArrayID", "UserName", "Partition", "State", "PriorityLong", "Reason", "NodeList", "Dependency",
                 "StartTime", "EndTime", "Name", "Comment")
NOTHING = frozenset({"(null)", "N/A", "None", "n/a"})
SINFO_FORMAT = UNIT.join(["%N", "%P", "%c", "%m", "%G", "%T", "%l", "%E"])


def jobs_option(mark: str) -> str:
    """squeue's option for what ``parse_jobs`` reads."""
    return _option(_JOB_FIELDS, mark)


def queue_option(mark: str) -> str:
    """squeue's option for what ``parse_queue`` reads."""
    return _option(_QUEUE_FIELDS, mark)


def _option(fields: tuple[str, ...], mark: str) -> str:
    return "--Format=" + ",".join(f"{field}:{mark}" for field in fields)


def parse_jobs(text: str, mark: str, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
    """Jobs whose comment begins with one of ``commented`` from ``squeue`` with ``jobs_option(mark)``; the others cost next to
    nothing. Raises SlurmUnreachable when that is not what it printed."""
    return [
        JobSeen(job_id=job_id, state=state_word(state), reason=_none(reason), start_at=epoch_s(start), end_at=epoch_s(end),
                nodes=_none(nodes), dependency=_none(dependency), gres=_none(gres), name=name, comment=_none(comment),
                restart_count=int(restarts) if restarts.isdigit() else 0, exit_code=exit_code(code))
        for job_id, state, reason, start, end, nodes, dependency, gres, restarts, code, name, comment
        in _rows(text, mark, len(_JOB_FIELDS), commented)]


def _rows(text: str, mark: str, columns: int, last_begins: tuple[str, ...] = ("",)) -> Iterator[list[str]]:
    """The rows behind the heading whose last value begins with one of these. What a site prints before, between or behind
    them is passed over: a row begins behind the last newline in front of its first value."""
    values = text.split(mark)
    if len(values) <= columns or len(values) % columns != 1 or not values[0].endswith("JOBID"):
        raise SlurmUnreachable(f"squeue printed something else than it was asked for: {text[:200]!r}")
    for first in range(columns, len(values) - columns, columns):
        if values[first + columns - 1].startswith(last_begins):
            row = values[first:first + columns]
            row[0] = row[0].rpartition("\n")[2]
            yield row


def parse_queue(text: str, mark: str) -> list[QueuedJob]:
    """Everybody's jobs from ``squeue`` with ``queue_option(mark)``. Raises SlurmUnreachable as ``parse_jobs`` does."""
    return [
        QueuedJob(job_id=job_id, user=user, partition=partition, state=state_word(state),
                  priority=int(priority) if priority.isdigit() else 0, reason=_none(reason), nodes=_none(nodes),
                  dependency=_none(dependency), start_at=epoch_s(start), end_at=epoch_s(end), name=name,
                  comment=_none(comment))
        for job_id, user, partition, state, priority, reason, nodes, dependency, start, end, name, comment
        in _rows(text, mark, len(_QUEUE_FIELDS))]


def parse_sinfo(text: str) -> list[NodeOffer]:
    """Nodes from ``sinfo --Node --format=SINFO_FORMAT``. The last value is an administrator's and may hold anything."""
    offers = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(UNIT, 7)]
        if len(values) != 8 or not values[2].rstrip("+").isdigit():
            continue
        node, partition, cpus, memory, gres, state, limit, reason = values
        offers.append(NodeOffer(
            node=node, partition=partition.rstrip("*"), default=partition.endswith("*"), cpus=int(cpus.rstrip("+")),
            memory_bytes=int(re.sub(r"\D", "", memory) or 0) * 2**20, gres=_none(gres), state=state.lower(),
            time_limit_s=time_limit_s(limit), reason="" if reason == "none" else _none(reason)))
    return offers


def parse_nodes(text: str) -> list[NodeSeen]:
    """Nodes from ``scontrol --oneliner show node``."""
    nodes = []
    for line in text.splitlines():
        name, state, booted = (re.search(rf"(?:^|\s){key}=(\S+)", line) for key in ("NodeName", "State", "BootTime"))
        if name and state:
            booted_at = epoch_s(booted.group(1)) if booted else None
            nodes.append(NodeSeen(name=name.group(1), state=state.group(1), booted_at=booted_at))
    return nodes


EXECUTION_FIELDS = "JobIDRaw,State,Submit,Start,End,ExitCode,NodeList"


def parse_executions(text: str) -> list[Execution]:
    """From ``sacct --parsable2 --delimiter=UNIT --format=EXECUTION_FIELDS``: nobody writes any of these himself. Lines of
    another shape are a site's. A job that never ran has no start (``None``, ``Unknown``). A cancelled one was cancelled by
    somebody (``CANCELLED by 1000``); without a name, slurmctld had lost its state and wrote off what it did not know."""
    found = []
    for line in text.splitlines():
        values = line.split(UNIT)
        if len(values) != 7 or not values[0].isdigit() or (submitted_at := epoch_s(values[2])) is None:
            continue
        job_id, state, _, start, end, code, nodes = values
        found.append(Execution(
            job_id=job_id, state="UNKNOWN" if state == "CANCELLED" else state_word(state), submitted_at=submitted_at,
            start_at=epoch_s(start), end_at=epoch_s(end), exit_code=exit_code(code),
            nodes="" if nodes == "None assigned" else _none(nodes)))
    return found


def parse_site(text: str) -> Site:
    """From ``scontrol show config``. Raises SlurmUnreachable when that is not what it printed."""
    settings = dict(re.findall(r"^(\w+)\s+= (.*?)\s*$", text, flags=re.MULTILINE))
    age = re.match(r"\d+", settings.get("MinJobAge", ""))
    if not {"SLURM_VERSION", "ClusterName"} <= settings.keys() or age is None:
        raise SlurmUnreachable(f"scontrol show config printed something else than its settings: {text[:200]!r}")
    return Site(version=settings["SLURM_VERSION"], cluster=settings["ClusterName"], min_job_age_s=float(age.group()),
                accounting=settings.get("AccountingStorageType", "").endswith("slurmdbd"))


def parse_submitted(stdout: str) -> tuple[str, str] | None:
    """Job id and cluster, "" for none, from ``sbatch --parsable``: the last line that is ``ID`` or ``ID;CLUSTER``, whatever a
    site prints around it. Where a site's sbatch drops the option, Slurm's sentence."""
    for form in (r"(\d+)(?:;(\S+))?", r"Submitted batch job (\d+)(?: on cluster (\S+))?"):
        for line in reversed(stdout.splitlines()):
            match = re.fullmatch(form, line.strip())
            if match:
                return match.group(1), match.group(2) or ""
    return None


def parse_estimate(text: str) -> float | None:
    """The start from ``sbatch --test-only``: ``Job 17 to start at 1796048430 using 1 processors on nodes n1 ...``."""
    found = re.search(r"\bto start at (\d+)\b", text)
    return float(found.group(1)) if found else None


def gres_counts(text: str) -> dict[str, int]:
    """``gpu:a100:2(S:0-1),shard:4``, ``gres/gpu:1``, ``gres:gpu:1``, ``gpu`` -> count by name, types summed up."""
    counts: dict[str, int] = {}
    for item in re.sub(r"\(.*?\)", "", text).split(","):
        parts = [part for part in re.split(r"[:=]", item.strip().removeprefix("gres/").removeprefix("gres:")) if part]
        if parts and parts[0] not in ("N/A", "(null)"):
            count = int(parts[-1]) if len(parts) > 1 and parts[-1].isdigit() else 1
            counts[parts[0]] = counts.get(parts[0], 0) + count
    return counts


def epoch_s(text: str) -> float | None:
    return (float(text) or None) if text.isascii() and text.isdigit() else None


def time_limit_s(text: str) -> float | None:
    """Slurm's limits: ``infinite``, ``30:00`` (minutes:seconds), ``8:00:00``, ``1-12:00:00``."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _none(text: str) -> str:
    return "" if text in NOTHING else text
