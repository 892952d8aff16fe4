"""The daemon's lines as objects, with a real Slurm behind them; and runs that go on without any daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from repositories import ORCH, TINY, Repository, make_repository

if TYPE_CHECKING:
    from conftest import PrivateSlurm


@pytest.fixture
def repository(tmp_path: Path, slurm_cluster: PrivateSlurm) -> Repository:
    return make_repository(tmp_path / "repo", slurm_cluster)


def test_each_line_has_an_action_and_a_tag(repository: Repository) -> None:
    repository.job("a", STEPS=40, DO="20:crash")
    repository.orch("submit", "a")
    with subprocess.Popen([ORCH, "daemon", "--json"], cwd=repository.folder, env=repository.environment,
                          stdout=subprocess.PIPE, text=True) as daemon:
        try:
            repository.until(lambda: [e for e in repository.journal("a") if e["event"] == "finished"], "a is finished")
        finally:
            daemon.terminate()
            out, _ = daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    ours = [line for line in lines if line["tag"] == "a"]
    actions = [line["action"] for line in ours]
    assert {"started", "ended", "queue", "finished"} <= set(actions)
    crash, = (line for line in ours if line["action"] == "ended" and line["number"] == 1)
    assert crash["ending"] == "crash" and crash["job_id"] and "attempt 1 ended: crash" in crash["text"]
    assert all(line["text"] and line["t"] > 1e9 for line in lines)
    assert (lines[0]["action"], lines[-1]["action"]) == ("begin", "end")


def test_a_job_that_begins_with_a_tick_needs_no_daemon(repository: Repository) -> None:
    """Without one only the successors that were queued ahead run; a tick as the first command queues the next."""
    start = f"exec {sys.executable} {TINY}\n"
    repository.job("ticks", script=f"#!/usr/bin/env bash\nenv -u SLURM_CONF {ORCH} tick || true\n{start}", STEPS=120,
                   DO="30:crash,60:crash,90:crash")
    (repository.folder / "orch.yaml").write_text(
        (repository.folder / "orch.yaml").read_text() + f"slurm: {{conf: {repository.environment['SLURM_CONF']}}}\n")
    repository.orch("submit", "ticks")
    result = repository.folder / "runs" / "ticks" / "result.json"
    repository.until(result.exists, "four attempts, of which two were queued by ticks")
    repository.orch("tick")
    assert repository.endings("ticks") == ["crash", "crash", "crash", "finished"]
