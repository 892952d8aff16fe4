"""Runs through their attempts on a real Slurm, by the command line and a daemon, as a user has them.

All runs of the first group are submitted at once and share a daemon, so that the group takes as long as its slowest run.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH_YAML, Repository, make_repository
from seen import go_on

from orchestrator import cluster


@pytest.fixture(scope="module")
def repository(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """Many runs under way at once, a daemon over them; a repository path with a blank and a quote in it."""
    slurm = make_slurm_cluster(nodes=2, cpus=32, gpus=4, memory_mib=8000, preemption=False, kill_wait_s=3)
    made = make_repository(tmp_path_factory.mktemp("chain") / "it's a repository", slurm)
    made.job("crashes", STEPS=60, DO="25:crash,45:kill")
    made.job("hopeless", DO="3:crash-always")
    made.job("no-result", DO="5:exit0")
    made.job("no-file", script="#!/bin/bash\nexec python3 no-such-file.py\n")
    made.job("plain", script="#!/usr/bin/env bash\ndate > \"$ORCH_RUN_DIR/cv.json\"\n", yaml="finished_when: cv.json\n")
    made.job("first", STEPS=40, DO="15:crash")
    made.job("second", STEPS=2)
    made.job("long", STEPS=100000)
    made.job("long-now", STEPS=100000)
    made.job("scancelled", STEPS=100000)
    made.job("holdable", STEPS=100, DO="35:wait,40:crash")
    for tag in ("crashes", "hopeless", "no-result", "no-file", "plain", "first", "long", "long-now", "scancelled"):
        made.orch("submit", tag)
    made.orch("submit", "second", "--after", "first")
    daemon = made.daemon()
    yield made
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=30) == 0


def test_crashes_with_progress_go_on_to_the_end(repository: Repository) -> None:
    repository.until(lambda: repository.status("crashes")["state"] == "finished", "crashes to finish")
    attempts = repository.status("crashes")["attempts"]
    assert [a["ending"] for a in attempts] == ["crash", "crash", "finished"]
    assert repository.status("crashes")["metrics"] == {"state": 60}
    for earlier, later in pairwise(attempts):
        assert later["resume_step"] == earlier["checkpoint_step"] > 0
        assert later["started_at"] - earlier["ended_at"] < 30
    epochs = [a["epoch"] for a in attempts]
    assert epochs == sorted(set(epochs))


def test_three_endings_without_progress_hold_the_run(repository: Repository) -> None:
    run = repository.until(lambda: (r := repository.status("hopeless"))["state"] == "held" and r, "hopeless to be held")
    assert [a["ending"] for a in run["attempts"]] == ["crash"] * 3
    assert "without a newer checkpoint" in run["reason"]
    repository.until(lambda: not repository.status("hopeless")["jobs"], "nothing to be left in the queue")


@pytest.mark.parametrize(("tag", "ending"), [("no-result", "no-result"), ("no-file", "setup-failure")])
def test_what_no_further_attempt_would_mend_is_held_at_once(repository: Repository, tag: str, ending: str) -> None:
    run = repository.until(lambda: (r := repository.status(tag))["state"] == "held" and r, f"{tag} to be held")
    assert [a["ending"] for a in run["attempts"]] == [ending]
    assert ending in run["reason"]
    assert repository.orch("submit", tag, code=4)
    assert "queueing" not in [e["event"] for e in repository.journal(tag)[-3:]]


def test_a_job_that_knows_nothing_of_orch_finishes_by_its_file(repository: Repository) -> None:
    repository.until(lambda: repository.status("plain")["state"] == "finished", "plain to finish")
    assert repository.endings("plain") == ["finished"]


def test_a_dependent_starts_after_the_real_end_of_the_other_run(repository: Repository) -> None:
    repository.until(lambda: repository.status("second")["state"] == "finished", "second to finish")
    first, second = repository.status("first"), repository.status("second")
    assert [a["ending"] for a in first["attempts"]] == ["crash", "finished"]
    assert second["attempts"][0]["started_at"] >= first["attempts"][-1]["ended_at"]
    assert [a["ending"] for a in second["attempts"]] == ["finished"]


def test_cancel_saves_first(repository: Repository) -> None:
    repository.until(lambda: repository.status("long")["attempts"], "long to run")
    repository.until(lambda: repository.status("long")["step"] or 0, "its first step")
    repository.orch("cancel", "long")
    repository.orch("wait", "long", "--for", "cancelled", "--timeout", "30s")
    [attempt] = repository.status("long")["attempts"]
    assert attempt["ending"] == "cancelled"
    assert attempt["checkpoint_step"] == attempt["last_step"], "what was trained is saved"
    assert repository.orch("submit", "long", code=4)


def test_cancel_now_does_not_wait(repository: Repository) -> None:
    repository.until(lambda: repository.status("long-now")["attempts"], "long-now to run")
    repository.orch("cancel", "long-now", "--now")
    repository.orch("wait", "long-now", "--for", "cancelled", "--timeout", "30s")
    assert repository.endings("long-now") == ["cancelled"]


def test_scancel_by_a_person_holds(repository: Repository) -> None:
    [attempt] = repository.until(lambda: repository.status("scancelled")["attempts"], "scancelled to run")
    repository.until(lambda: repository.status("scancelled")["jobs"], "its successor")
    repository.slurm.run("scancel", attempt["job_id"])
    run = repository.until(lambda: (r := repository.status("scancelled"))["state"] == "held" and r, "the run to be held")
    assert [a["ending"] for a in run["attempts"]] == ["cancelled"]
    repository.until(lambda: not repository.status("scancelled")["jobs"], "its successor to be gone")
    repository.orch("release", "scancelled")
    repository.until(lambda: len(repository.status("scancelled")["attempts"]) == 2, "it to go on when released")
    repository.orch("cancel", "scancelled", "--now")


def test_hold_lets_the_live_attempt_go_on_and_nothing_after_it(repository: Repository) -> None:
    repository.orch("submit", "holdable")
    repository.until(lambda: len(repository.status("holdable")["attempts"]) >= 1, "holdable to run")
    repository.orch("hold", "holdable")
    go_on(repository, "holdable")
    repository.until(lambda: repository.endings("holdable") == ["crash"], "its planned crash")
    job = repository.status("holdable")["jobs"][0]
    repository.until(lambda: repository.slurm.job(int(job["job_id"]))["Reason"] == "JobHeldUser", "its successor to be held")
    repository.orch("release", "holdable")
    repository.until(lambda: repository.status("holdable")["state"] == "finished", "holdable to finish")
    assert repository.endings("holdable") == ["crash", "finished"]


def test_nothing_is_left_in_the_queue_of_runs_that_are_over(repository: Repository) -> None:
    """Runs last: every run above is over or held by now."""
    repository.until(lambda: all(run["state"] in ("finished", "held", "cancelled", "cancelling")
                                 for run in _all(repository)), "all runs to be over")
    repository.until(lambda: not repository.slurm.run("squeue", "--noheader").strip(), "the queue to be empty", 90)
    for run in _all(repository):
        assert len({a["job_id"] for a in run["attempts"]}) == len(run["attempts"])


def _all(repository: Repository) -> list[dict[str, Any]]:
    import json

    found: list[dict[str, Any]] = json.loads(repository.orch("status", "--json"))["runs"]
    return found


# --- what a machine may do to a run -------------------------------------------------------------------------------------


def test_after_a_node_death_the_old_trainer_publishes_nothing(
    make_slurm_cluster: Callable[..., Any], tmp_path: Path,
) -> None:
    slurm = make_slurm_cluster(nodes=2, cpus=4, gpus=0, preemption=False, kill_wait_s=3)
    repository = make_repository(tmp_path / "repository", slurm)
    repository.job("survivor", STEPS=150, DO="100:wait")
    repository.orch("submit", "survivor")
    daemon = repository.daemon()
    try:
        [attempt] = repository.until(lambda: repository.status("survivor")["attempts"], "survivor to run")
        checkpoints = repository.folder / "runs" / "survivor" / "checkpoints"
        repository.until(lambda: list(checkpoints.glob("step-*")), "its first checkpoint")
        [registered] = (repository.folder / "runs" / "survivor" / "attempts" / "0001" / "trainers").glob("*.json")
        pid = int(registered.stem.rpartition("-")[2])
        os.kill(pid, signal.SIGSTOP)  # it will wake up long after its successor has begun
        node = slurm.job(int(attempt["job_id"]))["NodeList"]
        cluster.stop_node(slurm.folder, node, kill_jobs=False)
        cluster.set_node(slurm.folder, node, "down", "test")
        go_on(repository, "survivor")
        repository.until(lambda: len(repository.status("survivor")["attempts"]) == 2, "its second attempt")
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "fenced on this host"
        repository.orch("wait", "survivor", "--timeout", "60s")
        run = repository.status("survivor")
        assert [a["ending"] for a in run["attempts"]] == ["node-failure", "finished"]
        assert run["metrics"] == {"state": 150}
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def test_a_daemon_killed_at_any_time_neither_loses_nor_doubles(
    make_slurm_cluster: Callable[..., Any], tmp_path: Path,
) -> None:
    """SIGKILL to the daemon again and again while attempts crash; then one daemon brings it to the end."""
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=0, preemption=False, kill_wait_s=3)
    repository = make_repository(tmp_path / "repository", slurm)
    for tag in ("a", "b"):
        repository.job(tag, STEPS=160, DO="30:crash,60:kill,90:crash,120:kill")
        repository.orch("submit", tag)
    for round_ in range(12):
        daemon = repository.daemon()
        try:
            daemon.wait(timeout=0.15 + 0.13 * round_)
        except subprocess.TimeoutExpired:
            pass
        daemon.kill()
        daemon.wait()
    daemon = repository.daemon()
    try:
        for tag in ("a", "b"):
            repository.until(lambda tag=tag: repository.status(tag)["state"] in ("finished", "held"), f"{tag} to end", 90)
            run = repository.status(tag)
            assert [a["ending"] for a in run["attempts"]] == [*["crash"] * 4, "finished"], repository.log()
            asked = [e["submission_id"] for e in repository.journal(tag) if e["event"] == "queueing"]
            comments = repository.slurm.run("squeue", "--noheader", "--states=all", "--format=%k").splitlines()
            ours = [c.rpartition(":")[2] for c in comments if f":{tag}:" in c]
            assert len(ours) == len(set(ours)) and set(ours) <= set(asked)
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def test_a_running_trainer_follows_orch_yaml_and_a_broken_one_stops_nothing(
    make_slurm_cluster: Callable[..., Any], tmp_path: Path,
) -> None:
    slurm = make_slurm_cluster(nodes=1, cpus=4, gpus=0, preemption=False, kill_wait_s=3)
    repository = make_repository(tmp_path / "repository", slurm)
    repository.job("edited", STEPS=100000)
    repository.orch("submit", "edited")
    daemon = repository.daemon()
    config = repository.folder / "orch.yaml"
    lines = repository.folder / "runs" / "edited" / "attempts" / "0001" / "trainer.jsonl"
    try:
        repository.until(lambda: lines.exists() and '"saved"' in lines.read_text(), "its first save")
        config.write_text(ORCH_YAML.replace("interval: 1s", "interval: 7s"))
        repository.until(lambda: '"interval_s": 7.0' in lines.read_text(), "the trainer to take the new interval", 30)
        assert repository.status("edited")["checkpoint_interval_s"] == 7.0
        config.write_text("profiles: {p: {tim: 3h}}\n")
        repository.until(lambda: 'unknown key "tim"' in repository.log(), "the daemon to say what is wrong", 30)
        assert "edited" in repository.orch("status") and repository.orch("logs", "edited")
        assert repository.orch("submit", "edited", code=2)
        repository.orch("cancel", "edited")
        repository.until(lambda: repository.status("edited")["state"] == "cancelled", "cancel to work all the same")
        assert daemon.poll() is None and repository.log().count("unknown key") == 1
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def test_another_slurm_says_nothing_about_a_run(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """A cron line with another SLURM_CONF must not take the queue of the first for empty."""
    here = make_slurm_cluster(nodes=1, cpus=1, gpus=0, preemption=False)
    there = make_slurm_cluster(nodes=1, cpus=1, gpus=0, preemption=False)
    cluster.set_node(here.folder, "n1", "drain", "test")
    repository = make_repository(tmp_path / "repository", here)
    repository.job("stays", STEPS=5)
    repository.orch("submit", "stays")
    before = [s["job_id"] for s in repository.status("stays")["jobs"]]
    strayed = Repository(folder=repository.folder, slurm=there)
    assert "submitted with" in strayed.orch("explain", "stays")
    strayed.orch("tick")
    assert not there.run("squeue", "--noheader", "--states=all").strip()
    repository.orch("tick")
    assert [s["job_id"] for s in repository.status("stays")["jobs"]] == before
    repository.orch("cancel", "stays", "--now")


def test_the_interval_is_measured_and_set_in_the_running_trainer(
    make_slurm_cluster: Callable[..., Any], tmp_path: Path,
) -> None:
    """M is told to be a minute, so that T* = sqrt(2CM) lies far below the first interval; then a crash makes it smaller."""
    slurm = make_slurm_cluster(nodes=1, cpus=4, gpus=0, preemption=False, kill_wait_s=3)
    config = ORCH_YAML.replace("checkpoint: {interval: 1s}", "checkpoint: {at_most: 6s}\nreliability: {prior_mtbi: 1m}")
    repository = make_repository(tmp_path / "repository", slurm, config)
    repository.job("measured", STEPS=400, DO="250:crash")
    repository.orch("submit", "measured")
    daemon = repository.daemon()
    try:
        lines = repository.folder / "runs" / "measured" / "attempts" / "0001" / "trainer.jsonl"
        repository.until(lambda: lines.exists() and '"event": "interval"' in lines.read_text(), "a new interval")
        text = repository.orch("explain", "measured", "--interval")
        assert "platform, all runs: (1.03 + 0) /" in text and "T* = sqrt(2 C M)" in text
        assert "M " in repository.orch("status", "measured") and "expected waste" in repository.orch("status", "measured")
        repository.until(lambda: repository.status("measured")["state"] == "finished", "measured to finish")
        told = [e for e in repository.journal("measured") if e["event"] == "interval"]
        assert told[0]["interval_s"] == 6.0 and told[0]["stall_s"] is None
        measured = next(e for e in told if e["stall_s"] is not None)
        assert measured["bound"] in ("optimum", "write time") and measured["interval_s"] < 6.0
        after = [e for e in told if e["own"]["interruptions"] == 1]
        assert after and after[0]["mtbi_h"] < measured["mtbi_h"]
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
