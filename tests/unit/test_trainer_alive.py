"""The sign of life, announced phases, and the stacks of a process that hangs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orch_trainer import Training
from orch_trainer.alive import Alive, Pulse, write_every_s

ROOT = Path(__file__).resolve().parents[2]

HANGS = """
import signal, sys, time
if "taken" in sys.argv:
    signal.signal(signal.SIGUSR2, lambda *_: None)
from orch_trainer import Training
def the_step_that_hangs():
    print("hangs", flush=True)
    time.sleep(60)
with Training() as training:
    training.step(3)
    if "leave" in sys.argv:
        training.finish()
    else:
        the_step_that_hangs()
"""


@pytest.fixture
def written(tmp_path):
    """The file's content after a write."""
    pulse = Pulse()
    alive = Alive(tmp_path / "alive.json", pulse, epoch=7, every_s=10.0)

    def write(now, step=None):
        alive.write_if_due(now, 1e9 + now, step)
        return json.loads((tmp_path / "alive.json").read_text())

    write.pulse = pulse
    return write


def test_it_is_written_every_ten_seconds_and_at_once_when_something_else_is_done(written):
    first = written(100.0)
    assert (first["doing"], first["signs"], first["epoch"], first["pid"]) == ("starting", 0, 7, os.getpid())
    written.pulse.signs += 1
    assert written(102.0) == first
    assert written(110.0)["signs"] == 1
    before = written.pulse.begin("evaluation", 60.0)
    evaluating = written(111.0, step=5)
    assert (evaluating["doing"], evaluating["at_most_s"], evaluating["step"]) == ("evaluation", 60.0, 5)
    written.pulse.end(before)
    after = written(112.0, step=5)
    assert (after["doing"], after["at_most_s"], after["signs"]) == ("training", None, 3)


def test_a_dead_loop_shows_as_time_without_a_sign(written):
    written.pulse.signs = 5
    written(0.0, step=4)
    shown = written(50.0, step=4)
    assert (shown["signs"], shown["idle_s"], shown["t"]) == (5, 50.0, 1e9 + 50)


def test_a_shorter_text_leaves_nothing_of_a_longer_one(written, tmp_path):
    written.pulse.begin("x" * 100, 1.0)
    written(0.0)
    size = (tmp_path / "alive.json").stat().st_size
    written.pulse.begin("y", 1.0)
    assert written(1.0)["doing"] == "y"
    assert (tmp_path / "alive.json").stat().st_size == size


def test_where_it_cannot_be_written_nothing_happens(tmp_path):
    Alive(tmp_path / "gone" / "alive.json", Pulse(), epoch=1, every_s=1.0).write_if_due(0.0, 0.0, None)


@pytest.mark.parametrize(("told", "every_s"), [(None, 10.0), ("8", 2.0), ("3600", 10.0), ("0.1", 0.5), ("x", 10.0)])
def test_a_short_limit_is_met_by_writing_more_often(told, every_s):
    assert write_every_s({} if told is None else {"ORCH_HUNG_AFTER_S": told}) == every_s


def test_each_call_of_the_loop_is_a_sign(tmp_path):
    with Training(checkpoint_dir=tmp_path / "checkpoints", environ={}, background=False, interval_s=1e9) as training:
        seen = [training._pulse.signs]

        def signs(call):
            call()
            seen.append(training._pulse.signs)
            return seen[-1] > seen[-2]

        assert signs(lambda: training.step(1))
        assert signs(training.should_save)
        assert signs(training.should_stop)
        with training.phase("evaluation", at_most_s=60):
            assert training._pulse.doing == ("evaluation", 60.0)
            with training.saving(1) as folder:
                assert training._pulse.doing == ("saving", None)
                (folder / "state").touch()
            assert training._pulse.doing == ("evaluation", 60.0)
        assert training._pulse.doing[1] is None
        training.finish()


def test_a_phase_that_fails_is_over(tmp_path):
    with pytest.raises(KeyError), Training(checkpoint_dir=tmp_path / "c", environ={}, background=False) as training:
        try:
            with training.phase("evaluation", at_most_s=60):
                raise KeyError
        finally:
            assert training._pulse.doing[0] != "evaluation"


def test_a_phase_lasts_some_seconds(tmp_path):
    training = Training(checkpoint_dir=tmp_path / "c", environ={}, background=False)
    for seconds in (0, -1):
        with pytest.raises(ValueError, match="at_most_s"):
            training.phase("evaluation", at_most_s=seconds)


def start(tmp_path, *words):
    folder = tmp_path / "runs" / "a" / "attempts" / "0001"
    (tmp_path / "runs" / "a" / "epoch").parent.mkdir(parents=True)
    (tmp_path / "runs" / "a" / "epoch").write_text("000000000007\n")
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "ORCH_RUN_DIR": str(tmp_path / "runs" / "a"),
             "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1", "ORCH_HUNG_AFTER_S": "2"})
    return folder, process


def test_a_process_that_hangs_writes_its_stacks_on_the_signal(tmp_path):
    folder, process = start(tmp_path)
    with process:
        try:
            while process.stdout.readline() != "hangs\n":
                assert process.poll() is None
            [registered] = (json.loads(path.read_text()) for path in (folder / "trainers").iterdir())
            assert registered["stacks_signal"] == signal.SIGUSR2
            alive = None
            while alive is None:  # the watch's thread writes it, in place, when it comes to it
                assert process.poll() is None
                with contextlib.suppress(FileNotFoundError, ValueError):
                    alive = json.loads((folder / "alive.json").read_text())
            assert (alive["pid"], alive["pid_start"]) == (registered["pid"], registered["pid_start"])
            [stacks] = folder.glob("stacks-*.txt")
            assert stacks.name.endswith(f"-{process.pid}.txt")
            process.send_signal(signal.SIGUSR2)
            while "the_step_that_hangs" not in stacks.read_text():
                assert process.poll() is None
            assert "orch_trainer/watch.py" in stacks.read_text(), "all threads"
        finally:
            process.kill()


def test_a_signal_that_is_taken_stays_whose_it_is(tmp_path):
    folder, process = start(tmp_path, "taken", "leave")
    with process:
        assert process.wait(timeout=20) == 0
    assert not list(folder.glob("stacks-*"))


def test_at_a_clean_exit_no_empty_file_is_left(tmp_path):
    folder, process = start(tmp_path, "leave")
    with process:
        assert process.wait(timeout=20) == 0
    assert not list(folder.glob("stacks-*"))
    assert (folder / "alive.json").exists()
