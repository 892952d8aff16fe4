"""Why a job waits, and what helps: Slurm's reason and what else is known -> kind, sentence, command. Pure.

The reasons are squeue's codes (job_state_reason.c, job_reason_codes.html) and slurmctld's own sentences, 22.05 to 26.05.
squeue shows the sentence where slurmctld has one, scontrol the same with ``_`` for each blank, and both may add details:
``ReqNodeNotAvail, UnavailableNodes:d[001-032]``. So a reason is matched from its beginning. What is not in the table is
shown as Slurm says it: a later release's, or a site's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from orchestrator.core.pending import waits_for
from orchestrator.core.script import dependency_jobs, jobs_in_words
from orchestrator.model import After, Run, Submission
from orchestrator.sightings import JobSeen
from orchestrator.states import ENDED_STATES, ENDING_STATES, WAITING_STATES, exit_code_words
from orchestrator.units import format_clock, format_duration


class Kind(StrEnum):
    """What it takes until the job starts."""

    TURN = "turn"                      # nothing: others are before it, or what it needs is in use
    LIMIT = "limit"                    # other jobs under the same limit must end first
    LATER = "later"                    # a time must come
    BEHIND = "behind"                  # other jobs must end
    HELD = "held"                      # somebody must release it
    SITE = "site"                      # the site must mend or allow something
    NEVER = "never"                    # as it is asked for it cannot start
    PASSING = "passing"                # seconds
    ENDED = "ended"                    # nothing: it is not waiting
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one job. Only ``reason`` and ``state`` cost nothing; the rest is asked for where a person asks."""

    reason: str                        # squeue's or scontrol's form
    state: str = "PENDING"
    exit_code: str = ""                # CODE:SIGNAL
    tag: str = "TAG"
    job_id: str = "JOB"
    now: float = 0.0
    not_before: float | None = None    # Slurm's StartTime
    time_s: float | None = None        # its time limit
    time_at_most_s: float | None = None   # the partition's limit
    cannot: str = ""                   # why no node can ever hold it
    out: str = ""                      # nodes of its partition that take no jobs, and why
    ahead: int | None = None           # jobs of its partition that come first
    own_running: int | None = None     # its user's jobs that run
    behind: tuple[tuple[str, str, float | None], ...] = ()   # jobs that it waits for: id, state, end
    awaited: Mapping[str, After] = field(default_factory=dict)  # runs that it waits for
    awaited_jobs: tuple[str, ...] = ()                       # those of `behind` that `--after` names
    held_by_orch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """``sentence`` says what the job does or lacks ("waits for free resources"), ``helps`` names a command, or is ''."""

    kind: Kind
    sentence: str
    helps: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Reasons that begin like this. ``{what}`` and ``{whose}`` are the groups of the same name, in words."""

    begins: str                        # a regular expression
    kind: Kind
    sentence: str
    helps: str = ""


_ASK = "the site's administrators can tell more"
_SHORTER = "`orch update {tag} --time LIMIT`: a shorter limit may fit in earlier, and orch continues across limits by itself"
_LESS_TIME = "`orch update {tag} --time LIMIT` asks for less; orch continues across limits by itself"
_LESS_MEMORY = "`orch update {tag} --memory SIZE` asks for less"
_LESS = "ask for less in orch.yaml's profile; then `orch cancel {tag}` and `orch submit {tag} --again`"
_PROFILE = "name another in orch.yaml's profile; then `orch cancel {tag}` and `orch submit {tag} --again`"
_LET_GO = "`scontrol release {job_id}`"
_JOBS = "{whose} has as many jobs as it may have"
_USED_UP = "whoever manages {whose} can grant more; where usage decays it frees up by itself"

TABLE = (
    # slurmctld's own sentences, which stand in place of a code
    Row("ReqNodeNotAvail, Reserved for maintenance", Kind.LATER,
        "does not fit in before a maintenance of the nodes", _SHORTER),
    Row("ReqNodeNotAvail, May be reserved", Kind.LATER, "nodes that it needs may be reserved for another job", _SHORTER),
    Row("ReqNodeNotAvail, UnavailableNodes", Kind.SITE, "nodes that it needs are down, drained or do not answer",
        "`sinfo -R` says why"),
    Row("ReqNodeNotAvail", Kind.SITE, "nodes that it needs are in use, reserved, down or drained", "`sinfo -R` says why"),
    Row("Nodes required for job are DOWN", Kind.SITE,
        "nodes that it needs are down, drained or reserved for jobs of partitions that come first",
        "`sinfo -R` says what is down or drained, `orch queue` what comes first"),
    Row("Reservation .* was deleted", Kind.HELD, "its reservation was deleted; Slurm holds it for that", _LET_GO),
    Row("Reservation .* is invalid", Kind.HELD, "its reservation is not valid any more; Slurm holds it for that", _LET_GO),
    Row("launch failed requeued held", Kind.HELD,
        "its node could not start it (a prolog failed?), and Slurm holds it for that", f"`sinfo -R` says why; {_LET_GO}"),
    Row("launch failure limit exceeded requeued held", Kind.HELD,
        "nodes could not start it several times, and Slurm holds it for that", f"`sinfo -R` says why; {_LET_GO}"),
    Row("user env retrieval failed requeued held", Kind.HELD,
        "its user's environment could not be had on the node, and Slurm holds it for that", _LET_GO),
    Row("job requeued in (held state|special exit state)", Kind.HELD, "was put back into the queue and held", _LET_GO),
    Row("uid \\d+ not in group permitted", Kind.NEVER, "its user's groups may not use this partition", _PROFILE),
    Row("Job is at or exceeds", Kind.ENDED, "was ended by a limit on what its account or QOS may use"),
    Row("Reservation .* has ended", Kind.ENDED, "was ended with its reservation"),
    # codes
    Row("Resources", Kind.TURN, "waits for free resources", _SHORTER),
    Row("Priority", Kind.TURN, "other jobs come first", _SHORTER),
    Row("SchedDefer", Kind.PASSING, "waits for the scheduler, which looks at all jobs together"),
    Row("Constraints", Kind.TURN, "no node that is as it asks for is free"),
    Row("Dependency", Kind.BEHIND, "waits for the end of another job"),
    Row("DependencyNeverSatisfied", Kind.NEVER, "waits for what can never happen any more",
        "the next pass of `orch daemon` or `orch tick` points it to what it should wait for"),
    Row("JobHeldUser", Kind.HELD, "held in Slurm by its user", _LET_GO),
    Row("JobHeldAdmin", Kind.HELD, "held in Slurm by an administrator", "only the site's administrators can release it"),
    Row("JobHoldMaxRequeue", Kind.HELD, "was put back into the queue too often, and Slurm holds it for that", _LET_GO),
    Row("BeginTime", Kind.LATER, "its time to begin has not come"),
    Row("DeadLine", Kind.NEVER, "can no longer end before its deadline"),
    Row("JobArrayTaskLimit", Kind.LIMIT, "as many of its array run as may"),
    Row("Licenses", Kind.TURN, "waits for a licence", "`scontrol show licenses` says how many are in use"),
    Row("Reservation(?! )", Kind.LATER, "its reservation has not begun", "`scontrol show reservation` says when it will"),
    Row("ReservationDeleted", Kind.HELD, "its reservation was deleted", _LET_GO),
    Row("ReservationInvalid", Kind.HELD, "its reservation is not valid any more", _LET_GO),
    Row("NodeDown", Kind.SITE, "a node that it needs is down", "`sinfo -R` says why"),
    Row("FrontEndDown", Kind.SITE, "no front end node is there", _ASK),
    Row("PartitionDown", Kind.SITE, "its partition starts no jobs for now (DOWN)", _ASK),
    Row("PartitionInactive", Kind.SITE, "its partition takes and starts no jobs for now (INACTIVE)", _ASK),
    Row("PartitionNodeLimit", Kind.NEVER, "asks for more nodes than its partition gives to a job, or has up", _LESS),
    Row("PartitionTimeLimit", Kind.NEVER, "asks for more time than its partition allows", _LESS_TIME),
    Row("PartitionConfig", Kind.NEVER, "breaks a rule of its partition", _PROFILE),
    Row("AccountNotAllowed", Kind.NEVER, "its account may not use this partition", _PROFILE),
    Row("QOSNotAllowed", Kind.NEVER, "its QOS may not be used in this partition", _PROFILE),
    Row("InvalidAccount", Kind.NEVER, "its account is not valid", _PROFILE),
    Row("InvalidQOS", Kind.NEVER, "its QOS is not valid", _PROFILE),
    Row("MaxMemPerLimit", Kind.NEVER, "asks for more memory than the site allows for each of its CPUs or nodes",
        _LESS_MEMORY),
    Row("BadConstraints", Kind.NEVER, "no node is as it asks for", _LESS),
    Row("MaxPoweredUpNodes", Kind.LIMIT, "as many nodes are powered up as may be"),
    Row("PowerNotAvail|PowerReserved", Kind.SITE, "there is not enough power for it now", _ASK),
    Row("BurstBufferResources", Kind.TURN, "waits for room in a burst buffer"),
    Row("BurstBufferStageIn", Kind.PASSING, "its burst buffer is being filled"),
    Row("BurstBufferOperation", Kind.SITE, "its burst buffer failed", _ASK),
    Row("NvidiaImexChannels", Kind.TURN, "waits for an NVIDIA IMEX channel"),
    Row("MpiPortsBusy", Kind.TURN, "waits for network ports that it needs"),
    Row("FedJobLock", Kind.PASSING, "the clusters of a federation agree on who starts it"),
    Row("BlockMaxError|BlockFreeAction", Kind.SITE, "its block of nodes is not ready", _ASK),
    Row("Prolog", Kind.PASSING, "its nodes are being prepared"),
    Row("Cleaning", Kind.PASSING, "what it left on its nodes is being cleared away"),
    Row("None|WaitingForScheduling|Inva(li|il)dReason", Kind.PASSING, "the scheduler has not come to it yet"),
    # codes of jobs that have ended
    Row("NonZeroExitCode", Kind.ENDED, "ended with an error of its own"),
    Row("RaisedSignal", Kind.ENDED, "was killed by a signal"),
    Row("TimeLimit", Kind.ENDED, "reached its time limit"),
    Row("InactiveLimit", Kind.ENDED, "did nothing for too long"),
    Row("OutOfMemory", Kind.ENDED, "ran out of memory"),
    Row("SystemFailure", Kind.ENDED, "Slurm or a node failed"),
    Row("JobLaunchFailure", Kind.ENDED, "could not be started on its node", "`sinfo -R`, and slurmd's log there, say why"),
    # limits of accounts and QOS, whose codes are put together: whose, of how many jobs, of what
    Row("AccountingPolicy", Kind.LIMIT, "a limit of its account or QOS is reached", _ASK),
    Row("QOSUsageThreshold", Kind.SITE, "its account has used too much of its share for this QOS", _PROFILE),
    Row("(?P<whose>Association|QOS)JobLimit", Kind.LIMIT, _JOBS),
    Row("(?P<whose>Association|QOS)ResourceLimit", Kind.LIMIT, "the jobs of {whose} have all that they may have"),
    Row("(?P<whose>Association|QOS)TimeLimit", Kind.LIMIT, "{whose} has used up its time", _USED_UP),
    Row("(?P<whose>Assoc|QOS)Grp(Submit)?Jobs", Kind.LIMIT, _JOBS),
    Row("(?P<whose>Assoc|QOS)GrpWall", Kind.LIMIT, "{whose} has used up its hours", _USED_UP),
    Row("(?P<whose>Assoc|QOS)Grp(?P<what>\\w+?)RunMinutes", Kind.LIMIT,
        "the running jobs of {whose} have all the {what} minutes that they may have at a time", _LESS_TIME),
    Row("(?P<whose>Assoc|QOS)Grp(?P<what>\\w+?)Minutes", Kind.LIMIT, "{whose} has used up its {what} minutes", _USED_UP),
    Row("(?P<whose>Assoc|QOS)Grp(?P<what>\\w+?)", Kind.LIMIT, "the jobs of {whose} have all the {whats} that they may have"),
    Row("(?P<whose>Assoc)Max(Jobs|SubmitJob)", Kind.LIMIT, "its user has as many jobs under {whose} as one may have"),
    Row("(?P<whose>QOS)Max(Jobs|SubmitJob)PerUser", Kind.LIMIT, "its user has as many jobs under {whose} as one may have"),
    Row("Max(Jobs|SubmitJobs)PerAccount", Kind.LIMIT, "its account has as many jobs under its QOS as one may have"),
    Row("(?P<whose>Assoc|QOS)MaxWallDurationPerJob", Kind.NEVER, "asks for more time than a job of {whose} may have",
        _LESS_TIME),
    Row("(?P<whose>Assoc|QOS)Max(?P<what>\\w+?)MinutesPerJob", Kind.NEVER,
        "asks for more {what} minutes than a job of {whose} may have", _LESS_TIME),
    Row("(?P<whose>Assoc|QOS)Max(Mem|Memory)Per(Job|Node)", Kind.NEVER,
        "asks for more memory than a job of {whose} may have", _LESS_MEMORY),
    Row("(?P<whose>Assoc|QOS)Max(?P<what>\\w+?)PerJob", Kind.NEVER, "asks for more {whats} than a job of {whose} may have",
        _LESS),
    Row("(?P<whose>Assoc|QOS)Max(?P<what>\\w+?)PerNode", Kind.NEVER,
        "asks for more {whats} on a node than a job of {whose} may have", _LESS),
    Row("QOSMin(?P<what>\\w+?)", Kind.NEVER, "asks for less than its QOS wants at least ({whats})", _PROFILE),
    Row("QOSMax(?P<what>\\w+?)PerUser", Kind.LIMIT, "its user's jobs have all the {whats} that its QOS gives to a user"),
    Row("Max(?P<what>\\w+?)RunMinsPer(?P<whose>User|Account)", Kind.LIMIT,
        "the running jobs of {whose} have all the {what} minutes that its QOS gives at a time", _LESS_TIME),
    Row("Max(?P<what>\\w+?)PerAccount", Kind.LIMIT, "the jobs of its account have all the {whats} that its QOS gives to one"),
)
# A code may go on with one of these words; then it is over, or details follow.
_COMPILED = tuple((re.compile(f"(?:{row.begins})(?:Limit|NotSatisfied)?(?![A-Za-z0-9])"), row) for row in TABLE)

_WHOSE = {"QOS": "its QOS", "User": "its user"}                  # else its account
_WHAT = {"Cpu": ("CPU", "CPUs"), "CPU": ("CPU", "CPUs"), "Node": ("node", "nodes"), "GRES": ("GPU", "GPUs (GRES)"),
         "Mem": ("memory", "memory"), "Memory": ("memory", "memory"), "Energy": ("energy", "energy"),
         "BB": ("burst buffer", "burst buffer space"), "License": ("licence", "licences"),
         "Billing": ("billing", "billing units")}
_SOME = ("resource", "limited resources")
COMPLETING_LONG_S = 60.0


def evidence_of(run: Run, submission: Submission, jobs: Mapping[str, JobSeen]) -> Evidence | None:
    """What one squeue tells of a submission's job, by submission id; None where it told nothing."""
    job = jobs.get(submission.id)
    if job is None:
        return None
    before = dependency_jobs(job.dependency)
    return Evidence(
        reason=job.reason, state=job.state, exit_code=job.exit_code, tag=run.spec.tag, job_id=job.job_id,
        not_before=job.start_at, time_s=run.spec.profile.time_s, held_by_orch=submission.held,
        behind=jobs_behind(before, jobs.values()))


def jobs_behind(before: Iterable[str], jobs: Iterable[JobSeen]) -> tuple[tuple[str, str, float | None], ...]:
    """``Evidence.behind``: with state and end as far as they are seen; another program's jobs are not."""
    seen = {job.job_id: job for job in jobs}
    return tuple((job_id, seen[job_id].state, seen[job_id].end_at) if job_id in seen else (job_id, "", None)
                 for job_id in sorted(before))


def look_up(reason: str) -> tuple[Row, dict[str, str]] | None:
    """The row of a reason in squeue's or scontrol's form, and its groups in words; None for one that is not known."""
    return _look_up(re.sub(r"^\((.*)\)$", r"\1", reason.replace("_", " ").strip()))


@lru_cache(maxsize=512)
def _look_up(reason: str) -> tuple[Row, dict[str, str]] | None:
    for pattern, row in _COMPILED:
        found = pattern.match(reason)
        if found:
            groups = found.groupdict()
            what, whats = _WHAT.get(groups.get("what") or "", _SOME)
            return row, {"whose": _WHOSE.get(groups.get("whose") or "", "its account"), "what": what, "whats": whats}
    return None


def why(seen: Evidence) -> Why:
    """Why this job does not run (yet)."""
    if seen.state in ENDED_STATES:
        return _ended(seen)
    if seen.state in ENDING_STATES:
        return Why(kind=Kind.PASSING, sentence="is ending: Slurm waits until nothing of it is left")
    if seen.state not in WAITING_STATES:
        words = "its nodes boot" if seen.state == "CONFIGURING" else "has its nodes; its supervisor has not reported yet"
        return Why(kind=Kind.PASSING, sentence=words)
    found = look_up(seen.reason)
    if found is None:
        return Why(kind=Kind.UNKNOWN, sentence="")
    row, words_of = found
    words_of = {**words_of, "tag": seen.tag, "job_id": seen.job_id}
    told = Why(kind=row.kind, sentence=row.sentence.format(**words_of), helps=row.helps.format(**words_of))
    if row.kind is Kind.ENDED:         # what it was started for and ended with before it was put back into the queue
        return Why(kind=Kind.UNKNOWN, sentence=f"waits again, after it {_ended(seen).sentence}", helps=told.helps)
    return _known_better(seen, row, told)


def _known_better(seen: Evidence, row: Row, told: Why) -> Why:
    """The row's answer, with what else is known."""
    if seen.cannot and row.kind not in (Kind.HELD, Kind.BEHIND, Kind.LIMIT):
        return Why(kind=Kind.NEVER, sentence=f"can never start: {seen.cannot}", helps=told.helps if told.kind is Kind.NEVER
                   else _LESS.format(tag=seen.tag))
    if row.kind is Kind.HELD and seen.held_by_orch:
        return Why(kind=Kind.HELD, sentence="orch holds it, since its run is held", helps=f"`orch release {seen.tag}`")
    if row.kind is Kind.SITE and seen.out and "`sinfo -R`" in told.helps:
        return Why(kind=told.kind, sentence=told.sentence, helps=f"these nodes back in service: {seen.out}")
    if row.begins.startswith("ReqNodeNotAvail, May be") and seen.out:    # 26.05 says so of a drained node, too
        return Why(kind=told.kind, sentence=told.sentence, helps=f"{told.helps}; out of service: {seen.out}")
    better = _BETTER.get(row.begins)
    return better(seen, told) if better is not None else told


def _ended(seen: Evidence) -> Why:
    """22.05 calls a script that was killed by a signal a launch failure; where there is a signal, it is what counts."""
    found = look_up(seen.reason)
    by_code = exit_code_words(seen.exit_code)
    signalled = by_code and not seen.exit_code.endswith(":0")
    if found is None or found[0].kind is not Kind.ENDED or signalled:
        return Why(kind=Kind.ENDED, sentence=f"ended: {by_code}" if by_code else "ended")
    row = found[0]
    return Why(kind=Kind.ENDED, sentence=row.sentence + (f" ({by_code})" if by_code else ""), helps=row.helps)


# --- rows with more to say where more is known -----------------------------------------------------------------------------


def _in_line(seen: Evidence, told: Why) -> Why:
    if not seen.ahead:
        return Why(kind=told.kind, sentence=told.sentence, helps=told.helps)
    come = "job of its partition comes" if seen.ahead == 1 else "jobs of its partition come"
    return Why(kind=told.kind, sentence=f"{seen.ahead} {come} first", helps=told.helps)


def _first_in_line(seen: Evidence, told: Why) -> Why:
    first = "is the first in line and " if seen.ahead == 0 else ""
    return Why(kind=told.kind, sentence=first + told.sentence, helps=told.helps)


def _later(seen: Evidence, told: Why) -> Why:
    wait_s = seen.not_before - seen.now if seen.not_before is not None and seen.now else 0.0
    return Why(kind=told.kind, sentence=f"its time to begin comes in {format_duration(wait_s)}" if wait_s > 0
               else told.sentence)


def _behind(seen: Evidence, told: Why) -> Why:
    """C65: a job whose file system hangs may be COMPLETING for hours, and what depends on it waits with it."""
    for job_id, state, end_at in seen.behind:
        if state in ENDING_STATES:
            for_s = seen.now - end_at if end_at and seen.now else 0.0
            long = f" for {format_duration(for_s)}" if for_s > COMPLETING_LONG_S else ""
            return Why(kind=told.kind,
                       sentence=f"job {job_id} before it is still ending{long}: Slurm waits until nothing of it is left",
                       helps=f"`scontrol show job {job_id}`, and `sinfo -R`, say where it hangs" if long else "")
    if seen.awaited:
        asked = ", ".join(f"`orch explain {tag}`" for tag in seen.awaited)
        return Why(kind=told.kind, sentence=waits_for(seen.awaited, seen.awaited_jobs),
                   helps=f"{asked} {'says' if len(seen.awaited) == 1 else 'say'} how far that is")
    jobs = jobs_in_words(job_id for job_id, _, _ in seen.behind)
    return Why(kind=told.kind, sentence=f"waits for the end of job {jobs}") if jobs else told


def _too_long(seen: Evidence, told: Why) -> Why:
    if seen.time_s is None or seen.time_at_most_s is None or seen.time_s <= seen.time_at_most_s:
        return told
    most = format_clock(seen.time_at_most_s)
    return Why(kind=told.kind, sentence=f"asks for {format_clock(seen.time_s)}, and its partition allows {most}",
               helps=f"`orch update {seen.tag} --time {most}`; orch continues across limits by itself")


def _own_jobs(seen: Evidence, told: Why) -> Why:
    if seen.own_running != 0:
        return told
    return Why(kind=Kind.NEVER, sentence=f"{told.sentence}, and none of them runs: the limit lets none start",
               helps="whoever manages accounts can raise it")


_BETTER: dict[str, Callable[[Evidence, Why], Why]] = {
    "Priority": _in_line, "Resources": _first_in_line, "BeginTime": _later, "Dependency": _behind,
    "PartitionTimeLimit": _too_long, "(?P<whose>Assoc)Max(Jobs|SubmitJob)": _own_jobs,
    "(?P<whose>QOS)Max(Jobs|SubmitJob)PerUser": _own_jobs}
