"""``orch logs``: the last lines of an attempt, progress bars among them, and the latest progress as an object."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Orch

from orchestrator.model import Profile, RunSpec

NOTHING: dict[str, Any] = dict.fromkeys(
    ("attempt", "at", "event", "step", "of", "loss", "steps_per_s", "left_s", "memory_bytes", "gpu_memory_bytes"))


@pytest.fixture
def run_dir(repository: Path) -> Path:
    """runs/a, submitted and not started."""
    folder = repository / "runs" / "a"
    folder.mkdir(parents=True)
    spec = RunSpec(tag="a", repository=str(repository), python="python", profile=Profile(name="p"), script_sha256="0")
    (folder / "journal.jsonl").write_text(json.dumps({"event": "submit", "t": 1.0, "schema": 1, "spec": asdict(spec)}) + "\n")
    return folder


def attempt(run_dir: Path, number: int, out: bytes = b"", *lines: dict[str, Any]) -> None:
    folder = run_dir / "attempts" / f"{number:04d}"
    folder.mkdir(parents=True)
    (folder / "start.json").write_text("{}")
    (folder / "out.log").write_bytes(out)
    (folder / "trainer.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_newest_attempts_last_lines(orch: Orch, run_dir: Path) -> None:
    attempt(run_dir, 1, b"old\n")
    attempt(run_dir, 2, b"one\ntwo\n\r 1%|#   |\r 9%|### | 9/100\nthree")
    assert orch("logs", "a").out == "one\ntwo\n 9%|### | 9/100\nthree\n"
    assert orch("logs", "a", "-n", "2").out == " 9%|### | 9/100\nthree\n"
    assert orch("logs", "a", "-n", "0").out == ""
    assert orch("logs", "a", "--attempt", "1").out == "old\n"
    assert orch("logs", "a", "--attempt", "3").code == 3


def test_the_last_lines_of_a_large_log(orch: Orch, run_dir: Path) -> None:
    """2.4 MB are more than one block that is read from the end."""
    attempt(run_dir, 1, b"".join(b"line %06d\n" % number for number in range(200_000)))
    for count in (3, 120_000):
        shown = orch("logs", "a", "-n", str(count)).out.split("\n")
        first = max(0, 200_000 - count)
        assert (shown[0], shown[-2], len(shown)) == (f"line {first:06d}", "line 199999", 200_001 - first)


def test_the_latest_progress(orch: Orch, run_dir: Path) -> None:
    attempt(run_dir, 1, b"", {"event": "progress", "t": 50.0, "step": 10, "loss": 9.0})
    attempt(
        run_dir, 2, b"", {"event": "first_step", "t": 99.0, "step": 11},
        {"event": "progress", "t": 100.0, "step": 40, "of": 90, "loss": None, "steps_per_s": 2.0, "left_s": 25.0,
         "memory_bytes": 5, "gpu_memory_bytes": None, "lr": 0.1},
        {"event": "saving", "t": 104.0, "step": 50}, {"event": "saved", "t": 105.0, "step": 50})
    attempt(run_dir, 3, b"", {"event": "start", "t": 200.0})
    answer = orch("logs", "--progress", "a")
    assert answer.code == 0 and answer.err == ""
    assert answer.json == {
        "tag": "a", "attempt": 2, "at": 105.0, "event": "saved", "step": 50, "of": 90, "loss": None, "steps_per_s": 2.0,
        "left_s": 20.0, "memory_bytes": 5, "gpu_memory_bytes": None, "numbers": {"lr": 0.1}}
    assert orch("logs", "--progress", "a", "--attempt", "1").json["step"] == 10
    assert orch("logs", "--progress", "-f", "a").code == 2


def test_a_finished_run_has_nothing_left(orch: Orch, run_dir: Path) -> None:
    attempt(run_dir, 1, b"", {"event": "progress", "t": 100.0, "step": 40, "of": 90, "left_s": 25.0},
            {"event": "finished", "t": 101.0, "step": 90, "metrics": {}})
    assert (orch("logs", "--progress", "a").json["left_s"], orch("logs", "--progress", "a").json["step"]) == (0.0, 90)


def test_where_nothing_was_said_every_value_is_null(orch: Orch, run_dir: Path) -> None:
    expected = {"tag": "a", **NOTHING, "numbers": {}}
    assert orch("logs", "--progress", "a").json == expected
    attempt(run_dir, 1, b"a program that knows nothing of orch\n")
    answer = orch("logs", "--progress", "a")
    assert answer.code == 0 and answer.json == expected
    assert orch("logs", "--progress", "b").code == 3
