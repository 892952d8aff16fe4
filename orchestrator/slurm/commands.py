"""Slurm through its commands. The only place that starts squeue, sbatch, scancel, scontrol, sinfo and sacct.

Every command has a time limit and is ended with all its children when it is over; the user's SQUEUE_*, SBATCH_* and locale
settings are kept away from it; its stderr becomes the message. Reads are never ``--json``: it is slow, and incomplete in
several releases.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from orchestrator.core.observation import NodeSeen
from orchestrator.errors import NoAccounting, NoRoom, SlurmError, SlurmUnreachable, SubmissionRejected
from orchestrator.sightings import Execution, JobSeen, QueuedJob
from orchestrator.slurm.fields import (
    EXECUTION_FIELDS,
    SINFO_FORMAT,
    UNIT,
    jobs_option,
    parse_estimate,
    parse_executions,
    parse_jobs,
    parse_nodes,
    parse_queue,
    parse_sinfo,
    parse_site,
    parse_submitted,
    queue_option,
)
from orchestrator.slurm.protocol import NodeOffer, Site
from orchestrator.units import slurm_memory_mib, slurm_minutes

# Words with which Slurm says that it could not be asked, as opposed to saying no.
_SILENCE = (
    "unable to contact slurm controller", "socket timed out", "connection refused", "connect failure", "zero bytes were",
    "unexpected message received", "could not establish a configuration source", "slurm backup controller",
    "communication connection failure", "unable to resolve", "authentication", "munge", "rate limit", "try again",
    "fetch_config", "error receiving", "lost connection", "incompatible versions", "temporarily unavailable",
)
# Words for a limit on how many jobs there may be: of a user, an account, a QOS, or of the controller, whose sbatch tries
# again for two minutes and is mostly ended before. "job submit limit" stands in the text of every broken policy: no sign.
_FULL = ("maxsubmit", "submitjob", "job queue full", "unable to accept job", "job creation temporarily")
_KILLED_S = 2.0
_TOO_LATE = ("invalid job id", "already completing", "already finished", "already completed", "no longer pending",
             "requires extern step")
_SCRUBBED = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCONTROL_", "SALLOC_", "SACCT_", "SCANCEL_", "LC_")
_INSTALL_HINT = ("no Slurm on this machine: `orch cluster up` starts a private one once the distribution's packages are "
                 "installed (apt-get install slurm-wlm munge, or ops/slurm/install)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCommands:
    """A Slurm reached by its commands; ``conf`` is the slurm.conf to use, None for the system's own. ``hint`` is what helps
    where it cannot be contacted."""

    conf: Path | None = None
    timeout_s: float = 30.0
    hint: str = ""

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        return self._squeue(f"--user={os.getuid()}", commented)

    def job(self, job_id: str) -> JobSeen | None:
        try:
            found = self._squeue(f"--jobs={job_id}")
        except SubmissionRejected as error:
            if "invalid job id" in error.message.lower():
                return None
            raise SlurmUnreachable(error.message) from error
        return next((job for job in found if job.job_id == job_id), None)

    def queue(self) -> list[QueuedJob]:
        mark = UNIT + secrets.token_hex(3)
        return parse_queue(self._run("squeue", "--all", queue_option(mark)), mark)

    def offers(self) -> list[NodeOffer]:
        return parse_sinfo(self._run("sinfo", "--noheader", "--Node", "--all", f"--format={SINFO_FORMAT}"))

    def nodes(self, names: str) -> list[NodeSeen]:
        try:
            return parse_nodes(self._run("scontrol", "--oneliner", "show", "node", names))
        except SubmissionRejected:         # it does not know one of them
            return []

    def executions(self, job_ids: Collection[str]) -> list[Execution]:
        try:
            return parse_executions(self._run(
                "sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", f"--delimiter={UNIT}",
                f"--format={EXECUTION_FIELDS}", f"--jobs={','.join(job_ids)}"))
        except SubmissionRejected as error:        # whatever it says instead, it has not answered
            kind = NoAccounting if "accounting storage is disabled" in error.message.lower() else SlurmUnreachable
            raise kind(error.message) from error

    def site(self) -> Site:
        return parse_site(self._run("scontrol", "show", "config"))

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        answer = self._run("sbatch", "--parsable", str(script), environment=environment)
        submitted = parse_submitted(answer)
        if submitted is None:
            raise SlurmUnreachable(f"sbatch printed no job id: {answer.strip()[:200]!r}")
        job_id, cluster = submitted
        if cluster and cluster != (ours := self.site().cluster):
            self._take_back(job_id, cluster, ours)
        return job_id

    def _take_back(self, job_id: str, cluster: str, ours: str) -> NoReturn:
        """A job on another cluster is in none of our squeues: it would be taken for lost, and submitted again and again."""
        try:
            self._run("scancel", f"--clusters={cluster}", job_id)
            now = "it was cancelled there"
        except SlurmError as error:
            now = f"it could not be cancelled there ({error.message}): scancel --clusters={cluster} {job_id}"
        raise SubmissionRejected(f"sbatch sent job {job_id} to cluster {cluster}, and orch follows its jobs on {ours} alone; "
                                 f"{now}", hint="`slurm: {conf: ...}` in orch.yaml names the slurm.conf of another cluster")

    def cancel(self, job_id: str) -> None:
        self._change("scancel", job_id)

    def stop(self, job_id: str) -> None:
        self._change("scancel", "--batch", "--signal=TERM", job_id)

    def set_dependency(self, job_id: str, dependency: str) -> None:
        self._change("scontrol", "update", f"JobId={job_id}", f"Dependency={dependency}")

    def hold(self, job_id: str) -> None:
        self._change("scontrol", "uhold", job_id)

    def release(self, job_id: str) -> None:
        self._change("scontrol", "release", job_id)

    def change(self, job_id: str, *, memory_bytes: int | None = None, time_s: float | None = None,
               nice: int | None = None) -> None:
        """scontrol takes memory in MB and time in minutes."""
        asked = {"MinMemoryNode": None if memory_bytes is None else slurm_memory_mib(memory_bytes),
                 "TimeLimit": None if time_s is None else slurm_minutes(time_s), "Nice": nice}
        words = [f"{key}={value}" for key, value in asked.items() if value is not None]
        if words:
            self._change("scontrol", "update", f"JobId={job_id}", *words)

    def top(self, job_id: str) -> None:
        self._change("scontrol", "top", job_id)

    def estimate(self, script: str) -> float:
        output, said = self._call("sbatch", "--test-only", given=script)
        at = parse_estimate(f"{said}\n{output}")
        if at is None:
            raise SlurmUnreachable(f"sbatch --test-only names no start: {said[:200]!r}")
        return at

    def _change(self, *command: str) -> None:
        """Change a waiting job. It may have started or ended since it was looked at: then there is nothing to change, and
        the next look finds out."""
        try:
            self._run(*command)
        except SubmissionRejected as error:
            if not any(words in error.message.lower() for words in _TOO_LATE):
                raise

    def _squeue(self, which: str, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        mark = UNIT + secrets.token_hex(3)
        return parse_jobs(self._run("squeue", "--all", "--states=all", which, jobs_option(mark)), mark, commented)

    def _run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        """stdout of a command; SlurmUnreachable without an answer, SubmissionRejected when Slurm says no."""
        return self._call(*command, environment=environment)[0]

    def _call(self, *command: str, environment: Mapping[str, str] | None = None, given: str = "") -> tuple[str, str]:
        """stdout and stderr, the latter on one line, of a command that is given this text."""
        name = command[0]
        program = shutil.which(name) or shutil.which(name, path="/usr/bin:/usr/local/bin:/opt/slurm/bin")
        if program is None:
            raise SlurmUnreachable(f"{name} is not installed", hint=_INSTALL_HINT)
        output, errors, code = self._wait_for(name, [program, *command[1:]], self._environment(environment), given)
        if code == 0:
            return output, errors
        how = f"{name} was killed by signal {-code}" if code < 0 else f"{name} ended with {code}"
        message = errors or " ".join(output.split())[-300:] or how
        words = message.lower()
        if any(full in words for full in _FULL):
            raise NoRoom(message)
        # one that was killed, or a wrapper that found no command, says nothing of what the controller did
        if code < 0 or code in (126, 127) or 128 < code < 192 or any(silence in words for silence in _SILENCE):
            nowhere = "configuration source" in words and not self.conf and not os.environ.get("SLURM_CONF")
            raise SlurmUnreachable(message, hint=_INSTALL_HINT if nowhere else self.hint)
        raise SubmissionRejected(message)

    def _wait_for(self, name: str, words: list[str], environment: dict[str, str], given: str) -> tuple[str, str, int]:
        """stdout, stderr on one line, exit code. Past its time the whole process group is killed; one that is stuck in the
        kernel is left to itself."""
        try:
            process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise SlurmUnreachable(f"{words[0]} cannot be started: {error.strerror}") from None
        try:
            output, errors = process.communicate(given.encode(errors="surrogateescape"), timeout=self.timeout_s)
            return output.decode(errors="replace"), _one_line(errors), process.returncode
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_KILLED_S)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = _one_line(error.stderr or b"")
            told = f"{name} gave no answer within {self.timeout_s:g} s" + (f": {said}" if said else "")
            raise (NoRoom(told) if any(full in said.lower() for full in _FULL) else SlurmUnreachable(told)) from None
        finally:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _environment(self, recorded: Mapping[str, str] | None) -> dict[str, str]:
        """For sbatch exactly the recorded environment, since the job inherits it; for the others the caller's."""
        base = os.environ if recorded is None else recorded
        environment = {key: value for key, value in base.items() if not key.startswith(_SCRUBBED) or (
            recorded is not None and key.startswith("LC_"))}
        if recorded is None:
            environment["LC_ALL"] = "C.UTF-8"
            environment["SLURM_TIME_FORMAT"] = "%s"
        conf = str(self.conf) if self.conf else os.environ.get("SLURM_CONF")
        if conf:
            environment["SLURM_CONF"] = conf
        return environment


def _one_line(errors: bytes) -> str:
    return " ".join(errors.decode(errors="replace").split())
