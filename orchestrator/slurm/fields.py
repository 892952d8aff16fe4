"""Text that Slurm's commands print, and what it means. Pure.

Fields are separated by control characters that no sane value holds; hostile ones (names and comments are anybody's) come
last, so that a row stays readable whatever they contain. Times are asked for as epoch seconds (``SLURM_TIME_FORMAT=%s``).
"""

from __future__ import annotations

import re

from orchestrator.model import JobSeen
from orchestrator.slurm.protocol import NodeOffer

RECORD, UNIT = "\x1e", "\x1f"
SQUEUE_FORMAT = RECORD + UNIT.join(["%A", "%T", "%r", "%S", "%e", "%N", "%E", "%b", "%j", "%k"])
SINFO_FORMAT = UNIT.join(["%N", "%P", "%c", "%m", "%G", "%T", "%l"])


def parse_squeue(text: str) -> list[JobSeen]:
    """Jobs from ``squeue --format=SQUEUE_FORMAT``; rows that are not of that form (a site's banner) are passed over."""
    jobs = []
    for record in text.split(RECORD)[1:]:
        values = record.rstrip("\n").split(UNIT)
        if len(values) < 10 or not values[0].strip().isdigit():
            continue
        job_id, state, reason, start, end, nodes, dependency, gres, name = (value.strip() for value in values[:9])
        comment = UNIT.join(values[9:]).strip()
        jobs.append(JobSeen(
            job_id=job_id, state=state.upper(), reason=_none(reason), start_at=epoch_s(start), end_at=epoch_s(end),
            nodes=_none(nodes), dependency=_none(dependency), gres=_none(gres), name=name, comment=_none(comment)))
    return jobs


def parse_sinfo(text: str) -> list[NodeOffer]:
    """Nodes from ``sinfo --Node --format=SINFO_FORMAT``."""
    offers = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(UNIT)]
        if len(values) != 7 or not values[2].rstrip("+").isdigit():
            continue
        node, partition, cpus, memory, gres, state, limit = values
        offers.append(NodeOffer(
            node=node, partition=partition.rstrip("*"), default=partition.endswith("*"), cpus=int(cpus.rstrip("+")),
            memory_bytes=int(re.sub(r"\D", "", memory) or 0) * 2**20, gres=_none(gres), state=state.lower(),
            time_limit_s=time_limit_s(limit)))
    return offers


def parse_job_id(stdout: str) -> str | None:
    """The id from ``sbatch --parsable``: the last line that is ``ID`` or ``ID;CLUSTER``, whatever a site prints before."""
    for line in reversed(stdout.splitlines()):
        match = re.fullmatch(r"(\d+)(;\S+)?", line.strip())
        if match:
            return match.group(1)
    return None


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
    return float(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def time_limit_s(text: str) -> float | None:
    """Slurm's limits: ``infinite``, ``30:00`` (minutes:seconds), ``8:00:00``, ``1-12:00:00``."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _none(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None", "n/a") else text
