"""Runs that wait for each other, on a real Slurm: submitted in one call, each after the real end of the others, taken out of
the queue where that cannot come any more. A daemon over all of the first group; the rest have none.
"""

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

ORCH_YAML = """\
profiles:
  gpu: {cpus: 1, memory: 100M, time: 1m, lead: 20s, gres: "gpu:1"}
  cpu: {cpus: 1, memory: 50M, time: 10m, lead: 10s}
checkpoint: {interval: 1s}
recovery: {backoff: 1s}
daemon: {every: 1s}
notify: {command: [sh, -c, "cat >> told.jsonl; echo >> told.jsonl"]}
"""

CHAIN = """\
runs:
  evaluate: {profile: cpu, after: {left: finished, right: ended}}
  left:     {after: [prepare]}          # through its time limit: two attempts or more
  right:    {after: {prepare: finished}}
  prepare:  {profile: cpu}
"""
BROKEN = """\
runs:
  fails:    {profile: cpu}
  behind:   {profile: cpu, after: [fails]}
  further:  {profile: cpu, after: {behind: finished}}
  clean-up: {profile: cpu, after: {fails: ended}}
"""
STOPPED = """\
runs:
  endless: {profile: cpu}
  never:   {profile: cpu, after: [endless]}
  anyway:  {profile: cpu, after: {endless: ended}}
"""


@pytest.fixture(scope="module")
def repository(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    slurm = make_slurm_cluster(nodes=1, cpus=32, gpus=2, memory_mib=8000, preemption=False, kill_wait_s=3)
    made = make_repository(tmp_path_factory.mktemp("campaign") / "repository", slurm, ORCH_YAML)
    made.job("left", STEPS=700)
    made.job("fails", STEPS=30, DO="20:exit0")
    made.job("endless", STEPS=100000)
    for tag in ("prepare", "right", "evaluate", "behind", "further", "clean-up", "never", "anyway"):
        made.job(tag, STEPS=10)
    for name, text in (("chain", CHAIN), ("broken", BROKEN), ("stopped", STOPPED)):
        (made.folder / "jobs" / f"{name}.campaign.yaml").write_text(text)
    daemon = made.daemon()
    made.orch("submit", "chain")
    made.orch("submit", "jobs/broken.campaign.yaml")
    made.orch("submit", "stopped")
    yield made
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=30) == 0


def began(repository: Repository, tag: str) -> float:
    at: float = repository.status(tag)["attempts"][0]["started_at"]
    return at


def ended(repository: Repository, tag: str) -> float:
    at: float = repository.status(tag)["attempts"][-1]["ended_at"]
    return at


def states(repository: Repository, campaign: str) -> dict[str, str]:
    return {run["tag"]: run["state"] for run in repository.status(campaign)["runs"]}


def test_a_diamond_goes_through_a_time_limit(repository: Repository) -> None:
    repository.until(lambda: set(states(repository, "chain").values()) == {"finished"}, "the campaign to finish", 240)
    left = repository.endings("left")
    assert len(left) >= 2 and set(left[:-1]) == {"limit-saved"} and left[-1] == "finished"
    assert repository.endings("evaluate") == ["finished"], "it never began before its time"
    assert began(repository, "evaluate") >= ended(repository, "left")
    assert began(repository, "left") >= ended(repository, "prepare") <= began(repository, "right")
    assert began(repository, "right") < ended(repository, "left"), "the two branches ran side by side"
    assert "repointed" in [event["event"] for event in repository.journal("evaluate")]
    assert {tag: repository.status(tag)["profile"] for tag in ("left", "evaluate")} == {"left": "gpu", "evaluate": "cpu"}
    tree = repository.orch("status", "chain").splitlines()
    assert tree[0] == "chain: 4 finished"
    assert [line.partition(" finished")[0].rstrip() for line in tree[2:]] == [
        "prepare", "├─ left", "└─ right", "   └─ evaluate"]


def test_what_waits_for_a_run_that_failed_leaves_the_queue_and_comes_back(repository: Repository) -> None:
    repository.until(lambda: states(repository, "broken") == {
        "fails": "held", "behind": "held", "further": "held", "clean-up": "finished"}, "the chain behind fails to be held")
    further = repository.status("further")
    assert further["reason"].startswith("waits for behind to finish; behind waits for fails to finish; fails is held: ")
    assert further["reason"] in repository.orch("explain", "further")
    assert further["attempts"] == [] == further["jobs"]
    assert began(repository, "clean-up") >= ended(repository, "fails")
    assert "orch submit behind --again" in repository.orch("release", "behind", code=4)
    again = json.loads(repository.orch("submit", "broken", "--json"))
    assert again["submitted"] == [], "the same call again leaves all of them as they are"
    messages = [json.loads(line) for line in (repository.folder / "told.jsonl").read_text().splitlines() if line]
    told = [message["tag"] for message in messages if message["kind"] == "held"]
    assert {tag: told.count(tag) for tag in ("fails", "behind", "further")} == {"fails": 1, "behind": 1, "further": 1}
    (repository.folder / "jobs" / "fails" / "job.yaml").write_text("env: {STEPS: '30'}\n")
    repository.orch("submit", "fails", "--again")
    repository.until(lambda: set(states(repository, "broken").values()) == {"finished"}, "all of it to go on by itself")
    assert began(repository, "behind") >= ended(repository, "fails")
    assert began(repository, "further") >= ended(repository, "behind")
    assert repository.status("fails")["profile"] == "cpu", "as its campaign says"


def test_a_cancelled_run_takes_along_what_waits_for_it_to_finish(repository: Repository) -> None:
    repository.until(lambda: repository.status("endless")["step"], "endless to train")
    said = repository.orch("cancel", "endless")
    assert "never waits for it to finish" in said and "anyway waits for it to end, and starts then" in said
    repository.until(lambda: states(repository, "stopped") == {
        "endless": "cancelled", "never": "held", "anyway": "finished"}, "one to be held, the other to run")
    assert repository.status("never")["reason"] == "waits for endless to finish; endless is cancelled: by hand"
    assert repository.orch("cancel", "stopped").splitlines()[0] == "never is cancelled"
    assert states(repository, "stopped") == {"endless": "cancelled", "never": "cancelled", "anyway": "finished"}
    assert "nothing of stopped was left to cancel" in repository.orch("cancel", "stopped")


# --- without a daemon -----------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(make_slurm_cluster: Callable[..., Any], tmp_path: Path, repository: Repository) -> Repository:
    """A repository of its own on the same Slurm, and no daemon."""
    return make_repository(tmp_path / "alone", repository.slurm, ORCH_YAML)


def test_a_campaign_needs_no_daemon_where_nothing_goes_wrong(alone: Repository) -> None:
    for tag in ("one", "two", "three"):
        alone.job(tag, STEPS=5)
    (alone.folder / "jobs" / "line.campaign.yaml").write_text(
        "runs:\n  one: {profile: cpu}\n  two: {profile: cpu, after: [one]}\n  three: {profile: cpu, after: {two: ended}}\n")
    alone.orch("submit", "line")
    end = alone.folder / "runs" / "three" / "attempts" / "0001" / "end.json"
    alone.until(lambda: end.exists() and json.loads(end.read_text())["trainer"] == "finished", "the last to finish")
    assert not any(event["event"] == "finished" for event in alone.journal("one")), "no pass has told it that it may"
    said = alone.orch("wait", "line", "--timeout", "60s")
    assert said.splitlines() == ["one is finished", "two is finished", "three is finished"]
    assert [alone.endings(tag) for tag in ("one", "two", "three")] == [["finished"]] * 3


def test_a_campaign_is_held_explained_and_let_go_as_a_whole(alone: Repository) -> None:
    alone.job("one", STEPS=100000)
    alone.job("two", STEPS=5)
    (alone.folder / "jobs" / "line.campaign.yaml").write_text(
        "runs:\n  one: {profile: cpu}\n  two: {profile: cpu, after: [one]}\n")
    alone.orch("submit", "line")
    alone.until(lambda: alone.orch("tick") is not None and alone.status("one")["step"], "one to train")
    assert alone.orch("hold", "line").splitlines() == [
        "two is held", "one is held; attempt 1 goes on", "`orch release line` lets all of it go on"]
    assert alone.slurm.job(int(alone.status("two")["jobs"][0]["job_id"]))["Priority"] == "0"
    assert "all of line is held already" in alone.orch("hold", "line")
    assert "two is held: by hand; `orch release two` lets it go on" in alone.orch("explain", "line").splitlines()
    said = json.loads(alone.orch("release", "line", "--json"))
    assert [run["tag"] for run in said["runs"]] == ["one", "two"] and states(alone, "line")["two"] == "waiting"
    one, two = alone.orch("explain", "line").splitlines()
    assert one.startswith("one is running: attempt 1, job ") and two.startswith("two is waiting: ") and "one to finish" in two
    assert "nothing of line is held" in alone.orch("release", "line", code=4)
    assert "one is running, two is waiting after 1 s" in alone.orch("wait", "line", "--timeout", "1s", code=9)
    alone.orch("cancel", "line", "--now")
    said = alone.orch("wait", "line", "--timeout", "60s", code=4)
    assert "one is cancelled: by hand; two is cancelled: by hand" in said
    assert "--start are for one run" in alone.orch("explain", "line", "--start", code=2)


def test_a_submission_that_was_cut_short_is_completed_by_the_same_call(alone: Repository) -> None:
    tags = [f"r{number}" for number in range(6)]
    for tag in tags:
        alone.job(tag, STEPS=100000)
    lines = [f"  {tag}: {{profile: cpu{f', after: [{before}]' if before else ''}}}"
             for tag, before in zip(tags, [None, *tags], strict=False)]
    (alone.folder / "jobs" / "line.campaign.yaml").write_text("\n".join(["runs:", *lines, ""]))
    script = alone.folder / "jobs" / "r5" / "job.sh"
    text = script.read_text()
    script.write_text(f"{text}#SBATCH --mem=1G\n")
    assert "r5/job.sh:3: #SBATCH lines have no effect" in alone.orch("submit", "line", "--dry-run")
    script.write_text(text)
    begun = subprocess.Popen([ORCH, "submit", "line"], cwd=alone.folder, env=alone.environment, stdout=subprocess.PIPE)
    assert begun.stdout is not None
    begun.stdout.readline()
    begun.stdout.readline()            # two of them are queued, the third is being submitted
    begun.kill()
    begun.wait()
    begun.stdout.close()
    said = json.loads(alone.orch("submit", "line", "--json"))
    assert {run["tag"] for run in said["runs"]} == set(tags) and 3 <= len(said["submitted"]) <= 4
    known = {(tag, one["attempt"]) for tag in tags for run in [alone.status(tag)] for one in (*run["jobs"], *run["attempts"])}
    comments = alone.slurm.run("squeue", "--noheader", "--format=%k", "--states=all").split()
    ours = [comment for comment in comments if re.search(r":alone-\w+:r\d:", comment)]
    assert len(ours) == len(set(ours)) == len(known) == 12, "a job and a successor of each, none twice"
    assert "6 there already" in alone.orch("submit", "line")
    alone.orch("cancel", "line", "--now")
    alone.until(lambda: alone.orch("tick") is not None and set(states(alone, "line").values()) == {"cancelled"}, "all to end")
    assert not alone.slurm.run("squeue", "--noheader", "--states=PENDING", "--format=%k").strip()
    assert all("held" not in [event["event"] for event in alone.journal(tag)] for tag in tags), "what waits went first"


def test_what_is_wrong_in_one_part_stops_all_of_it(alone: Repository) -> None:
    alone.job("good", STEPS=5)
    alone.job("fat", STEPS=5)
    path = alone.folder / "jobs" / "bad.campaign.yaml"
    with (alone.folder / "orch.yaml").open("r+") as file:
        text = file.read().replace("profiles:\n", "profiles:\n  fat: {cpus: 1, memory: 64G}\n")
        file.seek(0)
        file.write(text)
    path.write_text("runs:\n  good: {profile: cpu}\n  fat: {profile: fat, after: [good]}\n")
    said = alone.orch("submit", "bad", code=4)
    assert f"{path}:3: runs.fat: " in said and "64G memory asked for" in said
    assert not (alone.folder / "runs").exists()
    assert "fat" in alone.orch("submit", "bad", "--dry-run", code=4)
