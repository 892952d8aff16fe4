"""A node's epilog that hangs, on a real Slurm: the job stays COMPLETING, which is told of once, and once when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from repositories import make_repository
from seen import events

from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports
from orchestrator.core.lingering import LINGERS_AFTER_S
from orchestrator.model import Policy
from orchestrator.slurm.commands import SlurmCommands

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_hanging_epilog_is_told_of_once(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """The five minutes pass by the clock that the pass is given."""
    leave, epilog = tmp_path / "leave", tmp_path / "epilog"
    epilog.write_text(f"#!/bin/bash\nuntil [ -e {leave} ]; do sleep 0.2; done\n")
    epilog.chmod(0o755)
    slurm = make_slurm_cluster(nodes=1, cpus=2, gpus=0, memory_mib=1000, preemption=False, extra_conf=f"Epilog={epilog}\n")
    made = make_repository(tmp_path / "repository", slurm)
    made.job("ends", STEPS=40, DO="20:crash")
    made.orch("submit", "ends")
    job_id = events(made, "ends", "queued")[0]["job_id"]

    def told(ahead_s: float) -> list[tuple[object, object, object]]:
        pass_over_all(Ports(
            repository=made.folder, slurm=SlurmCommands(conf=Path(slurm.environment["SLURM_CONF"])), policy=Policy(),
            slurm_name=slurm.environment["SLURM_CONF"], clock=lambda: time.time() + ahead_s, new_id=lambda: "later"))
        return [(event["job_id"], event.get("nodes"), event.get("over")) for event in events(made, "ends", "lingers")]

    try:
        slurm.wait_for(int(job_id), "COMPLETING", timeout_s=60)
        node = slurm.job(int(job_id))["NodeList"]
        assert told(0.0) == [], "five minutes have not passed"
        assert told(LINGERS_AFTER_S + 60.0) == [(job_id, node, None)] == told(LINGERS_AFTER_S + 120.0)
    finally:
        leave.touch()
    slurm.wait_for(int(job_id), "FAILED", timeout_s=60)
    assert told(LINGERS_AFTER_S + 180.0)[1:] == [(job_id, None, True)]
    made.orch("cancel", "ends", "--now", code=None)
