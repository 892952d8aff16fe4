"""The fold: restart is replay, what is told twice counts once, what does not apply is ignored."""

from __future__ import annotations

from typing import Any

from builders import SPEC, ended, event, queued, run_of, started, submit
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.fold import apply, fold
from orchestrator.model import Ending, Phase, SubmissionState


def test_a_run_through_two_attempts() -> None:
    run = run_of(queued(1), queued(2), started(1, 10), ended(1, "limit-saved", 20, checkpoint_step=7, last_step=7),
                 started(2, 21, resume_step=7), queued(3), ended(2, "finished", 30), event("finished", 31, metrics={"x": 1}),
                 event("dropped", 32, submission_id="s3", reason="stood down"))
    assert run.phase == Phase.FINISHED and run.metrics == {"x": 1} and run.over
    assert [a.ending for a in run.attempts] == [Ending.LIMIT_SAVED, Ending.FINISHED]
    assert [s.state for s in run.submissions] == [SubmissionState.ENDED, SubmissionState.ENDED, SubmissionState.DROPPED]
    assert run.spec == SPEC and run.live is None and run.waiting == ()


def test_nothing_before_submit() -> None:
    assert fold([event("held")]) is None
    assert fold([]) is None


def test_first_telling_stands() -> None:
    run = run_of(queued(1), started(1, 10), started(1, 10), ended(1, "crash", 20), ended(1, "finished", 25))
    assert len(run.attempts) == 1 and run.attempts[0].ending == Ending.CRASH


def test_a_requeue_of_the_same_job_is_another_attempt() -> None:
    again = event("started", 30, number=2, submission_id="s1", job_id="101", restart_count=1, epoch=2, host="n2",
                  started_at=30)
    run = run_of(queued(1), started(1, 10), again)
    assert [(a.job_id, a.restart_count) for a in run.attempts] == [("101", 0), ("101", 1)]
    assert run.live is not None and run.live.epoch == 2


def test_held_released_cancelled() -> None:
    run = run_of(event("held", 5, by="user", reason="by hand"))
    assert (run.phase, run.held_by, run.phase_reason) == (Phase.HELD, "user", "by hand")
    assert run_of(event("held"), event("released")).phase == Phase.ACTIVE
    assert run_of(event("held", by="upstream"), event("cancel")).held_by == "", "whoever waits for it is told why it waits"
    assert run_of(event("cancel", now=False), event("cancel", now=True)).cancel_now
    assert run_of(event("cancel"), event("held")).phase == Phase.CANCELLING
    assert run_of(event("cancel"), event("cancelled"), event("finished")).phase == Phase.CANCELLED
    assert run_of(event("finished"), event("reopened")).phase == Phase.ACTIVE


_NAMES = ["queueing", "queued", "rejected", "lost", "dropped", "repointed", "asked", "paused", "resumed", "started",
          "ended", "held", "released", "cancel", "cancelled", "finished", "reopened", "note", "from-the-future"]


@st.composite
def _events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any order of any events, also nonsense: a journal edited by hand."""
    events = []
    for index in range(draw(st.integers(0, 25))):
        number = draw(st.integers(1, 4))
        events.append(event(
            draw(st.sampled_from(_NAMES)), float(index), number=number, submission_id=f"s{number}", job_id=str(100 + number),
            restart_count=draw(st.integers(0, 1)), epoch=number, host="n1", started_at=float(index), ended_at=float(index),
            ending=draw(st.sampled_from(list(Ending))), kind="cancel", dependency="singleton",
            checkpoint_step=draw(st.none() | st.integers(0, 9)), resume_step=draw(st.none() | st.integers(0, 9))))
    return events


@given(_events())
def test_any_journal_folds_and_replay_gives_the_same(events: list[dict[str, Any]]) -> None:
    whole = fold([submit(), *events])
    again = fold([submit()])
    for one in events:
        again = apply(again, one)
    assert whole == again and whole is not None
    assert whole.events == len(events) + 1
    assert len({s.id for s in whole.submissions}) == len(whole.submissions)
    assert len({a.epoch for a in whole.attempts if a.live}) == len([a for a in whole.attempts if a.live])


@given(_events())
def test_over_stays_over_until_a_person_asks(events: list[dict[str, Any]]) -> None:
    run = fold([submit()])
    for one in events:
        before, run = run, apply(run, one)
        assert before is not None and run is not None
        if before.over and one["event"] != "reopened":
            assert run.phase == before.phase


@given(_events())
def test_an_ending_is_never_rewritten(events: list[dict[str, Any]]) -> None:
    run = fold([submit()])
    told: dict[int, str] = {}
    for one in events:
        run = apply(run, one)
        assert run is not None
        for index, attempt in enumerate(run.attempts):
            if index in told:
                assert told[index] == attempt.ending
            elif attempt.ending is not None:
                told[index] = attempt.ending
