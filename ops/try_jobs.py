"""The jobs of ``ops/try-on-your-cluster``: made as orch makes its own, watched, and cancelled by id."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator import journal
from orchestrator.attempt.commands import run
from orchestrator.control.act import SUPERVISOR
from orchestrator.core.script import attempt_spec, batch_script, dependency, repository_key
from orchestrator.errors import OrchError, SubmissionRejected
from orchestrator.folders import attempt_dir, replace_file, run_dir
from orchestrator.model import ENDED_STATES, Policy, Profile, RunSpec
from orchestrator.sightings import JobSeen
from orchestrator.slurm.commands import SlurmCommands

OVER = ENDED_STATES | {"COMPLETING"}
LOOK_EVERY_S = 5.0
ENDING_S = 45.0
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Interrupts wait: between an sbatch and the note of its job id none may come."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Jobs:
    """All jobs of this trial, by a word; and what Slurm last said of them."""

    slurm: SlurmCommands
    repository: Path
    ids: dict[str, str] = field(default_factory=dict)
    seen: dict[str, JobSeen | None] = field(default_factory=dict)   # None: Slurm answered without it
    begun: bool = False                                             # an sbatch was called
    _looked_at: float = float("-inf")

    def submit(self, word: str, script: Path, environment: Mapping[str, str]) -> JobSeen | None:
        """Submit, note the id, read back. Raises SubmissionRejected with Slurm's words."""
        self.begun = True
        with uninterrupted():
            self.ids[word] = self.slurm.submit(script, environment)
        self.seen[word] = self.slurm.job(self.ids[word])
        return self.seen[word]

    def look(self) -> None:
        """One squeue for all of them, not more often than every five seconds."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        with contextlib.suppress(OrchError):                        # silence is evidence of nothing
            known = {job.job_id: job for job in self.slurm.jobs()}
            self.seen.update({word: known.get(job_id) for word, job_id in self.ids.items()})

    def over(self, word: str) -> bool:
        job = self.seen.get(word)
        return word not in self.ids or job is None or job.state in OVER

    def waits(self, word: str) -> str:
        """Why it waits in the queue, in Slurm's word; '' if it does not."""
        job = self.seen.get(word)
        return (job.reason or job.state) if job is not None and job.state == "PENDING" else ""

    def exit_code(self, word: str) -> str:
        """Slurm's CODE:SIGNAL of an ended job; '' where it has forgotten it."""
        _, output, _ = run(["scontrol", "-o", "show", "job", self.ids[word]], 10.0)
        return next((item.removeprefix("ExitCode=") for item in output.split() if item.startswith("ExitCode=")), "")

    def cancel_all(self, *, grace_s: float) -> list[str]:
        """Cancel what has not ended, what runs after ``grace_s``; lines that say what was done. Also finds a job whose sbatch
        never answered: its name holds a checksum of this very folder."""
        name, lines, asked = repository_key(str(self.repository)), [], set[str]()
        began = time.monotonic()
        while time.monotonic() - began < ENDING_S:
            try:
                ours = [job for job in self.slurm.jobs() if job.job_id in self.ids.values() or job.name.endswith(f"@{name}")]
                left = {job.job_id for job in ours if job.state not in OVER}
                spared = {job.job_id for job in ours if job.state == "RUNNING" and time.monotonic() - began < grace_s}
                for job_id in sorted(left - spared - asked, key=int, reverse=True):      # a successor before it starts
                    self.slurm.cancel(job_id)
                    asked.add(job_id)
                    lines.append(f"cancelled job {job_id}")
                if not left:
                    return lines
            except OrchError as error:
                lines = [*lines, f"Slurm: {error.message}"][-5:]
            time.sleep(0.5)
        return [*lines, f"not seen to end within {ENDING_S:.0f} s: scancel {' '.join(sorted(set(self.ids.values())))}"]


@dataclass(frozen=True)
class Trial:
    """What all jobs have in common."""

    folder: Path                # of this trial, on the shared file system; orch's "repository"
    profile: Profile
    environment: Mapping[str, str]
    package: str                # the folder that the orchestrator package lies in

    def spec(self, tag: str, profile: Profile) -> RunSpec:
        return RunSpec(tag=tag, repository=str(self.folder), python=sys.executable, profile=profile, script_sha256="",
                       environment=dict(self.environment), finished_when="finished", interval_s=3600.0)


def script_of(trial: Trial, tag: str, profile: Profile, entry: str, *, delay_s: float = 0.0) -> Path:
    """A job's script in a folder of its own, with ``entry`` in the supervisor's place."""
    folder = attempt_dir(run_dir(trial.folder, tag), 1)
    folder.mkdir(parents=True)
    text = batch_script(trial.spec(tag, profile), number=1, submission_id=secrets.token_hex(6), folder=folder, behind=(),
                        nice=False, entry=entry, delay_s=delay_s)
    replace_file(folder / "script.sh", text, mode=0o755)
    return folder / "script.sh"


@dataclass(frozen=True)
class Queued:
    """An attempt as it was asked for and as Slurm shows it; ``refused`` has Slurm's words if it said no."""

    number: int
    submission_id: str
    behind: tuple[str, ...]
    job: JobSeen | None = None
    refused: str = ""


def begin_run(trial: Trial, tag: str, job_sh: str) -> RunSpec:
    """A run as ``orch submit`` begins one: its folder, its frozen job.sh, the first event of its journal."""
    spec, folder = trial.spec(tag, trial.profile), run_dir(trial.folder, tag)
    (folder / "attempts").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    replace_file(folder / "job.sh", job_sh, mode=0o755)
    with journal.locked(folder, wait_s=10.0) as locked:
        locked.append("submit", schema=journal.SCHEMA, spec=asdict(spec))
    return spec


def queue_attempt(jobs: Jobs, spec: RunSpec, number: int, behind: tuple[str, ...]) -> Queued:
    """One attempt of the run, with orch's supervisor in it and its intent and result in the journal, as a pass would."""
    run_folder, submission_id = run_dir(Path(spec.repository), spec.tag), secrets.token_hex(6)
    folder = attempt_dir(run_folder, number)
    folder.mkdir()
    text = batch_script(spec, number=number, submission_id=submission_id, folder=folder, behind=behind, nice=False,
                        entry=SUPERVISOR)
    replace_file(folder / "script.sh", text, mode=0o755)
    told = attempt_spec(spec, Policy(), interval_s=3600.0, run_dir=run_folder, number=number, submission_id=submission_id)
    replace_file(folder / "spec.json", told.to_json())
    with journal.locked(run_folder, wait_s=10.0) as locked:
        locked.append("queueing", submission_id=submission_id, number=number, dependency=dependency(behind), why="a trial")
        word = f"attempt {number}"
        try:
            job = jobs.submit(word, folder / "script.sh", spec.environment)
        except SubmissionRejected as error:
            locked.append("rejected", submission_id=submission_id, reason=error.message)
            return Queued(number, submission_id, behind, refused=error.message)
        locked.append("queued", submission_id=submission_id, job_id=jobs.ids[word])
    return Queued(number, submission_id, behind, job=job)
