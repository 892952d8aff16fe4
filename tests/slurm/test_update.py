"""`orch update` on a real Slurm: what waits is changed where it waits; refusals and lost replies lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repositories import Repository, make_repository

from orchestrator.cluster.spec import layout_of

SLEEP = "#!/bin/bash\nexec sleep 1000\n"
ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s, gres: "gpu:1"}
recovery: {backoff: 1s}
slurm: {timeout: 4s}
"""


@pytest.fixture(scope="module")
def slurm(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A requeued job waits for the lifetime of its credential, by default 120 s."""
    folder = tmp_path_factory.mktemp("update-slurm")
    return make_slurm_cluster(folder=folder, nodes=1, cpus=4, gpus=1, memory_mib=4000, preemption=False, kill_wait_s=2,
                              extra_conf=f"AuthInfo=socket={layout_of(folder).munge_socket},cred_expire=20\n")


@pytest.fixture
def repository(slurm: Any, tmp_path: Path) -> Iterator[Repository]:
    """Run "a" waits for the one GPU, which somebody else has."""
    other = slurm.submit("sleep 1000", "--gres=gpu:1", "--mem=500", "--time=5", "--job-name=other")
    slurm.wait_for(other, "RUNNING")
    made = make_repository(tmp_path / "vision", slurm, ORCH_YAML)
    made.job("a", script=SLEEP)
    made.orch("submit", "a")
    yield made
    for tag in ("a", "b"):
        made.orch("cancel", tag, "--now", code=None)
    slurm.run("scancel", "--user=root")
    slurm.wait_until(lambda: not slurm.run("squeue", "--noheader").strip(), 30, "an empty queue")


def jobs_of(repository: Repository, tag: str = "a") -> list[int]:
    return [int(job["job_id"]) for job in repository.status(tag)["jobs"]]


def asks(repository: Repository, job_id: int) -> tuple[str, str, str]:
    job = repository.slurm.job(job_id)
    return job["MinMemoryNode"], job["TimeLimit"], job["Nice"]


def free_the_gpu(repository: Repository) -> None:
    repository.slurm.run("scancel", "--name=other")


def test_waiting_jobs_keep_their_ids_and_dependencies_and_the_deadline_follows(repository: Repository) -> None:
    before = jobs_of(repository)
    depends = [repository.slurm.job(job_id)["Dependency"] for job_id in before]
    assert len(before) == 2 and [asks(repository, job_id)[:2] for job_id in before] == [("100M", "00:10:00")] * 2
    said = repository.orch("update", "a", "--memory", "200M", "--time", "5m", "--nice", "50")
    assert f"a: memory 200M, time 0:05:00, nice 50 (job {before[0]}, {before[1]} and later attempts)" in said
    assert jobs_of(repository) == before
    assert [asks(repository, job_id) for job_id in before] == [("200M", "00:05:00", "50")] * 2
    assert [repository.slurm.job(job_id)["Dependency"] for job_id in before] == depends
    events = [event["event"] for event in repository.journal("a")]
    assert events[-6:] == ["update", "asked", "changed", "asked", "changed", "updated"]
    assert "like that already" in repository.orch("update", "a", "--memory", "200M")
    free_the_gpu(repository)
    start = repository.folder / "runs" / "a" / "attempts" / "0001" / "start.json"
    record = repository.until(lambda: start.exists() and json.loads(start.read_text()), "a to start")
    assert 295 < record["deadline"] - record["started_at"] < 305
    repository.orch("tick")
    said = repository.orch("update", "a", "--memory", "150M")
    assert "attempt 1, which runs, goes on as it is" in said and f"job {before[1]} and later attempts" in said
    assert (asks(repository, before[0])[0], asks(repository, before[1])[0]) == ("200M", "150M")


def test_a_job_that_ran_and_is_put_back_is_asked_for_what_it_missed(repository: Repository) -> None:
    """It keeps its id; its next attempt has the memory, and a notice that follows the limit. Its supervisor was killed: that
    attempt is known to have ended only when it has started again."""
    head, behind = jobs_of(repository)
    attempts = repository.folder / "runs" / "a" / "attempts"
    free_the_gpu(repository)
    repository.until((attempts / "0001" / "start.json").exists, "a to start")
    repository.orch("tick")
    said = repository.orch("update", "a", "--memory", "200M", "--time", "5m", "--nice", "50")
    assert f"(job {behind} and later attempts); attempt 1, which runs" in said
    assert asks(repository, head)[0] == "100M"
    repository.slurm.run("scontrol", "update", f"jobid={head}", "requeue=1")
    repository.slurm.run("scontrol", "requeue", str(head))

    def asks_anew() -> bool:
        repository.orch("tick")
        return asks(repository, head) == asks(repository, behind) == ("200M", "00:05:00", "50")

    repository.until(asks_anew, "the job to ask for what is wanted", timeout_s=20)
    start = attempts / "0003" / "start.json"
    record = repository.until(lambda: start.exists() and json.loads(start.read_text()), "it to start again")
    assert record["job_id"] == str(head) and 295 < record["deadline"] - record["started_at"] < 305
    assert repository.slurm.job(head)["MinMemoryNode"] == "200M"


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (("--memory", "99G"), 4, "99G memory asked for, n1 has"), (("--time", "20s"), 4, "leaves no time before the notice"),
    (("--time", "10"), 2, "add a unit"), (("--memory", "0M"), 2, "is nothing"), ((), 2, "nothing to change"),
    (("--nice", "2147483647"), 6, "nice value")])
def test_nonsense_and_what_slurm_refuses_change_nothing(
        repository: Repository, arguments: tuple[str, ...], code: int, words: str) -> None:
    """99G: Slurm itself would take that for a waiting job, and let it wait for ever."""
    before = [asks(repository, job_id) for job_id in jobs_of(repository)]
    assert words in repository.orch("update", "a", *arguments, code=code).lower().replace("99g", "99G")
    assert [asks(repository, job_id) for job_id in jobs_of(repository)] == before
    assert "updated" not in [event["event"] for event in repository.journal("a")]
    repository.orch("tick")
    assert [asks(repository, job_id) for job_id in jobs_of(repository)] == before


def test_a_held_run_is_changed_without_being_let_go(repository: Repository) -> None:
    head = jobs_of(repository)[0]
    repository.orch("hold", "a")
    repository.orch("update", "a", "--memory", "150M", "--nice", "70")
    job = repository.slurm.job(head)
    assert (job["Reason"], job["Priority"], job["MinMemoryNode"]) == ("JobHeldUser", "0", "150M")
    repository.orch("release", "a")
    assert asks(repository, head) == ("150M", "00:10:00", "70")


@pytest.mark.parametrize("then", ["sleep 30", "exit 143"])
def test_a_reply_that_is_lost_is_settled_by_the_next_pass(repository: Repository, tmp_path: Path, then: str) -> None:
    """scontrol did what it was told, and nobody heard of it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = repository.slurm.run("sh", "-c", "command -v scontrol").strip()
    (folder / "scontrol").write_text(f'#!/bin/sh\n{real} "$@"; {then}\n')
    (folder / "scontrol").chmod(0o755)
    lossy = LossyRepository(folder=repository.folder, slurm=repository.slurm)
    lossy.first = str(folder)
    head = jobs_of(repository)[0]
    assert "orch daemon" in lossy.orch("update", "a", "--memory", "150M", code=5)
    assert [event["event"] for event in repository.journal("a")][-2:] == ["update", "asked"]
    repository.orch("tick")
    assert [asks(repository, job_id)[0] for job_id in jobs_of(repository)] == ["150M"] * 2
    assert repository.journal("a")[-1]["event"] == "updated" and jobs_of(repository)[0] == head


class LossyRepository(Repository):
    first = ""

    @property
    def environment(self) -> dict[str, str]:
        environment = dict(super().environment)
        return {**environment, "PATH": f"{self.first}:{environment['PATH']}"}


def test_job_sh_is_taken_anew_when_it_is_asked_for(repository: Repository) -> None:
    script = repository.folder / "jobs" / "a" / "job.sh"
    script.write_text("#!/bin/bash\necho the new one\nexec sleep 1000\n")
    assert "orch update a --script" in repository.orch("submit", "a")
    assert (repository.folder / "runs" / "a" / "job.sh").read_text() == SLEEP
    assert "a: job.sh (from the next attempt on)" in repository.orch("update", "a", "--script")
    free_the_gpu(repository)
    log = repository.folder / "runs" / "a" / "attempts" / "0001" / "out.log"
    repository.until(lambda: log.exists() and "the new one" in log.read_text(), "the new job.sh to run")
    script.write_text("#!/bin/bash\necho 'unclosed\n")
    assert "bash cannot parse it" in repository.orch("update", "a", "--script", code=2)


def test_submitting_again_with_other_memory_says_what_does_it(repository: Repository) -> None:
    assert "`orch update a --memory 200M`" in repository.orch("submit", "a", "--memory", "200M", code=4)
    assert "nothing was submitted" in repository.orch("submit", "a", "--memory", "100M")
    assert "does not wait for" in repository.orch("submit", "a", "--after", str(jobs_of(repository)[0]), code=4)


def test_the_top(repository: Repository) -> None:
    """Root may do that everywhere."""
    repository.job("b", script=SLEEP)
    repository.orch("submit", "b")
    [first, *_], [second, *_] = jobs_of(repository), jobs_of(repository, "b")
    assert f"b: job {second} comes before your other waiting jobs" in repository.orch("top", "b")
    free_the_gpu(repository)
    repository.slurm.wait_for(second, "RUNNING")
    assert repository.slurm.job(first)["JobState"] == "PENDING"
    repository.orch("hold", "a")
    assert "is held" in repository.orch("top", "a", code=4)


def test_what_is_over_cannot_be_changed(repository: Repository) -> None:
    repository.orch("cancel", "a", "--now")
    repository.until(lambda: repository.status("a")["state"] == "cancelled" or repository.orch("tick") is None, "a cancelled")
    assert "submit a --again" in repository.orch("update", "a", "--nice", "5", code=4)
    assert "submit a --again" in repository.orch("top", "a", code=4)
