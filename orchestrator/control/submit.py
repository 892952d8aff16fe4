"""``orch submit``: from a job folder to a queued run.

Everything that can be wrong is found before the lock is taken; then one fact is appended (``submit``), job.sh is frozen, and
the same pass as the daemon's queues the first attempt and its successor.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from orchestrator import folders, journal
from orchestrator.checkpoints import complete_checkpoints
from orchestrator.config import Config, Job, load_config, load_job
from orchestrator.config.after import Awaited
from orchestrator.config.campaign import campaign_names
from orchestrator.control import checks
from orchestrator.control.act import SUPERVISOR, next_number
from orchestrator.control.after import refuse_cycle, split_after, where_named
from orchestrator.control.observe import upstream_of
from orchestrator.control.passes import reconcile
from orchestrator.control.ports import Ports, ask_slurm, job_tags, read_run, tags_with_runs, unknown_tag
from orchestrator.core.pending import HELD_BY_UPSTREAM, as_written, met, why_lost
from orchestrator.core.script import batch_script
from orchestrator.errors import NoRoom, Refused, SlurmUnreachable, SubmissionRejected, UserError
from orchestrator.model import Phase, Run, RunSpec
from orchestrator.units import parse_size_bytes
from orchestrator.views.facts import how_to_go_on

# What a job inherits from the shell that submitted it; everything else must be named by `env:`.
_INHERITED = re.compile(
    r"PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_\w+|MODULE\w*|LOADEDMODULES|_LMFILES_|LANG|LC_\w+|HOME|USER|LOGNAME|SHELL|TZ"
    r"|CUDA_HOME|PYTHONPATH|TERM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asked for."""

    tag: str
    after: tuple[Awaited, ...] = ()    # besides job.yaml's
    beside: frozenset[str] = frozenset()  # tags that are submitted with it, and may be waited for
    campaign: str = ""
    profile: str | None = None
    memory: str | None = None
    again: bool = False
    prove_resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What came of it. ``already``: the run was queued or running before, and nothing was done."""

    run: Run
    already: bool = False
    lines: tuple[str, ...] = ()


def build_spec(ports: Ports, request: Request, environ: Mapping[str, str]) -> RunSpec:
    """Everything about the run, checked as far as files can tell. Raises UserError and its kin; writes nothing."""
    repository = ports.repository
    checks.check_tag(request.tag)
    checks.check_repository_path(repository)
    config = load_config(repository)
    folder = folders.job_dir(repository, request.tag)
    if not folder.is_dir():
        raise unknown_tag(request.tag, [*job_tags(repository), *campaign_names(repository)],
                          "job folder jobs/" + request.tag + ", so no run")
    script = folder / "job.sh"
    checks.check_script(script)
    job = load_job(folder)
    profile = config.profile(request.profile or job.profile)
    if request.memory is not None:
        try:
            profile = replace(profile, memory_bytes=parse_size_bytes(request.memory))
        except ValueError as error:
            raise UserError(f"--memory: {error}") from None
    awaited = (*job.after, *request.after)
    tags, jobs = split_after(request.tag, awaited, {*tags_with_runs(repository), *request.beside})
    refuse_cycle(ports, {request.tag: tags}, lambda tag, upstream: where_named(awaited, upstream))
    return RunSpec(
        tag=request.tag, repository=str(repository), python=sys.executable,
        profile=profile, slurm=ports.slurm_name, interval_s=job.interval_s, keep=job.keep,
        local=job.local, local_interval_s=job.local_interval_s,
        script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
        environment=recorded_environment(environ, config, job), env_file=_env_file(folder, job),
        finished_when=job.finished_when, hung_after_s=job.hung_after_s, after_tags=tags, after_jobs=jobs,
        campaign=request.campaign, what=job.what, save_at=job.save_at,
        prove_resume=request.prove_resume)


def check_spec(ports: Ports, spec: RunSpec) -> None:
    """What only Slurm, the disk and the trainer itself can tell. Raises before anything is written."""
    repository = Path(spec.repository)
    checks.check_fits(spec.profile, ports.slurm.offers())
    for job_id in spec.after_jobs:
        if ports.slurm.job(job_id) is None:
            raise UserError(f"after {job_id}: Slurm does not know that job, and would not wait for it",
                            hint="name a run's tag instead, or leave it out if that job has ended")
    kept = complete_checkpoints(folders.checkpoint_dir(folders.run_dir(repository, spec.tag)))
    largest = max((c.size_bytes for c in kept), default=0)
    checks.check_room(repository, largest * max(0, spec.policy(ports.policy).checkpoints_kept + 1 - len(kept)))
    job = load_job(folders.job_dir(repository, spec.tag))
    if job.validate:
        checks.run_validate(job.validate, repository)


def known_already(ports: Ports, tag: str, *, again: bool) -> Run | None:
    """The run if it is under way, so that nothing need be checked; raises Refused as ``submit`` would."""
    run = read_run(ports.repository, tag)
    return run if run is not None and _already(run, again) else None


def refuse_otherwise(run: Run, spec: RunSpec, request: Request) -> None:
    """Options that a run which is under way would not get: nothing of them may be dropped in silence. Raises Refused."""
    tag, had, wanted = run.spec.tag, run.spec, spec.profile
    anew = f"`orch cancel {tag}`, then `orch submit {tag} --again` with these options"
    if request.memory is not None and wanted.memory_bytes != had.profile.memory_bytes:
        raise Refused(f"{tag} is under way, and submitting it again changes nothing of it",
                      hint=f"`orch update {tag} --memory {request.memory}`")
    if request.profile is not None and wanted.name != had.profile.name:
        raise Refused(f"{tag} is under way with profile {had.profile.name}, not {wanted.name}", hint=anew)
    waits = (*as_written(had.after_tags), *had.after_jobs)
    missing = [item for item in (*as_written(spec.after_tags), *spec.after_jobs) if item not in waits]
    if request.after and missing:
        raise Refused(f"{tag} is under way, and does not wait for {', '.join(missing)}", hint=anew)
    if request.prove_resume and not had.prove_resume:
        raise Refused(f"{tag} is under way, and was not submitted to prove that it resumes", hint=anew)


def preview(ports: Ports, spec: RunSpec) -> str:
    """The very script that the next attempt would get now (``--dry-run``), but for its submission id."""
    run_dir = folders.run_dir(ports.repository, spec.tag)
    before = read_run(ports.repository, spec.tag)
    upstream = {tag: read_run(ports.repository, tag) for tag in spec.after_tags}
    jobs = tuple(run.last_job_id for tag, run in upstream.items()
                 if run is not None and run.last_job_id and not met(spec.after_tags[tag], run))
    number = next_number(before, run_dir) if before is not None else 1
    return batch_script(spec, number=number, submission_id="DRYRUN", folder=folders.attempt_dir(run_dir, number),
                        behind=(*jobs, *spec.after_jobs), nice=ports.policy.finish_first, entry=SUPERVISOR)


def why_not_queued(ports: Ports, spec: RunSpec) -> str:
    """Why it would be held and not queued now; '' if it would be queued."""
    run = Run(spec=spec, submitted_at=0.0)
    return why_lost(run, upstream_of(ports.repository, run))


def submit(ports: Ports, spec: RunSpec, *, again: bool = False) -> Submitted:
    """Append the fact and run a pass for this tag. The same tag submitted twice at one instant is submitted once. A run whose
    upstream will not come by itself is recorded, and held by it.

    Raises Refused for a finished or held run, SubmissionRejected when Slurm refuses the first attempt.
    """
    run_dir = folders.run_dir(ports.repository, spec.tag)
    run_dir.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with journal.locked(run_dir, wait_s=10.0, clock=ports.clock) as locked:
        before = read_run(ports.repository, spec.tag)
        if before is not None and _already(before, again):
            # a submission that was cut short is completed; one that is under way is left as it is
            run = reconcile(ports, spec.tag, ask_slurm(ports), locked, lines.append)
            return Submitted(run=run or before, already=True, lines=tuple(lines))
        for name in ("attempts", "checkpoints"):
            (run_dir / name).mkdir(exist_ok=True)
        script = folders.job_dir(ports.repository, spec.tag) / "job.sh"
        folders.replace_file(run_dir / "job.sh", script.read_bytes(), mode=0o755)
        if before is None:
            locked.append("submit", schema=journal.SCHEMA, spec=asdict(spec))
        else:
            locked.append("reopened", reason="submitted again", spec=asdict(spec))
        snapshot = ask_slurm(ports)
        run = reconcile(ports, spec.tag, snapshot, locked, lines.append)
    assert run is not None
    if snapshot.silent is not None:
        raise SlurmUnreachable(f"{spec.tag} is recorded, and Slurm does not answer: {snapshot.silent}",
                               hint="`orch daemon` or `orch tick` will queue it when Slurm is back")
    if run.phase == Phase.HELD and run.held_by != HELD_BY_UPSTREAM:
        raise SubmissionRejected(run.phase_reason, hint=f"mend it, then `orch submit {spec.tag} --again`")
    if run.submissions and run.submissions[-1].for_now and run.live is None and not run.waiting:
        raise NoRoom(f"{spec.tag} is recorded, and Slurm takes no further job for now: {run.submissions[-1].reason}",
                     hint="`orch daemon` or `orch tick` queues it when another job has ended")
    return Submitted(run=run, lines=tuple(lines))


def _already(run: Run, again: bool) -> bool:
    """Whether the run is under way. Raises Refused where it is not, and ``again`` does not help or was not said."""
    tag = run.spec.tag
    if run.phase == Phase.CANCELLING:
        raise Refused(f"{tag} is being cancelled", hint=f"`orch wait {tag} --for cancelled`, then submit it with --again")
    if run.phase == Phase.HELD:
        if again and run.live is None and not run.waiting:
            return False
        raise Refused(f"{tag} is held: {run.phase_reason or 'by ' + run.held_by}", hint=how_to_go_on(run))
    if run.over and not again:
        raise Refused(f"{tag} is {run.phase} already",
                      hint=f"`orch submit {tag} --again` continues it from its newest checkpoint, with job.sh and profile as "
                           f"they are now; `orch new OTHER --from {tag}` begins another")
    return not run.over


def _env_file(folder: Path, job: Job) -> str | None:
    if job.env_file is None:
        return None
    path = (folder / Path(job.env_file).expanduser()).absolute()
    if not path.is_file():
        raise UserError(f"{folder / 'job.yaml'}: env_file: {path} does not exist")
    if path.stat().st_mode & 0o077:
        raise UserError(f"{folder / 'job.yaml'}: env_file: {path} can be read by others", hint=f"chmod 600 {path}")
    return str(path)


def recorded_environment(environ: Mapping[str, str], config: Config, job: Job) -> dict[str, str]:
    """Exactly what every attempt gets: the allow-list of the submitting shell, then what `env:` says; a name without a value
    takes the shell's."""
    environment = {key: value for key, value in environ.items() if _INHERITED.fullmatch(key)}
    for key, value in {**config.environment, **job.environment}.items():
        if value is not None:
            environment[key] = value
        elif key in environ:
            environment[key] = environ[key]
        else:
            raise UserError(f"env: {key} has no value and is not set in this shell",
                            hint=f"write `{key}: VALUE` or export it")
    return environment
