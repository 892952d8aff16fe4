"""Slurm's commands, bounded: each is given some seconds, then ended with everything it started. Nothing depends on them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess

from orchestrator.sightings import JobGone, JobSeen, JobSighting, SlurmSilent

ASK_AT_MOST_S = 8.0


def run(words: list[str], timeout_s: float) -> tuple[int | None, str, str]:
    """Exit code (None: not there, or not in time), standard output, standard error."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", env=environment, start_new_session=True)
    except OSError as error:
        return None, "", f"{words[0]}: {error.strerror}"
    try:
        output, errors = process.communicate(timeout=timeout_s)
        return process.returncode, output, errors
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):   # one stuck in the kernel is left to itself
            process.communicate(timeout=1.0)
        return None, "", f"{words[0]} did not answer within {timeout_s:.0f} s"


def there(command: str) -> bool:
    return shutil.which(command) is not None


def look_at_job(job_id: str) -> JobSighting:
    """What Slurm says of one job."""
    if not there("scontrol"):
        return SlurmSilent("scontrol is not here")
    code, output, errors = run(["scontrol", "show", "job", "-o", job_id], ASK_AT_MOST_S)
    return parse_job(job_id, code, output, errors)


def parse_job(job_id: str, code: int | None, output: str, errors: str) -> JobSighting:
    state = re.search(r"(?:^|\s)JobState=(\S+)", output)
    if code == 0 and state:
        nodes, comment = re.search(r"\sNodeList=(\S+)", output), re.search(r"\sComment=(\S+)", output)
        return JobSeen(job_id=job_id, state=state.group(1), nodes=nodes.group(1) if nodes else "",
                       comment=comment.group(1) if comment else "")
    if "Invalid job id" in errors or "Invalid job id" in output:
        return JobGone()
    return SlurmSilent((errors or output).strip()[:200])


def job_end_at(job_id: str) -> float | None:
    """When Slurm means to end this job: its limit, or the end of its grace once it is being preempted."""
    _, output, _ = run(["scontrol", "show", "job", "-o", job_id], ASK_AT_MOST_S)
    found = re.search(r"\sEndTime=(\d+)", output)
    return float(found.group(1)) if found else None


def reservation_end(name: str) -> float | None:
    """When Slurm ends what runs in this reservation, whatever its time limit; None: never (a flexible one), or not known."""
    _, output, _ = run(["scontrol", "show", "reservation", "-o", name], ASK_AT_MOST_S)
    return parse_reservation_end(output)


def parse_reservation_end(output: str) -> float | None:
    end, flags = re.search(r"\sEndTime=(\d+)", output), re.search(r"\sFlags=(\S+)", output)
    if end is None or (flags and "FLEX" in flags.group(1).split(",")):
        return None
    return float(end.group(1))


def steps_of(job_id: str) -> list[str]:
    """The job's steps that a program of the user's runs in, as JOB.STEP."""
    _, output, _ = run(["squeue", "-s", "-h", "-j", job_id, "-o", "%i %j"], ASK_AT_MOST_S)
    pairs = (line.split(None, 1) for line in output.splitlines() if line.strip())
    return [words[0] for words in pairs
            if words[0].rpartition(".")[2].isdigit() and words[1:] != ["orch-notice"]]


def signal_step(step: str, name: str) -> bool:
    code, _, _ = run(["scancel", f"--signal={name}", step], ASK_AT_MOST_S)
    return code == 0
