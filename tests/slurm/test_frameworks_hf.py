"""transformers.Trainer with OrchCallback, as docs/frameworks.md has it, on a real Slurm."""

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
from seen import run_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytest.importorskip("transformers", exc_type=ImportError)
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TRAINER = Path(__file__).parent / "trainers" / "hugging.py"
STEPS = 250


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with watched(slurm_cluster, tmp_path_factory.mktemp("hf")) as made:
        yield made


def test_saved_in_the_background_it_ends_with_the_same_weights_too(repository: Repository) -> None:
    with in_memory() as stage:
        repository.job("hf-memory", STAGE=stage,
                       script=f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=1\nexec python {TRAINER} {STEPS} 0.2\n")
        repository.orch("submit", "hf-memory")
        attempts = interrupt(repository, "hf-memory", preempt, kill_trainer)
        assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "crash", "finished"]
        assert (run_dir(repository, "hf-memory") / "digest").read_text() == digest_outside_orch(
            TRAINER, STEPS, repository.folder / "whole-memory")
        saved_in_background(repository, "hf-memory", 1)


def test_interrupted_and_not_end_with_the_same_weights(repository: Repository) -> None:
    repository.job("hf", script=f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=1\nexec python {TRAINER} {STEPS} 0.2\n")
    repository.orch("submit", "hf")
    attempts = interrupt(repository, "hf", preempt, kill_trainer)
    assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "crash", "finished"]
    assert (run_dir(repository, "hf") / "digest").read_text() == digest_outside_orch(
        TRAINER, STEPS, repository.folder / "whole")
    assert attempts[1]["resume_step"] == saves(repository, "hf", 1)[-1]["step"]
    status = repository.status("hf")
    assert {"train_loss", "eval_loss"} <= set(status["metrics"])
    assert not list((run_dir(repository, "hf") / "hf").glob("checkpoint-*")), "it has become a complete checkpoint"
    measured_is_shown(repository, "hf")
    assert any(line.get("loss") for line in lines(repository, "hf", 3))
