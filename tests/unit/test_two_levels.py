"""Checkpoints on two levels: what is saved where, resumed from, removed; and how often, by planner's numbers."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started
from hearing import hear
from test_decide import settle

from orch_trainer import Training
from orch_trainer.checkpoint import Checkpoints
from orch_trainer.complete import complete_checkpoints
from orch_trainer.fence import Fence
from orch_trainer.files import Files, nobody_elses
from orchestrator.attempt import resume
from orchestrator.core.levels import elsewhere_share, levels
from orchestrator.core.measures import Measured, Spread, measure
from orchestrator.core.reliability import restarts, setting, worth_changing
from orchestrator.core.script import attempt_spec
from orchestrator.model import Policy, Run
from orchestrator.planner.levels import Local, Shared, two_levels
from orchestrator.planner.pooled import NOTHING_COUNTED as ALONE
from orchestrator.records import StartRecord
from orchestrator.trainer_lines import read_lines
from orchestrator.views.interval import interval_lines


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> SimpleNamespace:
    """Epoch 7; saves every 10 s to the node, every 100 s to the shared folder."""
    run_dir, local = tmp_path / "runs" / "a", tmp_path / "node"
    (run_dir / "attempts" / "0001").mkdir(parents=True)
    (run_dir / "epoch").write_text("7")
    environ = {"ORCH_RUN_DIR": str(run_dir), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1", "ORCH_CHECKPOINT_INTERVAL_S": "100",
               "ORCH_LOCAL_DIR": str(local), "ORCH_LOCAL_INTERVAL_S": "10"}
    clock = Clock()

    def training(**keys: Any) -> Training:
        return Training(environ=environ, clock=clock, background=False, **keys)

    def steps() -> tuple[list[int], list[int]]:
        return tuple([one.step for one in complete_checkpoints(folder)]
                     for folder in (local, run_dir / "checkpoints"))  # type: ignore[return-value]

    return SimpleNamespace(dir=run_dir, local=local, environ=environ, clock=clock, training=training, steps=steps)


def train(run: SimpleNamespace, training: Training, steps: range) -> None:
    """A second a step; asked after each."""
    for step in steps:
        run.clock.now += 1.0
        training.step(step)
        if training.should_save():
            with training.saving(step) as folder:
                (folder / "state").write_text(str(step))


def stop(run: SimpleNamespace, training: Training, left_s: float = 60.0) -> None:
    (run.dir / "attempts" / "0001" / "notice.json").write_text(
        json.dumps({"reason": "limit", "deadline": run.clock.now + left_s}))
    hear(training)


def test_often_to_the_node_and_seldom_to_the_shared_folder(run: SimpleNamespace) -> None:
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 126))
        raise KeyError
    assert run.steps() == ([110, 120], [100])
    lines = map(json.loads, (run.dir / "attempts" / "0001" / "trainer.jsonl").read_text().splitlines())
    saved = [(line["step"], line.get("level")) for line in lines if line["event"] == "saved"]
    assert saved == [(step, None if step == 100 else "local") for step in range(10, 130, 10)]


def test_the_last_save_goes_to_the_shared_folder_and_what_lies_on_the_node_is_removed(run: SimpleNamespace) -> None:
    with pytest.raises(SystemExit) as left, run.training() as training:
        train(run, training, range(1, 16))
        stop(run, training)
        train(run, training, range(16, 17))
        assert training.should_stop()
    assert left.value.code == 75
    assert run.steps() == ([], [16])
    assert os.listdir(run.local) == []


def test_a_step_that_is_saved_on_the_node_alone_is_saved_for_other_nodes_too_at_the_notice(run: SimpleNamespace) -> None:
    """The notice came while it was being saved there."""
    with pytest.raises(SystemExit), run.training() as training:
        train(run, training, range(1, 11))
        stop(run, training)
        train(run, training, range(10, 11))
        assert training.should_stop()
    assert run.steps() == ([], [10])


def test_what_was_resumed_from_is_no_third_copy_on_the_node(run: SimpleNamespace) -> None:
    """The folder may lie in memory, which counts against the job's."""
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 21))
        raise KeyError
    run.environ.update(ORCH_ATTEMPT="2", ORCH_EPOCH="8", ORCH_RESUME_FROM=str(run.local / "step-00000020"))
    (run.dir / "epoch").write_text("8")
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(21, 31))
        assert run.steps() == ([20, 30], [])
        train(run, training, range(31, 51))
        raise KeyError
    assert run.steps() == ([40, 50], [])


def test_a_write_to_the_node_that_hangs_is_called_so(run: SimpleNamespace) -> None:
    """Else the next save there would not tell that it was over."""
    go = threading.Event()
    with Training(environ=run.environ, clock=run.clock) as training:
        train(run, training, range(1, 10))
        saving = training.saving(10, background=True)
        with saving as folder:
            (folder / "state").write_text("10")
            saving.rest(lambda: go.wait(10))
        for _ in range(2):
            run.clock.now += 700.0
            training.step(11)
        assert not training.should_save()
        go.set()
        training.finish()
    failed, = [line for line in read_lines(run.dir / "attempts" / "0001") if line["event"] == "save_failed"]
    assert (failed["level"], "is not usable" in failed["error"]) == ("local", True)


def test_a_full_disk_of_the_node_is_called_so(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 10))
        run.clock.now += 1
        training.step(10)
        assert training.should_save()
        with training.saving(10):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise KeyError
    assert "WARNING: no local checkpoint of step 10: " in capsys.readouterr().out
    failed, = [line for line in read_lines(run.dir / "attempts" / "0001") if line["event"] == "save_failed"]
    assert failed["level"] == "local"


def test_a_finished_run_leaves_nothing_on_the_node(run: SimpleNamespace) -> None:
    with run.training() as training:
        train(run, training, range(1, 16))
        (run.local / ".damaged-step-00000003-6-1-0").mkdir()
        training.finish()
    assert os.listdir(run.local) == []


def test_a_node_without_the_folder_has_one_level(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    run.local.write_text("in the way")
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 126))
        raise KeyError
    assert [one.step for one in complete_checkpoints(run.dir / "checkpoints")] == [100]
    assert "WARNING: no local checkpoints" in capsys.readouterr().out


def test_the_fence_holds_for_the_node_too(run: SimpleNamespace) -> None:
    with pytest.raises(SystemExit) as left, run.training() as training:
        (run.dir / "epoch").write_text("8")
        train(run, training, range(1, 11))
    assert left.value.code == 76
    assert run.steps() == ([], [])


def test_both_intervals_come_from_control_json(run: SimpleNamespace) -> None:
    import zlib
    content = {"seq": 3, "interval_s": 50.0, "stop": None, "save": 0, "local_interval_s": 5.0}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (run.dir / "control.json").write_text(json.dumps({**content, "sum": f"{zlib.crc32(text.encode()):08x}"}))
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 53))
        raise KeyError
    assert run.steps() == ([40, 45], [50])


# --- resuming -------------------------------------------------------------------------------------------------------------


def saved(folder: Path, step: int, epoch: int) -> Path:
    it = Checkpoints(folder, Fence(None, epoch), attempt=1, keep=9, files=Files())
    made = it.temporary(step, os.getpid())
    it.begin(made)
    (made / "state").write_bytes(b"x" * 100)
    return it.publish(step, made, it.sync(made), saved_at=float(step)).path


def start(epoch: int) -> StartRecord:
    return StartRecord(number=1, submission_id="s", job_id="1", restart_count=0, epoch=epoch, host="h", boot_id="", pid=1,
                       pid_start=1, started_at=1.0)


@pytest.mark.parametrize(("shared", "local", "chosen"), [
    ([10], [15], ("node", 15)),
    ([20], [15], ("checkpoints", 20)),
    ([10], [], ("checkpoints", 10)),       # another node, or memory after a reboot
    ([], [15], ("node", 15)),
])
def test_the_newest_of_both_is_resumed_from(
        tmp_path: Path, shared: list[int], local: list[int], chosen: tuple[str, int]) -> None:
    for name, steps in (("checkpoints", shared), ("node", local)):
        for step in steps:
            saved(tmp_path / name, step, 7)
    found, wrong = resume.choose(tmp_path, [start(7)], str(tmp_path / "node"))
    assert found is not None
    assert (found.path.parent.name, found.step, wrong) == (*chosen, [])


def test_a_damaged_local_copy_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoints", 10, 7)
    (saved(tmp_path / "node", 15, 7) / "state").write_bytes(bytes(100))
    found, wrong = resume.choose(tmp_path, [start(7)], str(tmp_path / "node"))
    assert found is not None
    assert (found.step, len(wrong)) == (10, 1)


def test_what_an_earlier_run_of_the_same_name_left_on_the_node_is_not_this_runs(tmp_path: Path) -> None:
    old, own = saved(tmp_path / "node", 900, 6), saved(tmp_path / "node", 15, 8)
    starts = [start(7), start(8)]
    found, _ = resume.choose(tmp_path, starts, str(tmp_path / "node"))
    assert found is not None
    assert found.step == 15
    assert resume.choose(tmp_path, [], str(tmp_path / "node"))[0] is None
    resume.remove_strangers(str(tmp_path / "node"), starts)
    assert (old.exists(), own.exists()) == (False, True)
    resume.remove_strangers(str(tmp_path / "gone"), starts)
    resume.remove_strangers("", starts)


# --- how often --------------------------------------------------------------------------------------------------------------

BOTH = replace(POLICY, checkpoint_local="/dev/shm/orch", checkpoint_interval_s=None, checkpoint_at_most_s=1e6)


def took(seconds: float) -> Spread:
    return Spread(median=seconds, low=seconds, high=seconds, count=9)


def test_the_intervals_are_the_planners() -> None:
    found = Measured(stall_s=took(70.0), durable_s=took(70.0), local_stall_s=took(10.0), local_durable_s=took(10.0))
    both = levels(run_of(), found, BOTH, mtbi_s=360_000.0, restart_s=0.0, segment_s=1e6)
    assert both is not None and both.shared is not None
    assert both.elsewhere == 0.5
    expected = two_levels(Local(stall_s=10.0, durable_s=10.0, restart_s=0.0),
                          Shared(stall_s=60.0, write_s=0.0, restart_s=0.0), mtbi_s=360_000.0, shared_share=0.5)
    assert both.local.interval_s == pytest.approx(expected.local_interval_s, rel=0.01)   # Daly's against Young's
    assert both.shared.interval_s == pytest.approx((2 * 60.0 * 720_000.0) ** 0.5, rel=0.01)
    assert both.waste is not None
    assert both.waste.total == pytest.approx(expected.waste, rel=0.05)                   # there T2 is a multiple of T1


LONG = replace(SPEC, profile=replace(SPEC.profile, time_s=1e7))


def measured(shared_s: float, local_s: float, count: int = 9) -> Measured:
    shared, local = (Spread(median=s, low=s, high=s, count=count) for s in (shared_s, local_s))
    return Measured(stall_s=shared, durable_s=shared, local_stall_s=local, local_durable_s=local)


def test_a_save_to_the_node_that_costs_as_much_helps_nobody() -> None:
    """A shared save that costs a hundredth more would be worth one of them ten times as often as to the node: then every save
    goes to the shared folder, at the T* of one level."""
    wanted = setting(run_of(spec=LONG), measured(5.05, 5.0), ALONE, BOTH, 0.0)
    one = setting(run_of(spec=LONG), measured(5.05, 5.0), ALONE, replace(BOTH, checkpoint_local=""), 0.0)
    assert wanted.levels is not None and wanted.levels.all_shared
    assert (wanted.choice, wanted.waste) == (one.choice, one.waste)
    assert wanted.levels.local.interval_s > wanted.choice.interval_s, "so that a trainer never comes to a save to its node"
    told = " ".join(interval_lines(wanted, restarts(run_of()), wanted.choice.interval_s))
    assert "no save goes to the node" in told
    in_force = wanted.choice.interval_s
    assert worth_changing(in_force, wanted, 60.0), "what goes to the node is stopped"
    assert not worth_changing(in_force, wanted, wanted.levels.local.interval_s)


def test_the_shared_interval_follows_what_its_saves_cost_more() -> None:
    """The T* of one level, in force until the node's level is measured, is no reason to stay there."""
    one = setting(run_of(spec=LONG), measured(70.0, 10.0), ALONE, replace(BOTH, checkpoint_local=""), 0.0)
    wanted = setting(run_of(spec=LONG), measured(70.0, 10.0, count=400), ALONE, BOTH, 0.0)
    assert wanted.levels is not None and wanted.choice == wanted.levels.shared
    local_s = wanted.levels.local.interval_s
    assert wanted.choice.interval_s > 1.2 * one.choice.interval_s
    assert worth_changing(one.choice.interval_s, wanted, local_s)
    assert not worth_changing(wanted.choice.interval_s, wanted, local_s)


@pytest.mark.parametrize(("factor", "count", "changes"), [
    (1.0, 9, False), (1.2, 9, False), (0.8, 9, False), (2.0, 400, True)])
def test_noise_in_what_a_save_to_the_node_costs_is_no_reason(factor: float, count: int, changes: bool) -> None:
    wanted = setting(run_of(spec=LONG), measured(70.0, 1.0, count), ALONE, BOTH, 0.0)
    assert wanted.levels is not None and wanted.levels.shared is not None
    assert worth_changing(wanted.choice.interval_s, wanted, factor * wanted.levels.local.interval_s) is changes


@pytest.mark.parametrize(("hosts", "endings", "q"), [
    ("", "", 0.5), ("aa", "crash", 1 / 3), ("ab", "node-failure", 2 / 3), ("aaab", "crash,crash,node-failure", 2 / 5),
    ("aaaa", "limit-saved,limit-saved,limit-saved", 0.5)])
def test_how_often_the_next_attempt_ran_elsewhere_is_counted(hosts: str, endings: str, q: float) -> None:
    story: list[Any] = []
    for number, host in enumerate(hosts, 1):
        story += [queued(number), {**started(number), "host": host}]
        if number < len(hosts):
            story.append(ended(number, endings.split(",")[number - 1]))
    assert elsewhere_share(run_of(*story)) == pytest.approx(q)


def test_by_hand_and_before_anything_is_measured() -> None:
    by_hand = replace(BOTH, checkpoint_local_interval_s=20.0)
    often = replace(BOTH, checkpoint_at_most_s=100.0)
    measured = Measured(local_stall_s=took(9.0))
    for policy, found, expected in (
            (BOTH, Measured(), 60.0), (often, Measured(), 25.0), (by_hand, measured, 20.0)):
        both = levels(run_of(), found, policy, mtbi_s=36_000.0, restart_s=0.0, segment_s=1e6)
        assert both is not None
        assert (both.local.interval_s, both.shared) == (expected, None)
    assert levels(run_of(), Measured(), POLICY, mtbi_s=1.0, restart_s=0.0, segment_s=1.0) is None


def trains(found: Measured, run: Run, policy: Policy = BOTH) -> Run:
    return settle(run, seen(job(1, "RUNNING"), measured=found), 10.0, policy)


def test_the_journal_and_control_json_have_both() -> None:
    found = Measured(stall_s=took(0.7), durable_s=took(0.7), local_stall_s=took(0.1), local_durable_s=took(0.1))
    run = trains(found, run_of(queued(1), started(1, 0.0)))
    assert run.local_interval_s is not None and run.interval_s is not None
    assert run.local_interval_s < run.interval_s
    again = trains(found, run_of(queued(1), started(1, 0.0), event(**{"name": "interval", "t": 10.0, **{
        k: v for k, v in run.interval.items() if k != "t"}})))
    assert again.events == 5                               # nothing new: the same interval stays


def test_saves_to_the_node_say_nothing_of_c() -> None:
    lines = [{"event": "saved", "stall_s": 9.0, "durable_s": 9.0}, {"event": "saved", "stall_s": 0.5, "durable_s": 0.6,
                                                                   "level": "local"}]
    found = measure([lines])
    assert found.stall_s is not None and found.local_stall_s is not None and found.local_durable_s is not None
    assert (found.stall_s.median, found.local_stall_s.median, found.local_durable_s.median) == (9.0, 0.5, 0.6)


@pytest.mark.parametrize(("nodes", "local", "expected"), [
    (1, None, "/dev/shm/orch/repo-"), (1, "/scratch", "/scratch/repo-"), (1, "none", ""), (2, None, "")])
def test_the_folder_of_a_run_on_its_node(nodes: int, local: str | None, expected: str) -> None:
    spec = replace(SPEC, local=local, profile=replace(SPEC.profile, nodes=nodes))
    told = attempt_spec(spec, spec.policy(BOTH), interval_s=60.0, run_dir=Path("/r"), number=1, submission_id="s")
    assert told.local_dir.startswith(expected)
    assert told.local_dir.endswith("/a" if expected else "")


@pytest.mark.parametrize(("mode", "above", "fine"), [
    (0o700, 0o755, True), (0o755, 0o1777, True), (0o777, 0o755, False), (0o1777, 0o755, False), (0o700, 0o777, False)])
def test_what_others_may_have_put_there_is_never_resumed_from(tmp_path: Path, mode: int, above: int, fine: bool) -> None:
    folder = tmp_path / "shm" / "node"
    saved(folder, 15, 7)
    folder.chmod(mode)
    folder.parent.chmod(above)
    assert nobody_elses(folder) is resume.nobody_elses(folder) is fine
    found, _ = resume.choose(tmp_path, [start(7)], str(folder))
    assert (found is not None) is fine


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make what is another's")
def test_what_is_anothers_is_never_resumed_from(tmp_path: Path) -> None:
    for path in (saved(tmp_path / "a" / "node", 15, 7).parent, saved(tmp_path / "b" / "node", 15, 7).parent.parent):
        os.chown(path, 12345, 12345)
    for name in "ab":
        assert resume.choose(tmp_path, [start(7)], str(tmp_path / name / "node")) == (None, [])


def test_a_run_does_not_save_where_others_write(run: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    run.local.mkdir()
    run.local.chmod(0o777)
    with pytest.raises(KeyError), run.training() as training:
        train(run, training, range(1, 126))
        raise KeyError
    assert os.listdir(run.local) == []
    assert "others may write there" in capsys.readouterr().out
