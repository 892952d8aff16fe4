"""Going back to an earlier checkpoint: what is decided, what is moved, and what nobody resumes from afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import POLICY, ended, event, job, queued, run_of, seen, start_record, started
from simulation.slurm import SimulatedSlurm
from test_withdraw import Still

from orchestrator.attempt import resume
from orchestrator.attempt.ending import Outcome, end_record
from orchestrator.attempt.trainer import TrainerLog
from orchestrator.checkpoints import complete_checkpoints, newest_complete
from orchestrator.control.ports import Ports
from orchestrator.control.requests import hold
from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Control
from orchestrator.errors import Refused, StorageError
from orchestrator.folders import run_dir
from orchestrator.journal import SCHEMA
from orchestrator.model import Phase, Run
from orchestrator.records import AttemptSpec
from orchestrator.rollback import set_aside_checkpoints, set_aside_newer

CONTROL = Control(seq=4, interval_s=POLICY.checkpoint_interval_s, save=1)
BACK = event("rollback", t=50.0, to_step=10, by="me", reason="me: a spike")


def after(run: Run, *events: dict[str, object]) -> Run:
    for one in events:
        changed = apply(run, one)
        assert changed is not None
        run = changed
    return run


# --- what is decided ----------------------------------------------------------------------------------------------------


def test_the_successor_goes_first_then_the_live_attempt_then_the_checkpoints_then_it_goes_on() -> None:
    run = after(run_of(queued(1), queued(2), started(1, 10)), BACK)
    living = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL)
    cancels = [a for a in decide(run, living, POLICY, 60.0) if isinstance(a, do.CancelJob)]
    assert [a.job_id for a in cancels] == ["102", "101"]
    assert not [a for a in decide(run, living, POLICY, 60.0) if isinstance(a, do.SetAside)]
    run = after(run, event("dropped", t=61.0, submission_id="s2"), ended(1, "cancelled", t=62.0))
    gone = seen(job(1, "CANCELLED"), job(2, "CANCELLED"), control=CONTROL)
    noted = {fact["event"] for fact in news(run, gone, POLICY, 63.0)}
    assert noted <= {"interval"}, "that its attempt was cancelled holds nothing"
    aside, = [a for a in decide(run, gone, POLICY, 63.0) if isinstance(a, do.SetAside)]
    assert aside.newer_than_step == 10
    run = after(run, event("rolled_back", t=64.0, to_step=10, epoch=6))
    assert (run.phase, run.rollback_step, run.rolled_back_epoch) == (Phase.ACTIVE, None, 6)
    back = replace(gone, checkpoint_step=10)
    assert [(type(a).__name__, a.why) for a in decide(run, back, POLICY, 65.0)] == [
        ("QueueAttempt", "rolled back: it goes on from step 10")]


def test_a_number_that_is_somebody_elses_by_now_is_left_alone() -> None:
    run = after(run_of(queued(1), started(1, 10)), BACK)
    assert not [a for a in decide(run, seen(control=CONTROL), POLICY, 60.0) if isinstance(a, do.CancelJob)]


@pytest.mark.parametrize("over", [event("finished", t=40.0), event("cancelled", t=40.0), event("held", t=40.0, by="orch")])
def test_a_run_that_is_over_or_held_goes_on_too(over: dict[str, object]) -> None:
    run = after(run_of(queued(1), started(1, 10), ended(1, "finished", t=30.0)), over, BACK)
    assert run.phase == Phase.ROLLING_BACK
    assert not [f for f in news(run, seen(), POLICY, 60.0) if f["event"] in ("finished", "held")]
    run = after(run, event("rolled_back", t=64.0, to_step=10, epoch=6))
    assert run.phase == Phase.ACTIVE and not [f for f in news(run, seen(), POLICY, 65.0) if f["event"] == "finished"]


def test_a_hold_meanwhile_is_refused_and_not_dropped_in_silence(tmp_path: Path) -> None:
    slurm = SimulatedSlurm(Still(), nodes=("n1",), now=60.0)
    ports = Ports(repository=tmp_path, slurm=slurm, policy=POLICY, clock=lambda: slurm.now, new_id=lambda: "id")
    run_dir(tmp_path, "a").mkdir(parents=True)
    journal(run_dir(tmp_path, "a"), [event("submit", t=0.0, schema=SCHEMA, spec=run_spec()), *queued(1), started(1, 59.0),
                                     BACK])
    with pytest.raises(Refused, match="goes back to step 10 first"):
        hold(ports, "a")


def test_what_is_being_cancelled_stays_so() -> None:
    run = after(run_of(queued(1), started(1, 10)), event("cancel", t=40.0), BACK)
    assert run.phase == Phase.CANCELLING


def test_a_save_that_is_asked_for_is_one_rise_in_control_json() -> None:
    run = after(run_of(queued(1), queued(2), started(1, 10)), event("save", t=50.0), event("save", t=51.0))
    written, = [a for a in decide(run, seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL), POLICY, 60.0)
                if isinstance(a, do.WriteControl)]
    assert (written.control.save, written.control.seq) == (2, 5)
    told = seen(job(1, "RUNNING"), job(2, "PENDING"), control=written.control)
    assert not [a for a in decide(run, told, POLICY, 60.0) if isinstance(a, do.WriteControl)]


# --- what is moved ------------------------------------------------------------------------------------------------------


def save(run_dir: Path, step: int) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(b"x")
    (folder / "COMPLETE").write_text(json.dumps({"step": step, "saved_at": float(step), "files": {"state": 1}, "epoch": 5}))
    return folder


def test_newer_ones_are_moved_whole_and_the_epoch_rises(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / "epoch").write_text("000000000005\n")
    assert set_aside_newer(tmp_path, 10, "set-aside-50") == (["step-00000020", "step-00000030"], 6)
    assert [one.step for one in complete_checkpoints(tmp_path / "checkpoints")] == [10]
    assert [one.step for one in complete_checkpoints(tmp_path / "checkpoints" / "set-aside-50")] == [20, 30]
    assert (tmp_path / "epoch").read_text() == "000000000006\n", "whoever lives on publishes nothing"


def test_what_a_killed_pass_began_is_finished(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    aside = tmp_path / "checkpoints" / "set-aside-50"
    aside.mkdir()
    os.rename(tmp_path / "checkpoints" / "step-00000030", aside / "step-00000030")
    assert set_aside_newer(tmp_path, 10, "set-aside-50") == (["step-00000020", "step-00000030"], 0)


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_set_aside_comes_back_whole_and_what_was_saved_since_goes(tmp_path: Path, killed: bool) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    set_aside_newer(tmp_path, 10, "set-aside-50")
    for step in (15, 35):
        save(tmp_path, step)
    torn = save(tmp_path, 20)
    (torn / "state").unlink()
    back = "set-aside-50/step-00000030"
    for _ in range(1 + killed):         # a pass that was killed before its last line does it again
        names, _ = set_aside_newer(tmp_path, 10, "set-aside-90", back, 30)
    assert names == ["step-00000015", "step-00000020", "step-00000035"]
    folder = tmp_path / "checkpoints"
    assert [one.step for one in complete_checkpoints(folder)] == [10, 20, 30]
    aside = set_aside_checkpoints(folder, ["set-aside-90", "set-aside-50", "set-aside-gone"])
    assert [(name, one.step) for name, one in aside.items()] == [
        ("set-aside-50/step-00000040", 40), ("set-aside-90/step-00000015", 15), ("set-aside-90/step-00000035", 35)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("renames", range(5))
def test_a_pass_that_was_killed_anywhere_while_it_brought_them_back_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int,
) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    set_aside_newer(tmp_path, 10, "set-aside-50")
    for step in (20, 35):               # 20 is of two histories
        save(tmp_path, step)
    rename, left = os.rename, [renames]

    def killed_after(source: Path, target: Path) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        rename(source, target)

    monkeypatch.setattr(os, "rename", killed_after)
    if renames < 4:
        with pytest.raises(Killed):
            set_aside_newer(tmp_path, 10, "set-aside-90", "set-aside-50/step-00000030", 30)
    monkeypatch.setattr(os, "rename", rename)
    names, _ = set_aside_newer(tmp_path, 10, "set-aside-90", "set-aside-50/step-00000030", 30)
    assert names == ["step-00000020", "step-00000035"]
    folder = tmp_path / "checkpoints"
    assert [one.step for one in complete_checkpoints(folder)] == [10, 20, 30]
    assert [one.step for one in complete_checkpoints(folder / "set-aside-50")] == [40]
    assert [one.step for one in complete_checkpoints(folder / "set-aside-90")] == [20, 35]


def test_up_to_which_step_what_was_set_aside_and_what_is_live_are_one_history() -> None:
    def back(run: Run, to_step: int, into: str, checkpoint: str = "", names: list[str] | None = None) -> Run:
        run = after(run, event("rollback", t=50.0, to_step=to_step, checkpoint=checkpoint or f"step-{to_step}", reason="x"))
        aside, = [a for a in decide(run, seen(control=CONTROL), POLICY, 63.0) if isinstance(a, do.SetAside)]
        kept.append(aside.newer_than_step)
        return after(run, event("rolled_back", t=64.0, to_step=to_step, epoch=6, into=into, set_aside=names or ["step-x"]))

    kept: list[int] = []
    run = run_of(queued(1), started(1, 10), ended(1, "cancelled", t=20.0))
    run = back(run, 10, "set-aside-1")
    run = back(run, 5, "set-aside-2")
    assert run.set_aside == {"set-aside-1": 5, "set-aside-2": 5}
    run = back(run, 30, "set-aside-3", "set-aside-1/step-30")
    assert kept == [10, 5, 5], "what was saved behind step 5 since is of another history than step 30"
    assert run.set_aside == {"set-aside-1": 5, "set-aside-2": 5, "set-aside-3": 5}
    assert (run.rollback_step, run.phase) == (None, Phase.ACTIVE)


def test_nothing_newer_makes_no_folder(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert set_aside_newer(tmp_path, 10, "set-aside-50") == ([], 0)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000010"]


def test_trackers_of_frameworks_name_the_chosen_one(tmp_path: Path) -> None:
    from test_layouts import deepspeed, megatron

    folder = tmp_path / "checkpoints"
    megatron(folder, 10, 20, tracker="20\n")
    deepspeed(folder, "global_step10", "global_step20", latest="global_step20")
    set_aside_newer(tmp_path, 10, "set-aside-50")
    assert (folder / "latest_checkpointed_iteration.txt").read_text().strip() == "10"
    assert (folder / "latest").read_text() == "global_step10"
    newest = newest_complete(folder)
    assert newest is not None and newest.step == 10
    assert [one.step for one in set_aside_checkpoints(folder, ["set-aside-50"]).values()] == [20, 20]
    set_aside_newer(tmp_path, 10, "set-aside-90", "set-aside-50/iter_0000020", 20)
    assert (folder / "latest_checkpointed_iteration.txt").read_text().strip() == "20"
    newest = newest_complete(folder)
    assert newest is not None and newest.step == 20 and newest.path.name == "iter_0000020"


def test_somebody_who_publishes_just_now_is_waited_for_by_the_next_pass(tmp_path: Path) -> None:
    save(tmp_path, 20)
    (tmp_path / "epoch").write_text("000000000005\n")
    hold = ("import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); "
            "sys.stdin.read()")
    holder = subprocess.Popen([sys.executable, "-c", hold, tmp_path / "epoch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"     # a lock is a process's: another one has it
    with pytest.raises(StorageError, match="is locked"):
        set_aside_newer(tmp_path, 10, "set-aside-50")
    holder.communicate(timeout=10)
    assert (tmp_path / "checkpoints" / "step-00000020").exists()


# --- what nobody resumes from ---------------------------------------------------------------------------------------------


def test_a_nodes_own_copy_from_before_is_not_resumed_from(tmp_path: Path) -> None:
    local = tmp_path / "nvme"
    save(tmp_path, 10)
    save(tmp_path / "nvme-run", 30)
    os.rename(tmp_path / "nvme-run" / "checkpoints", local)
    before = [start_record(5, started_at=40.0)]
    lines = [event("submit", t=0.0, schema=SCHEMA, spec=run_spec())]
    journal(tmp_path, lines)
    chosen, _ = resume.choose(tmp_path, before, str(local))
    assert chosen is not None and chosen.step == 30
    journal(tmp_path, [*lines, BACK, event("rolled_back", t=64.0, to_step=10, epoch=6)])
    chosen, _ = resume.choose(tmp_path, before, str(local))
    assert chosen is not None and chosen.step == 10
    new = start_record(7, started_at=30.0)  # by a clock that is slow
    assert resume.of_this_history(tmp_path, [*before, new]) == [new]
    (tmp_path / "attempts" / "0007").mkdir(parents=True)
    (tmp_path / "attempts" / "0007" / "start.json").write_text(new.to_json())
    written = end_record(AttemptSpec(
        tag="a", repository="/repo", run_dir=str(tmp_path), number=7, submission_id="s7", lead_s=60.0, signal="TERM",
        time_limit_s=3600.0, interval_s=30.0, keep=3, gres="", finished_when=None, env_file=None, local_dir=str(local)),
        new, Outcome(), TrainerLog(tmp_path / "none.jsonl"), now=70.0, provisional=False)
    assert written.checkpoint_step == 10, "else a crash without progress would count as one with"
    resume.remove_strangers(str(local), [new])
    assert not list(local.iterdir()), "a new save of step 30 must not find the old one"


def run_spec() -> dict[str, object]:
    from dataclasses import asdict

    from builders import SPEC

    return asdict(SPEC)


def journal(run_dir: Path, events: list[dict[str, object]]) -> None:
    (run_dir / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
