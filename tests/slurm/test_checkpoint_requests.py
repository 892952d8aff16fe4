"""`orch save` and `orch rollback` with a real trainer on a real Slurm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interrupted import lines, saves
from repositories import Repository, make_repository
from seen import events, processes_of, run_dir

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s}
checkpoint: {interval: 1h, keep: 3}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""


@pytest.fixture(scope="module")
def repository(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    made = make_repository(tmp_path_factory.mktemp("requests"), slurm_cluster, ORCH_YAML)
    daemon = made.daemon()
    yield made
    daemon.terminate()
    assert daemon.wait(timeout=30) == 0
    for tag in ("asked", "script", "back", "short"):
        made.orch("cancel", tag, "--now", code=None)
    made.until(lambda: processes_of(made.folder / "runs") == [], "nothing to be left running")


def steps(made: Repository, tag: str) -> list[int]:
    return sorted(int(path.parent.name.removeprefix("step-")) for path in
                  (run_dir(made, tag) / "checkpoints").glob("step-*/COMPLETE"))


def saved(made: Repository, tag: str) -> int:
    """`orch save` says which step is saved; it is complete by then."""
    step: int = json.loads(made.orch("save", tag, "--json"))["step"]
    assert step in steps(made, tag)
    return step


def trains(made: Repository, tag: str, number: int = 1) -> None:
    made.until(lambda: any(line["event"] == "first_step" for line in lines(made, tag, number)), f"{tag} to train")


def test_a_running_trainer_saves_when_it_is_asked(repository: Repository) -> None:
    repository.job("asked", STEPS=100000)
    repository.orch("submit", "asked")
    trains(repository, "asked")
    first, second = saved(repository, "asked"), saved(repository, "asked")
    assert 0 < first < second and steps(repository, "asked") == [first, second], "no other save is due within the hour"
    repository.orch("save", "asked", "--no-wait")
    repository.until(lambda: len(saves(repository, "asked", 1)) == 3, "the save that nobody waited for")
    assert len(events(repository, "asked", "save")) == 3


SCRIPT = """\
#!/usr/bin/env bash
step=0
while :; do
  sleep 0.2; step=$((step + 1)); echo $step > "$ORCH_ATTEMPT_DIR/state"
  if orch should-save; then orch notify-save $step "$ORCH_ATTEMPT_DIR/state"; fi
  if orch should-stop; then orch notify-save $step "$ORCH_ATTEMPT_DIR/state"; exit 0; fi
done
"""


def test_a_script_saves_when_it_is_asked(repository: Repository) -> None:
    repository.job("script", script=SCRIPT, yaml="finished_when: never.json\n")
    repository.orch("submit", "script")
    trains(repository, "script")
    first, second = saved(repository, "script"), saved(repository, "script")
    assert 0 < first < second and steps(repository, "script") == [first, second], "no other save is due within the hour"
    repository.orch("cancel", "script")
    repository.until(lambda: repository.status("script")["state"] == "cancelled", "the script to be stopped")
    assert len(steps(repository, "script")) == 3, "at its notice it saves once more"


def test_nothing_that_could_save_is_said_so(repository: Repository) -> None:
    repository.job("short", STEPS=1)
    assert 'has never been submitted' in repository.orch("save", "short", code=3)
    repository.orch("submit", "short")
    repository.until(lambda: repository.status("short")["state"] == "finished", "short to finish")
    assert "nothing of short runs" in repository.orch("save", "short", code=4)


def test_milestones_are_saved_beside_the_periodic_ones(repository: Repository) -> None:
    repository.job("milestones", STEPS=60, yaml="save_at: [20, 45]\n")
    repository.orch("submit", "milestones")
    repository.until(lambda: repository.status("milestones")["state"] == "finished", "milestones to finish")
    assert steps(repository, "milestones") == [20, 45]


def test_a_run_goes_back_and_newer_checkpoints_are_set_aside(repository: Repository) -> None:
    repository.job("back", STEPS=100000)
    repository.orch("submit", "back")
    trains(repository, "back")
    good, spoilt, worse = (saved(repository, "back") for _ in range(3))
    assert "there are:" in repository.orch("rollback", "back", "--to", "7", "--why", "x", code=4)
    assert "no step and no time" in repository.orch("rollback", "back", "--to", "yesterday", "--why", "x", code=2)
    repository.orch("rollback", "back", "--to", str(good), "--why", "the loss went up")
    repository.until(lambda: len(repository.status("back")["attempts"]) == 2, "an attempt from the earlier checkpoint")
    status = repository.status("back")
    number = status["attempts"][1]["attempt"]          # its successor has had number 2
    trains(repository, "back", number)
    assert status["state"] == "running" and status["attempts"][1]["resume_step"] == good
    assert lines(repository, "back", number)[0]["resume_step"] == good
    aside = next((run_dir(repository, "back") / "checkpoints").glob("set-aside-*"))
    moved = {int(path.name.removeprefix("step-")) for path in aside.iterdir()}
    assert {spoilt, worse} <= moved and steps(repository, "back") == [good]
    assert all((path / "COMPLETE").exists() for path in aside.iterdir()), "set aside as they were"
    asked, = events(repository, "back", "rollback")
    assert asked["to_step"] == good and asked["by"] and asked["reason"].endswith("the loss went up")
    done, = events(repository, "back", "rolled_back")
    assert set(done["set_aside"]) == {path.name for path in aside.iterdir()}
    assert saved(repository, "back") > good


def test_by_age_and_for_a_run_that_is_over(repository: Repository) -> None:
    repository.until(lambda: repository.status("back")["state"] == "running", "back to run")
    repository.orch("cancel", "back")
    repository.until(lambda: repository.status("back")["state"] == "cancelled", "back to be cancelled")
    oldest = steps(repository, "back")[0]
    age_s = max(1, int(time.time() - (run_dir(repository, "back") / "checkpoints" / f"step-{oldest:08d}").stat().st_mtime))
    assert "that is 2h old" in repository.orch("rollback", "back", "--to", "-2h", "--why", "x", code=4)
    repository.orch("rollback", "back", "--to", f"-{age_s}s", "--why", "a cancelled one too")
    repository.until(lambda: repository.status("back")["state"] == "running", "back to run again")
    assert repository.status("back")["attempts"][-1]["resume_step"] == oldest


def test_a_roll_back_is_undone_by_name(repository: Repository) -> None:
    before = repository.status("back")
    live = {one["step"] for one in before["checkpoints"] if not one["set_aside"]}
    said = " ".join(repository.orch("status", "back").split())
    name = next(word for word in said.partition("nothing resumes from these:")[2].split() if word.startswith("set-aside-"))
    folder = (run_dir(repository, "back") / "checkpoints" / name).parent
    given_up = sorted(one["step"] for one in before["checkpoints"] if Path(one["path"]).parent == folder)
    newest = int(name.rpartition("-")[2])
    repository.orch("rollback", "back", "--to", name, "--why", "it was none")
    repository.until(lambda: len(repository.status("back")["attempts"]) > len(before["attempts"]), "an attempt from there")
    status = repository.status("back")
    assert status["attempts"][-1]["resume_step"] == newest == given_up[-1]
    assert steps(repository, "back") == [min(live), *given_up], "and nothing that was saved meanwhile"
    aside = {one["step"] for one in status["checkpoints"] if one["set_aside"]}
    assert aside >= live - {min(live)} and not folder.exists()
