"""What ``slurm.protocol.Slurm`` promises of jobs that slurmctld has forgotten, and of how it is set up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benches import Private, Simulated

from orchestrator.errors import NoAccounting, SlurmUnreachable
from orchestrator.sightings import Execution

Sbatch = Callable[..., str]
FORGETS_AFTER_S = 2


@pytest.fixture(scope="session")
def accounted_cluster(make_accounted_cluster: Callable[..., Any]) -> Any:
    return make_accounted_cluster(nodes=2, gpus=1, cpus=2, memory_mib=1000, min_job_age_s=FORGETS_AFTER_S)


@pytest.fixture(params=["simulated", pytest.param("private", marks=pytest.mark.slurm)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """As the other contract's, with accounting, and forgetful."""
    if request.param == "simulated":
        yield Simulated(tmp_path, accounting=True, min_job_age_s=FORGETS_AFTER_S)
        return
    cluster, _ = request.getfixturevalue("accounted_cluster")
    private = Private(tmp_path, cluster)
    yield private
    cluster.run("scancel", f"--user={os.getuid()}")


def forgotten(bench: Any, *job_ids: str) -> None:
    """MinJobAge is the least that it is: slurmctld clears its list twice a minute."""
    bench.wait(lambda: not {job.job_id for job in bench.slurm.jobs()} & set(job_ids), at_most_s=120.0)


def executions(bench: Any, job_id: str, *states: str) -> list[Execution]:
    """Once accounting has heard of it."""
    def told() -> list[Execution]:
        return sorted(bench.slurm.executions([job_id]), key=lambda one: one.submitted_at)
    bench.wait(lambda: [one.state for one in told()] == list(states))
    return told()


def test_how_forgotten_jobs_ended_is_read_in_one_question(bench: Any, sbatch: Sbatch) -> None:
    well, badly, cancelled, running = (sbatch(command, job_name=name) for name, command in (
        ("well", "exit 0"), ("badly", "exit 75"), ("cancelled", "exec sleep 60"), ("running", "exec sleep 300")))
    never = sbatch("exec sleep 60", dependency=f"afterany:{running}")
    bench.wait(lambda: {cancelled, running} <= {job.job_id for job in bench.slurm.jobs() if job.state == "RUNNING"})
    bench.slurm.cancel(never)
    bench.slurm.cancel(cancelled)
    forgotten(bench, well, badly, cancelled, never)
    bench.wait(lambda: len(bench.slurm.executions([well, badly, cancelled, never, running])) == 5)
    rows = {one.job_id: one for one in bench.slurm.executions([well, badly, cancelled, never, running, "999999"])}
    assert {job_id: rows[job_id].state for job_id in (well, badly, cancelled, never, running)} == {
        well: "COMPLETED", badly: "FAILED", cancelled: "CANCELLED", never: "CANCELLED", running: "RUNNING"}
    for job_id in (well, badly, cancelled):
        one = rows[job_id]
        assert one.start_at is not None and one.end_at is not None and one.nodes
        assert one.submitted_at <= one.start_at <= one.end_at
    assert (rows[running].end_at, rows[running].nodes != "") == (None, True)
    assert rows[never].end_at is not None and rows[never].nodes == ""
    assert "999999" not in rows


def test_a_requeued_job_has_a_row_for_each_execution(bench: Any, sbatch: Sbatch) -> None:
    job_id = sbatch("exec sleep 60")
    bench.wait(lambda: any(job.job_id == job_id and job.state == "RUNNING" for job in bench.slurm.jobs()))
    executions(bench, job_id, "RUNNING")
    bench.requeue(job_id)
    first, second = executions(bench, job_id, "REQUEUED", "PENDING")
    assert first.end_at is not None and first.nodes and first.submitted_at <= second.submitted_at
    bench.slurm.cancel(job_id)
    executions(bench, job_id, "REQUEUED", "CANCELLED")


def test_how_it_is_set_up(bench: Any) -> None:
    site = bench.slurm.site()
    assert (site.accounting, site.min_job_age_s) == (True, FORGETS_AFTER_S) and site.version


@pytest.mark.slurm
def test_tasks_of_arrays_components_and_steps_are_rows_of_their_own(accounted_cluster: Any, tmp_path: Path) -> None:
    cluster, _ = accounted_cluster
    bench = Private(tmp_path, cluster)
    array = str(cluster.submit("srun --mem=10 true; exit 3", "--mem=20", "--array=1-3", "--job-name=array"))
    het = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--mem=10", ":", "--mem=10", "--wrap=srun true").strip()
    ours = str(cluster.submit("srun --mem=10 true; srun --mem=10 false; exit 75", "--mem=20"))
    forgotten(bench, array, str(int(array) + 1), str(int(array) + 2), het, ours)
    [one] = executions(bench, ours, "FAILED")
    assert (one.job_id, one.exit_code) == (ours, "75:0")
    tasks = bench.slurm.executions([array])
    assert len([task for task in tasks if task.job_id == array]) == 1
    assert {task.state for task in tasks} == {"FAILED"} and {task.exit_code for task in tasks} == {"3:0"}
    assert len([part for part in bench.slurm.executions([het]) if part.job_id == het]) == 1


@pytest.mark.slurm
def test_a_database_that_is_away_is_no_answer_and_comes_back(accounted_cluster: Any, tmp_path: Path) -> None:
    cluster, accounting = accounted_cluster
    bench = Private(tmp_path, cluster)
    accounting.stop_slurmdbd()
    try:
        job_id = str(cluster.submit("exit 4"))
        with pytest.raises(SlurmUnreachable, match="database"):
            bench.slurm.executions([job_id])
        forgotten(bench, job_id)
    finally:
        accounting.start_slurmdbd()
    [one] = executions(bench, job_id, "FAILED")
    assert one.exit_code == "4:0", "slurmctld kept it for later"


@pytest.mark.slurm
def test_without_accounting(contract_cluster: Any, tmp_path: Path) -> None:
    bench = Private(tmp_path, contract_cluster)
    assert not bench.slurm.site().accounting
    with pytest.raises(NoAccounting, match="accounting storage is disabled"):
        bench.slurm.executions(["1"])
