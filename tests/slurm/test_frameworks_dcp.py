"""torch.distributed.checkpoint.async_save by two ranks on a real Slurm: a notice, and then a SIGKILL, come while a checkpoint
is half written. What is resumed from is complete, and the run ends with the weights of one that was never interrupted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from interrupted import give_notice, interrupt, kill_trainer, lines, saves, supervisor, watched
from repositories import Repository
from seen import run_dir

from orchestrator.checkpoints import damage

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests/slurm/trainers/dcp.py"
TORCHRUN = f"OMP_NUM_THREADS=1 exec torchrun --standalone --nproc-per-node=2 {TRAINER}"
STEPS, STEP_S, WRITE_S = 700, 0.2, 3.0


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with watched(slurm_cluster, tmp_path_factory.mktemp("dcp")) as made:
        yield made


def uninterrupted(made: Repository) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Its metrics and its saves, which are synchronous: that decides no weight."""
    folder = made.folder / "whole"
    (folder / "attempt").mkdir(parents=True)
    subprocess.run(
        ["bash", "-c", f"{TORCHRUN} {STEPS} 0.01 0"], cwd=ROOT, check=True, timeout=240, capture_output=True,
        env={"PATH": made.environment["PATH"], "PYTHONPATH": str(ROOT), "ORCH_RUN_DIR": str(folder),
             "ORCH_ATTEMPT_DIR": str(folder / "attempt"), "ORCH_CHECKPOINT_INTERVAL_S": "1"})
    said = [json.loads(line) for line in (folder / "attempt/trainer.jsonl").read_text().splitlines()]
    metrics: dict[str, Any] = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics, [line for line in said if line["event"] == "saved"]


def wait_for_half_a_checkpoint(made: Repository, tag: str, number: int) -> int:
    """Until data of a checkpoint lie there that torch has not made whole, behind a complete one; its step."""
    found = made.until(lambda: saves(made, tag, number) and [
        data.parent.name for data in (run_dir(made, tag) / "checkpoints").glob(".tmp-*/*.distcp")
        if not (data.parent / ".metadata").exists()], f"attempt {number} of {tag} to be writing")
    return int(found[0].split("-")[2])


def told_in_a_write(made: Repository, tag: str, number: int) -> None:
    wait_for_half_a_checkpoint(made, tag, number)
    give_notice(made, tag, number)


def test_interrupted_while_it_writes_it_ends_with_the_same_weights(repository: Repository) -> None:
    torn = []

    def killed_in_a_write(made: Repository, tag: str, number: int) -> None:
        torn.append(wait_for_half_a_checkpoint(made, tag, number))
        kill_trainer(made, tag, number)

    repository.job("dcp", script=f"#!/usr/bin/env bash\n{TORCHRUN} {STEPS} {STEP_S} {WRITE_S}\n")
    repository.orch("submit", "dcp")
    attempts = interrupt(repository, "dcp", told_in_a_write, killed_in_a_write)
    assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "crash", "finished"], attempts

    first = lines(repository, "dcp", 1)
    told = [line["t"] for line in supervisor(repository, "dcp", 1, "signalled")]
    written = {line["step"]: line["t"] for line in saves(repository, "dcp", 1)}
    assert len(told) == 2 and any(
        line["t"] < min(told) and max(told) < written[line["step"]] for line in first if line["event"] == "saving"), first
    assert [line["event"] for line in first[-2:]] == ["saved", "stopped"] and first[-2]["step"] == first[-1]["step"]
    assert attempts[1]["resume_step"] == first[-1]["step"]

    assert attempts[2]["resume_step"] == saves(repository, "dcp", 2)[-1]["step"] < torn[0]
    left = sorted((run_dir(repository, "dcp") / "checkpoints").glob("step-*"))
    assert left and [damage(path) for path in left] == [""] * len(left)

    metrics, synchronous = uninterrupted(repository)
    assert repository.status("dcp")["metrics"] == metrics
    assert synchronous and not any(line["background"] for line in synchronous)
    in_background = [line for line in saves(repository, "dcp", 1) if line["background"]]
    assert all(line["stall_s"] < 0.5 and line["durable_s"] > WRITE_S for line in in_background), in_background
