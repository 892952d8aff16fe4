"""NVRx's ft_launcher inside an attempt on a real Slurm: a rank that dies is restarted there and is no interruption; ranks
that a notice stopped are not. Where ft_launcher is not installed (`pip install nvidia-resiliency-ext`) this is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interrupted import give_notice, interrupt, kill_trainer, lines, saves, supervisor, watched
from repositories import Repository
from seen import attempt_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

LAUNCHER = shutil.which("ft_launcher")
pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.skipif(LAUNCHER is None, reason="no ft_launcher here")]

TRAINER = Path(__file__).parent / "trainers" / "dcp.py"
OPTIONS = "--standalone --nproc-per-node=2 --max-restarts=2 --ignore-missing-fault-tol-cfg"


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with watched(slurm_cluster, tmp_path_factory.mktemp("nvrx")) as made:
        yield made


def starts(made: Repository, number: int) -> list[int | None]:
    """Where each start of the ranks within this attempt resumed."""
    return [line["resume_step"] for line in lines(made, "nvrx", number) if line["event"] == "start"]


def restarted_and_told(made: Repository, tag: str, number: int) -> None:
    kill_trainer(made, tag, number, rank=1)
    made.until(lambda: len(starts(made, number)) == 2, "ft_launcher to start its ranks again")
    saved = len(saves(made, tag, number))
    made.until(lambda: len(saves(made, tag, number)) > saved, "the new ranks to save")
    assert len(made.status(tag)["attempts"]) == 1 and "0 interruptions of its own" in made.orch("status", tag)
    give_notice(made, tag, number)


def test_a_restart_is_no_interruption_and_a_stop_is_no_restart(repository: Repository) -> None:
    repository.job("nvrx", script=f"#!/usr/bin/env bash\nOMP_NUM_THREADS=1 exec {LAUNCHER} {OPTIONS} {TRAINER} 700 0.2 0\n")
    repository.orch("submit", "nvrx")
    attempts = interrupt(repository, "nvrx", restarted_and_told)
    assert [attempt["ending"] for attempt in attempts] == ["preempted-saved", "finished"], attempts

    began, again = starts(repository, 1)
    assert began is None and again in [line["step"] for line in saves(repository, "nvrx", 1)]
    stopped = lines(repository, "nvrx", 1)[-1]
    assert stopped["event"] == "stopped" and stopped["step"] == saves(repository, "nvrx", 1)[-1]["step"]
    assert starts(repository, 2) == [stopped["step"]]
    signalled = supervisor(repository, "nvrx", 1, "signalled")
    assert [event["how"] for event in signalled] == ["registered"] * 2, "the ranks, and not ft_launcher"
    out = (attempt_dir(repository, "nvrx", 1) / "out.log").read_text()
    assert "closing signal" not in out[out.rindex("START  attempt"):out.rindex("STOPPED  step")], "saved first"
    assert "Agent exits with exit code = 0" in out
