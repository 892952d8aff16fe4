"""lightning.Trainer with OrchCallback, as docs/frameworks.md has it, on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interrupted import (
    digest_outside_orch,
    in_memory,
    interrupt,
    kill_trainer,
    lines,
    measured_is_shown,
    preempt,
    saved_in_background,
    saves,
    watched,
)
from repositories import Repository
from seen import attempt_dir, run_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytest.importorskip("lightning", exc_type=ImportError)
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TRAINER = Path(__file__).parent / "trainers" / "bolt.py"
STEPS = 250


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with watched(slurm_cluster, tmp_path_factory.mktemp("bolt")) as made:
        yield made


def test_saved_in_the_background_it_ends_with_the_same_weights_too(repository: Repository) -> None:
    with in_memory() as stage:
        repository.job("bolt-memory", STAGE=stage,
                       script=f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=1\nexec python {TRAINER} {STEPS} 0.2\n")
        repository.orch("submit", "bolt-memory")
        attempts = interrupt(repository, "bolt-memory", preempt, kill_trainer)
        assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "crash", "finished"]
        assert (run_dir(repository, "bolt-memory") / "digest").read_text() == digest_outside_orch(
            TRAINER, STEPS, repository.folder / "whole-memory")
        saved_in_background(repository, "bolt-memory", 1)


def test_interrupted_and_not_end_with_the_same_weights(repository: Repository) -> None:
    # under srun Lightning takes the job for one of its own, to be requeued
    command = f"srun --overlap --mem=0 python {TRAINER} {STEPS} 0.2"
    repository.job("bolt", script=f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=1\nexec {command}\n")
    repository.orch("submit", "bolt")
    attempts = interrupt(repository, "bolt", preempt, kill_trainer)
    assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "crash", "finished"]
    assert (run_dir(repository, "bolt") / "digest").read_text() == digest_outside_orch(
        TRAINER, STEPS, repository.folder / "whole")
    assert attempts[1]["resume_step"] == saves(repository, "bolt", 1)[-1]["step"]
    assert "val_loss" in repository.status("bolt")["metrics"]
    out = (attempt_dir(repository, "bolt", 3) / "out.log").read_text()
    assert "SLURMEnvironment requeues: False" in out, "Lightning knows that it is under Slurm, and requeues nothing"
    measured_is_shown(repository, "bolt")
    assert any(line.get("loss") for line in lines(repository, "bolt", 3))
