"""The one read of a pass on a real controller: whatever jobs are called, whoever's they are, in every state it can show."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches import with_pyslurm

from orchestrator import cluster
from orchestrator.cluster.spec import Tracking
from orchestrator.core.script import dependency_jobs, parse_comment
from orchestrator.errors import SlurmUnreachable
from orchestrator.sightings import JobSeen
from orchestrator.slurm.bindings import SlurmBindings
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.fields import gres_counts
from orchestrator.states import Stage, stage_of

pytestmark = pytest.mark.slurm

OURS = "orch/1:repo-01234567:a:0003:ab12cd34ef56"
# Slurm itself takes names and comments of up to 1024 bytes.
HOSTILE = [
    "a b", "a|b;c,d", "modèle-état-训练 🚀", "x" * 1024, "训" * 341, "%j %k", "a\tb", "$(reboot) `id`", "'\"\\", "a\nb\n\nc",
    "\x1e\x1f", "\x1e9\x1fFAILED\x1f", "JOBID\x1fSTATE", "\n7\n", "\x1b[31mred", " ", "(null)", "N/A", "orch/1:repo:a:1",
    f"\n{OURS}\n", "\r"]


class Bench:
    """A real Slurm, driven past orch's own submission."""

    def __init__(self, cluster: Any, slurm: SlurmCommands) -> None:
        self.cluster, self.slurm = cluster, slurm

    def submit(self, script: str, *options: str) -> str:
        return str(self.cluster.submit(script, "--mem=10", *options))

    def see(self, job_id: str) -> JobSeen:
        job = self.slurm.job(job_id)
        assert job is not None
        return job

    def wait(self, job_id: str, *states: str) -> JobSeen:
        self.cluster.wait_until(lambda: self.see(job_id).state in states, 40, f"{' or '.join(states)}: {self.see(job_id)}")
        return self.see(job_id)

    def scontrol(self, *words: str) -> None:
        self.cluster.run("scontrol", *words)

    def node_is_back(self) -> bool:
        """Slurm refuses to resume a node that a job is completing on, and may have taken it back by itself."""
        with contextlib.suppress(AssertionError):
            self.scontrol("update", "nodename=n2", "state=resume")
        [node] = self.slurm.nodes("n2")
        return "DOWN" not in node.state


@pytest.fixture
def by_commands(contract_cluster: Any) -> Iterator[Bench]:
    bench = Bench(contract_cluster, SlurmCommands(conf=Path(contract_cluster.environment["SLURM_CONF"])))
    yield bench
    contract_cluster.run("scancel", f"--user={os.getuid()}")
    contract_cluster.wait_until(lambda: all(stage_of(job.state) is Stage.ENDED for job in bench.slurm.jobs()), 40, "an end")


@pytest.fixture(params=["commands", "pyslurm"])
def real(request: pytest.FixtureRequest, by_commands: Bench) -> Bench:
    """Read in one way and in the other."""
    return by_commands if request.param == "commands" else Bench(by_commands.cluster, with_pyslurm(by_commands.slurm))


def test_names_and_comments_are_anybodys(real: Bench) -> None:
    ours = real.submit("exit 0", "--hold", "--job-name=a@repo", f"--comment={OURS}")
    theirs = {real.submit("exit 0", "--hold", f"--job-name={words}", f"--comment={words}"): words for words in HOSTILE}
    last = real.submit("exit 0", "--hold", "--job-name=a@repo", f"--comment={OURS}")
    seen = {job.job_id: job for job in real.slurm.jobs()}
    assert {ours, last, *theirs} <= set(seen)
    for job_id, words in theirs.items():
        assert (seen[job_id].state, seen[job_id].reason, seen[job_id].start_at) == ("PENDING", "JobHeldUser", None)
        assert seen[job_id].name == words
        assert seen[job_id].comment == ("" if words in ("(null)", "N/A") else words)
        assert real.slurm.job(job_id) == seen[job_id]
    assert [job_id for job_id in seen if parse_comment(seen[job_id].comment) is not None
            and seen[job_id].state == "PENDING"] in ([ours, last], [last, ours])
    assert {job.job_id for job in real.slurm.queue()} >= {ours, last, *theirs}


def test_arrays_and_heterogeneous_jobs_beside_ours(real: Bench) -> None:
    """Every task and component has an id of its own; the tasks of an array that wait are one row."""
    array = real.submit("sleep 60", "--array=1-5%1", "--job-name=array")
    parts = real.cluster.run("sbatch", "--parsable", "--output=/dev/null", "--hold", "--mem=10", "--job-name=het", ":",
                             "--mem=10", "--wrap=sleep 60").strip()
    ours = real.submit("sleep 60", "--job-name=a@repo", f"--comment={OURS}")
    real.wait(ours, "RUNNING")
    named: dict[str, list[JobSeen]] = {}
    for job in real.slurm.jobs():
        if stage_of(job.state) is not Stage.ENDED:
            named.setdefault(job.name, []).append(job)
    assert [job.job_id for job in named["a@repo"]] == [ours]
    assert {job.state for job in named["array"]} == {"RUNNING", "PENDING"} and len(named["array"]) == 2
    assert array in {job.job_id for job in named["array"]}
    assert sorted(job.job_id for job in named["het"]) == [parts, str(int(parts) + 1)]
    assert f"{array}_[2-5%1]" in {job.job_id for job in real.slurm.queue()}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can submit for another user")
def test_other_peoples_jobs_are_theirs(real: Bench) -> None:
    theirs = real.cluster.run("sbatch", "--uid=daemon", "--parsable", "--hold", "--chdir=/tmp", "--output=/dev/null",
                              "--mem=10", "--job-name=a@repo", f"--comment={OURS}", "--wrap=exit 0").strip()
    try:
        ours = real.submit("exit 0", "--hold", "--job-name=a@repo", f"--comment={OURS}")
        seen = {job.job_id for job in real.slurm.jobs()}
        assert ours in seen and theirs not in seen
        assert {job.job_id: job.user for job in real.slurm.queue()}[theirs] == "daemon"
    finally:
        real.cluster.run("scancel", theirs)


def test_a_requeued_job_counts_its_restarts(real: Bench) -> None:
    job_id = real.submit("sleep 60", "--requeue", f"--comment={OURS}")
    assert real.wait(job_id, "RUNNING").restart_count == 0
    real.scontrol("requeue", job_id)
    waiting = real.wait(job_id, "PENDING")
    assert (waiting.restart_count, waiting.comment, stage_of(waiting.state)) == (1, OURS, Stage.WAITING)


def test_states_of_a_job_that_has_its_nodes(real: Bench) -> None:
    job_id = real.submit("sleep 60")
    real.wait(job_id, "RUNNING")
    real.scontrol("suspend", job_id)
    assert stage_of(real.wait(job_id, "SUSPENDED").state) is Stage.ALLOCATED
    real.scontrol("resume", job_id)
    real.wait(job_id, "RUNNING")
    real.cluster.run("scancel", "--signal=STOP", job_id)
    # pyslurm 25.11 takes the first 16 bits of a state alone: its flag is lost
    stopped = ["STOPPED", *(["RUNNING"] if isinstance(real.slurm, SlurmBindings) else [])]
    assert stage_of(real.wait(job_id, *stopped).state) is Stage.ALLOCATED
    real.cluster.run("scancel", "--signal=CONT", job_id)
    real.wait(job_id, "RUNNING")


def test_states_of_a_job_that_was_put_back(real: Bench) -> None:
    for how in ([], ["State=SpecialExit"]):
        job_id = real.submit("sleep 60", "--requeue")
        real.wait(job_id, "RUNNING")
        real.scontrol("requeuehold", *how, job_id)
        job = real.wait(job_id, "SPECIAL_EXIT" if how else "PENDING")
        assert stage_of(job.state) is Stage.WAITING and job.restart_count == 1


@pytest.mark.parametrize(("script", "state", "code"), [
    ("exit 0", "COMPLETED", "0:0"), ("exit 1", "FAILED", "1:0"), ("exit 75", "FAILED", "75:0"),
    ("kill -9 $$", "FAILED", "0:9"), ("kill -TERM $$", "FAILED", "0:15")])
def test_ends_and_exit_codes(real: Bench, script: str, state: str, code: str) -> None:
    job = real.wait(real.submit(script, "--no-requeue"), "COMPLETED", "FAILED")
    known = code.startswith("0:") or not isinstance(real.slurm, SlurmBindings)
    assert (job.state, job.exit_code, stage_of(job.state)) == (state, code if known else "", Stage.ENDED)


def test_a_job_that_was_cancelled_is_ending_and_then_cancelled(real: Bench) -> None:
    """Its TERM is ignored: for KillWait Slurm says COMPLETING, which is no end yet, and since when and where."""
    job_id = real.submit("trap '' TERM; while :; do sleep 1; done")
    real.wait(job_id, "RUNNING")
    real.cluster.wait_until(lambda: real.cluster.processes() != [], 10, "the job")
    real.cluster.run("scancel", job_id)
    ending = real.wait(job_id, "COMPLETING", "CANCELLED")
    assert stage_of(ending.state) in (Stage.ENDING, Stage.ENDED)
    assert ending.end_at is not None and abs(time.time() - ending.end_at) < 20 and ending.nodes
    assert stage_of(real.wait(job_id, "CANCELLED").state) is Stage.ENDED


def test_a_node_that_fails(real: Bench) -> None:
    job_id = real.submit("sleep 60", "--no-requeue", "--nodelist=n2")
    real.wait(job_id, "RUNNING")
    real.scontrol("update", "nodename=n2", "state=down", "reason=test")
    try:
        assert real.wait(job_id, "NODE_FAIL").nodes == "n2"
    finally:
        real.cluster.wait_until(real.node_is_back, 40, "n2 is back")


def test_memory_that_ran_out(real: Bench) -> None:
    if cluster.up(real.cluster.spec).tracking is Tracking.LINUXPROC:
        pytest.skip("no cgroups of our own on this machine")
    job = real.wait(real.submit("python3 -c 'bytearray(400 << 20)'", "--mem=50"), "OUT_OF_MEMORY", "FAILED", "COMPLETED")
    assert (job.state, job.exit_code) == ("OUT_OF_MEMORY", "0:125")


def test_an_answer_that_is_none(by_commands: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's squeue that prints columns of its own, or nothing, with exit code 0: nobody says that there are no jobs."""
    squeue = shutil.which("squeue")
    for body in ("echo 'JOBID USER STATE'; echo '1 me RUNNING'", "true", f"{squeue} --noheader \"$@\""):
        wrapper = tmp_path / "squeue"
        wrapper.write_text(f"#!/bin/sh\n{body}\n")
        wrapper.chmod(0o755)
        with monkeypatch.context() as patched:
            patched.setenv("PATH", str(tmp_path), prepend=os.pathsep)
            with pytest.raises(SlurmUnreachable, match="something else than it was asked for"):
                by_commands.slurm.jobs()
    assert by_commands.slurm.jobs() is not None


def test_a_banner_disturbs_nobody(by_commands: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = by_commands.submit("exit 0", "--hold", f"--comment={OURS}")
    before = by_commands.slurm.jobs()
    wrapper = tmp_path / "squeue"
    wrapper.write_text(f"#!/bin/sh\necho 'Maintenance on Monday'\n{shutil.which('squeue')} \"$@\"\necho goodbye\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert by_commands.slurm.jobs() == before
    assert by_commands.see(job_id).comment == OURS


def test_other_settings_of_the_user_change_nothing(real: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real.submit("exit 0", "--hold", f"--comment={OURS}")
    before = real.slurm.jobs()
    for name, value in {"SQUEUE_FORMAT": "%i", "SQUEUE_FORMAT2": "jobid", "SQUEUE_STATES": "RUNNING", "SQUEUE_SORT": "i",
                        "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE.UTF-8", "SQUEUE_USERS": "daemon"}.items():
        monkeypatch.setenv(name, value)
    assert real.slurm.jobs() == before


def test_pyslurm_tells_what_squeue_tells(by_commands: Bench) -> None:
    bindings = Bench(by_commands.cluster, with_pyslurm(by_commands.slurm))
    running = by_commands.submit("sleep 60", "--gres=gpu:1", "--job-name=a@repo", f"--comment={OURS}")
    by_commands.submit("sleep 60", f"--dependency=afterany:{running},singleton", "--job-name=a@repo", f"--comment={OURS}")
    by_commands.submit("exit 3", "--array=1-3%1", "--time=1", "--begin=now+1hour")
    for script in ("exit 200", "exit 75", "kill -9 $$", "exit 0"):
        by_commands.wait(by_commands.submit(script), "COMPLETED", "FAILED")
    by_commands.wait(running, "RUNNING")
    for commented in (("",), ("orch/1:repo-01234567:",), ("nobody's",)):
        told, read = ({job.job_id: job for job in bench.slurm.jobs(commented)} for bench in (by_commands, bindings))
        assert told.keys() == read.keys()
        for job_id, job in told.items():
            assert dependency_jobs(read[job_id].dependency) == dependency_jobs(job.dependency)
            assert gres_counts(read[job_id].gres) == gres_counts(job.gres)
            code = job.exit_code if job.exit_code.startswith("0:") else ""
            assert read[job_id].exit_code == code, "of others nobody can say which they are"
            same = replace(job, dependency=read[job_id].dependency, gres=read[job_id].gres, exit_code=code)
            assert read[job_id] == same
