"""The training block in this process: a moved clock, no thread, no signal handlers, real files under tmp_path."""

import errno
import json
import os
import threading
import zlib
from types import SimpleNamespace

import pytest
from hearing import hear

from orch_trainer import Training
from orch_trainer.checkpoint import complete_checkpoints
from orch_trainer.files import Files


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 1e9


class FailingFiles(Files):
    """Fails with this error number whenever the operation is of this kind and the path's name fits."""

    def __init__(self, operation, number, part):
        self.operation, self.number, self.part = operation, number, part

    def before(self, operation, path):
        if operation == self.operation and self.part in path.name:
            raise OSError(self.number, os.strerror(self.number), str(path))


class Run:
    """A run folder as a supervisor leaves it, epoch 7, attempt 3."""

    def __init__(self, folder):
        self.dir = folder / "runs" / "a"
        self.attempt_dir = self.dir / "attempts" / "0003"
        self.checkpoints = self.dir / "checkpoints"
        self.attempt_dir.mkdir(parents=True)
        self.checkpoints.mkdir()
        self.clock = Clock()
        self.take_epoch(7)
        self.environ = {"ORCH_RUN_DIR": str(self.dir), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "3", "ORCH_PROTOCOL": "1",
                        "ORCH_ATTEMPT_DIR": str(self.attempt_dir), "ORCH_CHECKPOINT_DIR": str(self.checkpoints),
                        "ORCH_CHECKPOINT_INTERVAL_S": "30", "ORCH_CONTROL_FILE": str(self.dir / "control.json")}

    def take_epoch(self, number):
        (self.dir / "epoch").write_text(f"{number:012d}\n")

    def control(self, **keys):
        content = {"seq": 1, "interval_s": 30.0, "stop": None, "save": 0, **keys}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sum"] = f"{zlib.crc32(text.encode()):08x}"
        (self.dir / "control.json").write_text(json.dumps(content).ljust(256) + "\n")

    def notice(self, reason="limit", left_s=60.0):
        (self.attempt_dir / "notice.json").write_text(json.dumps(
            {"at": self.clock.time(), "reason": reason, "deliver": [],
             "deadline": None if left_s is None else self.clock.time() + left_s}))

    def training(self, **keys):
        return Training(environ=self.environ, clock=self.clock, background=False, **keys)

    def lines(self):
        return [json.loads(line) for line in (self.attempt_dir / "trainer.jsonl").read_text().splitlines()]

    def events(self):
        return [line["event"] for line in self.lines()]

    def steps(self):
        return [one.step for one in complete_checkpoints(self.checkpoints)]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def save(training, step, cost_s=2.0):
    training.step(step)
    with training.saving(step) as folder:
        (folder / "state").write_text(str(step))
        training._clock.now += cost_s


def test_a_finished_run(run, capsys):
    with run.training(config={"lr": 0.1}) as training:
        assert (training.resume_from, training.attempt, training.interval_s, training.deadline) == (None, 3, 30.0, None)
        training.step(1, loss=2.0)
        run.clock.now += 30
        assert training.should_save()
        save(training, 2)
        assert not training.should_save()
        assert not training.should_stop()
        training.step(61, loss=0.4321, lr=0.01)
        training.finish({"accuracy": 0.5, "worst": float("nan")})
    assert run.events() == ["start", "first_step", "progress", "saving", "saved", "finished"]
    lines = {line["event"]: line for line in run.lines()}
    assert lines["start"]["resume_step"] is None
    assert lines["start"]["config"] == {"lr": 0.1}
    saved = lines["saved"]
    assert (saved["step"], saved["stall_s"], saved["write_s"], saved["durable_s"]) == (2, 2.0, 2.0, 2.0)
    assert (saved["size_bytes"], saved["first"]) == (1, True)
    assert saved["path"] == str(run.checkpoints / "step-00000002")
    assert lines["finished"]["metrics"] == {"accuracy": 0.5, "worst": None}
    result = json.loads((run.dir / "result.json").read_text())
    assert result == {"step": 61, "metrics": {"accuracy": 0.5, "worst": None}, "epoch": 7, "attempt": 3,
                      "finished_at": run.clock.time()}
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("FINISHED  step 61")


def test_progress_at_first_soon_then_every_half_minute(run, capsys):
    with run.training() as training:
        for step in range(1, 62):
            training.step(step, loss=SimpleNamespace(item=lambda: 0.5) if step == 31 else 0.25, lr=1e-4)
            run.clock.now += 1
        training.finish()
    progress = [line for line in run.lines() if line["event"] == "progress"]
    assert [line["step"] for line in progress] == [3, 7, 15, 31, 61]
    assert progress[1]["steps_per_s"] == 1.0
    assert (progress[1]["loss"], progress[1]["lr"]) == (0.25, 1e-4)
    assert "step 61  loss 0.25  lr 0.0001  1.0 steps/s" in capsys.readouterr().out


@pytest.mark.parametrize("loss", ["x", object(), float("inf"), [1]])
def test_step_never_raises(run, loss):
    with run.training() as training:
        training.step(1, loss=loss)
        run.clock.now += 31
        training.step(2, loss=loss, weird=loss)
        training.step("no number", loss=loss)
        run.clock.now += 31
        training.step("no number", loss=loss)
        training.finish()
    assert run.events().count("progress") == 2


def test_notice_save_stop(run):
    with pytest.raises(SystemExit) as exit, run.training() as training:
        training.step(1)
        run.notice()
        assert not training.should_save()
        hear(training)
        assert training.should_save()
        assert not training.should_stop()
        save(training, 2)
        assert not training.should_save()
        assert training.should_stop()
        assert training.deadline == pytest.approx(run.clock.time() + 58)
    assert exit.value.code == 75
    assert run.events() == ["start", "first_step", "notice", "saving", "saved", "stopped"]
    assert run.lines()[2]["reason"] == "limit"


def test_a_cancel_is_said_before_its_notice_and_until_when_with_it(run, capsys):
    run.environ["ORCH_DEADLINE"] = str(run.clock.time() + 1000)
    with pytest.raises(SystemExit), run.training() as training:
        training.step(1)
        run.control(seq=2, stop="cancel")
        hear(training)
        run.notice("cancel", left_s=85.0)
        hear(training)
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("notice")] == [
        "notice: cancel", "notice: cancel  85 s left"]


def test_a_preemption_is_not_said_to_leave_time_until_the_limit(run, capsys):
    run.environ["ORCH_DEADLINE"] = str(run.clock.time() + 1000)
    with pytest.raises(SystemExit), run.training() as training:
        training.step(1)
        training._signals.seen = 15
        hear(training)
        run.notice("preempt", left_s=None)
        hear(training)
        assert training.deadline is None
        run.notice("preempt", left_s=18.0)
        hear(training)
        assert training.deadline == run.clock.time() + 18
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("notice")] == [
        "notice: signal", "notice: preempt", "notice: preempt  18 s left"]


def test_under_torchrun_a_stop_exits_0(run):
    run.environ["TORCHELASTIC_RUN_ID"] = "x"
    run.control(stop="cancel")
    with pytest.raises(SystemExit) as exit, run.training() as training:
        save(training, 1)
        assert training.should_stop()
    assert exit.value.code == 0
    assert run.events()[-1] == "stopped"


def test_leaving_early_without_finish_is_a_failure_that_says_what_to_do(run):
    with pytest.raises(SystemExit) as exit, run.training() as training:
        training.step(1)
    assert exit.value.code == 1
    assert run.lines()[-1]["event"] == "failed"
    assert "call training.finish(metrics)" in run.lines()[-1]["error"]


def test_an_exception_is_told_and_goes_on(run):
    with pytest.raises(KeyError), run.training() as training:
        training.step(4)
        raise KeyError("loss")
    assert run.lines()[-1]["error"] == "KeyError: 'loss'"
    assert run.lines()[-1]["step"] == 4


def test_control_is_taken_once_whole(run):
    run.control(seq=5, interval_s=20.0, save=4)
    with run.training() as training:
        assert training.interval_s == 20.0
        training.step(1)
        run.control(seq=6, interval_s=10.0, save=5)
        whole = (run.dir / "control.json").read_text()
        (run.dir / "control.json").write_text(whole[:40])
        hear(training)
        assert training.interval_s == 20.0
        (run.dir / "control.json").write_text(whole)
        hear(training)
        assert training.interval_s == 10.0
        assert training.should_save()
        save(training, 1)
        assert not training.should_save()
        run.control(seq=4, interval_s=99.0)         # an older one, from a cache
        hear(training)
        assert training.interval_s == 10.0
        training.finish()
    assert [line["seq"] for line in run.lines() if line["event"] == "interval"] == [6]
    assert [line["request"] for line in run.lines() if line["event"] == "saving"] == [5]


def test_resume_and_retention(run):
    with pytest.raises(SystemExit), run.training(keep=2) as training:
        for step in (1, 2, 3):
            save(training, step)
        run.control(stop="cancel")
        hear(training)
    assert run.steps() == [2, 3]
    run.environ.update(ORCH_RESUME_FROM=str(run.checkpoints / "step-00000002"), ORCH_ATTEMPT="4", ORCH_EPOCH="8")
    assert run.training().resume_from == run.checkpoints / "step-00000002"      # orch's choice stands
    run.environ.update(ORCH_ATTEMPT="3", ORCH_EPOCH="7")
    assert run.training().resume_from == run.checkpoints / "step-00000003"      # but for a restart inside the start
    (run.checkpoints / "step-00000002" / "COMPLETE").unlink()
    run.environ.update(ORCH_ATTEMPT="4", ORCH_EPOCH="8")
    with pytest.raises(RuntimeError, match="not a complete checkpoint"):
        run.training()


@pytest.mark.parametrize("when", ["before saving", "while writing", "before finish", "at the start"])
def test_fenced_writes_nothing_and_exits_76(run, when):
    if when == "at the start":
        run.take_epoch(8)
    with pytest.raises(SystemExit) as exit, run.training() as training:
        training.step(1)
        if when == "before finish":
            run.take_epoch(8)
            training.finish()
        if when == "before saving":
            run.take_epoch(8)
        with training.saving(1) as folder:
            (folder / "state").write_text("x")
            run.take_epoch(8)
    assert exit.value.code == 76
    assert run.lines()[-1]["event"] == "fenced"
    assert run.lines()[-1]["epoch"] == 8
    assert not (run.dir / "result.json").exists()
    assert [path.name for path in run.checkpoints.iterdir() if not path.name.startswith(".")] == []


def test_fenced_explains_a_temp_folder_that_was_swept_away(run):
    with pytest.raises(SystemExit) as exit, run.training() as training, training.saving(1) as folder:
        run.take_epoch(8)
        folder.rename(folder.with_name(".old-x"))
        (folder / "state").write_text("x")
    assert exit.value.code == 76


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize(("operation", "part"), [("fsync", "state"), ("mkdir", ".tmp"), ("write", ".complete"),
                                                 ("rename", ".tmp")])
def test_a_failing_disk_costs_a_checkpoint_and_no_training(run, number, operation, part):
    training = run.training()
    with pytest.raises(SystemExit), training:
        save(training, 1)
        training._files.before = FailingFiles(operation, number, part).before
        save(training, 2)
        del training._files.before
        assert not training.should_stop()
        save(training, 3)
        run.notice()
        hear(training)
    assert run.steps() == [1, 3]
    failed = [line for line in run.lines() if line["event"] == "save_failed"]
    assert [line["step"] for line in failed] == [2]
    assert os.strerror(number) in failed[0]["error"]
    assert not list(run.checkpoints.glob(".*"))


@pytest.mark.parametrize("error", [ValueError("mine"), RuntimeError("mine"), KeyboardInterrupt()])
def test_the_users_own_error_while_saving_goes_on(run, error):
    with pytest.raises(type(error)), run.training() as training:
        save(training, 1)
        with training.saving(2):
            raise error
    assert run.steps() == [1]
    assert not list(run.checkpoints.glob(".*"))
    assert run.events()[-2:] == ["save_failed", "failed"]


def test_an_empty_checkpoint_is_a_mistake(run):
    with pytest.raises(ValueError, match="nothing was written"), run.training() as training, training.saving(2):
        pass
    assert run.steps() == []


def test_a_registered_process(run):
    with run.training() as training:
        path, = (run.attempt_dir / "trainers").iterdir()
        content = json.loads(path.read_text())
        training.finish()
    assert path.name == f"{content['host']}-{os.getpid()}.json"
    assert (content["pid"], content["rank"], content["epoch"]) == (os.getpid(), 0, 7)


def test_outside_orch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    for resumed in (None, tmp_path / "checkpoints" / "step-00000005"):
        with Training(environ={}, clock=clock, background=False) as training:
            assert training.resume_from == resumed
            save(training, 5)
            training.finish({"a": 1})
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "result.json"]
    assert "START" in capsys.readouterr().out


def test_two_ranks_save_and_stop_at_the_same_step(run):
    """Threads as ranks; the notice reaches rank 1 only."""
    barrier, board, seen = threading.Barrier(2), [[], []], [[], []]

    def rank(number):
        def agree(values):
            board[number] = values
            barrier.wait(5)
            worst = [max(pair) for pair in zip(*board, strict=True)]
            barrier.wait(5)
            return worst

        environ = {**run.environ, "RANK": str(number), "WORLD_SIZE": "2"}
        training = Training(environ=environ, clock=Clock(), background=False, agree=agree)
        try:
            with training:
                for step in range(1, 50):
                    if (number, step) == (1, 5):
                        training._signals.seen = 15
                    training.step(step)
                    training._clock.now += 1e-3
                    if training.should_save():
                        with training.saving(step) as folder:
                            (folder / f"shard{number}").write_text(str(step))
                        seen[number].append(step)
                    if training.should_stop():
                        break
        except SystemExit as exit:
            seen[number].append((step, exit.code))

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen[0] == seen[1] == [6, (6, 75)]
    assert run.steps() == [6]
    assert sorted(path.name for path in (run.checkpoints / "step-00000006").iterdir()) == ["COMPLETE", "shard0", "shard1"]
    assert run.events() == ["start", "first_step", "notice", "saving", "saved", "stopped"]


def test_keep_must_keep_something():
    with pytest.raises(ValueError, match=r"keep=0"):
        Training(environ={}, keep=0)


def test_a_hung_file_server_does_not_stall_steps(run):
    """The loop's three questions open nothing: they work with the run folder gone."""
    with pytest.raises(FileNotFoundError), run.training() as training:
        run.dir.rename(run.dir.with_name("gone"))
        for step in range(5):
            run.clock.now += 31
            training.step(step, loss=1.0)
            assert training.should_save()
            assert not training.should_stop()
        training.finish()
