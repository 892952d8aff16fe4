"""jobs/chars on a real Slurm, in one process and under torchrun: interrupted again and again, it ends with the weights of
a training that was not, and all ranks save and stop at one step, in the middle of an evaluation too."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from interrupted import give_notice, interrupt, kill_trainer, lines, preempt, saves, supervisor, watched
from repositories import Repository
from seen import attempt_dir, run_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytest.importorskip("torch")
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
STEPS = {1: 300, 2: 500}               # two ranks agree every few seconds, so that it takes longer to interrupt them
OPTIONS = "--width 32 --layers 1 --batch 8 --warm-up 200"
MOSTLY_EVALUATES = "--evaluate-every 2"


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with watched(slurm_cluster, tmp_path_factory.mktemp("chars")) as made:
        shutil.copytree(ROOT / "jobs", made.folder / "jobs")
        yield made


def submit(made: Repository, ranks: int) -> str:
    """A run of jobs/chars, with its own job.sh but for the options."""
    tag = f"chars-{ranks}"
    script = (ROOT / "jobs/chars/job.sh").read_text()
    assert script.count('"$@"') == 2
    options = f"--steps {STEPS[ranks]} {OPTIONS} {MOSTLY_EVALUATES}"
    made.job(tag, script=script.replace('"$@"', options), RANKS=ranks)
    made.orch("submit", tag)
    return tag


def uninterrupted(made: Repository, ranks: int) -> dict[str, Any]:
    """Its result. It evaluates seldom: that decides no weight."""
    folder = made.folder / f"whole-{ranks}"
    folder.mkdir()
    subprocess.run(
        [ROOT / "jobs/chars/job.sh", "--steps", str(STEPS[ranks]), *OPTIONS.split()], cwd=ROOT, check=True, timeout=240,
        capture_output=True,
        env={"PATH": made.environment["PATH"], "ORCH_RUN_DIR": str(folder), "RANKS": str(ranks), "PYTHONPATH": str(ROOT)})
    metrics: dict[str, Any] = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics


@pytest.mark.parametrize("ranks", [1, 2])
def test_interrupted_and_not_end_with_the_same_weights(repository: Repository, ranks: int) -> None:
    tag = submit(repository, ranks)
    # torchrun starts its ranks again within the attempt: no ending, and nothing for M to count
    ways = (preempt, kill_trainer, give_notice) if ranks == 1 else (preempt, restarted_and_told)
    expected = ["preempted-saved", "crash", "preempted-saved"] if ranks == 1 else ["preempted-saved"] * 2
    attempts = interrupt(repository, tag, *ways)
    assert [attempt["ending"] for attempt in attempts] == [*expected, "finished"], attempts
    assert repository.status(tag)["metrics"] == uninterrupted(repository, ranks)
    in_evaluation = [stopped_cleanly(repository, tag, ranks, number)
                     for number, way in enumerate(ways, 1) if way is not kill_trainer]
    assert any(in_evaluation), "no notice came in an evaluation, which takes nearly all of the time"
    newest = max((run_dir(repository, tag) / "checkpoints").glob("step-*"))
    files = json.loads((newest / "COMPLETE").read_text())["files"]
    assert set(files) == {"state.pt", *(f"random-{rank}.pt" for rank in range(ranks))}


def restarted_and_told(made: Repository, tag: str, number: int) -> None:
    kill_trainer(made, tag, number, rank=1)
    made.until(lambda: starts(made, tag, number) == 2, "torchrun to start its ranks again")
    saved = len(saves(made, tag, number))
    made.until(lambda: len(saves(made, tag, number)) > saved, "the new ranks to save")
    give_notice(made, tag, number)


def starts(made: Repository, tag: str, number: int) -> int:
    return [line["event"] for line in lines(made, tag, number)].count("start")


def stopped_cleanly(made: Repository, tag: str, ranks: int, number: int) -> bool:
    """All ranks stopped where they saved, nobody but the supervisor signalled them, torchrun restarted nothing; whether it
    was in the middle of an evaluation."""
    stopped, restarts = lines(made, tag, number)[-1], 1 if (ranks, number) == (2, 2) else 0
    assert stopped["event"] == "stopped" and saves(made, tag, number)[-1]["step"] == stopped["step"]
    assert starts(made, tag, number) == 1 + restarts
    signalled = supervisor(made, tag, number, "signalled")
    assert {event["how"] for event in signalled} == {"registered"} and len(signalled) == ranks
    out = (attempt_dir(made, tag, number) / "out.log").read_text()
    saving = out[out.rindex("START  attempt"):out.rindex("STOPPED  step")]
    assert "closing signal" not in saving, "torchrun ends no rank before it has saved and said so"
    return bool(stopped["step"] % 2 == 0 and f"step {stopped['step']}  held-out" not in out)
