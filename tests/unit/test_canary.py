"""The resume canary: what proves that a training goes on where it was, what proves that it does not, and what it leads to."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started
from hypothesis import given
from hypothesis import strategies as st

from orch_trainer.shell import EXIT_GO_ON, should_save
from orchestrator.core import actions as do
from orchestrator.core import canary
from orchestrator.core.canary import judge
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Control
from orchestrator.model import Canary, Phase, Run
from orchestrator.planner import exposure
from orchestrator.planner.pooled import Counted
from orchestrator.trainer_lines import read_lines
from orchestrator.views.facts import run_as_json

Line = dict[str, Any]


def told(name: str, **keys: Any) -> Line:
    return {"t": 0.0, "event": name, **keys}


def progress(losses: list[float | None], begin: int = 0) -> list[Line]:
    return [told("progress", step=begin + 10 * number, loss=loss) for number, loss in enumerate(losses, 1)]


BEFORE = [*progress([4.0, 3.1, 2.6, 2.4, 2.45, 2.38]), told("saved", step=60)]


def after(first: int, *losses: float | None) -> list[Line]:
    return [told("first_step", step=first), *progress(list(losses), first)]


def test_step_and_loss_go_on() -> None:
    proof = judge(BEFORE, after(61, 2.41, 2.36), 60)
    assert proof is not None and proof.is_good and (proof.saved_step, proof.first_step) == (60, 61)


def test_the_same_step_again_is_no_loss() -> None:
    """A trainer that was stopped in an evaluation evaluates that step once more."""
    proof = judge(BEFORE, after(60, 2.41, 2.36), 60)
    assert proof is not None and proof.is_good


@pytest.mark.parametrize("first", [0, 1, 59])
def test_a_training_that_begins_again_is_found_at_once(first: int) -> None:
    proof = judge(BEFORE, after(first), 60)
    assert proof is not None and not proof.is_good
    assert proof.words == f"step 60 was saved and is to be resumed from, and training went on at step {first}"


def test_weights_that_were_not_loaded_are_found_by_the_loss() -> None:
    proof = judge(BEFORE, after(61, 4.1, 3.3), 60)
    assert proof is not None and not proof.is_good
    assert "the loss was 2.45 before and is 3.3 behind it" in proof.words


def test_a_loss_that_falls_steeply_has_no_noise_for_that() -> None:
    steep = [*progress([4.62, 3.15, 1.98, 1.19, 1.02]), told("saved", step=60)]
    proof = judge(steep, after(61, 4.25, 3.2), 60)
    assert proof is not None and not proof.is_good
    proof = judge(steep, after(61, 1.01, 1.02), 60)
    assert proof is not None and proof.is_good


def test_one_outlier_proves_nothing() -> None:
    proof = judge(BEFORE, after(61, 9.0, 2.4), 60)
    assert proof is not None and proof.is_good


def test_what_was_learnt_behind_the_checkpoint_is_lost_by_design() -> None:
    """After a roll-back, or a crash long after its last save, the loss begins again where that checkpoint was."""
    lines = [*progress([4.0, 3.95, 3.9, 3.8, 3.7, 2.0, 1.0, 0.5, 0.4]), told("saved", step=90)]
    proof = judge(lines, after(51, 3.6, 3.5), 50)
    assert proof is not None and proof.is_good and proof.saved_step == 50 and proof.loss_before == 3.8
    proof = judge(lines, after(51, 9.0, 8.0), 50)
    assert proof is not None and not proof.is_good


@pytest.mark.parametrize(("first", "losses", "is_good"), [
    (61, (2.4, 2.36), True), (61, (4.1, 3.3), False), (1, (4.1, 3.3), False)])
def test_whoever_looks_hours_later_comes_to_the_same_verdict(
    tmp_path: Path, first: int, losses: tuple[float, ...], is_good: bool,
) -> None:
    """The daemon was away: the first step and the losses behind it stand at the begin of a long file."""
    lines = [told("start"), *after(first, *losses), *progress([1.0] * 10_000, 1000)]
    (tmp_path / "trainer.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_lines(tmp_path)
    assert len(found) < len(lines) / 2, "of which only the ends are read"
    proof = judge(BEFORE, found, 60)
    assert proof is not None and proof.is_good == is_good and proof == judge(BEFORE, lines, 60)


@pytest.mark.parametrize("lines", [[], after(61), after(61, 4.1)])
def test_too_little_is_no_verdict(lines: list[Line]) -> None:
    assert judge(BEFORE, lines, 60) is None


@pytest.mark.parametrize(("saves", "is_good"), [((), None), ((70, 80), None), ((10, 20), False)])
def test_a_script_that_began_again_is_found_by_its_saves(
    tmp_path: Path, saves: tuple[int, ...], is_good: bool | None,
) -> None:
    """Its first step has no number."""
    environ = {"ORCH_RUN_DIR": str(tmp_path), "ORCH_ATTEMPT_DIR": str(tmp_path)}
    assert should_save(environ, 100.0) == EXIT_GO_ON
    lines = [*read_lines(tmp_path), *(told("saved", step=step) for step in saves)]
    assert lines[0]["event"] == "first_step"
    proof = judge([told("saved", step=60)], lines, 60)
    assert (proof and proof.is_good) == is_good


@pytest.mark.parametrize("losses", [(None, None), (2.4, None)])
def test_without_losses_the_step_alone_counts_and_that_is_said(losses: tuple[float | None, ...]) -> None:
    proof = judge(BEFORE, after(61, *losses), 60)
    assert proof is not None and proof.is_good and "too few losses" in proof.words


@given(st.integers(0, 10_000), st.floats(0.001, 0.1))
def test_noise_alone_breaks_no_run(seed: int, noise: float) -> None:
    """A loss that falls from 4 to 2.3 with noise on each value, and goes on there."""
    dice = random.Random(seed)
    falling = [2 + 2 / (1 + n) + dice.gauss(0, noise) for n in range(6)]
    proof = judge([*progress(list(falling)), told("saved", step=60)],
                  after(61, 2.3 + dice.gauss(0, noise), 2.3 + dice.gauss(0, noise)), 60)
    assert proof is not None and proof.is_good


# --- what it leads to ---------------------------------------------------------------------------------------------------

CONTROL = Control(seq=1, interval_s=POLICY.checkpoint_interval_s)


def proving(*events: Any) -> Run:
    run = run_of(*events)
    return replace(run, canary=Canary.WANTED, spec=replace(SPEC, prove_resume=True))


def noted(run: Run, observation: Any, now: float = 50.0) -> Run:
    for fact in list(canary.news(run, observation)):
        changed = apply(run, {"t": now, **fact})
        assert changed is not None
        run = changed
    return run


def test_the_first_attempt_is_stopped_once_its_losses_show_their_noise() -> None:
    run = proving(queued(1), queued(2), started(1, 10))
    waiting = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL)
    assert noted(run, replace(waiting, lines={1: progress([4.0, 3.0, 2.0])})).canary == Canary.WANTED
    assert (run_as_json(run)["resume_proof"]["state"], run_as_json(run)["resume_proof"]["reason"]) == ("wanted", None)
    silent = replace(waiting, lines={1: progress([None] * 5)})
    assert noted(run, silent).canary == Canary.STOPPING, "then the step alone counts"
    enough = replace(waiting, lines={1: BEFORE})
    run = noted(run, enough)
    assert run.canary == Canary.STOPPING
    assert noted(run, enough) == run, "said once"
    stop, = [a for a in decide(run, enough, POLICY, 60.0) if isinstance(a, do.StopJob)]
    assert stop.job_id == "101"
    asked = apply(run, event("asked", t=60.0, kind="stop", job_id="101"))
    assert asked is not None
    assert not [a for a in decide(asked, enough, POLICY, 61.0) if isinstance(a, do.StopJob)]


@pytest.mark.parametrize("for_now", [True, False])
def test_it_is_stopped_too_where_there_is_no_room_for_a_successor(for_now: bool) -> None:
    run = proving(queued(1), started(1, 10), queued(2)[:1],
                  event("rejected", submission_id="s2", reason="QOSMaxSubmitJobPerUserLimit", for_now=for_now))
    living = seen(job(1, "RUNNING"), control=CONTROL, lines={1: BEFORE})
    assert [a.job_id for a in decide(noted(run, living), living, POLICY, 60.0) if isinstance(a, do.StopJob)] == ["101"]


def test_an_attempt_that_saves_nothing_at_its_notice_is_not_stopped_for_ever() -> None:
    run = replace(proving(queued(1), queued(2), started(1, 10)), canary=Canary.STOPPING, canary_epoch=1)
    for fact in (event("asked", t=20.0, kind="stop", job_id="101"), ended(1, "preempted-unsaved", t=3610.0)):
        changed = apply(run, fact)
        assert changed is not None
        run = changed
    assert exposure.platform(exposure.exposed(run, 4000.0)) == Counted(interruptions=0, hours=1.0), "no interruption"
    run = noted(run, seen(job(2, "RUNNING"), lines={1: progress([4.0, 3.0, 2.0, 1.0])}))
    assert (run.canary, run.phase) == (Canary.BROKEN, Phase.HELD)
    assert run.phase_reason == "resume is broken: attempt 1 was given notice and saved nothing"


def test_what_was_trained_before_it_was_submitted_again_proves_nothing() -> None:
    """Another job.sh may have other losses: its own first attempt is stopped."""
    run = proving(queued(1), queued(2), started(1, 10), ended(1, "cancelled", t=20.0), event("cancelled", t=21.0),
                  event("reopened", t=22.0), started(2, 30, resume_step=60))
    run = noted(run, seen(job(2, "RUNNING"), lines={1: BEFORE, 2: after(61, 9.0, 8.0, 7.9, 7.8, 7.7)}))
    assert (run.canary, run.canary_epoch, run.phase) == (Canary.STOPPING, 2, Phase.ACTIVE)


@pytest.mark.parametrize(("resume_step", "first", "canary"), [
    (None, 1, Canary.STOPPING), (60, 61, Canary.PROVEN), (60, 1, Canary.BROKEN)])
def test_copies_on_a_node_that_is_gone_are_not_to_be_resumed_from(
    resume_step: int | None, first: int, canary: Canary,
) -> None:
    """Two levels, and nothing is in the shared folder yet: the next attempt, elsewhere, begins anew as it must."""
    run = proving(queued(1), queued(2), started(1, 10), ended(1, "node-failure", t=20.0),
                  started(2, 30, resume_step=resume_step))
    local = [{**line, "level": "local"} if line["event"] == "saved" else line for line in BEFORE]
    run = noted(run, seen(job(2, "RUNNING"), lines={1: local, 2: after(first, 2.4, 2.4, 2.4, 2.4, 2.4)}))
    assert run.canary == canary


def test_a_later_attempt_that_ended_first_is_not_what_was_before() -> None:
    """Slurm is silent, and nobody knows yet how the first one ended; the second one has trained, saved and ended since."""
    run = proving(queued(1), queued(2), started(1, 10), started(2, 51, resume_step=60),
                  ended(2, "crash", t=90.0, checkpoint_step=120))
    later = [*after(61, 2.3, 2.2), told("saved", step=120)]
    assert noted(run, seen(silent="no answer", lines={1: [*after(1, 4.0), *BEFORE], 2: later})).canary != Canary.BROKEN


def test_one_that_waits_again_is_not_stopped() -> None:
    """scancel would try again for half a minute, and nothing else would be done."""
    run = replace(proving(queued(1), queued(2), started(1, 10)), canary=Canary.STOPPING, canary_epoch=1)
    waits = seen(job(1, "PENDING"), job(2, "PENDING"), control=CONTROL)
    assert not [a for a in decide(run, waits, POLICY, 60.0) if isinstance(a, do.StopJob)]


def resumed() -> Run:
    run = proving(queued(1), queued(2), queued(3), started(1, 10))
    run = replace(run, canary=Canary.STOPPING, canary_epoch=1)
    for fact in (ended(1, "preempted-saved", t=50.0, checkpoint_step=60),
                 started(2, 51, resume_step=60)):
        changed = apply(run, fact)
        assert changed is not None
        run = changed
    return run


def test_a_good_resume_is_noted_and_nothing_else_happens() -> None:
    run = noted(resumed(), seen(lines={1: BEFORE, 2: after(61, 2.4, 2.4)}))
    assert (run.canary, run.phase) == (Canary.PROVEN, Phase.ACTIVE)


def test_a_broken_resume_holds_the_run_and_ends_what_runs() -> None:
    observation = seen(job(2, "RUNNING"), job(3, "PENDING"), control=CONTROL, lines={1: BEFORE, 2: after(1, 4.0, 3.0)})
    run = noted(resumed(), observation)
    assert (run.canary, run.phase) == (Canary.BROKEN, Phase.HELD)
    assert run_as_json(run)["resume_proof"] == {
        "state": "broken", "attempt": 2, "saved_step": 60, "first_step": 1, "loss_before": None, "loss_after": None,
        "noise": None, "reason": "step 60 was saved and is to be resumed from, and training went on at step 1"}
    assert run.phase_reason == ("resume is broken: step 60 was saved and is to be resumed from, and training went on at "
                                "step 1")
    cancelled = {a.job_id for a in decide(run, observation, POLICY, 60.0) if isinstance(a, do.CancelJob)}
    assert cancelled == {"102", "103"}
    released = apply(run, event("released", t=70.0))
    assert released is not None and released.canary == Canary.NONE, "who releases it has seen the evidence"
    assert run_as_json(released)["resume_proof"] is None


def test_numbers_that_are_somebody_elses_by_now_are_left_alone() -> None:
    """Slurm has lost its state: it shows no job of ours, whatever runs under that number."""
    run = noted(resumed(), seen(job(2, "RUNNING"), lines={1: BEFORE, 2: after(1, 4.0, 3.0)}))
    assert run.canary == Canary.BROKEN
    assert not [a for a in decide(run, seen(control=CONTROL), POLICY, 60.0) if isinstance(a, do.CancelJob)]
    stopping = replace(proving(queued(1), queued(2), started(1, 10)), canary=Canary.STOPPING, canary_epoch=1)
    assert not [a for a in decide(stopping, seen(control=CONTROL), POLICY, 60.0) if isinstance(a, do.StopJob)]


def test_news_tell_it_in_their_turn() -> None:
    run = resumed()
    facts = news(run, seen(job(2, "RUNNING"), job(3, "PENDING"), lines={1: BEFORE, 2: after(1)}), POLICY, 60.0)
    assert [fact["event"] for fact in facts] == ["canary", "held"]
