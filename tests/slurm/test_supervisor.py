"""The real supervisor without a Slurm, where seconds must pass: trainers that hang, a clock set back, a folder that vanishes.

All are started at once by the first test that asks, so that the file takes as long as its slowest supervisor.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runs import ENTRY, MadeRun, make_run

from orchestrator.host import boot_id, start_of
from orchestrator.records import StartRecord

pytestmark = pytest.mark.slow

TINY = "PY TRAINERS/tiny.py"
# tag -> job.sh, environment; each with a limit of two seconds
HUNG: dict[str, tuple[str, dict[str, str]]] = {
    "loop": (f"exec {TINY}", {"DO": "5:hang"}),                         # alive, deaf to TERM
    "shell": (f"{TINY}; touch after", {"DO": "5:hang"}),
    "stopped": (f"exec {TINY}", {"DO": "5:stop", "STEP_S": "0.3"}),
    "taken": (f"exec {TINY}", {"DO": "5:hang", "TAKEN": "1"}),
    "phase": (f"exec {TINY}", {"STEPS": "8", "DO": "5:phase"}),         # five seconds, announced
    "slow-step": (f"exec {TINY}", {"STEPS": "4", "STEP_S": "1.2"}),
    "knows-nothing": ("sleep 6; touch knows-nothing.json", {}),
    "after": (f"{TINY} && sleep 6", {"STEPS": "3"}),                    # nothing is owed after FINISHED
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[MadeRun, subprocess.CompletedProcess[str]]]]:
    base = tmp_path_factory.mktemp("hung")

    def run_it(tag: str) -> tuple[MadeRun, subprocess.CompletedProcess[str]]:
        job, environment = HUNG[tag]
        run = make_run(base / tag, tag, job, time_limit_s=3600.0, hung_after_s=2.0,
                       finished_when="{tag}.json" if tag == "knows-nothing" else None)
        run.prepare()
        return run, run.here(**environment)

    with ThreadPoolExecutor(len(HUNG)) as pool:
        yield dict(zip(HUNG, pool.map(run_it, HUNG), strict=True))


@pytest.mark.parametrize("tag", ["loop", "shell", "stopped", "taken"])
def test_a_trainer_that_hangs_is_ended_and_says_so(ran: dict[str, Any], tag: str) -> None:
    run, answer = ran[tag]
    end = run.end()
    assert end is not None and end.hung and end.exit_code not in (0, 75)
    assert "no sign of life for 2 s (limit 2 s), training, last step" in end.detail
    assert f"hung: {end.detail}" in answer.stdout.splitlines()[-1]
    assert not (run.repository / "after").exists()
    [hung] = run.events("hung")
    assert hung["limit_s"] == 2.0 and (hung["step"] == 5 or tag == "stopped"), "a stopped process may not have written it"
    assert json.loads((run.folder / "life.json").read_text())["patience"] == 2.0
    [left] = end.left_behind
    assert left.endswith("tiny.py"), "it was deaf to TERM"


@pytest.mark.parametrize("tag", ["loop", "shell"])
def test_where_it_hung_stands_in_the_attempts_folder(ran: dict[str, Any], tag: str) -> None:
    run, _ = ran[tag]
    [stacks] = run.events("stacks")
    [name] = stacks["files"]
    text = (run.folder / name).read_text()
    assert "tiny.py" in text and "orch_trainer/watch.py" in text
    assert stacks["missing"] == []


@pytest.mark.parametrize(("tag", "why"), [("stopped", "it is stopped (SIGSTOP)"), ("taken", "it has no handler for that")])
def test_where_no_stacks_can_be_had_that_is_said(ran: dict[str, Any], tag: str, why: str) -> None:
    run, _ = ran[tag]
    [stacks] = run.events("stacks")
    assert stacks["files"] == [] and len(stacks["missing"]) == 1
    end = run.end()
    assert end is not None and why in end.detail


@pytest.mark.parametrize("tag", ["phase", "slow-step", "knows-nothing", "after"])
def test_who_does_not_hang(ran: dict[str, Any], tag: str) -> None:
    run, answer = ran[tag]
    assert run.events("hung") == [], answer.stdout
    end = run.end()
    assert end is not None and (end.exit_code, end.hung) == (0, False)


# --- others that take seconds -------------------------------------------------------------------------------------------


def supervise(spec: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-I", str(ENTRY), str(spec)], stdout=subprocess.PIPE, text=True)


def test_a_stop_signal_while_waiting_for_leave_is_a_stand_down(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "true")
    run.prepare()
    me = os.getpid()                   # the predecessor is still alive: this test
    record = StartRecord(number=1, submission_id="s1", job_id="100", restart_count=0, epoch=1, host=os.uname().nodename,
                         boot_id=boot_id(), pid=me, pid_start=start_of(me), started_at=time.time())
    (run.folder / "start.json").write_text(record.to_json())
    process = supervise(run.next().prepare())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2.0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=10)
    assert (process.returncode, "told to stop while waiting" in output) == (76, True)


def test_the_runs_folder_may_vanish_while_it_trains(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", 'touch "$ORCH_ATTEMPT_DIR/began"; sleep 2.5; exit 7')
    process = supervise(run.prepare())
    while not ((run.folder / "began").exists() and run.events("started")):
        time.sleep(0.05)
        assert process.poll() is None
    while run.run_dir.exists():   # the supervisor may write a file between the listing of a folder and its removal
        shutil.rmtree(run.run_dir, ignore_errors=True)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 7
    assert output.count("the training goes on without it") == 1


def test_control_json_gives_notice_of_a_cancel(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "PY TRAINERS/plain.py quick\nexit $?", time_limit_s=3600.0)
    process = supervise(run.prepare())
    while not run.lines("signals.jsonl"):
        time.sleep(0.05)
        assert process.poll() is None
    content: dict[str, Any] = {"interval_s": 30.0, "save": 0, "seq": 1, "stop": "cancel"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sum"] = f"{zlib.crc32(text.encode()):08x}"
    (run.run_dir / "control.json").write_text(json.dumps(content) + "\n")
    process.communicate(timeout=20)
    end = run.end()
    assert end is not None and (end.notice, end.exit_code) == ("cancel", 75)
    assert len(run.signals()) == 1
    notice = json.loads((run.folder / "notice.json").read_text())
    assert notice["deadline"] - notice["at"] == pytest.approx(25.0 + 60.0, abs=1.0), "lead and margin, not the limit"


STOPS_BEFORE_ITS_SUPERVISOR_LOOKS = """
import json, os, zlib
content = {"interval_s": 30.0, "save": 0, "seq": 1, "stop": "cancel"}
content["sum"] = f"{zlib.crc32(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):08x}"
with open(os.environ["ORCH_CONTROL_FILE"], "w") as file:
    file.write(json.dumps(content) + "\\n")
with open(os.environ["ORCH_ATTEMPT_DIR"] + "/trainer.jsonl", "w") as file:
    for event, more in (("start", {"pid": os.getpid(), "host": ""}), ("first_step", {}), ("stopped", {"step": 5})):
        file.write(json.dumps({"event": event, "t": 1.0, **more}) + "\\n")
os._exit(75)
"""


def test_a_trainer_that_reads_of_a_cancel_first_was_cancelled(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(STOPS_BEFORE_ITS_SUPERVISOR_LOOKS)
    run = make_run(tmp_path, "a", f"PY {tmp_path}/trainer.py\nexit $?", time_limit_s=3600.0)
    run.prepare()
    said = run.here().stdout
    end = run.end()
    assert end is not None and (end.notice, end.exit_code, end.trainer) == ("cancel", 75, "stopped")
    assert "cancelled" in said.splitlines()[-1] and "limit" not in said


STEPPED = """
import sys, time
sys.path.insert(0, {root!r})
from orchestrator.attempt import supervise
began = time.monotonic()
supervise.clock = lambda: time.time() - (3600.0 if time.monotonic() > began + 0.5 else 0.0)
sys.exit(supervise.main({spec!r}))
"""


def test_the_notice_before_the_limit_comes_in_time_though_the_clock_was_set_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", "PY TRAINERS/plain.py quick\nexit $?", time_limit_s=11.0, lead_s=9.0)
    spec = run.prepare()
    code = STEPPED.format(root=str(Path(__file__).parents[2]), spec=str(spec))
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False, timeout=30)
    end = run.end()
    assert end is not None and (end.notice, end.exit_code) == ("limit", 75)
    assert 1.9 <= time.monotonic() - began < 8.0
