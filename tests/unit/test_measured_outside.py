"""Step time and size of a trainer that tells nothing, from its own checkpoints."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from builders import queued, run_of, started
from test_pass_asking import NOW, World

from orchestrator import folders
from orchestrator.control.observe import observe
from orchestrator.control.ports import Snapshot, require_run
from orchestrator.core.measures import from_outside


@pytest.mark.parametrize(("step", "saved_at", "step_s"), [
    (600, 1300.0, 0.5),                # since the start of the second attempt, which resumed from step 400
    (300, 700.0, 2.0),                 # the first one's, since step 0
    (400, 1300.0, None), (50, 90.0, None)])
def test_from_the_start_of_the_attempt_that_saved_it(step: int, saved_at: float, step_s: float | None) -> None:
    attempts = run_of(queued(1), started(1, 100.0), queued(2), started(2, 1200.0, resume_step=400)).attempts
    found = from_outside(attempts, step=step, saved_at=saved_at, size_bytes=7)
    assert (found.step_s.median if found.step_s else None) == step_s
    assert found.size_bytes is not None and found.size_bytes.median == 7


@pytest.mark.parametrize(("name", "tracker", "step_s"), [
    ("global_step500", "global_step500", 0.2), ("checkpoint_5", "", None)], ids=["DeepSpeed", "Accelerate counts its saves"])
def test_a_pass_measures_what_nobody_tells(tmp_path: Path, name: str, tracker: str, step_s: float | None) -> None:
    world = World(tmp_path)
    run_dir = world.run("a", queued(1, NOW - 200.0), started(1, NOW - 100.0))
    folder = folders.checkpoint_dir(run_dir) / name
    folder.mkdir(parents=True)
    for file in ("mp_rank_00_model_states.pt", "model.bin", "random_states_0.pkl"):
        with zipfile.ZipFile(folder / file, "w") as archive:
            archive.writestr("data", "x")
        os.utime(folder / file, (NOW, NOW))
    if tracker:
        (folder.parent / "latest").write_text(tracker)
    measured = observe(world.ports, require_run(tmp_path, "a"), Snapshot(asked_at=NOW)).measured
    assert (round(measured.step_s.median, 6) if measured.step_s else None) == step_s
    assert measured.size_bytes is not None and measured.size_bytes.median > 300
