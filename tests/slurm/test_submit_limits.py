"""Limits on the number of jobs as accounting sets them, of a QOS and of an account; account and QOS of a profile."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from repositories import Repository, make_repository
from seen import events, go_on, trained

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s, account: lab}
  qos: {cpus: 1, memory: 100M, time: 10m, lead: 20s, account: lab, qos: small}
  too-long: {cpus: 1, memory: 100M, time: 2h, lead: 20s, account: lab, qos: brief}
  nobodys: {cpus: 1, memory: 100M, time: 10m, lead: 20s, account: nobodys}
checkpoint: {interval: 1s}
recovery: {backoff: 2s}
daemon: {every: 1s}
"""


@contextlib.contextmanager
def limited(
    make_accounted_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, jobs: int,
) -> Iterator[Repository]:
    """A repository whose user's association submits at most so many jobs. Said when it is made: 22.05's slurmdbd
    modifies none on this MariaDB."""
    slurm, _ = make_accounted_cluster("AccountingStorageEnforce=limits,qos\n", nodes=1, cpus=8, gpus=0, memory_mib=2000,
                                      preemption=False)
    me = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    # one user in one account, all said: 22.05 with a later MariaDB inherits no limits, and dies of a second account
    for words in (["qos", "small", "MaxSubmitJobsPerUser=1"], ["qos", "brief", "MaxWall=60", "Flags=DenyOnLimit"],
                  ["account", "lab", "qos=normal,small,brief"],
                  ["user", me, "account=lab", "qos=normal,small,brief", "defaultqos=normal", f"MaxSubmitJobs={jobs}",
                   "MaxJobs=100", "MaxWall=10-0"]):
        slurm.run("sacctmgr", "--immediate", "add", *words)
    made = make_repository(tmp_path_factory.mktemp("limits"), slurm, ORCH_YAML)
    daemon = made.daemon()
    yield made
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(timeout=60)


@pytest.fixture(scope="module")
def repository(make_accounted_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with limited(make_accounted_cluster, tmp_path_factory, jobs=100) as made:
        yield made


@pytest.fixture(scope="module")
def tight(make_accounted_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with limited(make_accounted_cluster, tmp_path_factory, jobs=1) as made:
        yield made


def finish(made: Repository, tag: str) -> None:
    made.until(lambda: made.status(tag)["state"] == "finished", f"{tag} to finish", 180)


@pytest.mark.parametrize(("where", "profile", "limit"), [
    ("repository", "qos", "QOSMaxSubmitJobPerUserLimit"), ("tight", "default", "AssocMaxSubmitJobLimit")])
def test_a_successor_over_the_limit_is_left_out_and_another_run_waits_for_room(
        request: pytest.FixtureRequest, where: str, profile: str, limit: str) -> None:
    repository: Repository = request.getfixturevalue(where)
    first, second = f"first-{profile}", f"second-{profile}"
    for tag in (first, second):
        repository.job(tag, yaml=f"profile: {profile}\n", STEPS=140, **({"DO": "60:wait,70:crash"} if tag == first else {}))
    said = repository.orch("submit", first)
    assert f"no successor ahead, since Slurm refused it: sbatch: error: {limit}" in said
    assert f"takes no further job for now: sbatch: error: {limit}" in repository.orch("submit", second, code=6)
    repository.until(lambda: trained(repository, first), "the first to train")
    assert repository.status(second)["state"] == "waiting" and limit in repository.orch("status", second)
    go_on(repository, first)
    finish(repository, first)
    finish(repository, second)
    assert repository.endings(first) == ["crash", "finished"] and repository.endings(second) == ["finished"]
    assert len(events(repository, first, "rejected", for_now=True)) <= 4, "one an attempt, and while the other had the place"
    assert len(events(repository, second, "rejected", for_now=True)) <= 7, "the waits double"
    assert not events(repository, first, "held") and not events(repository, second, "held")


def test_account_and_qos_are_the_profiles(repository: Repository) -> None:
    for tag, profile in (("named", "qos"), ("unnamed", "default")):
        repository.job(tag, yaml=f"profile: {profile}\n", STEPS=10)
        repository.orch("submit", tag)
        job_id = events(repository, tag, "queued")[0]["job_id"]
        job = repository.slurm.job(int(job_id))
        assert (job["Account"], job["QOS"]) == ("lab", "small" if tag == "named" else "normal")
        finish(repository, tag)


@pytest.mark.parametrize(("profile", "words"), [
    ("too-long", "QOSMaxWallDurationPerJobLimit"), ("nobodys", "Invalid account")])
def test_what_can_never_be_is_held_with_slurms_words(repository: Repository, profile: str, words: str) -> None:
    repository.job(profile, yaml=f"profile: {profile}\n", STEPS=10)
    said = repository.orch("submit", profile, code=6)
    assert words in said and "--again" in said
    assert repository.status(profile)["state"] == "held"
