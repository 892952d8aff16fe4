"""Private Slurms for tests: started in a temporary folder, always torn down, nothing left running."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from accounting import Accounting
from accounting import missing as missing_for_accounting

from orchestrator import cluster
from orchestrator.cluster import daemons, processes
from orchestrator.cluster.spec import layout_of

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@dataclass(frozen=True)
class PrivateSlurm:
    """A running private cluster, and Slurm's commands spoken to it."""

    spec: cluster.ClusterSpec

    @property
    def folder(self) -> Path:
        return self.spec.folder

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment, with this cluster and no other Slurm in it."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return outside | cluster.environment(self.folder)

    def run(self, *command: str) -> str:
        answer = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=30, check=False,
        )
        assert answer.returncode == 0, f"{command}: {answer.stdout}{answer.stderr}"
        return answer.stdout

    def submit(self, script: str, *options: str) -> int:
        return int(self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}").strip())

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of ``scontrol show job`` as text."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(job_id)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job_id: int, *states: str, timeout_s: float = 30) -> None:
        self.wait_until(lambda: self.job(job_id)["JobState"] in states, timeout_s, f"job {job_id} {' or '.join(states)}")

    @staticmethod
    def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        assert daemons.until(condition, timeout_s), f"not within {timeout_s:g} s: {what}"

    def processes(self) -> list[processes.Member]:
        return processes.running(layout_of(self.folder))


def _require_slurm(what: str = "Slurm", missing: list[str] | None = None) -> None:
    missing = cluster.missing_programs() if missing is None else missing
    if not missing:
        return
    reason = f"{what} is not installed ({', '.join(missing)} not found): run ops/slurm/install accounting"
    if os.environ.get(f"ORCH_REQUIRE_{what.upper()}") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _tear_down(slurm: PrivateSlurm) -> None:
    if slurm.folder.exists():
        cluster.kill(slurm.folder)
    assert slurm.processes() == []


@pytest.fixture(scope="session")
def make_slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., PrivateSlurm]]:
    """Start a private cluster of one's own: ``make_slurm_cluster(nodes=1, gpus=0)``; ended with the session at the latest."""
    _require_slurm()
    made: list[PrivateSlurm] = []

    def make(**settings: Any) -> PrivateSlurm:
        chosen = {"nodes": 2, "gpus": 2, "cpus": 8, "memory_mib": 4000, "preemption": True, "kill_wait_s": 5} | settings
        chosen.setdefault("folder", tmp_path_factory.mktemp("slurm"))
        slurm = PrivateSlurm(cluster.ClusterSpec(**chosen))
        made.append(slurm)
        cluster.up(slurm.spec)
        return slurm

    yield make
    for slurm in made:
        _tear_down(slurm)


@pytest.fixture(scope="session")
def make_accounted_cluster(
        make_slurm_cluster: Callable[..., PrivateSlurm], tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., tuple[PrivateSlurm, Accounting]]]:
    """As ``make_slurm_cluster``, with accounting: slurmdbd over MariaDB, both in a folder of their own."""
    _require_slurm("accounting", missing_for_accounting())
    made: list[Accounting] = []

    def make(extra_conf: str = "", **settings: Any) -> tuple[PrivateSlurm, Accounting]:
        folder = settings.pop("folder", None) or tmp_path_factory.mktemp("slurm")
        accounting = Accounting(tmp_path_factory.mktemp("accounting"), folder)
        made.append(accounting)
        accounting.begin()
        return make_slurm_cluster(folder=folder, extra_conf=accounting.extra_conf + extra_conf, **settings), accounting

    yield make
    for accounting in made:
        accounting.end()


@pytest.fixture(scope="session")
def slurm_cluster(make_slurm_cluster: Callable[..., PrivateSlurm]) -> PrivateSlurm:
    """The session's shared cluster: two nodes of 8 CPUs, 4000 MiB and two declared GPUs; partitions main, low and high."""
    return make_slurm_cluster()
