"""Taking a run, standing down, fencing and ending: the real supervisor, without a Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "slurm"))
from runs import MadeRun, make_run

from orchestrator import journal
from orchestrator.attempt.take import Identity, NotTaken, Overtaken, settle_number, starts, take
from orchestrator.checkpoints import Checkpoint
from orchestrator.host import boot_id, pid_namespace
from orchestrator.records import EndRecord, StartRecord

ME = Identity(job_id="9", restart_count=0, host="h")
FINISH = "PY TRAINERS/knows.py finish"


def started(run: MadeRun, *, epoch: int = 1, **changes: Any) -> StartRecord:
    """A start record of this attempt, as an earlier supervisor left it."""
    values: dict[str, Any] = {
        "number": run.spec.number, "submission_id": run.spec.submission_id, "job_id": "100", "restart_count": 0,
        "epoch": epoch, "host": os.uname().nodename, "boot_id": boot_id(), "pid": 2**22 + 1, "pid_start": 1,
        "started_at": time.time(), **changes}
    record = StartRecord(**values)
    run.prepare()
    (run.folder / "start.json").write_text(record.to_json())
    return record


def ended(run: MadeRun, **changes: Any) -> None:
    values: dict[str, Any] = {"number": run.spec.number, "job_id": "100", "restart_count": 0, "epoch": 1,
                              "ended_at": time.time(), **changes}
    (run.folder / "end.json").write_text(EndRecord(**values).to_json())


def take_it(run: MadeRun, asked_about: int = 0, started_at: float = 0.0) -> StartRecord:
    return take(run.spec, ME, asked_about, journal.length(run.run_dir), deadline=None, started_at=started_at)


# --- the epoch and the start record -----------------------------------------------------------------------------------


def test_taking_links_a_whole_start_record_and_raises_the_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "true")
    run.prepare()
    assert take_it(run).epoch == 1
    assert (run.run_dir / "epoch").read_text() == "000000000001\n"
    assert [s.job_id for s in starts(run.run_dir)] == ["9"]
    assert sorted(os.listdir(run.folder)) == ["spec.json", "start.json"]


@pytest.mark.parametrize("content", ["", "garbage", "000000000002\n", "00"])
def test_an_epoch_file_that_tells_less_than_the_starts_still_rises(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path, "a", "true")
    started(run, epoch=6)
    (run.run_dir / "epoch").write_text(content)
    following = run.next()
    following.prepare()
    assert take_it(following, asked_about=6).epoch == 7
    assert (run.run_dir / "epoch").read_text() == "000000000007\n"


def test_the_first_epoch_is_above_those_of_a_deleted_folder(tmp_path: Path) -> None:
    began = time.time()
    first = make_run(tmp_path, "a", "true")
    first.prepare()
    old = take_it(first, started_at=began).epoch
    following = first.next()
    following.prepare()
    assert take_it(following, asked_about=old, started_at=began + 60.0).epoch == old + 1
    shutil.rmtree(first.run_dir)
    again = make_run(tmp_path, "a", "true")
    again.prepare()
    assert take_it(again, started_at=began + 90.0).epoch > old + 1
    text = (again.run_dir / "epoch").read_text()
    assert len(text) == 13 and text.strip().isdigit()


def test_what_there_is_to_resume_from_is_read_once_nobody_older_may_publish(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "a", "true")
    started(run, epoch=6)
    following = run.next()
    following.prepare()

    def look(folder: Path, before: list[StartRecord], local_dir: str) -> tuple[Checkpoint, list[str]]:
        assert (run.run_dir / "epoch").read_text() == "000000000007\n"
        assert not (following.folder / "start.json").exists()
        assert [start.epoch for start in before] == [6]
        return Checkpoint(path=folder / "checkpoints" / "step-00000005", step=5, saved_at=1.0, size_bytes=1, epoch=6), []

    monkeypatch.setattr("orchestrator.attempt.take.choose", look)
    record = take_it(following, asked_about=6)
    assert (record.resume_from, record.resume_step) == (str(run.run_dir / "checkpoints" / "step-00000005"), 5)


def test_two_with_leave_do_not_both_go_on(tmp_path: Path) -> None:
    first = make_run(tmp_path, "a", "true")
    first.prepare()
    second = first.next()
    second.prepare()
    take_it(first)
    with pytest.raises(Overtaken):
        take_it(second)
    assert not (second.folder / "start.json").exists()
    with pytest.raises(NotTaken):
        take_it(first, asked_about=1)
    assert (first.run_dir / "epoch").read_text() == "000000000001\n"


def test_leave_that_rests_on_a_shorter_journal_is_asked_for_again(tmp_path: Path) -> None:
    """A supervisor was stopped between its gate and its start, and somebody held the run meanwhile."""
    run = make_run(tmp_path, "a", "true")
    run.prepare()
    length = journal.length(run.run_dir)
    with journal.locked(run.run_dir, wait_s=1.0) as locked:
        locked.append("held", by="user")
    with pytest.raises(Overtaken):
        take(run.spec, ME, 0, length, deadline=None, started_at=0.0)
    assert starts(run.run_dir) == []
    assert take_it(run).number == 1


def test_a_requeued_job_is_a_new_attempt_in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.dup2", lambda *_: None)     # the test keeps its own output
    run = make_run(tmp_path, "a", "true")
    started(run, job_id="9")
    run.next().prepare()                                # the successor's folder is passed over
    moved = settle_number(run.spec, replace(ME, restart_count=1))
    assert moved.number == 3
    assert json.loads((run.run_dir / "attempts" / "0003" / "spec.json").read_text())["number"] == 3
    with pytest.raises(NotTaken, match="job 9"):
        settle_number(run.spec, replace(ME, job_id="10"))


def test_a_job_that_slurm_forgot_to_have_run_is_a_new_attempt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld lost the last seconds of its state: the job waits again, and is run with the restart count that it had."""
    monkeypatch.setattr("os.dup2", lambda *_: None)
    run = make_run(tmp_path, "a", "true")
    started(run, job_id="9", restart_count=1)
    assert settle_number(run.spec, replace(ME, restart_count=1)).number == 2
    with pytest.raises(NotTaken, match="restart 1"):
        settle_number(run.spec, replace(ME, restart_count=0))


@pytest.mark.slow
def test_a_job_that_is_run_again_takes_over_from_its_dead_first_start_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", FINISH)
    started(run, job_id="9", pid_namespace=pid_namespace())
    (run.folder / "heartbeat").write_text(f"{time.time():.3f}\n")
    began = time.monotonic()
    answer = run.here(SLURM_JOB_ID="9")
    assert answer.returncode == 0 and time.monotonic() - began < 20.0, answer.stdout + answer.stderr
    out = (run.run_dir / "attempts" / "0002" / "out.log").read_text()
    assert "FINISHED attempt=2" in out
    assert [s.epoch for s in starts(run.run_dir)] == [1, 2]


# --- standing down ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code", "words"), [
    ({"exit_code": 0, "trainer": "finished"}, 0, "finished the run"),
    ({"exit_code": 137, "oom_kills": 1}, 76, "out-of-memory"),
    ({"exit_code": 1, "knows_orch": True}, 76, "setup-failure"),
])
def test_a_successor_stands_down_and_fences_nobody(tmp_path: Path, end: dict[str, Any], code: int, words: str) -> None:
    run = make_run(tmp_path, "a", FINISH)
    started(run)
    ended(run, **end)
    (run.run_dir / "epoch").write_text("000000000001\n")
    following = run.next()
    following.prepare()
    answer = following.here()
    assert (answer.returncode, words in answer.stdout) == (code, True), answer.stdout
    assert words in json.loads((following.folder / "stood-down-s2.json").read_text())["reason"]
    assert not (following.folder / "start.json").exists()
    assert (run.run_dir / "epoch").read_text() == "000000000001\n"


@pytest.mark.slow
def test_a_successor_behind_a_limit_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", FINISH)
    started(run)
    ended(run, exit_code=75, trainer="stopped", notice="limit", notice_at=1.0, saved_after_notice=True)
    following = run.next()
    following.prepare()
    answer = following.here()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "FINISHED attempt=2 step=3" in answer.stdout.splitlines()


# --- the attempt itself -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_an_older_start_left_is_ended_before_the_trainer_starts(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", FINISH)
    started(run)
    ended(run, exit_code=1, signal=None, notice="limit", notice_at=1.0)
    marked = {"ORCH_RUN_DIR": str(run.run_dir), "ORCH_EPOCH": "1", "PATH": "/bin:/usr/bin"}
    left = subprocess.Popen(["sleep", "100"], env=marked)
    other = subprocess.Popen(["sleep", "100"], env={**marked, "ORCH_RUN_DIR": f"{run.run_dir}2"})
    following = run.next()
    following.prepare()
    # the leftover is this test's child: it stays a zombie until it is waited for, and that must not count as alive
    answer = following.here()
    assert answer.returncode == 0, answer.stdout
    assert left.wait(timeout=5) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    [fenced] = following.events("fenced")
    assert [name.split()[1:] for name in fenced["ended"]] == [["sleep"]]


@pytest.mark.slow
@pytest.mark.parametrize(("job", "changes", "code", "last"), [
    ("exit 3", {}, 3, "FAILED attempt=1 exit=3 crash: exit 3"),
    ("kill -9 $$", {}, 137, "FAILED attempt=1 exit=137 crash: killed by signal 9"),
    ("exec /nowhere", {}, 127, "FAILED attempt=1 exit=127 setup-failure: exit 127 before the first step"),
    ('touch "$ORCH_RUN_DIR/cv.json"', {"finished_when": "cv.json"}, 0, "FINISHED attempt=1"),
    ('touch "$ORCH_ATTEMPT_DIR/cv.json"', {"finished_when": "cv.json"}, 0, "FINISHED attempt=1"),
    ("touch cv-a.json", {"finished_when": "cv-{tag}.json"}, 0, "FINISHED attempt=1"),
    ("touch cv.json", {"finished_when": "cv.json"}, 0,
     "FAILED attempt=1 exit=0 no-result: exit 0, and neither "
     "training.finish() nor a `finished_when` file newer than the attempt's start"),
    ("true", {"finished_when": "cv.json"}, 0,
     "FAILED attempt=1 exit=0 no-result: exit 0, and neither "
     "training.finish() nor a `finished_when` file newer than the attempt's start"),
    ("true", {"gres": "gpu:1"}, 78,
     "FAILED attempt=1 exit=78 setup-failure: gpu:1 was asked for and Slurm made no GPU visible (no CUDA_VISIBLE_DEVICES)"),
    ("true", {"env_file": "missing"}, 78, None),
    ("PY TRAINERS/knows.py finish | cat; exit 0", {}, 0, "FINISHED attempt=1 step=3"),
    ("kill 0", {}, 143, "FAILED attempt=1 exit=143 crash: killed by signal 15"),
])
def test_the_code_and_the_last_line(tmp_path: Path, job: str, changes: dict[str, Any], code: int, last: str | None) -> None:
    run = make_run(tmp_path, "a", job, **changes)
    run.prepare()
    answer = run.here()
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert last is None or answer.stdout.splitlines()[-1] == last
    assert run.end() is not None


@pytest.mark.slow
def test_the_supervisor_stays_small(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", 'grep VmRSS /proc/$PPID/status > "$ORCH_ATTEMPT_DIR/rss"')
    run.prepare()
    run.here()
    assert int((run.folder / "rss").read_text().split()[1]) < 20_000
