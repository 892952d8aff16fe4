"""Seeing: from folders, upstream journals and one squeue to an ``Observation``. Reads; never writes, never judges."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.attempt_files import newest_epoch, read_heartbeat, read_record, saved_after_notice
from orchestrator.checkpoints import Checkpoint, newest_complete
from orchestrator.control.forgotten import CLOCKS_APART_S, with_accounts
from orchestrator.control.ports import Answers, Ports, Snapshot, known_run
from orchestrator.core.endings import SILENCE_UNTIL_NODE_ASKED_S, SILENCE_UNTIL_VANISHED_S, node_failure
from orchestrator.core.measures import Measured, from_outside, measure
from orchestrator.core.observation import AttemptSeen, Observation
from orchestrator.core.pending import Upstream
from orchestrator.core.recovery import last_unsettled, needs_offers
from orchestrator.core.script import COMMENT_PREFIX, parse_comment, repository_key
from orchestrator.errors import JournalError, SlurmError, StorageError, UnknownTag
from orchestrator.host import nothing_there, supervisor_lives
from orchestrator.model import ENDED_STATES, Canary, Ending, Policy, Run
from orchestrator.records import EndRecord, StartRecord, StoodDown
from orchestrator.sightings import JobSeen
from orchestrator.trainer_control import read_control
from orchestrator.trainer_lines import last_of, read_lines

# C and its kin change with the machine's load; what was measured this many attempts ago says little of today.
MEASURED_ATTEMPTS = 3
Lines = list[dict[str, Any]]


class LinesOf(dict[Path, Lines]):
    """By an attempt's folder; of one observation, so that none is read twice."""

    def __missing__(self, folder: Path) -> Lines:
        self[folder] = lines = read_lines(folder)
        return lines


def observe(ports: Ports, run: Run, snapshot: Snapshot) -> Observation:
    """All that is to be seen of this run now. Another Slurm than the one it was submitted to says nothing of it."""
    repository = ports.repository
    run_dir = folders.run_dir(repository, run.spec.tag)
    checkpoint = newest_complete(folders.checkpoint_dir(run_dir))
    jobs = jobs_of(run, snapshot.jobs)
    numbered, lines_of = _numbered(run_dir / "attempts"), LinesOf()
    attempts, stood_down = _attempts(run_dir, run, checkpoint, jobs, numbered, lines_of)
    seen = Observation(
        asked_at=snapshot.asked_at, silent=snapshot.silent or _other_slurm(ports, run), jobs=jobs,
        attempts=tuple(_doubted(ports, run, run_dir, attempt, jobs, snapshot.answers) for attempt in attempts),
        stood_down=stood_down,
        checkpoint_step=checkpoint.step if checkpoint else None, metrics=read_metrics(run_dir),
        measured=_measured(run, checkpoint, _latest_lines(numbered, lines_of)),
        others=snapshot.platform.others(repository, run.spec.tag, snapshot.asked_at), control=read_control(run_dir),
        lines={number: lines_of[folder] for number, folder in numbered} if run.canary in (Canary.WANTED, Canary.STOPPING)
        else {},
        upstream=upstream_of(repository, run))
    return with_offers(ports, run, with_accounts(ports, run, seen, snapshot), snapshot)


def with_offers(ports: Ports, run: Run, seen: Observation, snapshot: Snapshot) -> Observation:
    """The largest node's memory and how many nodes there are, where an ending makes them matter: rarely, and one sinfo
    for all runs together."""
    if seen.partition_nodes is not None or seen.silent is not None or run.over or not run.attempts:
        return seen
    policy = run.spec.policy(ports.policy)
    if not needs_offers(run, policy, ports.clock()) or _merely_trains(run, policy):
        return seen
    try:
        offers = snapshot.answers.offers(ports.slurm)
    except SlurmError:
        return seen
    wanted = run.spec.profile.partition
    here = [o for o in offers if (o.partition in wanted.split(",") if wanted else o.default)]
    return replace(seen, memory_at_most_bytes=max((o.memory_bytes for o in here), default=0),
                   partition_nodes=len({o.node for o in here}))


def _merely_trains(run: Run, policy: Policy) -> bool:
    """Nothing is to be queued, nothing to be asked for otherwise, and nothing waits from before its last ending."""
    last = last_unsettled(run)
    if run.live is None or len(run.waiting) < policy.successors_ahead or (last and last.ending == Ending.OUT_OF_MEMORY):
        return False
    changed = max((a.ended_sequence or 0 for a in run.attempts), default=0)
    return all(s.sequence > changed for s in run.waiting)


def _numbered(attempts: Path) -> list[tuple[int, Path]]:
    """The attempts' folders, in order."""
    return sorted((int(name), attempts / name) for name in _names(attempts) if name.isdigit())


def _latest_lines(numbered: list[tuple[int, Path]], lines_of: LinesOf) -> list[Lines]:
    """The trainer's lines of the newest attempts that trained, oldest first."""
    found: list[Lines] = []
    for _, folder in reversed(numbered):
        if lines := lines_of[folder]:
            found.append(lines)
        if len(found) == MEASURED_ATTEMPTS:
            break
    return found[::-1]


def _measured(run: Run, checkpoint: Checkpoint | None, lines: list[Lines]) -> Measured:
    """By the trainer's word, and from outside what it does not tell."""
    told = measure(lines)
    if told.step_s is not None or checkpoint is None:
        return told
    seen = from_outside(run.attempts, step=checkpoint.step, saved_at=checkpoint.saved_at, size_bytes=checkpoint.size_bytes)
    return replace(told, size_bytes=told.size_bytes or seen.size_bytes,
                   step_s=seen.step_s if checkpoint.counts_steps else None)


def _other_slurm(ports: Ports, run: Run) -> str | None:
    if run.spec.slurm == ports.slurm_name:
        return None
    system = "the system's slurm.conf"
    theirs, ours = run.spec.slurm or system, ports.slurm_name or system
    return f"submitted with {theirs}, asked with {ours}; set SLURM_CONF, or `slurm: {{conf: ...}}` in orch.yaml"


def jobs_of(run: Run, jobs: tuple[JobSeen, ...]) -> dict[str, JobSeen]:
    """Slurm's jobs of this run by submission id. Identity is the id in the comment; a live job wins over an ended one
    that carries the same id."""
    ours: dict[str, JobSeen] = {}
    begins = f"{COMMENT_PREFIX}{repository_key(run.spec.repository)}:{run.spec.tag}:"
    for job in jobs:
        parsed = parse_comment(job.comment) if job.comment.startswith(begins) else None
        if parsed is None:
            continue
        seen = ours.get(parsed[3])
        if seen is None or seen.state in ENDED_STATES:
            ours[parsed[3]] = job
    return ours


def _doubted(
    ports: Ports, run: Run, run_dir: Path, seen: AttemptSeen, jobs: dict[str, JobSeen], answers: Answers,
) -> AttemptSeen:
    """Slurm calls it running and its heart is silent: this host looks at its own processes; of other hosts, and of several
    nodes, Slurm is asked whether the machines are there. Only then, for it costs a look at /proc or an scontrol."""
    job = jobs.get(seen.start.submission_id)
    signs = [at for at in (seen.start.started_at, seen.heartbeat_at, seen.heard_at) if at is not None]
    silent_s = ports.clock() - max(signs)
    if job is None or job.state != "RUNNING" or silent_s <= SILENCE_UNTIL_VANISHED_S:
        return seen
    if job.start_at is None or job.start_at > max(signs) + CLOCKS_APART_S:
        return seen                    # that is said of a later execution: the site requeued the job
    nothing = nothing_there(run_dir, seen.start) if run.spec.profile.nodes == 1 else ""
    if nothing or silent_s <= SILENCE_UNTIL_NODE_ASKED_S or supervisor_lives(seen.start):
        return replace(seen, nothing_there=nothing)
    try:
        return replace(seen, node_failed=node_failure(answers.nodes(ports.slurm, job.nodes), max(signs)))
    except SlurmError:
        return seen


def _attempts(
    run_dir: Path, run: Run, checkpoint: Checkpoint | None, jobs: dict[str, JobSeen], numbered: list[tuple[int, Path]],
    lines_of: LinesOf,
) -> tuple[tuple[AttemptSeen, ...], tuple[StoodDown, ...]]:
    """The folders of attempts whose ending the journal does not know yet, or of which Slurm says that they run; and of what
    was dropped, while there is a start that the journal does not know: a supervisor that had leave may have slept long."""
    running = {a.number for a in run.attempts if (job := jobs.get(a.submission_id)) is not None and job.state == "RUNNING"}
    settled = {a.number for a in run.attempts if not a.live} - {a.number for a in run.attempts if a.live} - running
    if newest_epoch(run_dir) == max((a.epoch for a in run.attempts), default=0):
        settled |= {s.number for s in run.submissions if s.state == "dropped"} - {a.number for a in run.attempts}
    attempts, stood_down = [], []
    for number, folder in numbered:
        if number in settled:
            continue
        start = read_record(folder / "start.json", StartRecord)
        if start is not None:
            end = read_record(folder / "end.json", EndRecord)
            lines = lines_of[folder]
            began, first = last_of(lines, "start"), last_of(lines, "first_step")
            failed = save_failed(lines)
            saved, spoken = last_of(lines, "saved"), [line["step"] for line in lines if isinstance(line.get("step"), int)]
            attempts.append(AttemptSeen(
                start=start, end=end, heartbeat_at=read_heartbeat(folder) or start.started_at,
                saved_after_notice=saved_after_notice(end.notice_at if end else None, start, checkpoint),
                saved_at=float(saved["t"]) if saved else None,
                has_saved_shared=any(line["event"] == "saved" and line.get("level") != "local" for line in lines),
                save_failed=(failed.get("step"), str(failed.get("error"))) if failed else None,
                last_step=spoken[-1] if spoken else None,
                knows_orch=bool(lines), trainer_at=float(began["t"]) if began else None,
                first_step_at=float(first["t"]) if first else None,
                heard_at=float(lines[-1]["t"]) if lines else None))
        for file in _names(folder):
            if file.startswith("stood-down-"):
                record = read_record(folder / file, StoodDown)
                if record is not None:
                    stood_down.append(record)
    return tuple(attempts), tuple(stood_down)


def save_failed(lines: Lines) -> dict[str, Any] | None:
    """The latest save that failed, unless one of its level has been complete since: one to the node tells nothing of the
    shared folder."""
    latest = {line.get("level"): line for line in lines if line["event"] in ("saved", "save_failed")}
    return last_of(sorted(latest.values(), key=lambda line: float(line["t"])), "save_failed")


def read_metrics(run_dir: Path) -> dict[str, object] | None:
    """What the trainer gave to ``finish()``; None if there is no result."""
    try:
        result = json.loads((run_dir / "result.json").read_text())
        return dict(result.get("metrics") or {})
    except (OSError, ValueError, AttributeError):
        return None


def upstream_of(repository: Path, run: Run) -> tuple[Upstream, ...]:
    """The runs that this one waits for, as their journals tell of them."""
    return tuple(Upstream(tag=tag, condition=condition, run=_readable(repository, tag))
                 for tag, condition in run.spec.after_tags.items())


def _readable(repository: Path, tag: str) -> Run | None:
    try:
        return known_run(repository, tag)[0]
    except (JournalError, StorageError, UnknownTag):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
