"""The device check, the secrets, the environment of job.sh, and what keeps orch_trainer importable in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.attempt import setup
from orchestrator.attempt.commands import parse_job, parse_reservation_end
from orchestrator.attempt.memory import OomKills, job_cgroup, parse_gpus, used_bytes
from orchestrator.attempt.setup import SetupError, check_device, job_environment, read_env_file
from orchestrator.records import AttemptSpec, StartRecord
from orchestrator.sightings import JobGone, JobSeen, SlurmSilent

SPEC = AttemptSpec(tag="a", repository="/repo", run_dir="/repo/runs/a", number=1, submission_id="s1", lead_s=60,
                   signal="TERM", time_limit_s=3600, interval_s=30)
START = StartRecord(number=1, submission_id="s1", job_id="5", restart_count=0, epoch=7, host="h", boot_id="b", pid=1,
                    pid_start=1, started_at=0.0, deadline=3600.0)


@pytest.mark.parametrize(("gres", "environment", "words"), [
    ("", {}, ""),
    ("tmp:1", {}, ""),
    ("gpu:1", {"CUDA_VISIBLE_DEVICES": "0"}, "gpu 0"),
    ("gres/gpu:a100:2", {"SLURM_JOB_GPUS": "0,1"}, "gpu 0,1"),
    ("gpu:1", {"CUDA_VISIBLE_DEVICES": "NoDevFiles", "GPU_DEVICE_ORDINAL": "3"}, "gpu 3"),
])
def test_a_visible_device_passes_a_declared_one_too(
        gres: str, environment: dict[str, str], words: str, tmp_path: Path) -> None:
    assert check_device(gres, environment, tmp_path, tmp_path) == words


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}])
def test_a_gpu_that_is_not_visible_is_said(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no GPU visible"):
        check_device("gpu:1", environment, tmp_path, tmp_path)


def test_a_driver_without_its_device_files_is_said(tmp_path: Path) -> None:
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    with pytest.raises(SetupError, match="can be opened"):
        check_device("gpu:1", {"CUDA_VISIBLE_DEVICES": "0"}, tmp_path, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert check_device("gpu:1", {"CUDA_VISIBLE_DEVICES": "0"}, tmp_path, tmp_path) == "gpu 0"


def test_secrets_are_read_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("# mine\nexport A=1\nB='two words'\n\nC=x=y\n")
    file.chmod(0o600)
    assert read_env_file(file) == {"A": "1", "B": "two words", "C": "x=y"}


@pytest.mark.parametrize(("mode", "text", "words"), [(0o644, "A=hunter2\n", "0600"), (0o600, "hunter2\n", "not KEY=VALUE")])
def test_an_open_or_broken_env_file_is_refused_without_its_content(
        tmp_path: Path, mode: int, text: str, words: str) -> None:
    file = tmp_path / "secrets"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(SetupError, match=words) as error:
        read_env_file(file)
    assert "hunter2" not in str(error.value)


def test_the_environment_is_the_protocols(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "PYTHONPATH": "/mine", "BASH_ENV": "/my/env"}
    made = job_environment(base, SPEC, START, tmp_path, {"TOKEN": "x"}, tmp_path / "lib")
    assert made["PYTHONPATH"] == f"/mine:{tmp_path}/lib"
    assert made["ORCH_USER_BASH_ENV"] == "/my/env"
    assert (made["ORCH_EPOCH"], made["ORCH_DEADLINE"], made["ORCH_RESUME_FROM"]) == ("7", "3600.000", "")
    assert (made["PYTHONUNBUFFERED"], made["TOKEN"]) == ("1", "x")
    assert job_environment({"PYTHONUNBUFFERED": ""}, SPEC, START, tmp_path, {}, None)["PYTHONUNBUFFERED"] == ""


def test_what_trainers_are_told_that_go_by_steps_and_by_the_clock(tmp_path: Path) -> None:
    told = replace(SPEC, interval_steps=250, save_at=["5000", "22:00"])
    made = job_environment({}, told, START, tmp_path, {}, None)
    assert (made["ORCH_CHECKPOINT_INTERVAL_STEPS"], made["ORCH_SAVE_AT"]) == ("250", "5000 22:00")
    assert made["ORCH_STOP_AFTER_MIN"] == "59", "an hour less the lead"
    without = job_environment({}, SPEC, replace(START, deadline=None), tmp_path, {}, None)
    assert not {"ORCH_CHECKPOINT_INTERVAL_STEPS", "ORCH_SAVE_AT", "ORCH_STOP_AFTER_MIN"} & set(without)


def in_bash(tmp_path: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    library = tmp_path / "it's a \"lib\" $x"
    library.mkdir()
    setup.write_bash_env(tmp_path, library)
    (tmp_path / "job.sh").write_text(script)
    made = {"PATH": os.environ["PATH"], "BASH_ENV": str(tmp_path / "bash_env.sh"), "PYTHONPATH": str(library),
            "LIBRARY": str(library), "PY": sys.executable, **environment}
    return subprocess.run(["/bin/bash", str(tmp_path / "job.sh")], env=made, capture_output=True, text=True, check=False)


SHOW = '"$PY" -c "import os; print(os.environ[\'LIBRARY\'] in os.environ.get(\'PYTHONPATH\', \'\').split(\':\'))"'


@pytest.mark.parametrize("script", [
    f"export PYTHONPATH=$PWD\n{SHOW}",
    f"unset PYTHONPATH\n{SHOW}",
    f"set -euo pipefail\nexport PYTHONPATH=$PWD\n{SHOW} | cat",
    f"f() {{ export PYTHONPATH=/x; {SHOW}; }}\nf",
    f"(export PYTHONPATH=/x; {SHOW})",
    f"export PYTHONPATH=/x\nexec {SHOW}",
    f"export PYTHONPATH=/x\nbash -c 'export PYTHONPATH=/y; {SHOW.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'",
])
def test_the_library_stays_importable_whatever_the_script_does(tmp_path: Path, script: str) -> None:
    answer = in_bash(tmp_path, script)
    assert (answer.stdout, answer.stderr, answer.returncode) == ("True\n", "", 0)


def test_a_script_sees_nothing_of_the_trap(tmp_path: Path) -> None:
    script = ("set -x\nexport PYTHONPATH=/x\n: one two\necho $_\nfalse\necho $?\n"
              "PYTHONPATH=/y\n: last\nPYTHONPATH=/z\ntrue\nif false; then :; fi\necho $?\n")
    answer = in_bash(tmp_path, script)
    assert answer.stdout.split() == ["two", "1", "0"]
    assert answer.stderr.splitlines() == [
        "+ export PYTHONPATH=/x", "+ PYTHONPATH=/x", "+ : one two", "+ echo two", "+ false", "+ echo 1",
        "+ PYTHONPATH=/y", "+ : last", "+ PYTHONPATH=/z", "+ true", "+ false", "+ echo 0"]
    assert not any("orch" in line or "case" in line for line in answer.stderr.splitlines())


def test_the_last_argument_survives_the_trap(tmp_path: Path) -> None:
    assert in_bash(tmp_path, ": a last\nPYTHONPATH=/x : b other\necho $_\n").stdout == "other\n"
    (tmp_path / "it's a \"lib\" $x").rmdir()
    assert in_bash(tmp_path, "export PYTHONPATH=/x\necho $_\n").stdout == "PYTHONPATH=/x\n"


def test_errexit_still_ends_the_script(tmp_path: Path) -> None:
    answer = in_bash(tmp_path, "set -euo pipefail\nexport PYTHONPATH=/x\nfalse | cat\necho not reached\n")
    assert (answer.stdout, answer.returncode) == ("", 1)


def test_the_users_own_bash_env_is_sourced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("MINE=yes\n")
    assert in_bash(tmp_path, "echo $MINE\n", ORCH_USER_BASH_ENV=str(tmp_path / "mine")).stdout == "yes\n"


def test_the_library_folder_holds_the_trainer_and_nothing_else(tmp_path: Path) -> None:
    package = setup.trainer_package()
    assert package is not None
    for _ in range(2):
        folder = setup.library_folder(tmp_path, package)
    assert os.listdir(folder) == ["orch_trainer"]


@pytest.mark.parametrize(("code", "output", "errors", "kind"), [
    (0, "JobId=5 JobName=a JobState=NODE_FAIL NodeList=n1 x=y", "", JobSeen(job_id="5", state="NODE_FAIL", nodes="n1")),
    (1, "", "slurm_load_jobs error: Invalid job id specified", JobGone()),
    (None, "", "scontrol did not answer within 8 s", SlurmSilent("scontrol did not answer within 8 s")),
    (1, "", "Unable to contact slurm controller", SlurmSilent("Unable to contact slurm controller")),
    (0, "", "", SlurmSilent("")),
])
def test_what_slurm_says_of_a_job_is_one_of_three_things(code: int | None, output: str, errors: str, kind: object) -> None:
    assert parse_job("5", code, output, errors) == kind


@pytest.mark.parametrize(("output", "end"), [
    ("ReservationName=r StartTime=100 EndTime=340 Duration=00:04:00 Flags=SPEC_NODES Users=me", 340.0),
    ("ReservationName=r StartTime=100 EndTime=340 Duration=00:04:00 Flags=FLEX,SPEC_NODES Users=me", None),
    ("ReservationName=r StartTime=100 EndTime=340 Duration=00:04:00 Users=me", 340.0),
    ("", None)])
def test_only_a_flexible_reservation_lets_jobs_go_on_behind_its_end(output: str, end: float | None) -> None:
    assert parse_reservation_end(output) == end


def test_memory_of_a_job_in_cgroup_v1_and_v2(tmp_path: Path) -> None:
    job1 = tmp_path / "memory" / "slurm" / "uid_0" / "job_5"
    (job1 / "step_batch").mkdir(parents=True)
    (job1 / "memory.stat").write_text("total_rss 100\ntotal_shmem 7\n")
    (job1 / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 0\n")
    (job1 / "step_0").mkdir()
    (job1 / "step_batch" / "memory.oom_control").write_text("oom_kill 2\n")
    first = job_cgroup("4:memory:/slurm/uid_0/job_5/step_batch\n", tmp_path)
    assert used_bytes(first, 1) == 107
    kills = OomKills(first)
    assert kills.count() == 0, "what was before the supervisor is not its attempt's"
    (job1 / "step_0" / "memory.oom_control").write_text("oom_kill 1\n")
    assert kills.count() == 1
    (job1 / "step_0" / "memory.oom_control").unlink()
    (job1 / "step_0").rmdir()
    (job1 / "step_batch" / "memory.oom_control").write_text("oom_kill 4\n")
    assert kills.count() == 3, "a step that has ended is remembered"
    job2 = tmp_path / "system.slice" / "job_6"
    job2.mkdir(parents=True)
    (job2 / "memory.stat").write_text("anon 50\nshmem 1\nfile 999\n")
    second = job_cgroup("0::/system.slice/job_6/step_batch/user/task_0\n", tmp_path)
    kills = OomKills(second)
    (job2 / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert (used_bytes(second, 1), kills.count()) == (51, 1)
    assert job_cgroup("0::/user.slice\n", tmp_path) is None


def test_gpu_lines_are_read_from_the_right(tmp_path: Path) -> None:
    assert parse_gpus("NVIDIA H200, odd, 10, 20\n[Not Supported]\n") == [("NVIDIA H200, odd", 10 << 20, 20 << 20)]
