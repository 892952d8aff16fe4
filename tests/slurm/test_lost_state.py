"""What Slurm forgot, what it believes wrongly, and when it says nothing at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH, ORCH_YAML, Repository, make_repository
from seen import attempt_dir, events, finished, go_on, kill_all_of, read, run_dir, trained

from orchestrator import cluster
from orchestrator.cluster.machine import program
from orchestrator.cluster.spec import layout_of
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, require_run
from orchestrator.core.endings import node_failure
from orchestrator.model import Policy
from orchestrator.slurm.commands import SlurmCommands

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WAITS_FOR_LEAVE = """#!/bin/bash
until [ -e "$ORCH_RUN_DIR/go" ]; do sleep 0.2; done
date > "$ORCH_RUN_DIR/cv.json"
"""


@contextlib.contextmanager
def daemon(made: Repository) -> Iterator[subprocess.Popen[bytes]]:
    process = made.daemon()
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def state_of(slurm: Any) -> Path:
    return layout_of(slurm.folder).base / "state"


def partition(slurm: Any, state: str) -> None:
    slurm.run("scontrol", "update", "partitionname=main", f"state={state}")


def test_what_slurm_forgot_and_nobody_ended_has_vanished_and_goes_on(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """Everything is killed, and slurmctld's state is lost: job ids begin anew, and the dead attempt's is given again."""
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=0, memory_mib=2000, preemption=False)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    made.job("lost", STEPS=200, DO="150:wait")
    made.orch("submit", "lost")
    with daemon(made):
        made.until(lambda: trained(made, "lost"), "lost to train")
        cluster.kill(slurm.folder)
        for path in state_of(slurm).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        heart = attempt_dir(made, "lost") / "heartbeat"
        heart.write_text(f"{float(heart.read_text()) - 120.0:.3f}\n")     # instead of waiting for its silence
        go_on(made, "lost")
        cluster.up(slurm.spec)
        first, second = finished(made, "lost", 200, torn=True)
    assert [first["ending"], second["ending"]] == ["vanished", "finished"]
    assert second["resume_step"] > 0
    assert second["job_id"] == first["job_id"], "the very case in which a job id is no identity"


def test_a_job_that_slurm_forgot_to_have_started_is_run_again_and_goes_on(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """The power goes within seconds of a start, before slurmctld has saved that: the job waits again, with the same id and
    the same restart count, and its attempt has a start record already."""
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=0, memory_mib=2000, preemption=False)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    made.job("forgotten", STEPS=200, DO="150:wait")
    partition(slurm, "down")                       # so that it waits
    made.orch("submit", "forgotten")
    waits = made.status("forgotten")["jobs"][0]["job_id"]
    before = state_of(slurm).with_name("state-before")
    cluster.stop_controller(slurm.folder)          # in order: all is saved
    shutil.copytree(state_of(slurm), before)
    cluster.start_controller(slurm.folder)
    partition(slurm, "up")
    with daemon(made):
        made.until(lambda: trained(made, "forgotten"), "forgotten to train")
    cluster.kill(slurm.folder)
    shutil.rmtree(state_of(slurm))
    before.rename(state_of(slurm))
    go_on(made, "forgotten")
    cluster.up(slurm.spec)
    partition(slurm, "up")
    with daemon(made):
        first, second = finished(made, "forgotten", 200, torn=True)
    assert [first["ending"], second["ending"]] == ["vanished", "finished"]
    assert first["job_id"] == second["job_id"] == waits
    starts = [read(attempt_dir(made, "forgotten", attempt["attempt"]) / "start.json") for attempt in (first, second)]
    assert [start["restart_count"] for start in starts] == [0, 0]
    assert second["epoch"] == first["epoch"] + 1
    [ended] = events(made, "forgotten", "ended", number=1)
    assert "Slurm started its job anew" in ended["reason"]


def test_what_slurm_has_forgotten_is_known_from_the_attempts_own_record(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """The daemon was away for longer than Slurm remembers (MinJobAge). One run left a record; the other was killed."""
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=0, memory_mib=2000, preemption=False, min_job_age_s=2)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML + "successors_ahead: 0\n")
    made.job("recorded", STEPS=60, DO="40:crash")
    made.job("killed", STEPS=60, DO="40:hang")
    for tag in ("recorded", "killed"):
        made.orch("submit", tag)
    made.until(lambda: trained(made, "killed") and (run_dir(made, "killed") / "did-40").exists(), "killed to be stuck")
    start = read(attempt_dir(made, "killed") / "start.json")
    [registered] = (attempt_dir(made, "killed") / "trainers").glob("*.json")
    for pid in (start["pid"], int(registered.stem.rpartition("-")[2])):
        os.kill(pid, signal.SIGKILL)
    made.until(lambda: not slurm.run("squeue", "--noheader", "--states=all").strip(), "Slurm to forget both", 240)
    heart = attempt_dir(made, "killed") / "heartbeat"
    heart.write_text(f"{float(heart.read_text()) - 120.0:.3f}\n")     # instead of waiting for its silence
    with daemon(made):
        recorded, killed = finished(made, "recorded", 60), finished(made, "killed", 60, torn=True)
    assert [a["ending"] for a in recorded] == ["crash", "finished"]
    assert [a["ending"] for a in killed] == ["vanished", "finished"]
    assert killed[1]["resume_step"] > 0
    assert made.log().count("this Slurm keeps no accounts") == 1


def test_a_node_that_was_rebooted_ends_its_attempt_though_slurm_calls_it_running(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """On several nodes no host can be certain of all: Slurm is asked for the nodes, five minutes after the last beat (here by
    the clock that the pass is given)."""
    slurm = make_slurm_cluster(nodes=4, cpus=4, gpus=0, memory_mib=2000, preemption=False, slurmd_timeout_s=60,
                               extra_conf="ResumeTimeout=60\n")
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML.replace("cpus: 1", "nodes: 2, cpus: 1"))
    made.job("two-nodes", STEPS=150, DO="100:wait")
    made.orch("submit", "two-nodes")
    made.until(lambda: trained(made, "two-nodes"), "two-nodes to train")
    job_id = made.status("two-nodes")["attempts"][0]["job_id"]
    answers = SlurmCommands(conf=Path(slurm.environment["SLURM_CONF"]))
    names = slurm.job(int(job_id))["NodeList"]
    assert node_failure(answers.nodes(names), time.time()) == ""
    kill_all_of(made, job_id)
    go_on(made, "two-nodes")
    dead = sorted(node.name for node in answers.nodes(names))[0]
    cluster.stop_node(slurm.folder, dead, kill_jobs=True)
    last_beat_at = time.time()
    time.sleep(1.0)                    # boots are told in whole seconds
    slurm.run(program("slurmd"), "-b", "-f", slurm.environment["SLURM_CONF"], "-N", dead)  # -b says so
    made.until(lambda: node_failure(answers.nodes(names), last_beat_at), "Slurm to know of it")

    def one_pass(ahead_s: float) -> list[str]:
        ports = Ports(repository=made.folder, slurm=answers, slurm_name=slurm.environment["SLURM_CONF"], policy=Policy(),
                      clock=lambda: time.time() + ahead_s, new_id=lambda: "later")
        pass_over_all(ports)
        return [str(a.ending) for a in require_run(made.folder, "two-nodes").attempts]

    assert slurm.job(int(job_id))["JobState"] == "RUNNING"
    assert one_pass(200.0) == ["None"], "not before five minutes have passed"
    assert one_pass(400.0) == ["node-failure"]
    [ended] = events(made, "two-nodes", "ended")
    assert re.search(rf"{dead} was rebooted since", ended["reason"])
    assert slurm.job(int(job_id))["JobState"] in ("CANCELLED", "COMPLETING"), "it would keep its nodes"
    with daemon(made):
        finished(made, "two-nodes", 150, torn=True)


def test_wait_says_once_that_slurm_is_silent_and_once_that_it_answers(
        make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    slurm = make_slurm_cluster(nodes=1, cpus=2, gpus=0, memory_mib=1000, preemption=False)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    made.job("patient", yaml="finished_when: cv.json\n", script=WAITS_FOR_LEAVE)
    made.orch("submit", "patient")
    said = tmp_path / "said"
    with said.open("wb") as file, subprocess.Popen(
            [ORCH, "wait", "patient", "--timeout", "10m"], cwd=made.folder, env=made.environment, stderr=file,
            stdout=subprocess.DEVNULL) as process:
        try:
            made.until(lambda: made.status("patient")["attempts"], "it to train")
            cluster.stop_controller(slurm.folder)
            made.until(lambda: "does not answer" in said.read_text(), "it to say so")
            time.sleep(3.0)                        # passes enough to say it again
            cluster.start_controller(slurm.folder)
            made.until(lambda: "answers again after" in said.read_text(), "it to say so again")
            (run_dir(made, "patient") / "go").touch()
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()
    assert len(said.read_text().splitlines()) == 2, "each once"
