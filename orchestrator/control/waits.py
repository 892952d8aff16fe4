"""Why a run's job waits and when it may start, asked of Slurm because a person asked: one squeue of everybody's jobs, one
sinfo, and for a start one `sbatch --test-only` and two or three more with less. Never in a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator import folders, journal
from orchestrator.control import checks
from orchestrator.control.act import SUPERVISOR
from orchestrator.control.observe import jobs_of
from orchestrator.control.ports import Ports, Snapshot, known_run, tags_with_runs
from orchestrator.core.estimates import Estimate, came_true, estimates, still_good
from orchestrator.core.line import ahead_of
from orchestrator.core.pending import Upstream, unmet
from orchestrator.core.script import batch_script, dependency_jobs, jobs_in_words
from orchestrator.core.waiting import Evidence, Kind, Why, evidence_of, jobs_behind, look_up, why
from orchestrator.errors import JournalError, Refused, SlurmError, StorageError, SubmissionRejected
from orchestrator.model import Phase, Profile, Run, Submission
from orchestrator.sightings import JobSeen
from orchestrator.states import WAITING_STATES
from orchestrator.units import format_clock

LITTLE_BYTES = 2**20           # of memory: what remains to wait for with so little is not memory
# What needs no more than the job's own row.
_PLAIN = frozenset({Kind.BEHIND, Kind.HELD, Kind.ENDED, Kind.UNKNOWN})


def why_it_waits(
    ports: Ports, run: Run, snapshot: Snapshot, upstream: Sequence[Upstream] = (),
) -> tuple[Why, Evidence] | None:
    """Of the run's first waiting job, with all that Slurm tells; None where none is seen."""
    if run.over or not run.waiting or snapshot.silent is not None:
        return None
    head, jobs = run.waiting[0], jobs_of(run, snapshot.jobs)
    seen = evidence_of(run, head, jobs)
    if seen is None:
        return None
    before = dependency_jobs(jobs[head.id].dependency)
    seen = replace(
        seen, now=ports.clock(), awaited={other.tag: other.condition for other in unmet(run, upstream)},
        awaited_jobs=tuple(job_id for job_id in run.spec.after_jobs if job_id in before),
        behind=jobs_behind(before, snapshot.jobs))
    if why(seen).kind not in _PLAIN:
        seen = _asked_after(ports, run.spec.profile, seen, snapshot)
    return why(seen), seen


def _asked_after(ports: Ports, profile: Profile, seen: Evidence, snapshot: Snapshot) -> Evidence:
    """With what the nodes and everybody's queue tell; without what Slurm does not answer."""
    try:
        here = checks.offered(profile, snapshot.answers.offers(ports.slurm))
        if here:
            seen = replace(seen, cannot=checks.why_no_node(profile, here)[0], time_at_most_s=checks.longest_s(here),
                           out=checks.out_of_service(here))
        queue = ports.slurm.queue()
    except SlurmError:
        return seen
    users = [job.user for job in queue if job.job_id == seen.job_id]
    running = sum(job.state == "RUNNING" for job in queue if job.user in users) if users else None
    return replace(seen, ahead=ahead_of(seen.job_id, queue), own_running=running)


# --- when it may start ----------------------------------------------------------------------------------------------------


def estimate(ports: Ports, run: Run, snapshot: Snapshot) -> Estimate:
    """Slurm's guess of when the run's next attempt starts, at most a minute old, and noted. Raises Refused where it does not
    wait for its turn, SlurmError as Slurm says."""
    head, job = _in_line(run, snapshot)
    run_dir = folders.run_dir(ports.repository, run.spec.tag)
    known = still_good(journal.read(run_dir)[0], head.id, ports.clock())
    if known is not None:
        return known
    try:
        start_at = _ask(ports, run, head, run.spec.profile)
    except SubmissionRejected as error:  # a reservation that has not begun, a request that can never run
        raise SubmissionRejected(f"Slurm estimates no start of {run.spec.tag}: {error.message}",
                                 hint=f"`orch explain {run.spec.tag}` says why it waits") from None
    found = Estimate(asked_at=ports.clock(), submission_id=head.id, start_at=start_at, planned_at=job.start_at,
                     without=dict(_without(ports, run, head, job)))
    with journal.locked(run_dir, wait_s=10.0, clock=ports.clock) as locked:
        locked.append("estimated", **found.as_event())
    return found


def _in_line(run: Run, snapshot: Snapshot) -> tuple[Submission, JobSeen]:
    tag = run.spec.tag
    head = run.waiting[0] if run.waiting and run.phase == Phase.ACTIVE and run.live is None else None
    job = jobs_of(run, snapshot.jobs).get(head.id) if head is not None else None
    if head is None or job is None or job.state not in WAITING_STATES:
        raise Refused(f"no job of {tag} waits for its turn", hint=f"`orch status {tag}` says what it does")
    if dependency_jobs(job.dependency):
        raise Refused(f"job {job.job_id} of {tag} waits for the end of job "
                      f"{jobs_in_words(dependency_jobs(job.dependency))}",
                      hint="Slurm's estimates leave that out; ask again when that has ended")
    return head, job


def _without(ports: Ports, run: Run, head: Submission, job: JobSeen) -> Iterator[tuple[str, float]]:
    """The same request with less of one thing, as far as Slurm takes that."""
    profile = run.spec.profile
    less = {f"without {profile.gres}": replace(profile, gres=None)} if profile.gres else {}
    if profile.memory_bytes is not None and profile.memory_bytes > LITTLE_BYTES:
        less["with hardly any memory"] = replace(profile, memory_bytes=LITTLE_BYTES)
    if len(less) == 2:
        less[" and ".join(less)] = replace(profile, gres=None, memory_bytes=LITTLE_BYTES)
    found = look_up(job.reason)
    shorter_s = max(profile.time_s / 4, 2 * profile.lead_s)
    if found is not None and found[0].kind is Kind.LATER and shorter_s < profile.time_s:
        less[f"with a time limit of {format_clock(shorter_s)}"] = replace(profile, time_s=shorter_s)
    for name, asked in less.items():
        yield from _try(ports, run, head, name, asked)


def _try(ports: Ports, run: Run, head: Submission, name: str, profile: Profile) -> Iterator[tuple[str, float]]:
    try:
        yield name, _ask(ports, run, head, profile)
    except SubmissionRejected:         # a site may refuse jobs without a GPU in its GPU partition
        return


def _ask(ports: Ports, run: Run, head: Submission, profile: Profile) -> float:
    """sbatch --test-only with the very options that orch submits."""
    folder = folders.attempt_dir(folders.run_dir(ports.repository, run.spec.tag), head.number)
    nice = not run.begun and run.spec.policy(ports.policy).finish_first
    return ports.slurm.estimate(batch_script(
        replace(run.spec, profile=profile), number=head.number, submission_id=head.id, folder=folder, behind=(), nice=nice,
        entry=SUPERVISOR))


def guesses_and_starts(ports: Ports) -> list[tuple[Estimate, float]]:
    """What people were told in this repository so far, and when it came true."""
    pairs: list[tuple[Estimate, float]] = []
    for tag in tags_with_runs(ports.repository):
        try:
            told = estimates(journal.read(folders.run_dir(ports.repository, tag))[0])
            pairs += came_true(known_run(ports.repository, tag)[0], told) if told else []
        except (JournalError, StorageError):
            continue
    return pairs
