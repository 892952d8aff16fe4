"""Endings of which slurmctld has forgotten everything and the supervisor left no record: read from accounting, where there is
one. Runs share a cluster; no daemon is there while they end, as after a night in which its host was down.

Supervisors are stopped (SIGSTOP) or killed, so that they leave no word; what Slurm then does to the job is what accounting
knows. MinJobAge is two seconds, and slurmctld clears its list twice a minute.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from accounting import Accounting
from repositories import ORCH, Repository, make_repository
from seen import attempt_dir, events, finished, first_start, kill_all_of, memory_is_limited, read, run_dir, trained

from orchestrator import cluster
from orchestrator.cluster.spec import layout_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {partition: calm, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  limit: {partition: calm, cpus: 1, memory: 100M, time: 1m, lead: 20s}
  low: {partition: lower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  relow: {partition: relower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  alone: {partition: doomed, cpus: 1, memory: 100M, time: 10m, lead: 20s}
successors_ahead: 0
checkpoint: {interval: 1s}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""
SLURM_CONF = """\
AuthInfo=socket=%s,cred_expire=20
PartitionName=calm Nodes=n1 PreemptMode=OFF MaxTime=UNLIMITED State=UP
PartitionName=lower Nodes=n2 PriorityTier=1 PreemptMode=CANCEL GraceTime=0 MaxTime=UNLIMITED State=UP
PartitionName=relower Nodes=n3 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=UNLIMITED State=UP
PartitionName=doomed Nodes=n4 PreemptMode=OFF MaxTime=UNLIMITED State=UP
PartitionName=upper Nodes=n[2-3] PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
"""
# tag -> profile, environment, ending
RUNS: dict[str, tuple[str, dict[str, object], str]] = {
    "killed": ("default", {"STEPS": 120}, "crash"),
    "cancelled": ("default", {"STEPS": 900}, "cancelled"),
    "limit": ("limit", {"STEPS": 120, "DO": "60:hang"}, "limit-unsaved"),
    "memory": ("default", {"STEPS": 120, "DO": "40:eat-worker,60:hang"}, "out-of-memory"),
    "preempted": ("low", {"STEPS": 120, "DO": "60:hang"}, "preempted-unsaved"),
    "requeued": ("relow", {"STEPS": 120, "DO": "60:hang"}, "preempted-unsaved"),
    "node": ("alone", {"STEPS": 120, "DO": "60:hang"}, "node-failure"),
}


@contextlib.contextmanager
def daemon(made: Repository) -> Iterator[subprocess.Popen[bytes]]:
    process = made.daemon()
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def silence(made: Repository, tag: str) -> None:
    """Its heart stopped long ago: instead of waiting."""
    heart = attempt_dir(made, tag) / "heartbeat"
    heart.write_text(f"{float(heart.read_text()) - 120.0:.3f}\n")


def forgotten(made: Repository) -> None:
    def known() -> str:
        return made.slurm.run("squeue", "--noheader", "--all", "--states=all").strip()

    made.until(lambda: not known(), "Slurm to forget all", 240)


def kill_supervisor_and_trainer(made: Repository, tag: str) -> None:
    [registered] = (attempt_dir(made, tag) / "trainers").glob("*.json")
    for pid in (first_start(made, tag)["pid"], int(registered.stem.rpartition("-")[2])):
        os.kill(pid, signal.SIGKILL)


def stop_supervisor(made: Repository, tag: str, step: int | None = None) -> str:
    """Once it trains, or is stuck at this step; its job."""
    stuck = run_dir(made, tag) / f"did-{step}"
    made.until(lambda: trained(made, tag) if step is None else stuck.exists(), f"{tag} to train")
    start = first_start(made, tag)
    os.kill(start["pid"], signal.SIGSTOP)
    return str(start["job_id"])


# --- what befalls them ------------------------------------------------------------------------------------------------------


def killed(made: Repository) -> None:
    made.until(lambda: trained(made, "killed"), "killed to train")
    kill_supervisor_and_trainer(made, "killed")


def cancelled(made: Repository) -> None:
    made.slurm.run("scancel", stop_supervisor(made, "cancelled"))


def at_the_limit(made: Repository) -> None:
    stop_supervisor(made, "limit", 60)


def out_of_memory(made: Repository) -> None:
    made.until(lambda: (run_dir(made, "memory") / "did-60").exists(), "memory to be stuck")
    kill_supervisor_and_trainer(made, "memory")


def preempted(made: Repository) -> None:
    """One is cancelled for it, one is requeued and runs again, all the night."""
    stop_supervisor(made, "preempted", 60)
    made.slurm.run("scontrol", "update", f"jobid={stop_supervisor(made, 'requeued', 60)}", "requeue=1")
    for node in ("n2", "n3"):
        made.slurm.submit("sleep 1", "--partition=upper", f"--nodelist={node}", "--exclusive", "--mem=100", "--time=1")
    second = attempt_dir(made, "requeued", 2) / "end.json"
    made.until(lambda: second.exists() and not read(second)["provisional"], "the second execution of requeued to end", 240)


def node_fails(made: Repository) -> None:
    made.until(lambda: (run_dir(made, "node") / "did-60").exists(), "node to be stuck")
    job_id = first_start(made, "node")["job_id"]
    kill_all_of(made, job_id)
    cluster.stop_node(made.slurm.folder, "n4", kill_jobs=True)
    made.until(lambda: "NODE_FAIL" in made.slurm.run("sacct", "-XnP", "-j", job_id, "-o", "state"), "n4 to be down")
    cluster.start_node(made.slurm.folder, "n4")


def others(made: Repository) -> None:
    """Somebody's array whose tasks have ids among ours, with steps in them."""
    made.slurm.submit("srun --mem=10 true; exit 9", "--mem=20", "--partition=calm", "--array=1-3")


@pytest.fixture(scope="module")
def accounted(make_accounted_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Accounting]:
    folder = tmp_path_factory.mktemp("forgets")
    slurm, accounting = make_accounted_cluster(
        folder=folder, nodes=4, cpus=16, gpus=0, memory_mib=4000, preemption=True, kill_wait_s=2, min_job_age_s=2,
        slurmd_timeout_s=5, extra_conf=SLURM_CONF % layout_of(folder).munge_socket)
    return slurm, accounting


@pytest.fixture(scope="module")
def repository(accounted: tuple[Any, Accounting], tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """All have ended and are forgotten, and the daemon has not been there."""
    made = make_repository(tmp_path_factory.mktemp("forgotten-endings"), accounted[0], ORCH_YAML)
    for tag, (profile, environment, _) in RUNS.items():
        made.job(tag, yaml=f"profile: {profile}\n", **environment)
    made.job("waiting", yaml="after: [limit]\n", STEPS=20)
    others(made)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tag: made.orch("submit", tag), RUNS))
    made.orch("submit", "waiting")
    made.slurm.run("scancel", made.status("waiting")["jobs"][0]["job_id"])
    disturbances = (killed, cancelled, at_the_limit, out_of_memory, preempted, node_fails)
    with ThreadPoolExecutor(len(disturbances)) as pool:
        for done in [pool.submit(disturb, made) for disturb in disturbances]:
            done.result()
    forgotten(made)
    for tag in RUNS:
        silence(made, tag)
    return made


def count_sacct(made: Repository, folder: Path) -> tuple[dict[str, str], Path]:
    """An environment in which every call of sacct is written down."""
    calls, wrapper = folder / "calls", folder / "bin" / "sacct"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nPATH=${{PATH#*:}}\nexec sacct "$@"\n')
    wrapper.chmod(0o755)
    return {**made.environment, "PATH": f"{wrapper.parent}:{made.environment['PATH']}"}, calls


def test_one_pass_reads_all_endings_with_one_sacct(repository: Repository, tmp_path: Path) -> None:
    environment, calls = count_sacct(repository, tmp_path)
    def tick() -> str:
        return subprocess.run([ORCH, "tick"], cwd=repository.folder, env=environment, capture_output=True, text=True,
                              timeout=120, check=True).stdout

    said = tick()
    assert len(calls.read_text().splitlines()) == 1, said
    tick()
    assert len(calls.read_text().splitlines()) == 1, "nothing is in doubt any more"


@pytest.mark.parametrize("tag", RUNS)
def test_what_it_ended_of(repository: Repository, tag: str) -> None:
    if tag == "memory" and not memory_is_limited(repository):
        pytest.skip("no cgroups of our own on this machine")
    first = repository.status(tag)["attempts"][0]
    assert first["ending"] == RUNS[tag][2], repository.journal(tag)
    [ended] = events(repository, tag, "ended", number=1)
    assert ended["nodes"] in ("n1", "n2", "n3", "n4"), "so that a bad node can be left out"
    assert ended["ended_at"] <= ended["t"] - 2.0, "when it ended, not when it was noticed: Slurm forgets after MinJobAge"


def test_a_job_that_was_requeued_has_two_attempts_with_an_ending_each(repository: Repository) -> None:
    first, second = repository.status("requeued")["attempts"]
    assert (first["job_id"], [first["ending"], second["ending"]]) == (second["job_id"], ["preempted-unsaved", "finished"])


def test_a_waiting_job_that_somebody_cancelled_holds_its_run(repository: Repository) -> None:
    run = repository.status("waiting")
    assert run["state"] == "held" and "was cancelled outside orch" in run["reason"]


def test_then_all_of_them_go_on(repository: Repository) -> None:
    with daemon(repository):
        for tag in ("killed", "limit", "preempted", "node"):
            attempts = finished(repository, tag, 120, torn=True)
            assert [a["ending"] for a in attempts] == [RUNS[tag][2], "finished"]
    assert repository.status("cancelled")["state"] == "held"
    assert "keeps no accounts" not in repository.log()


def test_a_database_that_is_away_stops_nothing(accounted: tuple[Any, Accounting], tmp_path: Path) -> None:
    slurm, accounting = accounted
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    for tag in ("away", "back"):
        made.job(tag, STEPS=60, DO="40:hang")
    accounting.stop_slurmdbd()
    try:
        for tag in ("away", "back"):
            made.orch("submit", tag)
            made.until(lambda tag=tag: (run_dir(made, tag) / "did-40").exists(), f"{tag} to be stuck")
            kill_supervisor_and_trainer(made, tag)
        forgotten(made)
        silence(made, "away")
        with daemon(made):
            attempts = finished(made, "away", 60, torn=True)
            assert [a["ending"] for a in attempts] == ["vanished", "finished"]
            said = [line for line in made.log().splitlines() if "accounting" in line]
            assert len(said) == 1 and "it does not answer" in said[0], made.log()
            assert made.endings("back") == [None], "its heart was beating just now"
            accounting.start_slurmdbd()
            job_id = first_start(made, "back")["job_id"]
            made.until(lambda: "FAILED" in slurm.run("sacct", "-XnP", "-j", job_id, "-o", "state"), "accounting to catch up")
            silence(made, "back")
            attempts = finished(made, "back", 60, torn=True)
            assert [a["ending"] for a in attempts] == ["crash", "finished"]
    finally:
        if "slurmdbd" not in accounting.running:
            accounting.start_slurmdbd()


def test_what_slurmctld_wrote_off_has_vanished(accounted: tuple[Any, Accounting], tmp_path: Path) -> None:
    """It was started without its state: what the database thinks queued or running it has written down as cancelled, by
    nobody. That is no person's wish, and holds no run."""
    slurm, _ = accounted
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    made.job("ran", STEPS=60, DO="40:hang")
    made.job("waited", yaml="after: [ran]\n", STEPS=10)
    for tag in ("ran", "waited"):
        made.orch("submit", tag)
    made.until(lambda: (run_dir(made, "ran") / "did-40").exists(), "it to be stuck")
    job_ids = [first_start(made, "ran")["job_id"], made.status("waited")["jobs"][0]["job_id"]]

    def states() -> list[str]:
        return slurm.run("sacct", "-XnP", "-j", ",".join(job_ids), "-o", "state").split("\n")[:-1]

    made.until(lambda: states() == ["RUNNING", "PENDING"], "the database to hear of them")
    cluster.kill(slurm.folder)
    for path in (layout_of(slurm.folder).base / "state").glob("job_state*"):
        path.unlink()
    cluster.up(slurm.spec)
    made.until(lambda: states() == ["CANCELLED"] * 2, "slurmctld to write them off")
    silence(made, "ran")
    journal = run_dir(made, "waited") / "journal.jsonl"
    text = journal.read_text()         # queued a while ago: instead of waiting for patience to end
    journal.write_text(re.sub(r'"t": ?([0-9.]+)', lambda match: f'"t": {float(match[1]) - 65.0}', text))
    made.orch("tick")
    assert made.endings("ran")[0] == "vanished"
    assert made.status("waited")["state"] != "held"
    [dropped] = events(made, "waited", "dropped")
    assert dropped["why"] == "gone"
