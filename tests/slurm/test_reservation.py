"""A run in a reservation that ends before its limit: Slurm starts it all the same, and would kill it without a warning."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from repositories import make_repository
from seen import attempt_dir, read

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s, reservation: ours}
checkpoint: {interval: 5s}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""


def test_the_notice_comes_before_its_end_and_nothing_trains_in_what_is_left(
        slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    made = make_repository(tmp_path / "reserved", slurm_cluster, ORCH_YAML)
    made.job("a", STEPS=100000)
    slurm_cluster.run("scontrol", "create", "reservation", "ReservationName=ours", "StartTime=now", "EndTime=now+50",
                      "Nodes=n1", "Users=root")
    closes = time.time() + 50
    daemon = made.daemon()
    try:
        made.orch("submit", "a")
        made.until(lambda: "its reservation was deleted" in made.orch("status"), "what Slurm holds the next one for")
    finally:
        daemon.terminate()
        assert daemon.wait(timeout=30) == 0
    attempts = made.status("a")["attempts"]
    assert [attempt["ending"] for attempt in attempts] == ["limit-saved"], attempts
    start, end = (read(attempt_dir(made, "a", 1) / name) for name in ("start.json", "end.json"))
    assert abs(start["deadline"] - closes) < 10 and end["notice"] == "limit" and end["saved_after_notice"]
    assert end["ended_at"] < closes
    stood_down = [event for event in made.journal("a") if event.get("why") == "stood down"]
    assert stood_down and "reservation ours ends in" in str(stood_down[0]), stood_down
    made.orch("cancel", "a")
