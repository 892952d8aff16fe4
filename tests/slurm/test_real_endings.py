"""How attempts end on a real Slurm, and what follows: limits, preemptions, kills, memory, a hang, a requeue, cancels, a state
that was lost.

All runs are submitted at once and share a cluster and a daemon, so that the file takes as long as its slowest run. Runs that
are to be preempted have a node of their own, so that the job which preempts them takes nobody else's place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from repositories import TINY, Repository, make_repository

from orchestrator import cluster
from orchestrator.cluster.spec import layout_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {partition: calm, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  limit: {partition: calm, cpus: 1, memory: 100M, time: 1m, lead: 20s}
  low: {partition: lower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  relow: {partition: relower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  no-grace: {partition: graceless, cpus: 1, memory: 100M, time: 10m, lead: 20s}
checkpoint: {interval: 1s}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""
# A requeued job waits for the lifetime of its credential, by default 120 s.
SLURM_CONF = """\
AuthInfo=socket=%s,cred_expire=20
PartitionName=calm Nodes=n1 PreemptMode=OFF MaxTime=UNLIMITED State=UP
PartitionName=lower Nodes=n2 PriorityTier=1 PreemptMode=CANCEL GraceTime=20 MaxTime=UNLIMITED State=UP
PartitionName=relower Nodes=n3 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=UNLIMITED State=UP
PartitionName=graceless Nodes=n4 PriorityTier=1 PreemptMode=CANCEL GraceTime=0 MaxTime=UNLIMITED State=UP
PartitionName=upper Nodes=n[2-4] PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
"""
SECRET = "hunter2-secret"
LEAVES_AN_UPLOADER = f"""#!/usr/bin/env bash
setsid {sys.executable} -c 'import time; time.sleep(300)' --key "$API_KEY" &
{sys.executable} {TINY}
"""
# tag -> profile, environment
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "requeued": ("default", {"STEPS": 400}),
    "limit-saved": ("limit", {"STEPS": 300, "DO": "50:slow"}),
    "limit-unsaved": ("limit", {"STEPS": 200, "DO": "100:hang"}),
    "preempted-saved": ("low", {"STEPS": 300, "DO": "50:slow"}),
    "preempted-unsaved": ("low", {"STEPS": 200, "DO": "100:hang"}),
    "preempted-requeue": ("relow", {"STEPS": 300, "DO": "50:slow"}),
    "preempted-no-grace": ("no-grace", {"STEPS": 300, "DO": "50:slow"}),
    "crash": ("default", {"STEPS": 400}),
    "hung": ("default", {"STEPS": 200, "DO": "100:hang", "ORCH_HUNG_AFTER_S": 10}),
    "memory": ("default", {"STEPS": 200, "DO": "100:eat"}),
    "memory-worker": ("default", {"STEPS": 200, "DO": "100:eat-worker,120:exit0"}),
    "admin": ("default", {"STEPS": 400}),
    "head": ("default", {"STEPS": 20}),
    "gate": ("default", {"STEPS": 900}),
    "secret": ("default", {"STEPS": 20}),
}
STEPS = {"lost": 200, **{tag: environment["STEPS"] for tag, (_, environment) in RUNS.items()}}


@pytest.fixture(scope="module")
def repository(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("endings-slurm")
    slurm = make_slurm_cluster(folder=folder, nodes=4, cpus=32, gpus=0, memory_mib=8000, preemption=True, kill_wait_s=3,
                               extra_conf=SLURM_CONF % layout_of(folder).munge_socket)
    made = make_repository(tmp_path_factory.mktemp("endings"), slurm, ORCH_YAML)
    for tag, (profile, environment) in RUNS.items():
        yaml = f"profile: {profile}\n" + ("after: [gate]\n" if tag == "head" else "")
        if tag == "secret":
            (made.folder / "secrets").write_text(f"API_KEY={SECRET}\n")
            (made.folder / "secrets").chmod(0o600)
            yaml += f"env_file: {made.folder / 'secrets'}\n"
        made.job(tag, script=LEAVES_AN_UPLOADER if tag == "secret" else None, yaml=yaml, **environment)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tag: made.orch("submit", tag), sorted(RUNS, key=lambda tag: tag == "head")))
    daemon = made.daemon()
    try:
        disturbances = (preempt, kill, requeue, cancel_at_the_gate, cancel_as_an_administrator)
        with ThreadPoolExecutor(len(disturbances)) as pool:
            for done in [pool.submit(disturb, made) for disturb in disturbances]:
                done.result()
        yield made
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)


# --- what is done to them ---------------------------------------------------------------------------------------------


def preempt(made: Repository) -> None:
    """Jobs that take the whole nodes of the low ones, one of which is stuck in a step by then."""
    made.until(lambda: (run_dir(made, "preempted-unsaved") / "did-100").exists(), "preempted-unsaved to be stuck")
    made.until(lambda: trained(made, "preempted-saved"), "preempted-saved to train")
    for tag in ("preempted-requeue", "preempted-no-grace"):
        made.until(lambda tag=tag: trained(made, tag), f"{tag} to train")
    for node in ("n2", "n3", "n4"):
        made.slurm.submit("sleep 1", "--partition=upper", f"--nodelist={node}", "--exclusive", "--mem=100", "--time=1")


def kill(made: Repository) -> None:
    """The supervisor and job.sh, which is the trainer itself here, die of SIGKILL at once."""
    made.until(lambda: trained(made, "crash"), "crash to train")
    start = read(run_dir(made, "crash") / "attempts" / "0001" / "start.json")
    [registered] = (run_dir(made, "crash") / "attempts" / "0001" / "trainers").glob("*.json")
    for pid in (start["pid"], int(registered.stem.rpartition("-")[2])):
        os.kill(pid, signal.SIGKILL)


def requeue(made: Repository) -> None:
    """As a site's script does it: --no-requeue is of no avail."""
    made.until(lambda: trained(made, "requeued"), "requeued to train")
    job_id = read(run_dir(made, "requeued") / "attempts" / "0001" / "start.json")["job_id"]
    made.slurm.run("scontrol", "update", f"jobid={job_id}", "requeue=1")
    made.slurm.run("scontrol", "requeue", job_id)


def cancel_at_the_gate(made: Repository) -> None:
    """The successor is let go while its predecessor trains: it waits at the gate, and somebody cancels it there."""
    made.until(lambda: trained(made, "gate"), "gate to train")
    successor = made.until(lambda: next((s for s in made.status("gate")["jobs"] if s["state"] == "PENDING"), None),
                           "the successor of gate")["job_id"]

    def let_go() -> bool:
        subprocess.run(["scontrol", "update", f"jobid={successor}", "dependency="], env=made.environment, check=False,
                       capture_output=True)
        return made.slurm.job(int(successor))["JobState"] == "RUNNING"

    made.until(let_go, "the successor of gate to start")
    time.sleep(3.0)                    # time enough to take the run, if it would
    assert made.slurm.job(int(successor))["JobState"] == "RUNNING", "it waits at the gate"
    made.slurm.run("scancel", successor)
    made.until(lambda: stood_down(made, "gate"), "it to stand down", 20)


def cancel_as_an_administrator(made: Repository) -> None:
    """One that trains, by SIGKILL to all of it; and one that waits for another run."""
    head = made.until(lambda: next((s for s in made.status("head")["jobs"] if s["state"] == "PENDING"), None),
                      "the head of `head`")["job_id"]
    made.slurm.run("scancel", head)
    made.until(lambda: trained(made, "admin"), "admin to train")
    job_id = read(run_dir(made, "admin") / "attempts" / "0001" / "start.json")["job_id"]
    made.slurm.run("scancel", "--signal=KILL", "--full", job_id)


# --- what is seen of them ---------------------------------------------------------------------------------------------


def run_dir(made: Repository, tag: str) -> Path:
    return made.folder / "runs" / tag


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def trained(made: Repository, tag: str) -> bool:
    """Whether its first attempt has a checkpoint and hears of a preemption."""
    folder = run_dir(made, tag) / "attempts" / "0001"
    return bool(list((run_dir(made, tag) / "checkpoints").glob("step-*/COMPLETE"))) and \
        '"notice_step"' in (folder / "supervisor.jsonl").read_text()


def memory_is_limited(made: Repository) -> bool:
    return "cgroup" in made.slurm.run("scontrol", "show", "config").partition("TaskPlugin ")[2].partition("\n")[0]


def stood_down(made: Repository, tag: str) -> list[str]:
    return [read(path)["reason"] for path in (run_dir(made, tag) / "attempts").glob("*/stood-down-*.json")]


def finished(made: Repository, tag: str, timeout_s: float = 60) -> list[dict[str, Any]]:
    """Its attempts, once it is finished; each after the first resumed from what was newest when the one before ended."""
    over = ("finished",) if tag == "gate" else ("finished", "held")    # whose waiting job was cancelled by hand is held
    made.until(lambda: made.status(tag)["state"] in over, f"{tag} to finish", timeout_s)
    run = made.status(tag)
    assert run["state"] == "finished", run
    attempts: list[dict[str, Any]] = run["attempts"]
    assert run["metrics"] == {"state": STEPS[tag]}
    for earlier, later in pairwise(attempts):
        folder = run_dir(made, tag) / "attempts" / f"{earlier['attempt']:04d}"
        lines = [json.loads(line) for line in (folder / "trainer.jsonl").read_text().splitlines()]
        newest = max(line["step"] for line in lines if line["event"] == "saved")
        assert later["resume_step"] == earlier["checkpoint_step"]
        # a kill may come between a checkpoint and the line that tells of it
        assert later["resume_step"] == newest or (tag in ("crash", "lost") and newest < later["resume_step"])
    return attempts


@pytest.mark.parametrize(("tag", "endings"), [
    ("preempted-saved", ["preempted-saved", "finished"]),
    ("preempted-unsaved", ["preempted-unsaved", "finished"]),
    ("crash", ["crash", "finished"]),
    ("limit-saved", ["limit-saved", "finished"]),
    ("limit-unsaved", ["limit-unsaved", "finished"]),
    ("preempted-requeue", ["preempted-saved", "finished"]),
    ("preempted-no-grace", ["preempted-saved", "finished"]),
    ("hung", ["hung", "finished"]),
])
def test_a_successor_goes_on_behind(repository: Repository, tag: str, endings: list[str]) -> None:
    first, second = finished(repository, tag, 120)
    assert [first["ending"], second["ending"]] == endings
    assert second["epoch"] == first["epoch"] + 1
    assert first["job_id"] != second["job_id"]


def test_after_a_limit_without_a_save_the_lead_is_raised_while_the_successor_trains(repository: Repository) -> None:
    finished(repository, "limit-unsaved", 120)
    journal = repository.journal("limit-unsaved")
    lead_s = journal[0]["spec"]["profile"]["lead_s"]
    assert [event["lead_s"] for event in journal if event["event"] == "adjusted"] == [min(2 * lead_s, 30.0)]


def test_what_was_saved_at_a_limit_and_a_preemption_is_all_there_was(repository: Repository) -> None:
    for tag in ("limit-saved", "preempted-saved", "preempted-requeue", "preempted-no-grace"):
        first = finished(repository, tag, 120)[0]
        assert first["checkpoint_step"] == first["last_step"], tag


def test_a_job_that_the_site_requeued_goes_on_at_once(repository: Repository) -> None:
    first, second = finished(repository, "requeued", 150)
    assert (first["job_id"], second["ending"]) == (second["job_id"], "finished")
    assert first["ending"] in ("vanished", "preempted-saved")
    took = run_dir(repository, "requeued") / "attempts" / f"{second['attempt']:04d}"
    began = next(line for line in (took / "supervisor.jsonl").read_text().splitlines() if '"took"' in line)
    assert json.loads(began)["t"] - second["started_at"] < 5.0, "nothing was waited for"


def test_a_job_that_is_cancelled_at_the_gate_stands_down_and_disturbs_nobody(repository: Repository) -> None:
    assert "told to stop while waiting" in stood_down(repository, "gate")
    [only] = finished(repository, "gate", 90)
    assert only["ending"] == "finished"


def test_a_trainer_that_hangs_leaves_its_stacks(repository: Repository) -> None:
    finished(repository, "hung", 120)
    folder = run_dir(repository, "hung") / "attempts" / "0001"
    end = read(folder / "end.json")
    assert end["hung"] and "no sign of life for 10 s" in end["detail"] and end["last_step"] >= 100
    [stacks] = folder.glob("stacks-*.txt")
    assert "tiny.py" in stacks.read_text()


@pytest.mark.parametrize("tag", ["memory", "memory-worker"])
def test_out_of_memory_is_called_so_whoever_was_killed(repository: Repository, tag: str) -> None:
    if not memory_is_limited(repository):
        pytest.skip("cgroups are not usable here, so that nobody limits a job's memory or counts its kills")
    repository.until(lambda: repository.endings(tag)[0], f"{tag} to end", 60)
    first = repository.status(tag)["attempts"][0]
    end = read(run_dir(repository, tag) / "attempts" / "0001" / "end.json")
    assert first["ending"] == "out-of-memory"
    assert end["oom_kills"] >= 1
    # where the trainer left with 0, nothing but the count tells
    assert (end["exit_code"], end["signal"]) == ((None, 9) if tag == "memory" else (0, None))
    first, second = finished(repository, tag, 120)
    assert second["ending"] == "finished"


def test_a_job_that_an_administrator_kills_is_cancelled_and_the_run_held(repository: Repository) -> None:
    repository.until(lambda: repository.status("admin")["state"] == "held", "admin to be held")
    run = repository.status("admin")
    assert [a["ending"] for a in run["attempts"]] == ["cancelled"], run
    assert read(run_dir(repository, "admin") / "attempts" / "0001" / "start.json")["number"] == 1
    repository.until(lambda: not [j for j in repository.status("admin")["jobs"] if j["state"] == "PENDING"],
                     "no successor to be left")


def test_a_waiting_job_that_somebody_cancels_holds_its_run(repository: Repository) -> None:
    repository.until(lambda: repository.status("head")["state"] == "held", "head to be held")
    assert repository.status("head")["attempts"] == []


def test_a_secret_of_the_env_file_goes_nowhere(repository: Repository) -> None:
    [attempt] = finished(repository, "secret")
    folder = run_dir(repository, "secret") / "attempts" / "0001"
    end = read(folder / "end.json")
    [left] = end["left_behind"]
    assert left.split()[1:] == [Path(os.path.realpath(sys.executable)).name], "named, and nothing that it was given"
    assert "left_behind" in (folder / "supervisor.jsonl").read_text()
    repository.orch("status", "secret")
    for path in (p for name in ("runs", "ops", "jobs") for p in (repository.folder / name).rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in repository.log()
    assert SECRET not in repository.slurm.run("scontrol", "show", "job", "--details", attempt["job_id"])


def test_nothing_is_left(repository: Repository) -> None:
    """Runs last of these: every run above is finished or held."""
    repository.until(lambda: not repository.slurm.run("squeue", "--noheader").strip(), "the queue to be empty")
    ours = f"ORCH_RUN_DIR={repository.folder / 'runs'}/".encode()
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if ours in Path("/proc", name, "environ").read_bytes():
                left.append(Path("/proc", name, "cmdline").read_bytes())
        except OSError:
            continue
    assert left == []


# --- a state that was lost ---------------------------------------------------------------------------------------------


def test_what_slurm_forgot_and_nobody_ended_has_vanished_and_goes_on(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Everything is killed, and slurmctld's state is lost: job ids begin anew, and the dead attempt's is given again."""
    slurm = make_slurm_cluster(folder=tmp_path_factory.mktemp("forgets"), nodes=1, cpus=8, gpus=0, memory_mib=2000,
                               preemption=False)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML.replace("partition: calm, ", ""))
    made.job("lost", STEPS=STEPS["lost"])
    made.orch("submit", "lost")
    daemon = made.daemon()
    try:
        made.until(lambda: trained(made, "lost"), "lost to train")
        cluster.kill(slurm.folder)
        for path in (layout_of(slurm.folder).base / "state").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        heart = run_dir(made, "lost") / "attempts" / "0001" / "heartbeat"
        heart.write_text(f"{float(heart.read_text()) - 120.0:.3f}\n")     # instead of waiting for its silence
        cluster.up(slurm.spec)
        first, second = finished(made, "lost", 90)
        assert [first["ending"], second["ending"]] == ["vanished", "finished"]
        assert second["resume_step"] > 0
        assert second["job_id"] == first["job_id"], "the very case in which a job id is no identity"
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)
