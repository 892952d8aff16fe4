"""The training block in a process of its own: signals, exit codes, kills at every file operation, Python 3.8."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orch_trainer.checkpoint import complete_checkpoints

ROOT = Path(__file__).resolve().parents[2]
PYTHON_38 = next((path for path in Path.home().glob(".pyenv/versions/3.8*/bin/python3.8")), None) \
    or shutil.which("python3.8")

LOOP = """
import os, sys, time
from orch_trainer import Training
with Training() as training:
    step = 0
    if training.resume_from:
        step = int((training.resume_from / "state").read_text())
    while True:
        step += 1
        training.step(step, loss=1 / step)
        if training.should_save():
            with training.saving(step) as folder:
                (folder / "state").write_text(str(step))
        if training.should_stop():
            break
        if step % 50 == 0:
            print("step", step, flush=True)
        time.sleep(0.001)
"""


@pytest.fixture
def run(tmp_path):
    run_dir = tmp_path / "runs" / "a"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "epoch").write_text("000000000007\n")
    return run_dir


def environment(run_dir=None, **more):
    orch = {} if run_dir is None else {"ORCH_RUN_DIR": str(run_dir), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1"}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **orch, **more}


started = []


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    yield
    while started:
        with started.pop() as process:
            process.kill()


def start(code, folder, *, python=sys.executable, **keys):
    process = subprocess.Popen([python, "-c", code], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, **keys)
    started.append(process)
    return process


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"ended with {process.wait()} before {text!r}")


def events(run_dir):
    text = (run_dir / "attempts" / "0001" / "trainer.jsonl").read_text()
    return [json.loads(line)["event"] for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("signals", [["TERM"], ["TERM", "TERM"], ["TERM", "TERM", "TERM"], ["USR1"], ["USR1", "TERM"]])
def test_a_notice_however_often_saves_and_exits_75(run, signals):
    process = start(LOOP, run, env=environment(run, ORCH_SIGNAL="USR1"))
    wait_for(process, "step 50")
    registered = list((run / "attempts" / "0001" / "trainers").iterdir())
    for name in signals:
        process.send_signal(getattr(signal, "SIG" + name))
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 75, output
    assert events(run)[-4:] == ["notice", "saving", "saved", "stopped"]
    assert events(run).count("notice") == 1
    assert "STOPPED" in output.splitlines()[-1]
    assert len(registered) == 1
    assert not list((run / "attempts" / "0001" / "trainers").iterdir())


@pytest.mark.slow
def test_outside_orch_a_stopped_loop_goes_on_where_it_was(tmp_path):
    steps = []
    for _ in range(2):
        process = start(LOOP, tmp_path, env=environment())
        wait_for(process, "step ")
        process.terminate()
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 75, output
        steps.append(complete_checkpoints(tmp_path / "checkpoints")[-1].step)
    assert steps[1] > steps[0]
    assert not (tmp_path / "trainer.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(PYTHON_38 is None, reason="no Python 3.8 here")
def test_python_38(run):
    process = start(LOOP, run, python=str(PYTHON_38), env=environment(run))
    wait_for(process, "step 50")
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 75, output
    assert events(run)[-1] == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code", "last"),
    [
        ("training.finish({'a': 1})", 0, "finished"),
        ("training.step(1)", 1, "failed"),
        ("raise ValueError('x')", 1, "failed"),
        ("sys.exit(3)", 3, "failed"),
        ("training.finish(); sys.exit(0)", 0, "finished"),
        ("(training._settings.run_dir / 'epoch').write_text('8'); training.finish()", 76, "fenced"),
    ],
)
def test_exit_codes(run, body, code, last):
    process = start(f"import sys\nfrom orch_trainer import Training\nwith Training() as training:\n    {body}", run,
                    env=environment(run))
    output, _ = process.communicate(timeout=20)
    assert process.returncode == code, output
    assert events(run)[-1] == last


FENCED_IN_A_THREAD = """
import threading, time
from orch_trainer import Training
with Training() as training:
    (training._settings.run_dir / "epoch").write_text("8")
    def save():
        with training.saving(1) as folder:
            (folder / "state").write_text("x")
    threading.Thread(target=save).start()
    time.sleep(20)
"""


@pytest.mark.slow
def test_fenced_in_another_thread_ends_the_process(run):
    process = start(FENCED_IN_A_THREAD, run, env=environment(run))
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 76, output


WORKER = """
import os, signal, sys, time
from orch_trainer import Training
with Training(checkpoint_dir="c") as training:
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    print("worker ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    training.finish()
"""


@pytest.mark.slow
def test_a_forked_worker_can_be_terminated(tmp_path):
    output, _ = start(WORKER, tmp_path, env=environment()).communicate(timeout=10)
    assert "worker ended by -15" in output


FILE_LIMIT = """
from orch_trainer import Training
with Training(checkpoint_dir="c") as training:
    for step, size in ((1, 1000), (2, 3_000_000), (3, 1000)):
        training.step(step)
        with training.saving(step) as folder:
            (folder / "state").write_bytes(bytes(size))
    training.finish()
"""


@pytest.mark.slow
def test_a_limit_of_the_real_file_system(tmp_path):
    process = start(FILE_LIMIT, tmp_path, env=environment(),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000)))
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0, output
    assert "WARNING: no checkpoint of step 2" in output
    assert [one.step for one in complete_checkpoints(tmp_path / "c")] == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["foreground", "background"])
def test_killed_at_any_file_operation_the_newest_checkpoint_is_whole(tmp_path, how):
    script = Path(__file__).with_name("killed_saves.py")
    output = subprocess.run([sys.executable, str(script), str(tmp_path), how], env=environment(), text=True,
                            capture_output=True, check=True, timeout=120).stdout
    *killed, survivor = map(json.loads, output.splitlines())
    assert not survivor["killed"]
    assert len(killed) > 60
    assert {report["call"] for report in killed} >= {"mkdir", "open", "write", "fsync", "rename"}
    for report in killed:
        assert report["whole"], report
        assert not report["incomplete"], report          # only whole checkpoints have a final name
        assert report["newest"] >= report["saved"], report  # what was called complete is still there
        assert report["resumed"] == report["newest"], report
        assert report["after_status"] == 0, report
        assert report["after"] == [10, True], report
        assert not report["after_left"], report
    assert {report["newest"] for report in killed} == {0, 1, 2}
    assert any(report["left"] for report in killed)      # something was left behind for the next start to remove
