"""The end record's facts, the last line, and what a process is called in them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import queued, run_of, started
from test_two_levels import saved

from orch_trainer.shell import notify_save
from orchestrator.attempt import commands, resume
from orchestrator.attempt.ending import Outcome, end_record, finished_file, last_line
from orchestrator.attempt.processes import Process, label
from orchestrator.attempt.take import Identity
from orchestrator.attempt.trainer import TrainerLog
from orchestrator.attempt.witness import Pulse, look_at
from orchestrator.core.gate import Leave, ask
from orchestrator.records import AttemptSpec, EndRecord, StartRecord
from orchestrator.sightings import JobGone

RECORD: dict[str, Any] = {"number": 2, "job_id": "9", "restart_count": 0, "epoch": 3, "ended_at": 1.0}
ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "orchestrator" / "attempt" / "__main__.py"


# --- finished_when ----------------------------------------------------------------------------------------------------


def attempt(tmp_path: Path, name: str) -> tuple[AttemptSpec, StartRecord, float]:
    """An attempt that has started, and when the disk says it did."""
    run_dir = tmp_path / "runs" / "a"
    folder = run_dir / "attempts" / "0001"
    folder.mkdir(parents=True)
    (folder / "start.json").touch()
    spec = AttemptSpec(tag="a", repository=str(tmp_path), run_dir=str(run_dir), number=1, submission_id="s1", lead_s=60,
                       signal="TERM", time_limit_s=3600, interval_s=30, finished_when=name)
    at = (folder / "start.json").stat().st_mtime
    # a clock here that disagrees with the file server's must not matter
    start = StartRecord(number=1, submission_id="s1", job_id="5", restart_count=0, epoch=7, host="h", boot_id="b", pid=1,
                        pid_start=1, started_at=at + 500.0)
    return spec, start, at


@pytest.mark.parametrize(("name", "place", "counts"), [
    ("cv.json", "runs/a/cv.json", True),
    ("cv.json", "runs/a/attempts/0001/cv.json", True),
    ("cv.json", "cv.json", False),                              # another run's, it may be
    ("results/cv.json", "results/cv.json", False),
    ("results/cv.json", "runs/a/results/cv.json", True),
    ("results/{tag}/cv.json", "results/a/cv.json", True),
    ("results/{tag}/cv.json", "results/b/cv.json", False),
    ("results/{tag}/cv.json", "results/{tag}/cv.json", False),
    ("{tag}.json", "runs/a/a.json", True),
])
@pytest.mark.parametrize("age_s", [-1.0, 0.5])
def test_which_file_finishes_a_run(tmp_path: Path, name: str, place: str, counts: bool, age_s: float) -> None:
    spec, start, at = attempt(tmp_path, name)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at - age_s, at - age_s))
    assert finished_file(spec, start) is (counts and age_s <= 0)


# --- what it left -----------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_that_lay_there_before_is_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that crashed before its first save got on by the steps between the damaged one and the one before it: it was
    tried again for ever."""
    monkeypatch.setattr(commands, "look_at_job", lambda job_id: JobGone())
    spec, start, at = attempt(tmp_path, "")
    run_dir = Path(spec.run_dir)
    saved(run_dir / "checkpoints", 20, 6)
    (saved(run_dir / "checkpoints", 30, 6) / "state").write_bytes(bytes(100))
    resumed, wrong = resume.choose(run_dir, [])
    assert resumed is not None and (resumed.step, len(wrong)) == (20, 1)
    start = replace(start, resume_step=20)

    def left() -> tuple[int | None, Leave]:
        end = end_record(spec, start, Outcome(job_status=1), TrainerLog(run_dir / "attempts/0001/trainer.jsonl"), now=at,
                         provisional=False)
        end = replace(end, knows_orch=True, first_step_at=at)
        (run_dir / "attempts" / "0001" / "end.json").write_text(end.to_json())
        run = run_of(queued(1), queued(2), {**started(1, at), "epoch": 7, "resume_step": 20})
        me = Identity(job_id="102", restart_count=0, host="h")
        predecessor = look_at(run, run_dir, start, me, Pulse(lambda: at, lambda: 0.0))
        return end.checkpoint_step, ask(run, "s2", predecessor).leave

    assert left() == (20, Leave.STAND_DOWN)
    saved(run_dir / "checkpoints", 25, 7)
    assert left() == (25, Leave.GO)


@pytest.mark.parametrize("again", [False, True])
def test_a_script_that_saves_the_same_step_again_at_its_notice_has_saved(tmp_path: Path, again: bool) -> None:
    """The notice came while the save before was removing old ones, or before the first step behind a resume."""
    spec, start, _ = attempt(tmp_path, "")
    run_dir, state = Path(spec.run_dir), tmp_path / "state"
    (run_dir / "epoch").write_text("7")
    state.touch()
    environ = {"ORCH_RUN_DIR": str(run_dir), "ORCH_ATTEMPT_DIR": str(run_dir / "attempts" / "0001"), "ORCH_EPOCH": "7"}
    assert notify_save(5, state, None, environ) == 0
    noticed = Outcome(job_status=0, notice="limit", notice_at=time.time())
    if again:
        assert notify_save(5, state, None, environ) == 0
    log = TrainerLog(run_dir / "attempts" / "0001" / "trainer.jsonl")
    log.read()
    end = end_record(spec, start, noticed, log, now=time.time(), provisional=False)
    assert end.saved_after_notice is again
    assert f"limit-{'saved' if again else 'unsaved'}" in last_line(end)[0]


def test_an_absolute_name_is_that_file(tmp_path: Path) -> None:
    spec, start, at = attempt(tmp_path, str(tmp_path / "out" / "cv.json"))
    assert not finished_file(spec, start)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cv.json").touch()
    assert finished_file(spec, start)
    os.utime(tmp_path / "out" / "cv.json", (at - 1, at - 1))
    assert not finished_file(spec, start)


# --- the last line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("facts", "line", "code"), [
    ({"exit_code": 75, "trainer": "stopped", "saved_after_notice": True, "checkpoint_step": 40, "last_step": 40},
     "STOPPED attempt=2 step=40 checkpoint=40 signal: saved after the notice", 75),
    ({"exit_code": 75, "trainer": "stopped", "last_step": 40},
     "STOPPED attempt=2 step=40 signal: no checkpoint after the notice", 75),
    ({"signal": 15, "checkpoint_step": 30}, "STOPPED attempt=2 checkpoint=30 signal: no checkpoint after the notice", 75),
    ({"exit_code": 0, "trainer": "finished", "last_step": 50}, "FINISHED attempt=2 step=50", 0),
    ({"signal": 9, "oom_kills": 1}, "FAILED attempt=2 exit=137 out-of-memory: 1 process(es) killed for memory", 137),
])
def test_after_a_signal_that_nobody_explained(facts: dict[str, Any], line: str, code: int) -> None:
    assert last_line(EndRecord(**RECORD, notice="signal", notice_at=1.0, knows_orch=True, **facts)) == (line, code)


# --- what a process is called -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "name"), [
    (["sleep", "100"], "7 sleep"),
    (["uploader", "--key", "hunter2"], "7 uploader"),
    (["python3.11", "train.py", "--key=hunter2"], "7 python3.11 train.py"),
    (["python3", "-u", "/home/hunter2/train.py", "hunter2"], "7 python3 train.py"),
    (["python3", "-c", "key = 'hunter2'", "x.py"], "7 python3"),
    (["python3", "-m", "hunter2.py"], "7 python3"),
    (["python3", "-W", "hunter2.py", "train.py"], "7 python3"),
    (["bash", "/repo/runs/a/job.sh"], "7 bash job.sh"),
    (["bash", "-e", "job.sh", "hunter2"], "7 bash job.sh"),
    (["bash", "-c", "upload --key hunter2"], "7 bash"),
    (["bash", "-s", "hunter2.sh"], "7 bash"),
    (["bash", "-ec", "hunter2.sh"], "7 bash"),
    (["perl", "-e", "hunter2.sh"], "7 perl"),
    (["python3", "hunter2"], "7 python3"),
    ([], "7 comm"),
])
def test_a_label_has_no_argument_but_a_script(words: list[str], name: str) -> None:
    program = words[0] if words else ""
    assert label(Process(7, 1, 1, "comm", ("hunter2 " + program, *words[1:]) if words else (), False, program)) == name


# --- the way in -------------------------------------------------------------------------------------------------------


def hide(folder: Path) -> None:
    """Modules that must never be taken for orch's, or for the standard library's."""
    (folder / "orchestrator").mkdir(parents=True)
    (folder / "orchestrator" / "__init__.py").write_text("raise SystemExit('another orchestrator')\n")
    (folder / "json.py").write_text("raise SystemExit('another json')\n")


def test_a_pythonpath_hides_nothing_of_the_supervisor(tmp_path: Path) -> None:
    hide(tmp_path)
    ran = subprocess.run([sys.executable, "-I", str(ENTRY), "/no/such/spec.json"], cwd=tmp_path, check=False,
                         env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (ran.returncode, "FAILED: orch: /no/such/spec.json" in ran.stdout) == (78, True), ran.stdout + ran.stderr


def test_another_package_of_this_name_hides_nothing_of_the_supervisor(tmp_path: Path) -> None:
    hide(tmp_path)
    (tmp_path / "json.py").unlink()
    code = (f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['x', '/no/such/spec.json']\n"
            f"runpy.run_path({str(ENTRY)!r}, run_name='__main__')")
    ran = subprocess.run([sys.executable, "-I", "-c", code], check=False, capture_output=True, text=True)
    assert (ran.returncode, "FAILED: orch: /no/such/spec.json" in ran.stdout) == (78, True), ran.stdout + ran.stderr


def test_nothing_beside_the_package_is_on_the_path(tmp_path: Path) -> None:
    code = (f"import runpy, sys; main = runpy.run_path({str(ENTRY)!r})['load_this_orchestrator']; main()\n"
            f"import orchestrator.records; print(orchestrator.records.__file__); print({str(ROOT)!r} in sys.path)")
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == [str(ROOT / "orchestrator" / "records.py"), "False"]
