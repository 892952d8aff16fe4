"""The contract's two Slurms: the simulated one always, a real private one where the tests are marked ``slurm``."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benches import Bench, Private, Simulated, with_pyslurm

from orchestrator.sightings import JobSeen

sys.path.append(str(Path(__file__).parents[1] / "slurm"))         # what that conftest imports
_where = importlib.util.spec_from_file_location("private_slurms", Path(__file__).parents[1] / "slurm" / "conftest.py")
assert _where is not None and _where.loader is not None
_private = importlib.util.module_from_spec(_where)
_where.loader.exec_module(_private)
make_slurm_cluster = _private.make_slurm_cluster
make_accounted_cluster = _private.make_accounted_cluster


@pytest.fixture(scope="session")
def contract_cluster(make_slurm_cluster: Callable[..., Any]) -> Any:
    return make_slurm_cluster(nodes=2, gpus=1, cpus=2)


@pytest.fixture(params=["simulated", *(pytest.param(how, marks=pytest.mark.slurm) for how in ("private", "pyslurm"))])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "simulated":
        yield Simulated(tmp_path)
        return
    private = Private(tmp_path, request.getfixturevalue("contract_cluster"))
    if request.param == "pyslurm":
        private.slurm = with_pyslurm(private.slurm)
    yield private
    for job in private.slurm.jobs():
        private.slurm.cancel(job.job_id)
    private.wait(lambda: all(job.end_at is not None and job.end_at <= time.time() and job.state != "COMPLETING"
                             for job in private.slurm.jobs()))


@pytest.fixture
def sbatch(bench: Bench) -> Callable[..., str]:
    """Submit a script of one command with these options; its job id."""
    def submit(command: str, **options: object) -> str:
        script = bench.folder / "script.sh"
        given = {"job-name": "contract", "output": "/dev/null", "gres": "gpu:1", **{
            name.replace("_", "-"): value for name, value in options.items()}}
        lines = [f"#SBATCH --{name}={value}" for name, value in given.items()]
        script.write_text("\n".join(["#!/bin/bash", *lines, "#SBATCH --no-requeue", command, ""]))
        return bench.slurm.submit(script, {"PATH": "/usr/bin:/bin"})
    return submit


@pytest.fixture
def look(bench: Bench) -> Callable[[str], JobSeen]:
    def look(job_id: str) -> JobSeen:
        job = bench.slurm.job(job_id)
        assert job is not None
        return job
    return look
