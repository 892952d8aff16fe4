"""What a training says of itself: START, a line every half minute, its end; one line each, for people and for programs."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

from orch_trainer import Training
from orch_trainer.device import STALE_S, Memory, find_device
from orch_trainer.lines import Lines
from orch_trainer.rate import HALF_LIFE_S, Rate


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 1e9


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def attempt(tmp_path):
    return tmp_path / "run" / "attempts" / "0001"


@pytest.fixture
def begin(tmp_path, attempt, clock):
    """Training under orch, without thread and signals."""
    attempt.mkdir(parents=True)
    environ = {"ORCH_RUN_DIR": str(tmp_path / "run"), "ORCH_ATTEMPT_DIR": str(attempt)}
    return lambda **keys: Training(environ=environ, clock=clock, background=False, **keys)


def events(attempt, name):
    lines = map(json.loads, (attempt / "trainer.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def torch(*, is_initialized=True, free=30 << 30, total=80 << 30):
    """As much of torch as is asked."""
    return SimpleNamespace(cuda=SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: is_initialized, get_device_name=lambda: "NVIDIA H200",
        mem_get_info=lambda: (free, total)))


def test_time_left_is_reckoned_with_the_saves(begin, attempt, clock, capsys):
    with begin(total_steps=1000) as training:
        for step in range(1, 302):
            clock.now += 1
            training.step(step, loss=0.5)
            if step % 100 == 0:
                clock.now += 100                    # saves take as long as the steps between them
        training.finish()
    last = events(attempt, "progress")[-1]
    assert (last["step"], last["of"]) == (301, 1000)
    assert last["left_s"] == pytest.approx(2 * 699, rel=0.05)
    line, = (line for line in capsys.readouterr().out.splitlines() if line.startswith("step 301 "))
    assert line.startswith("step 301 of 1000 (30%)  loss 0.5  ") and line.endswith(" left") and "2" in line.split()[-2]


def test_without_a_total_nobody_knows_what_is_left(begin, attempt, clock, capsys):
    with begin() as training:
        training.step(1)
        clock.now += 30
        training.step(2)
        training.finish()
    progress, = events(attempt, "progress")
    assert set(progress) == {"event", "t", "step", "of", "loss", "steps_per_s", "left_s", "memory_bytes", "gpu_memory_bytes"}
    assert progress["of"] is progress["left_s"] is progress["loss"] is progress["gpu_memory_bytes"] is None
    out = capsys.readouterr().out
    assert "left" not in out and " of " not in out and "30.00 s/step" in out


@pytest.mark.parametrize("total", [0, -1])
def test_a_total_of_nothing_is_refused(begin, total):
    with pytest.raises(ValueError, match="total_steps"):
        begin(total_steps=total)


def test_the_rate_forgets():
    rate = Rate()
    assert rate.left_s(10) is None
    for _ in range(100):
        rate.add(100, 100)
    assert rate.left_s(50) == pytest.approx(50)
    for _ in range(100):
        rate.add(50, 100)
    assert 90 < rate.left_s(50) < 100                # 10,000 s of half the speed outweigh what was before
    rate.add(-500, 100)                             # rolled back: time without progress
    assert rate.left_s(50) > 95
    assert rate.left_s(-3) == 0.0
    assert HALF_LIFE_S > 600


def test_memory_is_the_attempts_as_the_supervisor_measures_it(tmp_path, clock):
    path = tmp_path / "memory.csv"
    memory = Memory(path)
    memory.read_if_due(0.0)
    own, gpu = memory.used(clock.time())
    assert 1 << 20 < own < 1 << 36 and gpu is None   # no file yet: this process's
    path.write_text("t,memory_bytes,gpu_memory_bytes\n")
    memory.read_if_due(20.0)
    assert memory.used(clock.time())[0] > 1 << 20
    path.write_text(f"t,memory_bytes,gpu_memory_bytes\n{clock.time() - 60},1,2\n{clock.time() - 30},5000,\n{clock.time()},7")
    memory.read_if_due(21.0)
    assert memory.used(clock.time())[0] != 5000      # not due yet
    memory.read_if_due(40.0)
    assert memory.used(clock.time()) == (5000, None)
    clock.now += STALE_S
    assert memory.used(clock.time())[0] not in (5000, None)


def test_memory_of_the_gpu_comes_from_torch_where_nobody_measures(monkeypatch, tmp_path, clock):
    memory = Memory(tmp_path / "memory.csv")
    (tmp_path / "memory.csv").write_text(f"header\n{clock.time()},5000,6000\n")
    monkeypatch.setitem(sys.modules, "torch", torch())
    assert memory.used(clock.time())[1] == 50 << 30
    monkeypatch.setitem(sys.modules, "torch", torch(is_initialized=False))
    assert memory.used(clock.time())[1] is None      # asking would begin to use the GPU
    memory.read_if_due(20.0)
    assert memory.used(clock.time()) == (5000, 6000)


def test_start_shows_device_memory_and_configuration(begin, attempt, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch())
    with begin(total_steps=7, config={"text": "a\nb\rc"}) as training:
        training.finish()
    start, = events(attempt, "start")
    assert (start["device"], start["gpu_free_memory_bytes"], start["of"]) == ("NVIDIA H200", 30 << 30, 7)
    assert start["free_memory_bytes"] > 1 << 20
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("START  attempt 1  from the beginning  to step 7  ranks 1  device NVIDIA H200 (32.2 GB free)  ")
    assert line.endswith('{"text": "a\\nb\\rc"}')


@pytest.mark.parametrize(("limit", "expected"), [("10", 10 << 20), ("0", None), ("", None), ("x", None)])
def test_free_memory_is_no_more_than_slurm_gave(limit, expected):
    free = find_device({"SLURM_MEM_PER_NODE": limit}).free_bytes
    assert free == expected if expected else free > 10 << 20


@pytest.mark.parametrize(("error", "said"), [
    (ValueError("mine"), "ValueError: mine"), (KeyError("a"), "KeyError: 'a'"), (KeyboardInterrupt(), "KeyboardInterrupt"),
    (RuntimeError("CUDA error:\r\n  two\u2028lines"), "RuntimeError: CUDA error:   two lines"),
    (OSError("x" * 9000), "OSError: xxx"),
])
def test_a_failure_is_one_line_and_the_last(begin, attempt, capsys, error, said):
    with pytest.raises(type(error)), begin() as training:
        training.step(3)
        raise error
    line = capsys.readouterr().out.split("\n")[-2]
    assert line.startswith(f"FAILED  step 3  {said}") and len(line) < 1100 and "\r" not in line
    assert events(attempt, "failed")[0]["error"].startswith(type(error).__name__)


def test_stopped_says_why_though_a_bare_signal_came_first(begin, attempt, clock, capsys):
    with pytest.raises(SystemExit), begin() as training:
        training.step(3)
        training._signals.seen = 15
        assert training.should_save()
        (attempt / "notice.json").write_text('{"reason": "preempt", "deadline": null}')
    assert capsys.readouterr().out.splitlines()[-1] == "STOPPED  step 3  preempt  newest checkpoint: none"


def test_an_error_that_cannot_say_what_it_is(begin, attempt):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(Mute), begin():
        raise Mute
    assert events(attempt, "failed")[0]["error"] == "Mute"


def test_whatever_is_given_to_step_makes_one_line_of_bounded_length(begin, attempt, clock, capsys):
    with begin() as training:
        training.step(1)
        clock.now += 30
        training.step(2, loss=float("nan"), name="a\r\nb\x1b[2K", many=list(range(100_000)), huge=10**400, t=1, event="x")
        training.finish()
    line, = (line for line in capsys.readouterr().out.split("\n") if line.startswith("step 2"))
    assert "loss nan  name a b [2K  " in line and len(line) < 500
    progress, = events(attempt, "progress")
    assert progress["loss"] is None and progress["t"] == clock.time() and len(progress["many"]) == 100


class Broken:
    """A program's own stdout."""

    def write(self, text):
        raise RuntimeError("of my own")


@pytest.mark.parametrize("stdout", [None, Broken()])
def test_a_stdout_that_fails_costs_nothing(begin, monkeypatch, stdout):
    monkeypatch.setattr(sys, "stdout", stdout)
    with begin() as training:
        training.step(1)
        training.finish()


def test_an_ascii_stdout_shows_what_it_can(monkeypatch, tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        Lines(None).say("loss µ")
    assert (tmp_path / "out").read_text() == "loss \\xb5\n"


def test_step_opens_no_file(begin, attempt, clock):
    """A file server that hangs must not stop training: even a step that is due only queues."""
    with begin(total_steps=100) as training:
        training.step(1)
        clock.now += 30
        (attempt / "memory.csv").unlink(missing_ok=True)
        os.mkfifo(attempt / "memory.csv")           # opening it would wait for ever
        before = (attempt / "trainer.jsonl").stat().st_size
        training.step(2, loss=1.0)
        assert (attempt / "trainer.jsonl").stat().st_size == before
        training.finish()
