"""Checksums, and what is resumed from, removed and kept by them: orch's reader and the library's side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orch_trainer import Training, complete, reading, sums
from orch_trainer.checkpoint import Checkpoints
from orch_trainer.fence import Fence
from orch_trainer.files import Files
from orchestrator import checkpoints
from orchestrator.attempt import resume
from orchestrator.records import StartRecord

# --- what is read of a file, by library and orch alike ---


@pytest.mark.parametrize(("size", "budget"), [
    (0, 100), (100, 100), (101, 100), (10_000, 100), (1 << 20, 64 << 10), ((3 << 20) + 1, 2 << 20), (5 << 20, 3 << 20)])
def test_orch_reads_the_same_of_a_file_as_the_library(tmp_path: Path, size: int, budget: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(number * 7 % 251 for number in range(1000)) * (size // 1000 + 1))
    os.truncate(path, size)
    assert checkpoints._sum(path, budget) == sums.file_sum(path, budget)
    read = list(sums.blocks(size, budget))
    assert read == list(checkpoints._blocks(size, budget))
    assert sum(length for _, length in read) <= max(size if size <= budget else 0, budget)
    assert (read[0][0], sum(read[-1])) == (0, size)      # the first bytes and the last ones


@pytest.mark.parametrize(("files", "expected"), [(0, 64 << 20), (1, 64 << 20), (100, (1 << 30) // 100), (10**6, 64 << 10)])
def test_checksums_read_about_a_gibibyte_at_most(files: int, expected: int) -> None:
    assert sums.budget_bytes(files) == expected


def saved(folder: Path, step: int) -> Path:
    it = Checkpoints(folder, Fence(None, 1), attempt=1, keep=9, files=Files())
    made = it.temporary(step, os.getpid())
    it.begin(made)
    (made / "state").write_bytes(bytes([step]) * 5000)
    return it.publish(step, made, it.sync(made), saved_at=float(step)).path


@pytest.mark.parametrize("reader", [checkpoints.damage, complete.damage])
def test_a_lost_page_is_found_though_the_size_is_right(tmp_path: Path, reader: Callable[[Path], str]) -> None:
    path = saved(tmp_path, 7)
    assert reader(path) == ""
    with (path / "state").open("r+b") as file:
        file.seek(4096)
        file.write(bytes(100))
    assert checkpoints.read_checkpoint(path) is not None
    assert reader(path) == "1 of 1 files differ from their checksums, state first"
    marker = json.loads((path / "COMPLETE").read_text())
    del marker["sums"]                                   # written before there were any
    (path / "COMPLETE").write_text(json.dumps(marker))
    assert reader(path) == ""


def test_a_damaged_checkpoint_is_passed_over_and_one_that_is_not_listed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        saved(folder, step)
    (folder / "step-00000003" / "state").write_bytes(bytes(5000))
    attempt = tmp_path / "attempts" / "0001"
    attempt.mkdir(parents=True)
    elsewhere = saved(tmp_path / "not-listed", 9)
    (attempt / "trainer.jsonl").write_text("".join(
        json.dumps({"t": 1.0, "event": "saved", "path": str(path)}) + "\n" for path in (elsewhere, folder / "step-00000004")))
    start = StartRecord(number=1, submission_id="s", job_id="1", restart_count=0, epoch=1, host="h", boot_id="", pid=1,
                        pid_start=1, started_at=1.0)
    chosen, wrong = resume.choose(tmp_path, [])
    assert chosen is not None
    assert chosen.step == 2
    assert len(wrong) == 1
    assert "step 3, which is damaged" in wrong[0]
    chosen, wrong = resume.choose(tmp_path, [start])
    assert chosen is not None
    assert (chosen.step, wrong) == (9, [])


def test_outside_orch_the_library_passes_a_damaged_one_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        saved(tmp_path, step)
    (tmp_path / "step-00000002" / "state").write_bytes(bytes(5000))
    with Training(environ={}, checkpoint_dir=tmp_path, background=False) as training:
        assert training.resume_from == tmp_path / "step-00000001"
        training.step(2)
        training.finish()
    assert f"WARNING: not resumed from {tmp_path / 'step-00000002'}" in capsys.readouterr().out


def test_what_is_being_read_stays(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, step)
    it = Checkpoints(tmp_path, Fence(None, 1), attempt=1, keep=1, files=Files(), resumed_step=2)
    with reading(tmp_path / "step-00000001") as path:
        it.retire(3)
        assert (path / "state").exists()
    assert [c.step for c in checkpoints.complete_checkpoints(tmp_path)] == [1, 2, 3]   # 2: this attempt resumed from it
    it.retire(3)
    assert [c.step for c in checkpoints.complete_checkpoints(tmp_path)] == [2, 3]
    with pytest.raises(FileNotFoundError), reading(tmp_path / "step-00000001"):
        pass


def test_a_damaged_one_of_the_same_step_is_kept_aside(tmp_path: Path) -> None:
    for number in range(3):
        damaged = saved(tmp_path, 5)
        (damaged / "state").write_bytes(b"short" + bytes(number) if number else bytes(5000))  # by size, or by content alone
    assert complete.damage(saved(tmp_path, 5)) == ""
    aside = list(tmp_path.glob(".damaged-*"))
    assert len(aside) == 3
    it = Checkpoints(tmp_path, Fence(None, 1), attempt=1, keep=1, files=Files())
    it.retire(5)
    it.empty(it.set_aside())
    assert len(list(tmp_path.glob(".damaged-*"))) == 1
