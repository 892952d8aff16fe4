"""A run on a real Slurm, a daemon, and a webhook on this machine: what a person reads of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import BROKEN, TOKEN, Loopback
from repositories import ORCH_YAML, Repository, make_repository

NOTIFY = "notify: {discord: {webhook_file: hook}}\n"


@pytest.fixture
def discord() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


@pytest.fixture
def repository(
    make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, discord: Loopback,
) -> Iterator[Repository]:
    slurm = make_slurm_cluster(nodes=1, cpus=4, gpus=0, memory_mib=2000, preemption=False, kill_wait_s=3)
    made = make_repository(tmp_path_factory.mktemp("notify") / "vision", slurm, ORCH_YAML + NOTIFY)
    (made.folder / "hook").touch(mode=0o600)
    (made.folder / "hook").write_text(discord.url)
    daemon = made.daemon()             # it has looked once before anything is queued
    yield made
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=30) == 0


def test_a_run_that_finishes_and_a_queue_that_drains_are_told_once(repository: Repository, discord: Loopback) -> None:
    """A crash in between is nobody's news; Discord is away when the second run ends."""
    repository.until(lambda: (repository.folder / ".orch/notify/outbox.json").exists(), "the daemon's first pass")
    repository.job("first", STEPS=40, DO="15:crash")
    repository.job("second", STEPS=150)
    repository.orch("submit", "first")
    repository.orch("submit", "second", "--after", "first")
    repository.until(lambda: "first is finished: state=40" in discord.contents(), "the first message")
    repository.until(lambda: any(one.content.startswith("second: running") for one in discord.posts()), "its living message")
    discord.usual = BROKEN
    repository.until(lambda: repository.status("second")["state"] == "finished", "second to finish")
    repository.until(lambda: "it answers 500" in repository.log(), "the daemon to find Discord away")
    discord.usual = None
    repository.until(lambda: any("drained" in content for content in discord.contents()), "the queue to drain", timeout_s=120)
    repository.orch("tick")
    seen = [content for content in discord.contents() if not content.startswith("one run is left")]
    assert [content.partition(":")[0] for content in seen] == [
        "first is finished", "second is finished", "the queue has drained"]
    assert "nothing has trained for" in seen[2]
    living = {body["content"] for body in discord.messages.values() if "flags" in body}
    assert living == {"first: finished, state=40", "second: finished, state=150"}
    assert TOKEN not in repository.log() and TOKEN not in repository.orch("status")
    holders = [path for path in repository.folder.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]
    assert holders == [Path(repository.folder / "hook")]
