"""Saves in the background: threads and files are real, writes are held up by events, and nobody sleeps."""

import concurrent.futures
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hearing import hear

from orch_trainer import Training
from orch_trainer.checkpoint import Checkpoints
from orch_trainer.complete import complete_checkpoints, damage
from orch_trainer.fence import Fence
from orch_trainer.files import Files
from orch_trainer.slowdown import Gauge

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """Under orch, epoch 7; the handlers that Training leaves installed there are taken back."""
    run_dir = tmp_path / "runs" / "a"
    folder = run_dir / "attempts" / "0001"
    folder.mkdir(parents=True)
    (run_dir / "epoch").write_text("7")
    environ = {"ORCH_RUN_DIR": str(run_dir), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1", "ORCH_CHECKPOINT_INTERVAL_S": "1000"}
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield SimpleNamespace(
        dir=run_dir, folder=folder, environ=environ, checkpoints=run_dir / "checkpoints",
        steps=lambda: [one.step for one in complete_checkpoints(run_dir / "checkpoints")],
        lines=lambda *names: [line for line in map(json.loads, (folder / "trainer.jsonl").read_text().splitlines())
                              if line["event"] in names])
    for number, handler in before.items():
        signal.signal(number, handler)


def begin(training, step, work):
    """A save of this step whose writing goes on as `work(folder)`."""
    training.step(step)
    saving = training.saving(step, background=True)
    with saving as folder:
        saving.rest(lambda: work(folder))
    return saving


def write(folder, text="x"):
    (folder / "state").write_text(text)


def test_training_goes_on_while_it_is_written_and_the_marker_comes_last(run):
    go = threading.Event()
    with Training(environ=run.environ) as training:
        saving = begin(training, 1, lambda folder: (go.wait(10), write(folder)))
        training.step(2)
        assert not saving.usable
        assert run.steps() == []
        go.set()
        training.finish()                           # which waits for it
        assert saving.usable
    assert run.steps() == [1]
    saved, = run.lines("saved")
    assert saved["background"] is True
    assert saved["stall_s"] < saved["durable_s"]
    assert [line["event"] for line in run.lines("saved", "finished")] == ["saved", "finished"]
    assert damage(run.checkpoints / "step-00000001") == ""


@pytest.mark.parametrize("kind", ["future", "torch's answer", "nothing"])
def test_what_the_rest_may_be(run, kind):
    future = concurrent.futures.Future()
    with Training(environ=run.environ) as training:
        saving = training.saving(1, background=True)
        with saving as folder:
            if kind == "nothing":
                write(folder)
            else:
                saving.rest(future if kind == "future" else SimpleNamespace(upload_completion=future))
        if kind != "nothing":
            write(folder)
            future.set_result(None)
        training.finish()
    assert run.steps() == [1]


def test_rest_belongs_to_the_background_and_is_a_future_or_a_function(run):
    with pytest.raises(RuntimeError, match="background=True"), Training(environ=run.environ) as training:
        saving = training.saving(1)
        with saving:
            saving.rest(print)
    with pytest.raises(TypeError, match="a future or a function"), Training(environ=run.environ) as training:
        saving = training.saving(1, background=True)
        with saving:
            saving.rest(5)


def test_a_due_save_waits_for_the_one_that_is_being_written_and_says_so(run):
    go = threading.Event()
    with Training(environ=run.environ, interval_s=0.0) as training:
        assert training.should_save()
        begin(training, 1, lambda folder: (go.wait(10), write(folder)))
        assert not training.should_save()
        assert not training.should_save()
        go.set()
        begin(training, 2, write)                   # begun all the same: after the first
        training.finish()
    assert run.steps() == [1, 2]
    assert [line["event"] for line in run.lines("saving", "saved", "save_waits")] == [
        "saving", "save_waits", "saved", "saving", "saved"]


def test_a_milestone_is_saved_at_its_very_step_while_another_is_being_written(run):
    go = threading.Event()
    with Training(environ={**run.environ, "ORCH_SAVE_AT": "3"}) as training:
        begin(training, 2, lambda folder: (go.wait(10), write(folder)))
        assert not training.should_save()
        training.step(3)
        assert training.should_save()
        go.set()
        begin(training, 3, write)
        assert not training.should_save()
        training.finish()
    assert run.steps() == [2, 3]


def test_after_a_notice_the_write_under_way_comes_first_and_then_the_newest_state(run):
    go = threading.Event()
    with pytest.raises(SystemExit) as left, Training(environ=run.environ) as training:
        begin(training, 1, lambda folder: (go.wait(10), write(folder, "old")))
        training.step(5)
        (run.folder / "notice.json").write_text(json.dumps({"reason": "limit", "deadline": time.time() + 600}))
        hear(training)
        assert training.should_save()
        go.set()
        saving = begin(training, 5, lambda folder: write(folder, "new"))
        assert saving.usable                        # within its block
        assert training.should_stop()
    assert left.value.code == 75
    assert run.steps() == [1, 5]


def test_without_time_for_both_the_write_under_way_is_the_last_one(run):
    go = threading.Event()
    with pytest.raises(SystemExit) as left, Training(environ=run.environ) as training:
        begin(training, 1, write)
        training._saver.wait()
        training._pace._cost_s[0] = 100.0           # as if it had taken so long
        begin(training, 2, lambda folder: (go.wait(10), write(folder)))
        training.step(5)
        (run.folder / "notice.json").write_text(json.dumps({"reason": "limit", "deadline": time.time() + 150}))
        hear(training)
        assert not training.should_save()
        assert training.should_stop()
        go.set()
    assert left.value.code == 75
    assert run.steps() == [1, 2]
    assert [line["event"] for line in run.lines("saved", "stopped")] == ["saved", "saved", "stopped"]


def test_an_exception_of_the_loop_loses_no_write(run):
    go = threading.Event()
    threading.Timer(0.05, go.set).start()
    with pytest.raises(KeyError), Training(environ=run.environ) as training:
        begin(training, 1, lambda folder: (go.wait(10), write(folder)))
        raise KeyError
    assert run.steps() == [1]
    assert [line["event"] for line in run.lines("saved", "failed")] == ["saved", "failed"]


def full(folder):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_in_the_background_is_a_warning(run):
    with Training(environ=run.environ) as training:
        begin(training, 1, write)
        begin(training, 2, full)
        begin(training, 3, write)
        training.finish()
    assert run.steps() == [1, 3]
    failed, = run.lines("save_failed")
    assert "No space left" in failed["error"]
    assert not list(run.checkpoints.glob(".*"))


@pytest.mark.parametrize("where", ["saving", "finish"])
def test_the_programs_own_error_in_the_background_is_raised_in_the_loop(run, where):
    def wrong(folder):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Training(environ=run.environ) as training:
        begin(training, 1, wrong)
        if where == "saving":
            begin(training, 2, write)
        training.finish()
    assert run.steps() == []
    assert [line["event"] for line in run.lines("save_failed", "failed", "finished")] == ["save_failed", "failed"]


def test_the_programs_own_error_also_ends_a_block_that_nobody_asked_to_stop(run):
    def wrong(folder):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Training(environ=run.environ) as training:
        begin(training, 1, wrong)


FENCED = """
from orch_trainer import Training
with Training() as training:
    saving = training.saving(1, background=True)
    with saving as folder:
        (folder / "state").write_text("x")
        saving.rest(lambda: (training._settings.run_dir / "epoch").write_text("8"))
    import time
    time.sleep(20)
"""


@pytest.mark.slow
def test_fenced_in_the_background_ends_the_process(run):
    environ = {**os.environ, **run.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", FENCED], env=environ, timeout=15, capture_output=True, text=True,
                            check=False)
    assert answer.returncode == 76, answer
    assert run.steps() == []


def test_two_ranks_write_in_the_background(run):
    """Threads as ranks. Rank 0 publishes when rank 1's note is there, and with rank 1's files."""
    barrier, board, go, left, lacks = threading.Barrier(2), [[], []], threading.Event(), [0, 0], [None, None]

    def rank(number):
        def agree(values):
            board[number] = values
            barrier.wait(5)
            worst = [max(pair) for pair in zip(*board, strict=True)]
            barrier.wait(5)
            return worst

        training = Training(environ={**run.environ, "RANK": str(number), "WORLD_SIZE": "2"}, agree=agree)
        with training:
            training.step(1)
            saving = training.saving(1, background=True)
            with saving as folder:
                def work():
                    if number == 1:
                        go.wait(10)
                    (folder / f"shard{number}").write_text("x" * (number + 1))
                saving.rest(work)
            if number == 0:
                assert run.steps() == []
                go.set()
            lacks[number] = training.lacks_room(run.dir, 1 << 80 if number == 0 else 0)
            training.finish()
        left[number] = 1

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert left == [1, 1] and lacks == [True, True]
    marker = json.loads((run.checkpoints / "step-00000001" / "COMPLETE").read_text())
    assert marker["files"] == {"shard0": 1, "shard1": 2}
    assert sorted(os.listdir(run.checkpoints / "step-00000001")) == ["COMPLETE", "shard0", "shard1"]


def test_whether_there_is_room_is_asked_when_nothing_is_being_written(run):
    with Training(environ=run.environ) as training:
        assert not training.lacks_room(run.dir / "not yet", 0), "nothing was saved, so nobody knows"
        begin(training, 1, write)
        assert not training.lacks_room(run.dir, 1) and run.steps() == [1]
        assert training.lacks_room(run.dir, 1 << 80)
        training.finish()


def test_a_file_of_another_rank_that_got_its_final_name_meanwhile_is_no_loss(tmp_path):
    it = Checkpoints(tmp_path, Fence(None, 1), attempt=1, keep=1, files=Files())
    folder = it.temporary(1, os.getpid())
    it.begin(folder)
    write(folder)
    made = it.publish(1, folder, ["state", ".metadata.tmp"], 1.0, ranks=2)
    assert made.size_bytes == 1
    it.begin(folder)
    write(folder)
    with pytest.raises(FileNotFoundError):
        it.publish(2, folder, ["state", "lost"], 1.0)


@pytest.mark.parametrize("where", [0, 1])
def test_a_full_disk_at_any_rank_costs_the_checkpoint_alone(run, where):
    barrier, board, left = threading.Barrier(2), [[], []], [0, 0]

    def rank(number):
        def agree(values):
            board[number] = values
            barrier.wait(5)
            worst = [max(pair) for pair in zip(*board, strict=True)]
            barrier.wait(5)
            return worst

        with Training(environ={**run.environ, "RANK": str(number), "WORLD_SIZE": "2"}, agree=agree) as training:
            training.step(1)
            begin(training, 1, full if number == where else write)
            training.finish()
        left[number] = 1

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert left == [1, 1]
    failed, = run.lines("save_failed")
    assert ("rank 1: OSError" if where else "OSError: [Errno 28]") in failed["error"]
    assert not list(run.checkpoints.iterdir())


# --- the slowdown ---


def loop(gauge, steps, seconds_a_step, begin=(0, 0.0)):
    """The gauge's calls of a stretch of steps; where it ends."""
    step, at = begin
    for _ in range(steps):
        step, at = step + 1, at + seconds_a_step
        if gauge.attends:
            gauge.attend(step, at)
    return step, at


@pytest.mark.parametrize(("calm_s", "writing_s", "expected"), [(1.0, 1.25, 0.2), (1.0, 1.0, 0.0), (1.0, 0.8, -0.25)])
def test_slowdown(calm_s, writing_s, expected):
    gauge = Gauge()
    now = loop(gauge, 11, calm_s)
    gauge.pause(*now)                               # an evaluation, which counts for neither
    gauge.resume()
    now = loop(gauge, 11, calm_s, (now[0], now[1] + 500))
    gauge.pause(*now)
    gauge.write_begun()
    gauge.resume()
    now = loop(gauge, 11, writing_s, (now[0], now[1] + 7))
    assert gauge.write_ended(*now) == pytest.approx(expected)
    assert gauge.write_ended(*now) is None


@pytest.mark.parametrize(("calm", "writing"), [(0, 10), (2, 10), (10, 2)])
def test_a_slowdown_of_too_few_steps_is_not_measured(calm, writing):
    gauge = Gauge()
    now = loop(gauge, calm, 1.0)
    gauge.pause(*now)
    gauge.write_begun()
    gauge.resume()
    now = loop(gauge, writing, 2.0, now)
    assert gauge.write_ended(*now) is None


def test_steps_that_are_no_numbers_measure_nothing():
    gauge = Gauge()
    gauge.attend("epoch 1", 1.0)
    gauge.pause("epoch 9", 9.0)
    gauge.write_begun()
    gauge.resume()
    assert gauge.write_ended(None, 10.0) is None
