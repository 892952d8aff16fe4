"""How attempts end on a real Slurm, and what follows: limits, preemptions, kills, memory, a hang, a requeue, cancels.

All runs are submitted at once and share a cluster and a daemon, so that the file takes as long as its slowest run. Runs that
are to be preempted have a node of their own, so that the job which preempts them takes nobody else's place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from repositories import TINY, Repository, make_repository
from seen import (
    attempt_dir,
    events,
    finished,
    first_start,
    kill_all_of,
    memory_is_limited,
    processes_of,
    read,
    run_dir,
    stood_down,
    successor_of,
    trained,
)

from orchestrator.cluster.spec import layout_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {partition: calm, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  gpu: {partition: calm, cpus: 1, memory: 100M, time: 10m, lead: 20s, gres: "gpu:1"}
  limit: {partition: calm, cpus: 1, memory: 100M, time: 1m, lead: 20s}
  low: {partition: lower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  relow: {partition: relower, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  no-grace: {partition: graceless, cpus: 1, memory: 100M, time: 10m, lead: 20s}
  re-no-grace: {partition: regraceless, cpus: 1, memory: 100M, time: 10m, lead: 20s}
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
PartitionName=regraceless Nodes=n5 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=UNLIMITED State=UP
PartitionName=upper Nodes=n[2-5] PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
"""
# As on a node whose driver is gone: Slurm gives the job a GPU, and shows it none.
HIDES_THE_GPU = """#!/bin/sh
case "$SLURM_JOB_NAME" in no-gpu@*)
  for name in CUDA_VISIBLE_DEVICES SLURM_JOB_GPUS SLURM_STEP_GPUS GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES; do
    echo "unset $name"
  done
esac
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
    "unsaved-requeue": ("relow", {"STEPS": 200, "DO": "100:hang"}),
    "unsaved-no-grace": ("no-grace", {"STEPS": 200, "DO": "100:hang"}),
    "unsaved-re-no-grace": ("re-no-grace", {"STEPS": 200, "DO": "100:hang"}),
    "preempted-requeue": ("relow", {"STEPS": 300, "DO": "50:slow"}),
    "preempted-no-grace": ("no-grace", {"STEPS": 300, "DO": "50:slow"}),
    "preempted-re-no-grace": ("re-no-grace", {"STEPS": 300, "DO": "50:slow"}),
    "crash": ("default", {"STEPS": 400}),
    "hung": ("default", {"STEPS": 200, "DO": "100:hang", "ORCH_HUNG_AFTER_S": 10}),
    "memory": ("default", {"STEPS": 200, "DO": "100:eat"}),
    "memory-worker": ("default", {"STEPS": 200, "DO": "100:eat-worker,120:exit0"}),
    "gone": ("default", {"STEPS": 400}),
    "stopped": ("default", {"STEPS": 400, "DO": "50:slow"}),
    "admin": ("default", {"STEPS": 400}),
    "successor": ("default", {"STEPS": 400}),
    "head": ("default", {"STEPS": 20}),
    "gate": ("default", {"STEPS": 900}),
    "secret": ("default", {"STEPS": 20}),
    "no-gpu": ("gpu", {"STEPS": 20}),
    "no-python": ("default", {"STEPS": 20}),
}
AFTER_GATE = {"head", "no-python"}
STEPS = {tag: int(str(environment["STEPS"])) for tag, (_, environment) in RUNS.items()}
STOPPED_S = 110.0                      # longer than a heart may be silent where nothing is there


@pytest.fixture(scope="module")
def repository(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("endings-slurm")
    prolog = folder / "prolog"
    prolog.write_text(HIDES_THE_GPU)
    prolog.chmod(0o755)
    slurm = make_slurm_cluster(folder=folder, nodes=5, cpus=32, gpus=1, memory_mib=8000, preemption=True, kill_wait_s=3,
                               extra_conf=f"{SLURM_CONF % layout_of(folder).munge_socket}TaskProlog={prolog}\n")
    made = make_repository(tmp_path_factory.mktemp("endings"), slurm, ORCH_YAML)
    for tag, (profile, environment) in RUNS.items():
        yaml = f"profile: {profile}\n" + ("after: [gate]\n" if tag in AFTER_GATE else "")
        if tag == "secret":
            (made.folder / "secrets").write_text(f"API_KEY={SECRET}\n")
            (made.folder / "secrets").chmod(0o600)
            yaml += f"env_file: {made.folder / 'secrets'}\n"
        made.job(tag, script=LEAVES_AN_UPLOADER if tag == "secret" else None, yaml=yaml, **environment)
    made.orch("submit", "gate")
    made.orch("submit", "head")
    submit_with_a_python_that_goes(made)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda tag: made.orch("submit", tag), RUNS.keys() - AFTER_GATE - {"gate"}))
    daemon = made.daemon()
    try:
        disturbances = (preempt, kill, kill_all, stop, requeue, cancel_at_the_gate, cancel_what_waits,
                        cancel_as_an_administrator)
        with ThreadPoolExecutor(len(disturbances)) as pool:
            for done in [pool.submit(disturb, made) for disturb in disturbances]:
                done.result()
        yield made
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=30)


# --- what is done to them ---------------------------------------------------------------------------------------------


def submit_with_a_python_that_goes(made: Repository) -> None:
    """By a link, so that its name is another; while it waits for `gate`, the link is removed, as a venv is."""
    python = made.folder / "python-of-a-venv"
    python.symlink_to(sys.executable)
    path = os.pathsep.join(path for path in (os.environ.get("PYTHONPATH"), *sys.path) if path)
    subprocess.run([python, "-c", "from orchestrator.cli.main import main; main()", "submit", "no-python"], cwd=made.folder,
                   env={**made.environment, "PYTHONPATH": path}, check=True, capture_output=True, timeout=120)
    python.unlink()


def preempt(made: Repository) -> None:
    """Jobs that take the whole nodes of the low ones, one on each of which is stuck in a step by then."""
    for tag in ("preempted-unsaved", "unsaved-requeue", "unsaved-no-grace", "unsaved-re-no-grace"):
        made.until(lambda tag=tag: (run_dir(made, tag) / "did-100").exists(), f"{tag} to be stuck")
    for tag in ("preempted-saved", "preempted-requeue", "preempted-no-grace", "preempted-re-no-grace"):
        made.until(lambda tag=tag: trained(made, tag), f"{tag} to train")
    for node in ("n2", "n3", "n4", "n5"):
        made.slurm.submit("sleep 1", "--partition=upper", f"--nodelist={node}", "--exclusive", "--mem=100", "--time=1")


def kill(made: Repository) -> None:
    """The supervisor and job.sh, which is the trainer itself here, die of SIGKILL at once."""
    made.until(lambda: trained(made, "crash"), "crash to train")
    [registered] = (attempt_dir(made, "crash") / "trainers").glob("*.json")
    for pid in (first_start(made, "crash")["pid"], int(registered.stem.rpartition("-")[2])):
        os.kill(pid, signal.SIGKILL)


def kill_all(made: Repository) -> None:
    """Slurm's own watchers too, so that it goes on calling the job running, for many minutes."""
    made.until(lambda: trained(made, "gone"), "gone to train")
    job_id = first_start(made, "gone")["job_id"]
    kill_all_of(made, job_id)
    assert made.slurm.job(int(job_id))["JobState"] == "RUNNING"


def stop(made: Repository) -> None:
    """A supervisor that stands still, as on a laptop that sleeps: its heart is as silent as that of a dead one."""
    made.until(lambda: trained(made, "stopped"), "stopped to train")
    pid = first_start(made, "stopped")["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)              # a silence has to last
    assert made.status("stopped")["attempts"][0]["ending"] is None
    os.kill(pid, signal.SIGCONT)


def requeue(made: Repository) -> None:
    """As a site's script does it: --no-requeue is of no avail."""
    made.until(lambda: trained(made, "requeued"), "requeued to train")
    job_id = first_start(made, "requeued")["job_id"]
    made.slurm.run("scontrol", "update", f"jobid={job_id}", "requeue=1")
    made.slurm.run("scontrol", "requeue", job_id)


def cancel_at_the_gate(made: Repository) -> None:
    """The successor is let go while its predecessor trains: it waits at the gate, and somebody cancels it there."""
    made.until(lambda: trained(made, "gate"), "gate to train")
    successor = successor_of(made, "gate")

    def let_go() -> bool:
        subprocess.run(["scontrol", "update", f"jobid={successor}", "dependency="], env=made.environment, check=False,
                       capture_output=True)
        return made.slurm.job(int(successor))["JobState"] == "RUNNING"

    made.until(let_go, "the successor of gate to start")
    time.sleep(3.0)                    # time enough to take the run, if it would
    assert made.slurm.job(int(successor))["JobState"] == "RUNNING", "it waits at the gate"
    made.slurm.run("scancel", successor)
    made.until(lambda: stood_down(made, "gate"), "it to stand down")


def cancel_what_waits(made: Repository) -> None:
    """A head that waits for another run, and a successor behind its live attempt."""
    made.slurm.run("scancel", successor_of(made, "head"))
    made.until(lambda: trained(made, "successor"), "successor to train")
    made.slurm.run("scancel", successor_of(made, "successor"))


def cancel_as_an_administrator(made: Repository) -> None:
    """SIGKILL to all of a job that trains."""
    made.until(lambda: trained(made, "admin"), "admin to train")
    made.slurm.run("scancel", "--signal=KILL", "--full", first_start(made, "admin")["job_id"])


# --- what is seen of them ---------------------------------------------------------------------------------------------


def attempts_of(made: Repository, tag: str) -> list[dict[str, Any]]:
    """Once it is finished; a run whose waiting job was cancelled by hand is held until then."""
    over = ("finished",) if tag in ("gate", "successor") else ("finished", "held")
    return finished(made, tag, STEPS[tag], over=over, torn=tag in ("crash", "gone"))


@pytest.mark.parametrize(("tag", "endings"), [
    ("preempted-saved", ["preempted-saved", "finished"]),
    ("preempted-unsaved", ["preempted-unsaved", "finished"]),
    ("unsaved-requeue", ["preempted-unsaved", "finished"]),
    ("unsaved-no-grace", ["preempted-unsaved", "finished"]),
    ("unsaved-re-no-grace", ["preempted-unsaved", "finished"]),
    ("crash", ["crash", "finished"]),
    ("limit-saved", ["limit-saved", "finished"]),
    ("limit-unsaved", ["limit-unsaved", "finished"]),
    ("preempted-requeue", ["preempted-saved", "finished"]),
    ("preempted-no-grace", ["preempted-saved", "finished"]),
    ("preempted-re-no-grace", ["preempted-saved", "finished"]),
    ("hung", ["hung", "finished"]),
    ("gone", ["vanished", "finished"]),
])
def test_a_successor_goes_on_behind(repository: Repository, tag: str, endings: list[str]) -> None:
    first, second = attempts_of(repository, tag)
    assert [first["ending"], second["ending"]] == endings
    assert second["epoch"] == first["epoch"] + 1
    assert first["job_id"] != second["job_id"]


def test_after_a_limit_without_a_save_the_lead_is_raised_while_the_successor_trains(repository: Repository) -> None:
    attempts_of(repository, "limit-unsaved")
    journal = repository.journal("limit-unsaved")
    lead_s = journal[0]["spec"]["profile"]["lead_s"]
    assert [event["lead_s"] for event in journal if event["event"] == "adjusted"] == [min(2 * lead_s, 30.0)]
    [ended] = events(repository, "limit-unsaved", "ended", number=1)
    assert "the program had not stopped when Slurm killed it" in ended["reason"]


def test_what_was_saved_at_a_limit_and_a_preemption_is_all_there_was(repository: Repository) -> None:
    for tag in ("limit-saved", "preempted-saved", "preempted-requeue", "preempted-no-grace", "preempted-re-no-grace"):
        first = attempts_of(repository, tag)[0]
        assert first["checkpoint_step"] == first["last_step"], tag


def test_a_job_that_the_site_requeued_goes_on_at_once(repository: Repository) -> None:
    first, second = attempts_of(repository, "requeued")
    assert (first["job_id"], second["ending"]) == (second["job_id"], "finished")
    assert first["ending"] in ("vanished", "preempted-saved")
    took = attempt_dir(repository, "requeued", second["attempt"])
    began = next(line for line in (took / "supervisor.jsonl").read_text().splitlines() if '"took"' in line)
    assert json.loads(began)["t"] - second["started_at"] < 5.0, "nothing was waited for"


def test_a_job_that_is_cancelled_at_the_gate_stands_down_and_disturbs_nobody(repository: Repository) -> None:
    assert "told to stop while waiting" in stood_down(repository, "gate")
    [only] = attempts_of(repository, "gate")
    assert only["ending"] == "finished"


def test_a_trainer_that_hangs_leaves_its_stacks(repository: Repository) -> None:
    attempts_of(repository, "hung")
    folder = attempt_dir(repository, "hung")
    end = read(folder / "end.json")
    assert end["hung"] and "no sign of life for 10 s" in end["detail"] and end["last_step"] >= 100
    [stacks] = folder.glob("stacks-*.txt")
    assert "tiny.py" in stacks.read_text()


@pytest.mark.parametrize("tag", ["memory", "memory-worker"])
def test_out_of_memory_is_called_so_whoever_was_killed(repository: Repository, tag: str) -> None:
    if not memory_is_limited(repository):
        pytest.skip("cgroups are not usable here, so that nobody limits a job's memory or counts its kills")
    repository.until(lambda: repository.endings(tag)[0], f"{tag} to end")
    first = repository.status(tag)["attempts"][0]
    end = read(attempt_dir(repository, tag) / "end.json")
    assert first["ending"] == "out-of-memory"
    assert end["oom_kills"] >= 1
    # where the trainer left with 0, nothing but the count tells
    assert (end["exit_code"], end["signal"]) == ((None, 9) if tag == "memory" else (0, None))
    first, second = attempts_of(repository, tag)
    assert second["ending"] == "finished"


def test_a_job_that_an_administrator_kills_is_cancelled_and_the_run_held(repository: Repository) -> None:
    repository.until(lambda: repository.status("admin")["state"] == "held", "admin to be held")
    run = repository.status("admin")
    assert [a["ending"] for a in run["attempts"]] == ["cancelled"], run
    repository.until(lambda: not [j for j in repository.status("admin")["jobs"] if j["state"] == "PENDING"],
                     "no successor to be left")


def test_a_waiting_job_that_somebody_cancels_holds_its_run(repository: Repository) -> None:
    repository.until(lambda: repository.status("head")["state"] == "held", "head to be held")
    assert repository.status("head")["attempts"] == []


def test_a_waiting_successor_that_somebody_cancels_holds_the_run_and_its_live_attempt_goes_on(repository: Repository) -> None:
    [only] = attempts_of(repository, "successor")
    assert only["ending"] == "finished"
    [held] = events(repository, "successor", "held")
    assert "cancelled outside orch" in held["reason"]
    assert not [e for e in events(repository, "successor", "queueing") if e["t"] > held["t"]], "nothing was queued after it"


def test_a_job_of_which_nothing_is_there_is_ended_in_slurm_too(repository: Repository) -> None:
    first, second = attempts_of(repository, "gone")
    [ended] = events(repository, "gone", "ended", number=1)
    assert "is gone, and so is all that it started" in ended["reason"]
    assert ended["t"] - ended["ended_at"] > 90.0
    [asked] = events(repository, "gone", "asked", kind="cancel", job_id=first["job_id"])
    assert ended["t"] <= asked["t"] <= second["started_at"]


def test_a_supervisor_that_stands_still_is_there(repository: Repository) -> None:
    [only] = attempts_of(repository, "stopped")
    assert only["ending"] == "finished"
    assert events(repository, "stopped", "asked", kind="cancel", job_id=only["job_id"]) == []


def test_a_gpu_that_is_not_visible_is_a_setup_failure_and_held_at_once(repository: Repository) -> None:
    repository.until(lambda: repository.status("no-gpu")["state"] == "held", "no-gpu to be held")
    run = repository.status("no-gpu")
    assert [a["ending"] for a in run["attempts"]] == ["setup-failure"]
    assert "gpu:1 was asked for and Slurm made no GPU visible" in run["reason"]


def test_a_python_that_is_gone_is_a_setup_failure_and_said_in_the_log(repository: Repository) -> None:
    repository.until(lambda: repository.status("no-python")["state"] == "held", "no-python to be held")
    run = repository.status("no-python")
    assert run["attempts"] == [] and "setup-failure" in run["reason"] and "out.log" in run["reason"]
    assert "orch: there is no Python at" in (attempt_dir(repository, "no-python") / "out.log").read_text()


def test_a_secret_of_the_env_file_goes_nowhere(repository: Repository) -> None:
    [attempt] = attempts_of(repository, "secret")
    folder = attempt_dir(repository, "secret")
    end = read(folder / "end.json")
    [left] = end["left_behind"]
    assert left.split()[1:] == [Path(os.path.realpath(sys.executable)).name], "named, and nothing that it was given"
    assert "left_behind" in (folder / "supervisor.jsonl").read_text()
    repository.orch("status", "secret")
    for path in (p for name in ("runs", "ops", "jobs") for p in (repository.folder / name).rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in repository.log()
    shown = subprocess.run(["scontrol", "show", "job", "--details", attempt["job_id"]], env=repository.environment,
                           check=False, capture_output=True, text=True)  # Slurm may have forgotten it by now
    assert SECRET not in shown.stdout


def test_nothing_is_left(repository: Repository) -> None:
    """Runs last of these: every run above is finished or held."""
    repository.until(lambda: not repository.slurm.run("squeue", "--noheader").strip(), "the queue to be empty")
    assert processes_of(repository.folder / "runs") == []
