"""What Slurm's commands print when they fail: a no, or no answer at all. Each by a program that prints just that."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import NoRoom, SlurmUnreachable, SubmissionRejected
from orchestrator.slurm.commands import SlurmCommands


def that_says(folder: Path, words: str, code: int) -> None:
    program = folder / "scancel"
    program.write_text(f'#!/bin/sh\ncat >&2 <<"END"\n{words}\nEND\nexit {code}\n')
    program.chmod(0o755)


@pytest.mark.parametrize(("words", "code"), [
    ("scancel: error: Kill job error on job id 1: Unable to contact slurm controller (connect failure)", 8),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1),
    ("slurm_load_jobs error: Socket timed out on send/recv operation", 1),
    ("slurm_load_jobs error: Unexpected message received", 1),
    ("slurm_load_jobs error: Zero Bytes were transmitted or received", 1),
    ("slurm_load_jobs error: Rate limit exceeded, please retry momentarily", 1),
    ("slurm_load_jobs error: Protocol authentication error", 1),
    ("sbatch: error: Batch job submission failed: Slurm backup controller in standby mode", 1),
    ("slurm_load_jobs error: Incompatible versions of client and server code", 1),
    ("sbatch: error: Munge encode failed: Failed to access \"/run/munge/munge.socket.2\": No such file or directory", 1),
    ("/bin/sh: 1: scancel: not found", 127)])
def test_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int) -> None:
    that_says(tmp_path, words, code)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmUnreachable) as said:
        SlurmCommands().cancel("1")
    assert said.value.message == words


@pytest.mark.parametrize(("words", "kind"), [
    ("sbatch: error: Batch job submission failed: Invalid partition name specified", SubmissionRejected),
    ("sbatch: error: Invalid --signal specification", SubmissionRejected),
    ("scancel: error: Kill job error on job id 1: Access/permission denied", SubmissionRejected),
    ("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
     "time limits)", SubmissionRejected),
    ("sbatch: error: QOSMaxSubmitJobPerUserLimit", NoRoom),
    ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.", NoRoom)])
def test_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: type[Exception]) -> None:
    that_says(tmp_path, words, 1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(kind) as said:
        SlurmCommands().cancel("1")
    assert type(said.value) is kind


def test_one_that_hangs_and_ignores_term_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scancel").write_text('#!/bin/sh\ntrap "" TERM\necho waiting >&2\nsleep 987.6\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmUnreachable, match=r"scancel gave no answer within 0\.1 s"):
        SlurmCommands(timeout_s=0.1).cancel("1")
