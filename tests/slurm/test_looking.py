"""What people and agents are shown of runs on a real Slurm: the timeline, everybody's queue, the page for agents, watch."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH, Repository, make_repository

HOSTILE = ["a|b", "two\nlines", "modèle-训练 🚀", "n" * 1000, "x\x1e99\x1froot\x1fRUNNING", "\x1b[31mred"]


@pytest.fixture(scope="module")
def repository(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=1, memory_mib=4000, preemption=False, kill_wait_s=3)
    made = make_repository(tmp_path_factory.mktemp("looking") / "vision", slurm)
    made.job("crashes", STEPS=80, DO="40:crash", yaml='profile: gpu\nwhat: "does it survive a crash?"\n')
    made.job("no-file", script="#!/bin/bash\nexec python3 no-such-file.py\n", yaml="profile: gpu\n")
    made.job("endless", STEPS=100000, yaml="profile: gpu\n")
    daemon = made.daemon()
    yield made
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=30) == 0


def page(repository: Repository) -> str:
    return (repository.folder / "ops" / "STATE.md").read_text()


def test_the_timeline_of_a_run_that_crashed(repository: Repository) -> None:
    repository.orch("submit", "crashes")
    repository.until(lambda: repository.status("crashes")["state"] == "finished", "crashes to finish")
    shown = repository.orch("status", "crashes")
    order = [r"does it survive a crash\?", "result: state=80", "ATT ", r"crash \(exit 1\)", "TIME ", "submitted",
             "attempt 1 started on", r"save[sd],? .*step \d+", "failed: .*as planned",
             "attempt 1 ended: crash .* of work lost",
             r"attempt 2 started on .* from step \d+ after .* idle", "attempt 2 ended: finished", "finished: state=80",
             "complete checkpoints"]
    assert re.search(".*".join(order), shown, re.DOTALL), shown
    found = json.loads(repository.orch("status", "crashes", "--json"))
    times = [moment["at"] for moment in found["timeline"]]
    assert times == sorted(times) and all(attempt["saves"] >= 1 for attempt in found["attempts"])


def test_an_agent_reads_what_is_held_what_runs_and_what_waits(repository: Repository) -> None:
    repository.orch("submit", "no-file")
    repository.until(lambda: repository.status("no-file")["state"] == "held", "no-file to be held")
    repository.orch("submit", "endless")
    repository.until(lambda: repository.status("endless")["step"], "endless to train")
    repository.job("behind", STEPS=1, yaml="profile: gpu\n")
    repository.orch("submit", "behind")
    repository.until(lambda: "waits for free resources (Resources)" in page(repository)
                     or "other jobs come first (Priority)" in page(repository), "Slurm's reason on the page")
    first = page(repository).splitlines()[0]
    assert first.startswith("**1 held: `no-file`**") and "1 running: `endless`; 1 waiting: `behind`" in first
    text = page(repository)
    assert re.search(r"- `no-file` since .*setup-failure.*`orch logs no-file` shows why; `orch release no-file`", text)
    assert re.search(r"- `endless` step \d+.*attempt 1 since", text)
    assert "- `crashes` finished" in text and "2 attempts, 1 interrupted" in text


def test_everybodys_queue_with_hostile_names(repository: Repository) -> None:
    slurm = repository.slurm
    jobs = [str(slurm.submit("sleep 300", f"--job-name={name}", "--gres=gpu:1", f"--comment={name}")) for name in HOSTILE]
    array = str(slurm.submit("sleep 300", "--array=1-9%2", "--gres=gpu:1", "--hold"))
    try:
        repository.until(lambda: "vision/endless" in repository.orch("queue"), "the queue")
        lines = repository.orch("queue").splitlines()
        assert lines[0].split() == ["PROJECT", "#", "JOB", "USER", "STATE", "START", "WHY"]
        assert len([line for line in lines if line.startswith("vision/endless")]) == 2          # and its successor
        listed = json.loads(repository.orch("queue", "--json"))["jobs"]
        assert {job["job_id"] for job in listed} >= {*jobs, f"{array}_[1-9%2]"}
        assert len(lines) == len(listed) + 1 and "99" not in {job["job_id"] for job in listed}
        names = {job["job_id"]: job["name"] for job in listed}
        assert [names[job] for job in jobs] == HOSTILE
        places = [job["place"] for job in listed if job["place"] is not None]
        assert places == list(range(1, len(places) + 1)) and len(places) >= len(HOSTILE)
        held = next(job for job in listed if job["job_id"].startswith(f"{array}_"))
        assert (held["place"], held["reason"]) == (None, "JobHeldUser")
    finally:
        slurm.run("scancel", *jobs, array)


def test_watch_ends_with_the_run_and_status_fits_a_terminal(repository: Repository, tmp_path: Path) -> None:
    """``script`` gives each a terminal of 80 columns."""
    command = f"stty cols 80 rows 40; {ORCH} watch endless"
    watching = subprocess.Popen(
        ["script", "--quiet", "--return", "--command", command, str(tmp_path / "typed")],
        cwd=repository.folder, env={**repository.environment, "TERM": "xterm-256color"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        repository.orch("cancel", "endless", "--now")
        shown, _ = watching.communicate(timeout=60)
    finally:
        watching.kill()
        watching.wait()
    assert watching.returncode == 0 and b"cancelled" in shown and b"\x1b[" in shown
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert max(len(line) for line in text.splitlines()) <= 80
