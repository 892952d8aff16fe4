"""What people get wrong, on a real Slurm: a clear sentence, the right exit code, and nothing lost or half done.

Jobs go to the partition ``waiting``, which is down, so that they queue and never start; ``main`` runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import cluster
from orchestrator.core.fold import spec_from_event
from orchestrator.core.script import batch_script, comment, parse_comment, repository_key
from orchestrator.journal import journal_path, read
from orchestrator.model import Profile, RunSpec
from orchestrator.slurm.commands import SlurmCommands

if TYPE_CHECKING:
    from conftest import PrivateSlurm

ENDED = ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")
SECRETS = {"HF_TOKEN": "hunter2-secret", "AWS_SECRET_ACCESS_KEY": "hunter2-secret", "MY_PRIVATE_THING": "hunter2-secret"}
ORCH_YAML = """\
profiles:
  waiting: {partition: waiting, cpus: 1, memory: 100M, time: 10m, lead: 1m}
  main: {partition: main, cpus: 1, memory: 100M, time: 10m, lead: 1m}
  short: {partition: short, cpus: 1, memory: 100M, time: 10m, lead: 1m}
  fat: {partition: waiting, cpus: 1, memory: 64G, time: 10m, lead: 1m}
  wide: {partition: waiting, cpus: 99, memory: 100M, time: 10m, lead: 1m}
  gpus: {partition: waiting, gres: "gpu:7", memory: 100M, time: 10m, lead: 1m}
  many: {partition: waiting, nodes: 9, memory: 100M, time: 10m, lead: 1m}
  nowhere: {partition: nowhere, memory: 100M, time: 10m, lead: 1m}
  closed: {partition: closed, memory: 100M, time: 10m, lead: 1m}
daemon: {every: 1s}
slurm: {conf: %s, timeout: 20s}
"""


@dataclass(frozen=True)
class Repository:
    """A user's repository on the private Slurm, and ``orch`` called in it."""

    path: Path
    slurm: SlurmCommands

    def start(self, *arguments: str, within: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return subprocess.Popen(
            [*within, sys.executable, "-m", "orchestrator.cli.main", *arguments], cwd=self.path,
            env={**outside, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def orch(self, *arguments: str, code: int = 0, within: tuple[str, ...] = (), **environment: str) -> str:
        """What it printed, both streams; fails unless it ends with this code."""
        return self.answer(self.start(*arguments, within=within, **environment), code)

    @staticmethod
    def answer(process: subprocess.Popen[str], code: int = 0) -> str:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code and "Traceback" not in err, f"{process.args}: {process.returncode}: {out}{err}"
        return out + err

    def job(self, tag: str, *, job_yaml: str = "", command: str = "exec sleep 600") -> None:
        folder = self.path / "jobs" / tag
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(f"#!/usr/bin/env bash\n{command}\n")
        (folder / "job.sh").chmod(0o755)
        (folder / "job.yaml").write_text(job_yaml)

    def queued(self, tag: str) -> list[str]:
        """Job ids of this run that have not ended, as Slurm tells, oldest first."""
        name = f"{tag}@{repository_key(str(self.path))}"
        ids = [j.job_id for j in self.slurm.jobs() if j.name == name and j.state not in ENDED]
        return sorted(ids, key=int)

    def events(self, tag: str) -> list[dict[str, Any]]:
        return read(self.path / "runs" / tag)[0]

    def recorded(self, tag: str) -> bool:
        return (self.path / "runs" / tag).exists()


@pytest.fixture(scope="module")
def small_slurm(make_slurm_cluster: Callable[..., PrivateSlurm]) -> Iterator[PrivateSlurm]:
    partitions = ("PartitionName=waiting Nodes=ALL MaxTime=UNLIMITED State=DOWN\n"
                  "PartitionName=short Nodes=ALL MaxTime=5 State=UP\n"
                  "PartitionName=closed Nodes=ALL MaxTime=UNLIMITED State=DRAIN\n")
    slurm = make_slurm_cluster(nodes=2, preemption=False, extra_conf=partitions)
    yield slurm
    cluster.kill(slurm.folder)


@pytest.fixture
def repository(small_slurm: PrivateSlurm, tmp_path: Path) -> Iterator[Repository]:
    slurm = SlurmCommands(conf=cluster.slurm_conf(small_slurm.folder))
    made = Repository(tmp_path, slurm)
    (tmp_path / "orch.yaml").write_text(ORCH_YAML % slurm.conf)
    made.job("a")
    yield made
    for job in slurm.jobs():
        if job.state not in ENDED:
            slurm.cancel(job.job_id)


# --- submitting ----------------------------------------------------------------------------------------------------------


def test_a_run_and_its_successor_and_nothing_more_the_second_time(repository: Repository) -> None:
    answer = json.loads(repository.orch("submit", "a", "--json"))
    first, second = repository.queued("a")
    assert answer["already"] is False and answer["job_ids"] == [first, second]
    seen = {j.job_id: j for j in repository.slurm.jobs()}
    assert f"afterany:{first}" in seen[second].dependency
    parsed = [parse_comment(seen[j].comment) for j in (first, second)]
    assert [p[1:3] for p in parsed if p is not None] == [("a", 1), ("a", 2)]
    before = repository.events("a")
    assert f"a is queued (job {first}, {second}) already" in repository.orch("submit", "a")
    assert json.loads(repository.orch("submit", "a", "--json"))["already"] is True
    repository.orch("tick")
    assert repository.queued("a") == [first, second] and repository.events("a") == before


def test_twice_at_the_same_instant(repository: Repository) -> None:
    both = [repository.start("submit", "a", "--json") for _ in range(2)]
    answers = [(process.communicate(timeout=60), process.returncode) for process in both]
    assert [code for _, code in answers] == [0, 0], answers
    assert sorted(json.loads(out)["already"] for (out, _), _ in answers) == [False, True]
    assert len(repository.queued("a")) == 2
    assert [e["event"] for e in repository.events("a")].count("submit") == 1
    assert [e["event"] for e in repository.events("a")].count("queued") == 2


def test_hold_release_cancel_and_again(repository: Repository) -> None:
    repository.orch("submit", "a")
    jobs = repository.queued("a")
    assert "a is held" in repository.orch("hold", "a")
    assert [scontrol(repository, job)["Priority"] for job in jobs] == ["0", "0"]
    assert "orch release a" in repository.orch("submit", "a", code=4)
    repository.orch("release", "a")
    assert repository.queued("a") == jobs
    assert "0" not in [scontrol(repository, job)["Priority"] for job in jobs]
    assert "a is not held" in repository.orch("release", "a", code=4)
    assert "a is cancelled" in repository.orch("cancel", "a")
    assert repository.queued("a") == []
    assert "--again" in repository.orch("submit", "a", code=4)
    assert "orch submit a --again" in repository.orch("hold", "a", code=4)
    repository.orch("submit", "a", "--again")
    again = repository.queued("a")
    assert len(again) == 2 and not set(again) & set(jobs)


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("--profile", "short"), 4, "time 0:10:00 is above the limit of partition short (0:05:00)"),
    (("--profile", "fat"), 4, "64G memory asked for, n1 has 3.9G"),
    (("--profile", "wide"), 4, "99 cpus asked for, n1 has 8"),
    (("--profile", "gpus"), 4, "gpu:7 asked for, n1 has 2"),
    (("--profile", "many"), 4, "9 nodes asked for, 2 of partition waiting can hold this"),
    (("--profile", "nowhere"), 4, 'this Slurm has no partition "nowhere"'),
    (("--memory", "64G"), 4, "64G memory asked for"),
    (("--after", "99999999"), 2, "Slurm does not know that job"),
])
def test_what_cannot_be_is_refused_before_anything_is_written(
    repository: Repository, arguments: tuple[str, ...], code: int, words: str,
) -> None:
    assert words in repository.orch("submit", "a", "--profile", "waiting", *arguments, code=code)
    assert not repository.recorded("a") and repository.queued("a") == []


def test_validate_is_asked_before_anything_is_written(repository: Repository) -> None:
    repository.job("b", job_yaml="validate: echo no such flag --lrr >&2; exit 3\n")
    assert "no such flag --lrr" in repository.orch("submit", "b", code=4)
    assert not repository.recorded("b") and repository.queued("b") == []


def test_a_dry_run_submits_nothing(repository: Repository) -> None:
    shown = repository.orch("submit", "a", "--dry-run")
    assert shown.startswith("#!/bin/bash\n#SBATCH --job-name=a@")
    assert not repository.recorded("a") and repository.queued("a") == []


def test_slurms_own_no_is_shown_and_holds_the_run(repository: Repository) -> None:
    said = repository.orch("submit", "a", "--profile", "closed", code=6)
    assert "not available" in said and "orch submit a --again" in said
    assert repository.queued("a") == []
    assert "held" in repository.orch("status")


def test_runs_that_wait_for_each_other(repository: Repository) -> None:
    repository.job("b")
    repository.orch("submit", "a")
    repository.orch("submit", "b", "--after", "a")
    first = {j.job_id: j for j in repository.slurm.jobs()}[repository.queued("b")[0]]
    assert f"afterany:{repository.queued('a')[-1]}" in first.dependency
    repository.orch("cancel", "a")
    assert "b waits for a" in repository.orch("submit", "a", "--again", "--after", "b", code=2)
    assert repository.queued("a") == []


def test_a_wait_that_runs_out(repository: Repository) -> None:
    repository.orch("submit", "a")
    assert "a is waiting after 1 s, not finished" in repository.orch("wait", "a", "--timeout", "1s", code=9)
    repository.orch("cancel", "a")
    assert "will not change" in repository.orch("wait", "a", code=4)
    assert "a is cancelled" in repository.orch("wait", "a", "--for", "held,cancelled")


def test_the_users_settings_of_slurm_change_nothing(repository: Repository) -> None:
    theirs = {"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "RUNNING", "SQUEUE_SORT": "i", "SLURM_TIME_FORMAT": "relative",
              "LC_ALL": "POSIX", "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "short", "SBATCH_EXPORT": "NONE",
              "SBATCH_JOB_NAME": "x", "SINFO_FORMAT": "%N", "SLURM_CLUSTERS": "other", "SBATCH_REQUEUE": "1",
              "SBATCH_OUTPUT": "/tmp/x", "SLURM_JOB_ID": "7"}
    repository.orch("submit", "a", **theirs)
    repository.orch("tick", **theirs)
    jobs = repository.queued("a")
    assert len(jobs) == 2
    shown = scontrol(repository, jobs[0])
    assert shown["TimeLimit"] == "00:10:00" and shown["Partition"] == "waiting" and shown["Requeue"] == "0"
    assert shown["StdOut"] == str(repository.path / "runs/a/attempts/0001/out.log")
    assert "job " + jobs[0] in repository.orch("status", **theirs)


def scontrol(repository: Repository, job_id: str) -> dict[str, str]:
    text = subprocess.run(["scontrol", "--oneliner", "show", "job", job_id], capture_output=True, text=True, check=True,
                          env={**os.environ, "SLURM_CONF": str(repository.slurm.conf)}).stdout
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


# --- Slurm is not there ------------------------------------------------------------------------------------------------


def test_slurmctld_does_not_answer(repository: Repository, small_slurm: PrivateSlurm) -> None:
    repository.job("b")
    repository.orch("submit", "a")
    jobs, before = repository.queued("a"), repository.events("a")
    cluster.stop_controller(small_slurm.folder)
    try:
        # all at once: Slurm's commands try for eight seconds each
        asked = [repository.start(*words) for words in (
            ("submit", "b"), ("status",), ("tick",), ("explain", "a"), ("submit", "a"))]
        submit, status, tick, explain, again = [
            repository.answer(process, code) for process, code in zip(asked, (5, 0, 5, 0, 0), strict=True)]
        assert "Unable to contact slurm controller" in submit and not repository.recorded("b")
        assert "waiting" in status and "Slurm does not answer" in status
        assert "Slurm does not answer" in tick
        assert "nothing is decided" in explain
        assert "already" in again
        assert repository.events("a") == before
    finally:
        cluster.start_controller(small_slurm.folder)
    repository.orch("tick")
    assert repository.queued("a") == jobs and repository.events("a") == before


_HIDE = """
for name in sbatch squeue scancel scontrol sinfo sacct; do
  for folder in /usr/bin /usr/local/bin /opt/slurm/bin; do
    [ ! -e "$folder/$name" ] || mount --bind /dev/null "$folder/$name" || exit 99
  done
done
exec "$@"
"""


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="hiding programs needs root")
def test_no_slurm_is_installed(repository: Repository) -> None:
    hidden = ("unshare", "--mount", "sh", "-c", _HIDE, "hide")
    said = repository.orch("submit", "a", code=5, within=hidden, PATH="/usr/bin:/bin")
    assert "sinfo is not installed" in said and "orch cluster up" in said
    assert not repository.recorded("a")
    told = json.loads(repository.orch("submit", "a", "--json", code=5, within=hidden, PATH="/usr/bin:/bin"))
    assert told["error"] == "SlurmUnreachable" and "orch cluster up" in told["hint"]


# --- two of a kind --------------------------------------------------------------------------------------------------------


def test_two_daemons(repository: Repository) -> None:
    repository.orch("submit", "a")
    jobs = repository.queued("a")
    first = repository.start("daemon")
    try:
        assert first.stdout is not None and "a pass every 1 s" in first.stdout.readline()
        assert f"a daemon runs here already (pid {first.pid}" in repository.orch("daemon", code=4)
        first.send_signal(signal.SIGTERM)
        out, err = first.communicate(timeout=20)
        assert first.returncode == 0 and "jobs go on by themselves" in out and err == ""
    finally:
        if first.poll() is None:
            first.kill()
            first.communicate()
    assert repository.queued("a") == jobs


def test_two_repositories_of_one_name_with_one_tag(
    repository: Repository, tmp_path_factory: pytest.TempPathFactory,
) -> None:
    twin = Repository(tmp_path_factory.mktemp("other") / repository.path.name, repository.slurm)
    twin.path.mkdir()
    shutil.copy(repository.path / "orch.yaml", twin.path)
    shutil.copytree(repository.path / "jobs", twin.path / "jobs")
    repository.orch("submit", "a")
    twin.orch("submit", "a")
    assert len(repository.queued("a")) == len(twin.queued("a")) == 2
    twin.orch("cancel", "a")
    assert len(repository.queued("a")) == 2 and not twin.queued("a")
    repository.orch("tick")
    assert repository.events("a")[-1]["event"] == "queued"


# --- files lost while jobs are queued -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_a_truncated_journal_never_makes_a_second_job(repository: Repository, kept: int) -> None:
    repository.orch("submit", "a")
    jobs = repository.queued("a")
    path = journal_path(repository.path / "runs" / "a")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    if kept == 0:
        assert "has no whole event" in repository.orch("tick", code=8)
        assert "has no whole event" in repository.orch("status")
        repository.orch("submit", "a")
    repository.orch("tick")
    assert repository.queued("a") == jobs
    assert "already" in repository.orch("submit", "a")
    assert "a is held" in repository.orch("hold", "a")
    assert [scontrol(repository, job)["Priority"] for job in jobs] == ["0", "0"]


def test_a_torn_line_is_mended_by_the_next_pass_that_writes(repository: Repository) -> None:
    repository.orch("submit", "a")
    jobs = repository.queued("a")
    with journal_path(repository.path / "runs" / "a").open("ab") as file:
        file.write(b'{"event": "hel')
    repository.orch("tick")
    repository.orch("hold", "a")
    assert [e["event"] for e in repository.events("a")].count("note") == 1
    assert repository.queued("a") == jobs


def test_garbage_in_a_journal_stops_that_run_alone(repository: Repository) -> None:
    repository.job("b")
    repository.orch("submit", "a")
    repository.orch("submit", "b")
    jobs = repository.queued("a") + repository.queued("b")
    path = journal_path(repository.path / "runs" / "a")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + b"".join(lines[2:]))
    assert "journal.jsonl:2: not an event" in repository.orch("tick", code=8)
    status = repository.orch("status")
    assert "damaged" in status and "\nb " in status
    repository.orch("submit", "a", code=8)
    assert repository.queued("a") + repository.queued("b") == jobs


def test_a_deleted_run_folder(repository: Repository) -> None:
    repository.job("b")
    repository.orch("submit", "a")
    repository.orch("submit", "b")
    jobs = repository.queued("a")
    shutil.rmtree(repository.path / "runs" / "a")
    said = repository.orch("tick", code=8)
    assert f"runs/a is gone, and job {', '.join(jobs)} of it is still in Slurm" in said
    assert "orch submit a" in said
    assert repository.queued("a") == jobs
    repository.orch("submit", "a")
    repository.orch("tick")
    assert repository.queued("a") == jobs


def test_a_run_folder_deleted_while_it_runs(repository: Repository, small_slurm: PrivateSlurm) -> None:
    repository.job("trains", command="echo begun; exec sleep 600")
    repository.orch("submit", "trains", "--profile", "main")
    out = repository.path / "runs/trains/attempts/0001/out.log"
    small_slurm.wait_until(lambda: out.exists() and "begun" in out.read_text(), 20, "its program's start")
    jobs = repository.queued("trains")
    shutil.rmtree(repository.path / "runs" / "trains", ignore_errors=True)  # its supervisor may write meanwhile
    shutil.rmtree(repository.path / "runs" / "trains", ignore_errors=True)
    assert "never been submitted" in repository.orch("status", "trains", code=3)
    repository.orch("submit", "trains", "--profile", "main")
    repository.orch("tick")
    assert repository.queued("trains") == jobs
    repository.orch("cancel", "trains", "--now")
    small_slurm.wait_until(lambda: repository.queued("trains") == [], 20, "the jobs' end")


# --- what a job gets ----------------------------------------------------------------------------------------------------


def test_a_secret_of_the_submitter_goes_nowhere(repository: Repository, small_slurm: PrivateSlurm) -> None:
    repository.orch("submit", "a", **SECRETS, MY_SETTING="x")
    for path in (p for p in repository.path.rglob("*") if p.is_file()):
        assert b"hunter2" not in path.read_bytes(), path
    job = repository.queued("a")[0]
    env = {**os.environ, "SLURM_CONF": str(repository.slurm.conf)}
    for command in (["scontrol", "show", "job", "--details", job], ["scontrol", "write", "batch_script", job, "-"]):
        assert "hunter2" not in subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    spec = spec_from_event(repository.events("a")[0]["spec"])
    job_id, out = submit_own(repository, spec, "env")
    small_slurm.wait_for(job_id, "COMPLETED", "FAILED")
    printed = out.read_text()
    assert "hunter2" not in printed and "MY_SETTING" not in printed
    assert {f"{k}={v}" for k, v in spec.environment.items() if "\n" not in v} <= set(printed.splitlines())


def submit_own(repository: Repository, spec: RunSpec, command: str) -> tuple[int, Path]:
    """A job with this run's own script, the supervisor's Python being this command; its id and where its output goes."""
    base = Path(spec.repository)
    python = base / "python"
    python.write_text(f"#!/bin/bash\n{command}\n")
    python.chmod(0o755)
    profile = Profile(name="p", partition="main", memory_bytes=50 * 2**20, time_s=60, lead_s=5)
    spec = replace(spec, python=str(python), profile=profile)
    folder = base / "runs" / spec.tag / "attempts" / "0009"
    folder.mkdir(parents=True)
    script = folder / "script.sh"
    text = batch_script(spec, number=9, submission_id="s9", folder=folder, behind=(), nice=False, entry="/entry")
    script.write_text(text.replace("#SBATCH --dependency=singleton\n", ""))
    job_id = repository.slurm.submit(script, spec.environment)
    job = repository.slurm.job(job_id)
    assert job is not None and job.comment == comment(spec, 9, "s9") and job.name == f"a@{repository_key(spec.repository)}"
    return int(job_id), folder / "out.log"


HOSTILE = ["a blank", "it's", 'dou"ble', "do$HOME", "$(id)", "se;mi", "back\\slash", "end\\", "per%cent%j", "%%", "a\\%j",
           "ünï训", "ha#sh", "a #b", "tab\tx", "'\"\\$ #"]


def test_repositories_of_any_name(repository: Repository, small_slurm: PrivateSlurm) -> None:
    """The output's place, the working folder, the comment and the Python come out as they were meant."""
    jobs = {}
    for name in HOSTILE:
        base = repository.path / name
        base.mkdir()
        spec = RunSpec(tag="a", repository=str(base), python="", profile=Profile(name="p"),
                       script_sha256="0", environment={"PATH": os.environ["PATH"]})
        jobs[base] = submit_own(repository, spec, 'pwd; printf "%s\\n" "$@"')
    for base, (job_id, out) in jobs.items():
        small_slurm.wait_for(job_id, "COMPLETED", "FAILED")
        assert out.read_text() == f"{base}\n-I\n/entry\n{base}/runs/a/attempts/0009/spec.json\n"
