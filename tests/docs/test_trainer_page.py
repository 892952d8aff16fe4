"""The examples of docs/trainer.md, as typed there; README's are run by tests/slurm, the frameworks' by theirs."""

from __future__ import annotations

import copy
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orch_trainer
from orch_trainer.complete import complete_checkpoints

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
STEPS = 12


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def example(language: str, with_words: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    [found] = [block for block in blocks if with_words in block]
    return str(found)


def theirs(state: dict[str, Any]) -> dict[str, Any]:
    """What the page says is the reader's."""
    def write_state(folder: Path) -> None:
        (folder / "state").write_text(str(state["step"]))

    def restore(folder: Path | None) -> int:
        return int((folder / "state").read_text()) if folder is not None else 0

    def batches(step: int) -> Iterator[int]:
        for number in range(step, STEPS):
            state["step"] = number + 1
            yield number

    return {"Training": orch_trainer.Training, "restore": restore, "write_state": write_state, "batches": batches,
            "steps": STEPS, "loss": 0.5, "accuracy": 1.0}


def test_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("python", "training.finish"), theirs({}))
    assert '"accuracy": 1.0' in (tmp_path / "result.json").read_text()


def test_a_save_in_the_background_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = example("python", "background=True").splitlines()
    begin = next(line for line in lines if "training.saving" in line)
    rest = lines[next(number for number, line in enumerate(lines) if "without torch" in line):]

    def write(snapshot: dict[str, int], folder: Path) -> None:
        (folder / "state").write_text(str(snapshot["step"]))

    with orch_trainer.Training() as training:
        training.step(3)
        exec("\n".join([begin, *rest]), {
            "training": training, "step": 3, "state": {"step": 3}, "copy_of": copy.deepcopy, "write": write})
        training.finish()
    [saved] = complete_checkpoints(tmp_path / "checkpoints")
    assert (saved.step, (saved.path / "state").read_text()) == (3, "3")


@pytest.mark.slow
def test_the_shell_script(tmp_path: Path) -> None:
    """Twice: the second time a notice is there, and the state of the first lies in its newest checkpoint."""
    script = example("bash", "orch notify-save")
    (tmp_path / "simulate").write_text("#!/bin/sh\necho x >>$1\n")
    (tmp_path / "simulate").chmod(0o755)
    run, asked = tmp_path / "run", tmp_path / "run" / "attempts" / "0001"
    asked.mkdir(parents=True)
    (run / "epoch").write_text("7")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ORCH_RUN_DIR": str(run),
               "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1", "ORCH_ATTEMPT_DIR": str(asked),
               "ORCH_CHECKPOINT_DIR": str(run / "checkpoints"), "ORCH_CHECKPOINTS_KEPT": "3", "ORCH_RESUME_FROM": "",
               "ORCH_CHECKPOINT_INTERVAL_S": "0.5"}

    def attempt(steps: int, **more: str) -> str:
        ran = subprocess.run(["bash", "-c", script.replace("< 1000", f"< {steps}")], cwd=tmp_path, env={**environ, **more},
                             capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
        return ran.stdout

    def saved() -> list[tuple[int, Path]]:
        return sorted((one.step, one.path) for one in complete_checkpoints(run / "checkpoints"))

    attempt(STEPS)
    assert (run / "result.json").exists()
    step, newest = saved()[-1]
    (asked / "notice.json").write_text('{"at": 1, "reason": "limit", "deadline": null, "deliver": []}')
    (tmp_path / "state.bin").unlink()
    assert "notice: limit" in attempt(STEPS + 1, ORCH_RESUME_FROM=str(newest))
    assert saved()[-1][0] == step + 1 and (tmp_path / "state.bin").read_text() == "x\n" * (step + 1)
