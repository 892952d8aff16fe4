"""Going back to an earlier checkpoint: what is decided, what is moved, and what nobody resumes from afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, start_record, started
from simulation.slurm import SimulatedSlurm
from test_withdraw import Still

from orchestrator.attempt import resume
from orchestrator.attempt.ending import Outcome, end_record
from orchestrator.attempt.trainer import TrainerLog
from orchestrator.checkpoints import complete_checkpoints, newest_complete
from orchestrator.cli.checkpoint import _target as checkpoint_named
from orchestrator.control import act
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, require_run
from orchestrator.control.requests import cancel, hold, rollback
from orchestrator.control.submit import submit
from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Control
from orchestrator.errors import Refused, StorageError
from orchestrator.folders import job_dir, run_dir
from orchestrator.journal import SCHEMA
from orchestrator.model import After, Phase, Run
from orchestrator.records import AttemptSpec
from orchestrator.rollback import keep_apart, set_aside_checkpoints, set_aside_newer

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
    assert (run.phase, run.rollback, run.rolled_back_epoch) == (Phase.ACTIVE, None, 6)
    back = replace(gone, checkpoint_step=10)
    assert [(type(a).__name__, a.why) for a in decide(run, back, POLICY, 65.0)] == [
        ("QueueAttempt", "rolled back: it goes on from step 10")]


def test_what_it_goes_back_to_is_out_of_the_trainers_reach_before_anything_ends() -> None:
    chosen = {**BACK, "checkpoint": "step-00000010"}
    run = after(run_of(queued(1), queued(2), started(1, 10)), chosen)
    living = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL)
    keep_it = do.KeepApart(checkpoint="step-00000010", into="set-aside-50-to-10", why="the run goes back to step 10")
    assert decide(run, living, POLICY, 60.0) == [keep_it]
    first, *others = decide(run, living, POLICY, 75.0)
    assert first == keep_it and [a.job_id for a in others if isinstance(a, do.CancelJob)] == ["102", "101"]
    apart = after(run, event("kept_apart", t=51.0, checkpoint="set-aside-50-to-10/step-00000010"))
    assert not [a for a in decide(apart, living, POLICY, 60.0) if isinstance(a, do.KeepApart)]
    assert apart.rollback is not None and apart.rollback.checkpoint == "set-aside-50-to-10/step-00000010"
    assert apart.set_aside == {"set-aside-50": 10, "set-aside-50-to-10": 10}
    gone = after(run, event("held", t=51.0, by="orch", reason="cannot go back"))
    assert (gone.phase, gone.phase_reason) == (Phase.HELD, "cannot go back")


class Submitted:
    """Run a, whose job has a node; it keeps three checkpoints."""

    def __init__(self, repository: Path) -> None:
        self.slurm, ids = SimulatedSlurm(Still(), nodes=("n1",), now=60.0), iter("vwxyz")
        self.ports = Ports(repository=repository, slurm=self.slurm, policy=POLICY, clock=lambda: self.slurm.now,
                           new_id=lambda: next(ids))
        self.folder = run_dir(repository, "a")
        job_dir(repository, "a").mkdir(parents=True)
        (job_dir(repository, "a") / "job.sh").write_text("true\n")
        submit(self.ports, replace(SPEC, repository=str(repository), profile=replace(SPEC.profile, gres="")))
        for step in (10, 20, 30):
            save(self.folder, step)

    def back(self, step: int) -> Run:
        return rollback(self.ports, "a", step=step, ago_s=None, by="me", why="a spike")[0]

    def save_and_remove(self, step: int) -> None:
        save(self.folder, step)
        for old in complete_checkpoints(self.folder / "checkpoints")[:-3]:
            shutil.rmtree(old.path)

    def ended(self) -> Run:
        self.slurm.tick(self.slurm.now + 100.0)
        pass_over_all(self.ports)
        return require_run(self.ports.repository, "a")

    def steps(self, aside: str = "") -> list[int]:
        return [one.step for one in complete_checkpoints(self.folder / "checkpoints" / aside)]


@pytest.fixture
def submitted(tmp_path: Path) -> Submitted:
    return Submitted(tmp_path)


def test_a_last_save_of_what_still_trains_removes_nothing_that_is_gone_back_to(submitted: Submitted) -> None:
    """Its save at the notice made the oldest go, which had been chosen: all others were set aside, and it began at 0."""
    assert submitted.back(10).phase == Phase.ROLLING_BACK
    submitted.save_and_remove(40)
    run = submitted.ended()
    assert (run.phase, submitted.steps()) == (Phase.ACTIVE, [10])
    assert submitted.steps("set-aside-60") == [20, 30, 40] and submitted.steps("set-aside-60-to-10") == []


def test_the_same_step_saved_once_more_meanwhile_is_set_aside(submitted: Submitted) -> None:
    submitted.back(30)
    save(submitted.folder, 30)
    submitted.ended()
    assert (submitted.steps(), submitted.steps("set-aside-60")) == ([10, 20, 30], [30])


def test_two_of_one_step_are_told_apart_by_their_names(submitted: Submitted) -> None:
    folder = submitted.folder / "checkpoints"
    os.rename(save(submitted.folder, 20 * 10), folder / "global_step20")
    marker = folder / "global_step20" / "COMPLETE"
    marker.write_text(marker.read_text().replace('"step": 200', '"step": 20'))
    with pytest.raises(Refused, match="2 complete checkpoints of step 20") as refused:
        submitted.back(20)
    assert refused.value.hint.startswith("there are: ") and "global_step20 (" in refused.value.hint
    assert "step-00000020 (" in refused.value.hint and "10 (" not in refused.value.hint
    assert [checkpoint_named(text) for text in ("20", "-1h", "global_step20", "set-aside-5/step-20")] == [
        (20, None, None), (None, 3600.0, None), (None, None, "global_step20"), (None, None, "set-aside-5/step-20")]
    rollback(submitted.ports, "a", step=None, ago_s=None, name="global_step20", by="me", why="a spike")
    submitted.ended()
    assert complete_checkpoints(folder)[-1].path.name == "global_step20"


def test_another_choice_meanwhile_counts(submitted: Submitted) -> None:
    submitted.back(10)
    submitted.slurm.now += 5.0
    submitted.back(20)
    submitted.slurm.now += 5.0
    back = submitted.back(10).rollback
    assert back is not None and back.checkpoint == "set-aside-60-to-10/step-00000010"
    run = submitted.ended()
    assert (run.phase, submitted.steps()) == (Phase.ACTIVE, [10])
    aside = set_aside_checkpoints(submitted.folder / "checkpoints", run.set_aside)
    assert sorted(one.step for one in aside.values()) == [20, 30]


def test_cancelled_meanwhile_it_is_shown_among_those_set_aside_and_gone_back_to_when_it_is_submitted_again(
    submitted: Submitted,
) -> None:
    submitted.back(30)
    cancel(submitted.ports, "a", now=True)
    run = submitted.ended()
    aside = set_aside_checkpoints(submitted.folder / "checkpoints", run.set_aside)
    assert (run.phase, list(aside), submitted.steps()) == (
        Phase.CANCELLED, ["set-aside-60-to-30/step-00000030"], [10, 20])
    submit(submitted.ports, run.spec, again=True)
    run = require_run(submitted.ports.repository, "a")
    assert (run.phase, run.rollback, submitted.steps()) == (Phase.ACTIVE, None, [10, 20, 30])


def test_by_age_the_same_one_is_chosen_once_more(submitted: Submitted) -> None:
    """Who had no answer asks again; the chosen one lies elsewhere by then."""
    for _ in range(2):
        run, chosen = rollback(submitted.ports, "a", step=None, ago_s=35.0, by="me", why="a spike")
        assert (chosen.step, run.phase) == (20, Phase.ROLLING_BACK)
    assert (submitted.ended().phase, submitted.steps()) == (Phase.ACTIVE, [10, 20])


def test_what_a_killed_pass_put_apart_is_not_met_by_the_same_step_saved_since(submitted: Submitted) -> None:
    assert keep_apart(submitted.folder, "step-00000010", "set-aside-60-to-10")
    save(submitted.folder, 10)
    submitted.back(10)
    assert (submitted.ended().phase, submitted.steps()) == (Phase.ACTIVE, [10])


def test_what_its_trainer_had_removed_by_then_holds_the_run_and_nothing_is_set_aside(
    submitted: Submitted, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_removed(run_dir: Path, checkpoint: str, into: str) -> bool:
        submitted.save_and_remove(40)
        return keep_apart(run_dir, checkpoint, into)

    monkeypatch.setattr(act, "keep_apart", first_removed)
    with pytest.raises(Refused, match="cannot go back: step-00000010 is no complete checkpoint any more"):
        submitted.back(10)
    run = submitted.ended()
    assert (run.phase, run.rollback, submitted.steps()) == (Phase.HELD, None, [20, 30, 40])


def test_one_that_went_back_and_is_held_by_its_upstream_is_not_refused(submitted: Submitted) -> None:
    spec = require_run(submitted.ports.repository, "a").spec
    job_dir(submitted.ports.repository, "b").mkdir()
    (job_dir(submitted.ports.repository, "b") / "job.sh").write_text("true\n")
    submit(submitted.ports, replace(spec, tag="b", after_tags={"a": After.FINISHED}))
    for tag in ("b", "a"):
        cancel(submitted.ports, tag, now=True)
    submitted.ended()
    save(run_dir(submitted.ports.repository, "b"), 10)
    run, _ = rollback(submitted.ports, "b", step=10, ago_s=None, by="me", why="a spike")
    assert (run.phase, run.held_by) == (Phase.HELD, "upstream")


def test_a_trainer_that_hangs_while_it_publishes_is_ended_all_the_same(submitted: Submitted) -> None:
    (submitted.folder / "epoch").write_text("000000000005\n")
    with held_by_another(submitted.folder / "epoch"):
        assert submitted.back(10).phase == Phase.ROLLING_BACK
        assert submitted.ended().phase == Phase.ROLLING_BACK
        submitted.slurm.tick(submitted.slurm.now + 100.0)
    assert not [job for job in submitted.slurm.jobs() if job.state in ("PENDING", "RUNNING")]
    assert (submitted.ended().phase, submitted.steps()) == (Phase.ACTIVE, [10])


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
    def back(run: Run, at: int, to_step: int, checkpoint: str = "") -> Run:
        name = checkpoint or f"step-{to_step}"
        run = after(run, event("rollback", t=float(at), to_step=to_step, checkpoint=name, reason="x"))
        assert run.rollback is not None
        if not checkpoint:
            run = after(run, event("kept_apart", t=50.0, checkpoint=f"{run.rollback.apart}/step-{to_step}"))
        aside, = [a for a in decide(run, seen(control=CONTROL), POLICY, 63.0) if isinstance(a, do.SetAside)]
        kept.append(aside.newer_than_step)
        return after(run, event("rolled_back", t=64.0, to_step=to_step, epoch=6, into=aside_into(run), set_aside=["x"]))

    def aside_into(run: Run) -> str:
        assert run.rollback is not None
        return run.rollback.into

    kept: list[int] = []
    run = run_of(queued(1), started(1, 10), ended(1, "cancelled", t=20.0))
    run = back(run, 31, 10)
    assert run.set_aside == {"set-aside-31": 10, "set-aside-31-to-10": 10}
    run = back(run, 31, 5)              # within a second
    assert run.set_aside == dict.fromkeys(("set-aside-31", "set-aside-31-to-10", "set-aside-32", "set-aside-32-to-5"), 5)
    run = back(run, 33, 30, "set-aside-31/step-30")
    assert kept == [10, 5, 5], "what was saved behind step 5 since is of another history than step 30"
    assert run.set_aside["set-aside-33"] == 5 and set(run.set_aside.values()) == {5}
    assert (run.rollback, run.phase) == (None, Phase.ACTIVE)


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
    with held_by_another(tmp_path / "epoch"), pytest.raises(StorageError, match="is locked"):
        set_aside_newer(tmp_path, 10, "set-aside-50")
    assert (tmp_path / "checkpoints" / "step-00000020").exists()


@contextmanager
def held_by_another(epoch: Path) -> Iterator[None]:
    """A lock is a process's: another one has it."""
    hold = ("import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print('held', flush=True); "
            "sys.stdin.read()")
    holder = subprocess.Popen([sys.executable, "-c", hold, epoch], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        holder.communicate(timeout=10)


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
    new = replace(start_record(7, started_at=30.0), resume_step=10)  # by a clock that is slow
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
