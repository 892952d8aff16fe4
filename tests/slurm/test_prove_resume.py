"""`orch submit TAG --prove-resume` on a real Slurm: a trainer that resumes goes on, two that do not are held in minutes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from repositories import Repository, make_repository
from seen import events, processes_of

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TRAINER = Path(__file__).parent / "trainers" / "forgets.py"
ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s}
checkpoint: {interval: 1h}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """All three side by side."""
    made = make_repository(tmp_path_factory.mktemp("prove"), slurm_cluster, ORCH_YAML)
    daemon = made.daemon()
    for forgets in ("nothing", "step", "weights"):
        made.job(forgets, script=f"#!/usr/bin/env bash\nexec {sys.executable} {TRAINER}\n", FORGETS=forgets)
        made.orch("submit", forgets, "--prove-resume")
    yield made
    for tag in ("nothing", "step", "weights"):
        made.orch("cancel", tag, "--now")
    made.until(lambda: processes_of(made.folder / "runs") == [], "nothing to be left running")
    daemon.terminate()
    assert daemon.wait(timeout=30) == 0


def verdict(made: Repository, tag: str) -> dict[str, Any]:
    made.until(lambda: len(events(made, tag, "canary")) == 2, f"a verdict on {tag}", 180)
    stopping, found = events(made, tag, "canary")
    assert stopping["state"] == "stopping"
    assert found["t"] - events(made, tag, "submit")[0]["t"] < 150, "minutes in"
    return found


def test_a_training_that_goes_on_is_let_alone(repository: Repository) -> None:
    found = verdict(repository, "nothing")
    assert found["state"] == "proven" and found["first_step"] == found["saved_step"] + 1
    status = repository.status("nothing")
    assert status["state"] == "running"
    proof = status["resume_proof"]
    assert (proof["state"], proof["attempt"], proof["reason"]) == ("proven", 2, found["reason"])
    assert [attempt["ending"] for attempt in status["attempts"]] == ["preempted-saved", None]


def test_one_that_begins_again_is_held_with_the_evidence(repository: Repository) -> None:
    found = verdict(repository, "step")
    assert (found["state"], found["first_step"]) == ("broken", 1)
    is_held_and_over(repository, "step", "training went on at step 1")


def test_one_whose_loss_jumps_is_held_with_the_evidence(repository: Repository) -> None:
    found = verdict(repository, "weights")
    assert found["state"] == "broken" and found["first_step"] == found["saved_step"] + 1
    assert found["loss_after"] - found["loss_before"] > 2 * found["noise"]
    is_held_and_over(repository, "weights", "and the loss was")


def is_held_and_over(made: Repository, tag: str, evidence: str) -> None:
    made.until(lambda: made.status(tag)["attempts"][-1]["ending"], f"what runs of {tag} to end")
    status = made.status(tag)
    assert status["state"] == "held" and status["reason"].startswith("resume is broken:") and evidence in status["reason"]
    assert status["resume_proof"]["state"] == "broken" and evidence in status["resume_proof"]["reason"]
    assert status["jobs"] == [], "no successor waits"
