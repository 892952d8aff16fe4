"""What a run waits for: lost conditions take it out of the queue, transitively, and give it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started

from orchestrator.core.actions import CancelJob, QueueAttempt
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Observation
from orchestrator.core.pending import Upstream, why_lost
from orchestrator.core.told import in_queue
from orchestrator.model import After, Phase, Run
from orchestrator.views.campaign import tree

FAILED = run_of(event("held", by="orch", reason="attempt 1: crash"))
CANCELLED = run_of(event("cancelled", reason="by hand"))
TRAINING = run_of(queued(50), started(50, 1), queued(51))
WAITS = replace(SPEC, after_tags={"up": After.FINISHED})


def behind(run: Run | None, condition: After = After.FINISHED, tag: str = "up") -> tuple[Upstream, ...]:
    return (Upstream(tag=tag, condition=condition, run=run),)


def noted(run: Run, observation: Observation) -> Run:
    """The run once the journal knows what a pass would note; intervals left out."""
    for _ in range(9):
        facts = [fact for fact in news(run, observation, POLICY, 100.0) if fact["event"] != "interval"]
        if not facts:
            return run
        for fact in facts:
            changed = apply(run, {"t": 100.0, **fact})
            assert changed is not None
            run = changed
    raise AssertionError("news without end")


@pytest.mark.parametrize(("upstream", "why"), [
    (FAILED, "waits for up to finish; up is held: attempt 1: crash"),
    (CANCELLED, "waits for up to finish; up is cancelled: by hand"),
    (run_of(event("held", by="upstream", reason="waits for z to finish; z is cancelled")),
     "waits for up to finish; up waits for z to finish; z is cancelled")])
def test_a_lost_condition_takes_its_jobs_out_of_the_queue(upstream: Run, why: str) -> None:
    observation = seen(job(1, "PENDING"), job(2, "PENDING"), upstream=behind(upstream))
    run = noted(run_of(queued(1), queued(2), spec=WAITS), observation)
    assert (run.phase, run.held_by, run.phase_reason) == (Phase.HELD, "upstream", why)
    assert [a.job_id for a in decide(run, observation, POLICY, 100.0) if isinstance(a, CancelJob)] == ["102", "101"]
    assert run.failed, "so whatever waits for it is taken out too"
    assert noted(run, observation) == run, "said once"


@pytest.mark.parametrize("upstream", [
    None, TRAINING, run_of(event("held", by="user")), run_of(queued(1), started(1, 1), event("held", by="orch")),
    run_of(queued(1), event("cancel"))])
def test_what_may_still_come_is_waited_for(upstream: Run | None) -> None:
    run = run_of(queued(1), spec=WAITS)
    assert noted(run, seen(job(1, "PENDING"), upstream=behind(upstream))) == run


def test_any_end_will_do_where_that_was_asked_for() -> None:
    for upstream in (FAILED, CANCELLED):
        observation = seen(upstream=behind(upstream, After.ENDED))
        run = noted(run_of(spec=WAITS), observation)
        [queue] = [a for a in decide(run, observation, POLICY, 0.0) if isinstance(a, QueueAttempt)]
        assert run.phase == Phase.ACTIVE and queue.behind == ()


def test_standing_down_behind_others_is_no_reason_to_wait_long() -> None:
    stood = [[*queued(n), event("dropped", 50.0, submission_id=f"s{n}", why="stood down", reason="up has not finished")]
             for n in range(1, 9)]
    run = run_of(*stood, spec=WAITS)
    [queue] = [a for a in decide(run, seen(upstream=behind(TRAINING)), POLICY, 50.0) if isinstance(a, QueueAttempt)]
    assert queue.behind == ("151",) and queue.delay_s == POLICY.backoff_s
    [queue] = [a for a in decide(run, seen(upstream=behind(run_of(event("finished")))), POLICY, 50.0)
               if isinstance(a, QueueAttempt)]
    assert queue.delay_s > 10 * POLICY.backoff_s, "whatever keeps it from training now"


@pytest.mark.parametrize("again", [TRAINING, run_of(event("finished")), run_of(event("cancelled"), event("reopened"))])
def test_it_goes_on_by_itself_with_its_upstream(again: Run) -> None:
    run = run_of(queued(1), event("dropped", submission_id="s1"), event("held", by="upstream", reason="x"), spec=WAITS)
    assert noted(run, seen(upstream=behind(again))).phase == Phase.ACTIVE
    assert noted(run, seen(upstream=behind(None))).phase == Phase.HELD, "nobody can read whether it does"
    two = (*behind(again), *behind(CANCELLED, tag="other"))
    assert noted(run, seen(upstream=two)).phase == Phase.HELD


def test_a_hold_by_hand_goes_before_one_by_the_upstream() -> None:
    run = run_of(event("held", by="upstream", reason="x"), event("held", by="user", reason="by hand"), spec=WAITS)
    assert run.held_by == "user" and noted(run, seen(upstream=behind(TRAINING))) == run


def test_a_run_that_has_begun_does_not_look_back() -> None:
    run = run_of(queued(1), started(1, 10), ended(1, "limit-saved", 20), queued(2), spec=WAITS)
    assert why_lost(run, behind(CANCELLED)) == ""
    reopened = apply(run_of(queued(1), started(1, 10), ended(1, "finished", 20), event("finished"), spec=WAITS),
                     event("reopened"))
    assert reopened is not None and why_lost(reopened, behind(CANCELLED))


def test_older_journals_waited_for_any_end() -> None:
    old: Any = {**event("submit"), "spec": {"tag": "a", "repository": "/r", "python": "p", "profile": {"name": "p"},
                                             "script_sha256": "0", "after_tags": ["b"]}}
    run = apply(None, old)
    assert run is not None and run.spec.after_tags == {"b": After.ENDED}
    assert run_of(spec=WAITS).spec.after_tags == {"up": After.FINISHED}


def test_runs_that_can_come_to_train_by_themselves() -> None:
    def named(tag: str, run: Run, **after: After) -> Run:
        return replace(run, spec=replace(run.spec, tag=tag, after_tags=after))

    runs = [named("up", FAILED), named("a", run_of(), up=After.FINISHED), named("b", run_of(), up=After.ENDED),
            named("c", run_of(), a=After.ENDED)]
    assert [run.spec.tag for run in in_queue(runs)] == ["b"]


def test_a_tree_of_what_waits() -> None:
    assert tree({"a": (), "b": ("a",), "c": ("a", "elsewhere"), "d": ("b", "c"), "e": ()}) == [
        ("", "a"), ("├─ ", "b"), ("└─ ", "c"), ("   └─ ", "d"), ("", "e")]
    assert tree({"a": ("b",), "b": ("a",)}) == [("", "a"), ("└─ ", "b")]
