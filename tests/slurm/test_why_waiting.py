"""Why jobs wait, as a real slurmctld says it, and what orch makes of that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import Repository, make_repository

from orchestrator.core.line import ahead_of
from orchestrator.core.waiting import Evidence, Kind, Why, why
from orchestrator.sightings import JobSeen
from orchestrator.slurm.commands import SlurmCommands

EXTRA = """\
Licenses=matlab:1
PartitionName=tiny Nodes=n1 MaxTime=10 MaxNodes=1 State=UP
"""


@pytest.fixture(scope="module")
def slurm(make_slurm_cluster: Callable[..., Any]) -> Any:
    return make_slurm_cluster(nodes=2, cpus=4, gpus=1, memory_mib=4000, preemption=False, kill_wait_s=2, extra_conf=EXTRA)


@pytest.fixture(autouse=True)
def empty(slurm: Any) -> Iterator[None]:
    """Nothing of one test is left for the next."""
    yield
    if slurm.run("squeue", "--noheader").strip():
        slurm.run("scancel", "--user=root")
    for partition in ("main", "tiny"):
        slurm.run("scontrol", "update", f"PartitionName={partition}", "State=UP")
    slurm.wait_until(lambda: not slurm.run("squeue", "--noheader").strip(), 30, "an empty queue")
    for name in ("maint", "ours"):
        if f"ReservationName={name} " in slurm.run("scontrol", "--oneliner", "show", "reservation"):
            slurm.run("scontrol", "delete", f"ReservationName={name}")
    for node in ("n1", "n2"):
        if "drain" in slurm.run("sinfo", "--noheader", f"--nodes={node}", "--format=%T"):
            slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def look(slurm: Any, job_id: int) -> JobSeen:
    job = SlurmCommands(conf=Path(slurm.environment["SLURM_CONF"])).job(str(job_id))
    assert job is not None
    return job


def waits(slurm: Any, job_id: int, kind: Kind, begins: str = "") -> Why:
    """What is made of its reason, in squeue's form and in scontrol's, once it is of this kind."""
    def told() -> Why:
        job = look(slurm, job_id)
        return why(Evidence(reason=job.reason, state=job.state, exit_code=job.exit_code, job_id=job.job_id))
    slurm.wait_until(lambda: told().kind is kind and look(slurm, job_id).reason.startswith(begins), 20,
                     f"{kind}: {begins}; it is {look(slurm, job_id)}")
    shown = slurm.job(job_id)
    assert told() == why(Evidence(
        reason=shown["Reason"], state=shown["JobState"], exit_code=shown["ExitCode"], job_id=str(job_id)))
    return told()


def fill(slurm: Any, minutes: int = 10) -> list[int]:
    """Both GPUs in use."""
    running = [slurm.submit("sleep 300", "--gres=gpu:1", "--mem=500", f"--time={minutes}") for _ in range(2)]
    for job_id in running:
        slurm.wait_for(job_id, "RUNNING")
    return running


def test_resources_and_priority_with_how_many_are_ahead(slurm: Any) -> None:
    fill(slurm)
    first, second, third = (slurm.submit("sleep 1", "--gres=gpu:1", "--time=5") for _ in range(3))
    assert waits(slurm, first, Kind.TURN, "Resources").sentence == "waits for free resources"
    waits(slurm, third, Kind.TURN, "Priority")
    queue = SlurmCommands(conf=Path(slurm.environment["SLURM_CONF"])).queue()
    assert [ahead_of(str(job_id), queue) for job_id in (first, second, third)] == [0, 1, 2]


@pytest.mark.parametrize(("options", "kind", "begins"), [
    (["--partition=tiny", "--time=30"], Kind.NEVER, "PartitionTimeLimit"),
    (["--partition=tiny", "--time=5", "--nodes=2"], Kind.NEVER, "PartitionNodeLimit"),
    (["--hold"], Kind.HELD, "JobHeldUser"), (["--begin=now+600"], Kind.LATER, "BeginTime")])
def test_what_it_was_submitted_with(slurm: Any, options: list[str], kind: Kind, begins: str) -> None:
    waits(slurm, slurm.submit("sleep 1", *options), kind, begins)


def test_licences(slurm: Any) -> None:
    first, second = (slurm.submit("sleep 300", "--licenses=matlab:1") for _ in range(2))
    slurm.wait_for(first, "RUNNING")
    assert waits(slurm, second, Kind.TURN, "Licenses").sentence == "waits for a licence"


def test_dependencies_also_such_as_can_never_be_met(slurm: Any) -> None:
    first = slurm.submit("sleep 4; exit 1")
    behind = slurm.submit("sleep 1", f"--dependency=afterany:{first}", "--begin=now+600")
    hopeless = slurm.submit("sleep 1", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=no")
    waits(slurm, behind, Kind.BEHIND, "Dependency")
    waits(slurm, hopeless, Kind.NEVER, "DependencyNeverSatisfied")


def test_an_administrators_hold(slurm: Any) -> None:
    fill(slurm)
    job_id = slurm.submit("sleep 1", "--gres=gpu:1", "--time=5")
    slurm.run("scontrol", "hold", str(job_id))
    assert "administrator" in waits(slurm, job_id, Kind.HELD, "JobHeldAdmin").sentence


def test_put_back_into_the_queue(slurm: Any) -> None:
    held, again = (slurm.submit("sleep 300", "--requeue") for _ in range(2))
    for job_id in (held, again):
        slurm.wait_for(job_id, "RUNNING")
    slurm.run("scontrol", "requeuehold", str(held))
    slurm.run("scontrol", "requeue", str(again))
    assert waits(slurm, held, Kind.HELD, "job requeued in held state").helps == f"`scontrol release {held}`"
    waits(slurm, again, Kind.LATER, "BeginTime")


@pytest.mark.parametrize("state", ["Down", "Inactive"])
def test_a_partition_that_starts_nothing(slurm: Any, state: str) -> None:
    fill(slurm)
    job_id = slurm.submit("sleep 1", "--gres=gpu:1", "--time=5")
    slurm.run("scontrol", "update", "PartitionName=main", f"State={state.upper()}")
    waits(slurm, job_id, Kind.SITE, f"Partition{state}")


def test_nodes_that_are_drained(slurm: Any) -> None:
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=broken")
    named, both = slurm.submit("sleep 1", "--nodelist=n2"), slurm.submit("sleep 1", "--nodes=2")
    slurm.wait_until(lambda: look(slurm, named).reason in (
        "ReqNodeNotAvail, UnavailableNodes:n2", "ReqNodeNotAvail, May be reserved for other job"), 20,  # the latter on 26.05
                     f"a reason that names the node; it is {look(slurm, named)}")
    waits(slurm, both, Kind.SITE, "Nodes required for job are DOWN, DRAINED")


def test_maintenance_before_which_a_shorter_limit_fits(slurm: Any) -> None:
    slurm.run("scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+600", "Duration=60", "Nodes=ALL",
              "Flags=MAINT,IGNORE_JOBS", "Users=root")
    long, short = slurm.submit("sleep 300", "--time=60"), slurm.submit("sleep 300", "--time=5")
    told = waits(slurm, long, Kind.LATER, "ReqNodeNotAvail, Reserved for maintenance")
    assert "maintenance" in told.sentence and "orch update" in told.helps
    slurm.wait_for(short, "RUNNING")


def test_a_reservation_that_has_not_begun(slurm: Any) -> None:
    slurm.run("scontrol", "create", "reservation", "ReservationName=ours", "StartTime=now+3600", "Duration=60", "Nodes=n1",
              "Users=root")
    waits(slurm, slurm.submit("sleep 1", "--reservation=ours", "--time=5"), Kind.LATER, "Reservation")


@pytest.mark.parametrize(("script", "options", "words"), [
    ("kill -9 $$", (), "ended: killed by signal 9"), ("exit 3", (), "ended with an error of its own (exit 3)")])
def test_how_one_ended(slurm: Any, script: str, options: tuple[str, ...], words: str) -> None:
    """22.05 says JobLaunchFailure of a script that a signal killed."""
    job_id = slurm.submit(script, *options)
    slurm.wait_for(job_id, "FAILED")
    assert waits(slurm, job_id, Kind.ENDED).sentence == words


# --- a run ----------------------------------------------------------------------------------------------------------------


ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s, gres: "gpu:1"}
  tiny: {cpus: 1, memory: 100M, time: 10m, lead: 20s, partition: tiny}
recovery: {backoff: 1s}
"""


@pytest.fixture
def repository(slurm: Any, tmp_path: Path) -> Repository:
    made = make_repository(tmp_path / "vision", slurm, ORCH_YAML)
    made.job("a", script="#!/bin/bash\nexec sleep 1000\n")
    return made


def test_explain_says_who_is_ahead_and_what_helps(slurm: Any, repository: Repository) -> None:
    fill(slurm)
    others = [slurm.submit("sleep 1", "--gres=gpu:1", "--time=5") for _ in range(2)]
    waits(slurm, others[1], Kind.TURN, "Priority")
    repository.orch("submit", "a")
    words = ("2 jobs of its partition come first (Priority)", "Slurm plans to start it")  # planned by a later backfill
    slurm.wait_until(lambda: all(word in repository.orch("explain", "a") for word in words), 60,
                     repository.orch("explain", "a"))
    shown = repository.orch("explain", "a")
    assert "what helps: `orch update a --time LIMIT`" in shown, shown
    assert "next: attempt 1" in repository.orch("status", "a")
    repository.orch("cancel", "a")


def test_explain_says_so_when_it_can_never_start(slurm: Any, repository: Repository) -> None:
    """The partition's limit was lowered after the run was submitted, and its node lost."""
    fill(slurm)
    repository.job("b", script="#!/bin/bash\nexec sleep 1000\n", yaml="profile: tiny\n")
    slurm.run("scontrol", "update", "PartitionName=tiny", "State=DOWN")
    repository.orch("submit", "b")
    slurm.run("scontrol", "update", "PartitionName=tiny", "State=UP", "MaxTime=2")
    try:
        slurm.wait_until(lambda: "PartitionTimeLimit" in repository.orch("explain", "b"), 20, "PartitionTimeLimit")
        shown = repository.orch("explain", "b")
        assert "will never start like this: asks for 0:10:00, and its partition allows 0:02:00" in shown, shown
        assert "`orch update b --time 0:02:00`" in shown
        repository.orch("update", "b", "--time", "0:02:00")
        repository.until(lambda: repository.status("b")["state"] in ("running", "starting"), "b to start")
    finally:
        slurm.run("scontrol", "update", "PartitionName=tiny", "MaxTime=10")
        repository.orch("cancel", "b", "--now")


def test_a_run_may_wait_for_an_array_that_is_not_orchs(slurm: Any, repository: Repository) -> None:
    """squeue calls the whole of an array 8_* where it is waited for, and one of its tasks 8_2."""
    array = slurm.submit("sleep 300", "--array=1-3%1", "--time=5", "--mem=100")
    slurm.submit("sleep 1", f"--dependency=afterany:{array}_2", "--time=5")
    repository.orch("submit", "a", "--after", str(array))
    assert f"waits for the end of job {array} (Dependency)" in repository.orch("explain", "a")
    shown = repository.orch("queue")
    assert f"behind {array}\n" in shown and f"behind {array}_2\n" in shown, shown
    assert f"next: attempt 1, job {repository.status('a')['jobs'][0]['job_id']}, pending behind job {array}" in \
        repository.orch("status", "a")
    repository.orch("cancel", "a")


def test_when_it_will_start(slurm: Any, repository: Repository) -> None:
    running = fill(slurm, minutes=5)
    repository.orch("submit", "a")
    waits(slurm, int(repository.status("a")["jobs"][0]["job_id"]), Kind.TURN)
    shown = repository.orch("explain", "a", "--start")
    assert re.search(r"start: about .* by Slurm's plan for this job\nstart: about .* by `sbatch --test-only`", shown), shown
    assert "asked just now" in shown and re.search(r"without gpu:1: [45]m\d\ds sooner", shown), shown
    assert "with hardly any memory: no sooner" in shown
    assert "so it would start sooner without gpu:1: that is what it waits for" in shown
    assert "no guess that was told in this repository has come true yet" in shown
    noted = [event for event in repository.journal("a") if event["event"] == "estimated"]
    assert len(noted) == 1 and noted[0]["start_at"] > noted[0]["t"]
    repository.orch("explain", "a", "--start")
    assert repository.journal("a")[-1] == noted[0], "kept for a minute"
    for job_id in running:
        slurm.run("scancel", str(job_id))
    repository.until(lambda: repository.status("a")["state"] == "running", "a to run")
    repository.orch("tick")
    assert repository.status("a")["attempts"][0]["started_at"] < noted[0]["start_at"]
    assert "waits for its turn" in repository.orch("explain", "a", "--start", code=4)
    repository.job("c", script="#!/bin/bash\nexec sleep 1000\n")
    slurm.wait_for(slurm.submit("sleep 300", "--gres=gpu:1", "--mem=500", "--time=5"), "RUNNING")
    repository.orch("submit", "c")
    waits(slurm, int(repository.status("c")["jobs"][0]["job_id"]), Kind.TURN)
    shown = repository.orch("explain", "c", "--start")
    assert "before: after 1 such guess by `sbatch --test-only` the real start came" in shown and "sooner" in shown, shown
    repository.orch("cancel", "c")
    repository.orch("cancel", "a", "--now")


def test_a_node_that_cannot_start_a_job(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """A prolog that fails: Slurm drains the node. A job that may be requeued is held; a run's may not, and ends at once."""
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    slurm = make_slurm_cluster(nodes=2, cpus=2, gpus=0, memory_mib=1000, preemption=False, kill_wait_s=2,
                               extra_conf=f"PrologFlags=Alloc\nProlog={prolog}\n")
    told = waits(slurm, slurm.submit("sleep 300", "--requeue"), Kind.HELD, "launch failed requeued held")
    assert "scontrol release" in told.helps and "sinfo -R" in told.helps
    config = "profiles: {default: {cpus: 1, memory: 100M, time: 10m, lead: 20s}}\n"
    repository = make_repository(tmp_path / "vision", slurm, config)
    repository.job("a", script="#!/bin/bash\nexec sleep 1000\n")
    repository.orch("submit", "a")
    repository.until(lambda: "held" in repository.orch("tick") + repository.status("a")["state"], "a to be held", 60)
    assert "could not start it: `sinfo -R`" in repository.status("a")["reason"], repository.status("a")["reason"]
