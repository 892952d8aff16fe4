"""``orch init``, ``new``, ``vendor``: files appear, and nothing that is there is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Orch


def test_init_makes_a_repository_and_a_second_one_changes_nothing(orch: Orch, tmp_path: Path) -> None:
    first = orch("init")
    assert first.code == 0 and "orch new TAG" in first.out
    made = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert {p.name for p in made} == {"orch.yaml", "decisions.md", "AGENTS.md", ".gitignore"}
    assert orch("init").code == 0
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == made


def test_init_leaves_what_is_there(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("mine")
    (tmp_path / ".gitignore").write_text("*.pyc\n/runs/")
    assert "AGENTS.md is there already" in orch("init").out
    assert (tmp_path / "AGENTS.md").read_text() == "mine"
    ignored = (tmp_path / ".gitignore").read_text().splitlines()
    assert ignored[:2] == ["*.pyc", "/runs/"] and ignored.count("/runs/") == 1 and "/.orch/" in ignored


def test_new_and_new_from(orch: Orch, repository: Path) -> None:
    job = repository / "jobs/resnet-a/job.sh"
    assert os.access(job, os.X_OK) and (repository / "jobs/resnet-a/job.yaml").exists()
    assert orch("new", "resnet-b", "--from", "resnet-a").code == 0
    copy = repository / "jobs/resnet-b/job.sh"
    assert copy.read_bytes() == job.read_bytes() and os.access(copy, os.X_OK)


@pytest.mark.parametrize(("arguments", "code", "problem", "hint"), [
    (("new", "resnet-a"), 2, "is there already", "another tag"),
    (("new", "a/b"), 2, "cannot be a tag", '"a-b"'),
    (("new", "a b"), 2, "cannot be a tag", '"a-b"'),
    (("new", "--", "-x"), 2, "cannot be a tag", '"x"'),
    (("new", "b", "--from", "resnet-x"), 3, 'no job folder "resnet-x"', 'did you mean "resnet-a"?'),
    (("new", "b", "--from", ".."), 2, "cannot be a tag", ""),
])
def test_new_refuses(orch: Orch, repository: Path, arguments: tuple[str, ...], code: int, problem: str, hint: str) -> None:
    answer = orch(*arguments)
    assert answer.code == code and problem in answer.err and hint in answer.err and answer.out == ""
    assert sorted(p.name for p in (repository / "jobs").iterdir()) == ["resnet-a"]


def test_commands_find_the_repository_from_below_and_say_when_there_is_none(
    orch: Orch, repository: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository / "jobs")
    assert orch("status").code == 0
    (repository / "orch.yaml").unlink()
    answer = orch("status")
    assert answer.code == 2 and "no orch.yaml in" in answer.err and "orch init" in answer.err


def test_vendor_copies_the_library(orch: Orch, repository: Path) -> None:
    assert orch("vendor").code == 0
    assert (repository / "orch_trainer/training.py").exists()
    assert orch("vendor").code == 0
