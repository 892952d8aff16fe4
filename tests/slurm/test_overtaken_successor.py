"""A successor that waits where the partition is full, while an ending changes what is to be asked for; a node left out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH_YAML, Repository, make_repository
from seen import attempt_dir, events, finished, first_start, go_on, memory_is_limited, successor_of, trained

from orchestrator import cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def make(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Repository]]:
    """A repository with a daemon on a cluster of nodes that take one job each."""
    daemons = []

    def start(nodes: int) -> Repository:
        slurm = make_slurm_cluster(nodes=nodes, cpus=1, gpus=0, memory_mib=1000, preemption=False, kill_wait_s=3)
        made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
        daemons.append(made.daemon())
        return made

    yield start
    for process in daemons:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def fail(made: Repository, node: str) -> None:
    """The node loses power, and slurmctld hears of it."""
    cluster.stop_node(made.slurm.folder, node, kill_jobs=True)
    cluster.set_node(made.slurm.folder, node, "down", "test")


def bring_back(made: Repository, node: str) -> None:
    cluster.start_node(made.slurm.folder, node)
    made.until(lambda: made.slurm.run("sinfo", "-hn", node, "-o", "%T").strip() == "idle", f"{node} to be back")


def test_a_waiting_successor_is_queued_anew_without_the_node_that_failed(make: Callable[..., Repository]) -> None:
    made = make(5)
    made.job("moves", STEPS=200, DO="100:wait")
    made.orch("submit", "moves")
    made.until(lambda: trained(made, "moves"), "moves to train")
    old = successor_of(made, "moves")
    failed = made.slurm.job(int(first_start(made, "moves")["job_id"]))["NodeList"]
    others = [made.slurm.submit("sleep 1000", "--mem=100") for _ in range(4)]
    for other in others:
        made.slurm.wait_for(other, "RUNNING", timeout_s=60)
    fail(made, failed)
    go_on(made, "moves")
    made.until(lambda: made.slurm.job(int(old))["JobState"] == "CANCELLED", "the old successor to be withdrawn")
    made.until(lambda: successor_of(made, "moves") != old, "another to be queued")
    new = successor_of(made, "moves")
    assert made.slurm.job(int(new))["ExcNodeList"] == failed
    bring_back(made, failed)
    probe = made.slurm.submit("true", "--mem=100")
    made.slurm.wait_for(probe, "COMPLETED", timeout_s=60)
    assert made.slurm.job(probe)["NodeList"] == failed, "it is free, and takes jobs"
    assert made.slurm.job(int(new))["JobState"] == "PENDING"
    made.slurm.run("scancel", str(others[0]))
    first, second = finished(made, "moves", 200, torn=True)
    assert [first["ending"], second["ending"]] == ["node-failure", "finished"]
    assert second["job_id"] == new
    assert made.slurm.job(int(new))["NodeList"] != failed
    assert f"--exclude={failed}" in (attempt_dir(made, "moves", second["attempt"]) / "script.sh").read_text()
    assert not events(made, "moves", "held")


def test_a_node_is_not_left_out_where_too_few_would_be_left(make: Callable[..., Repository]) -> None:
    made = make(2)
    made.job("stays", STEPS=400)
    made.orch("submit", "stays")
    made.until(lambda: trained(made, "stays"), "stays to train")
    old = successor_of(made, "stays")
    failed = made.slurm.job(int(first_start(made, "stays")["job_id"]))["NodeList"]
    fail(made, failed)
    made.until(lambda: len(made.status("stays")["attempts"]) == 2, "its second attempt")
    made.until(lambda: successor_of(made, "stays") != old, "another successor")
    second = made.status("stays")["attempts"][1]
    assert second["job_id"] == old, "the successor from before went on"
    for job_id in (old, successor_of(made, "stays")):
        assert made.slurm.job(int(job_id))["ExcNodeList"] == "(null)"
    assert events(made, "stays", "ended", number=1)[0]["nodes"] == failed
    finished(made, "stays", 400, torn=True)


def test_a_waiting_successor_is_queued_anew_with_more_memory(make: Callable[..., Repository]) -> None:
    made = make(1)
    if not memory_is_limited(made):
        pytest.skip("cgroups are not usable here, so that nobody limits a job's memory or counts its kills")
    made.job("grows", STEPS=100, DO="50:wait,60:eat")
    made.orch("submit", "grows")
    made.until(lambda: trained(made, "grows"), "grows to train")
    old = successor_of(made, "grows")
    between = made.slurm.submit("sleep 1000", "--mem=100", "--nice=-1000")
    go_on(made, "grows")
    made.until(lambda: made.slurm.job(int(old))["JobState"] == "CANCELLED", "the old successor to be withdrawn")
    made.until(lambda: successor_of(made, "grows") != old, "another to be queued")
    assert made.slurm.job(int(old))["MinMemoryNode"] == "100M"
    new = successor_of(made, "grows")
    assert made.slurm.job(int(new))["MinMemoryNode"] == "125M"
    made.slurm.run("scancel", str(between))
    first, second = finished(made, "grows", 100, torn=True)
    assert [first["ending"], second["ending"]] == ["out-of-memory", "finished"]
    assert second["job_id"] == new
    [of_old] = [event["submission_id"] for event in events(made, "grows", "queued") if event["job_id"] == old]
    started = [event["submission_id"] for event in events(made, "grows", "dropped", why="stood down")]
    assert of_old not in started, "the old one was not started for nothing"
