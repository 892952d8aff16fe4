"""Which folders are complete checkpoints. Nothing else is ever resumed from."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.checkpoints import complete_checkpoints, newest_complete, read_checkpoint


def save(folder: Path, name: str, step: int, *, files: dict[str, int] | None = None, **marker: Any) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    sizes = files if files is not None else {"weights": 10}
    for file, size in sizes.items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_bytes(b"x" * size)
    (path / "COMPLETE").write_text(json.dumps({"step": step, "saved_at": 100.0 + step, "files": sizes, "epoch": 1, **marker}))
    return path


def test_none(tmp_path: Path) -> None:
    assert complete_checkpoints(tmp_path / "gone") == []
    assert newest_complete(tmp_path) is None


def test_the_order_is_the_step_and_never_the_name_or_the_date(tmp_path: Path) -> None:
    save(tmp_path, "zz", 5, saved_at=900.0)
    save(tmp_path, "step-00000100", 100)
    save(tmp_path, "aa", 20)
    assert [c.step for c in complete_checkpoints(tmp_path)] == [5, 20, 100]
    newest = newest_complete(tmp_path)
    assert newest is not None and (newest.step, newest.size_bytes, newest.epoch) == (100, 10, 1)


def test_files_in_folders_are_counted(tmp_path: Path) -> None:
    path = save(tmp_path, "step-1", 1, files={"rank0/a": 3, "rank1/a": 4, "empty": 0})
    found = read_checkpoint(path)
    assert found is not None and found.size_bytes == 7


def test_a_folder_in_the_making_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, ".step-9.tmp", 9)
    (tmp_path / "a-file").write_text("x")
    assert newest_complete(tmp_path) is None


@pytest.mark.parametrize("damage", [
    lambda path: (path / "COMPLETE").unlink(),
    lambda path: (path / "COMPLETE").write_text(""),
    lambda path: (path / "COMPLETE").write_text('{"step": 3, "saved_at": 1, "fil'),
    lambda path: (path / "COMPLETE").write_text("[]"),
    lambda path: (path / "COMPLETE").write_text('{"saved_at": 1, "files": {}}'),
    lambda path: (path / "COMPLETE").write_text('{"step": null, "saved_at": 1, "files": {}}'),
    lambda path: (path / "COMPLETE").write_text('{"step": 3, "saved_at": 1, "files": {"weights": "10"}}'),
    lambda path: (path / "COMPLETE").write_text('{"step": 3, "saved_at": 1, "files": ["weights"]}'),
    lambda path: (path / "COMPLETE").write_bytes(b"\xff\xfe"),
    lambda path: (path / "weights").unlink(),
    lambda path: (path / "weights").write_bytes(b"x" * 9),
    lambda path: (path / "weights").write_bytes(b"x" * 11),
])
def test_what_is_damaged_is_not_complete(tmp_path: Path, damage: Any) -> None:
    save(tmp_path, "step-2", 2)
    damage(save(tmp_path, "step-3", 3))
    newest = newest_complete(tmp_path)
    assert newest is not None and newest.step == 2


@given(st.integers(0, 200), st.data())
@settings(max_examples=30)
def test_a_marker_cut_anywhere_is_not_complete(step: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        marker = save(Path(name), "c", step) / "COMPLETE"
        whole = marker.read_bytes()
        marker.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        assert newest_complete(Path(name)) is None
