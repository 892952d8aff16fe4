"""A job that Slurm put back into its queue (scontrol requeue, requeuehold, a site's policy): its attempt has ended, it waits
again, and is cancelled with its run."""

from __future__ import annotations

import pytest
from builders import POLICY, attempt_seen, end_record, job, queued, run_of, seen, started
from test_decide import actions, settle

from orchestrator.core import actions as do
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Observation
from orchestrator.model import Run

NOW = 200.0


def put_back(state: str = "PENDING", restarts: int = 1) -> Observation:
    record = attempt_seen(1, end_record(1, exit_code=75, trainer="stopped", notice="signal", notice_at=100.0,
                                        saved_after_notice=True, checkpoint_step=7, first_step_at=20.0))
    return seen(job(1, state, restart_count=restarts, reason="job requeued in held state"), job(2, "PENDING"),
                attempts=(record,), checkpoint_step=7, asked_at=NOW)


def live() -> Run:
    return run_of(queued(1), started(1, 10.0), queued(2))


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
def test_the_attempt_has_ended_and_its_job_waits_again(state: str) -> None:
    run = settle(live(), put_back(state), NOW)
    assert [str(a.ending) for a in run.attempts] == ["preempted-saved"]
    assert [(s.number, s.state) for s in run.waiting] == [(1, "queued"), (2, "queued")]
    assert all(isinstance(a, do.WriteControl | do.Wait) for a in actions(run, put_back(state), NOW)), "none is queued besides"


def test_without_a_record_it_has_vanished_once_its_heart_is_silent() -> None:
    silent = seen(job(1, "PENDING", restart_count=1), attempts=(attempt_seen(1),), asked_at=NOW)
    assert settle(run_of(queued(1), started(1, 10.0)), silent, 50.0).live is not None
    run = settle(run_of(queued(1), started(1, 10.0)), silent, NOW)
    assert run.attempts[0].ending == "vanished" and "put its job back" in run.attempts[0].reason
    assert [s.number for s in run.waiting] == [1]


def test_the_same_restart_count_is_no_requeue() -> None:
    """Slurm shows a job as pending for a moment in other cases too."""
    assert settle(live(), put_back(restarts=0), NOW).live is not None


def test_its_next_start_is_another_attempt_and_a_cancel_takes_it_away() -> None:
    waiting = settle(live(), put_back(), NOW)
    again = apply(waiting, {**started(3, 300.0), "submission_id": "s1", "job_id": "101", "restart_count": 1})
    assert again is not None and again.live is not None and [s.number for s in again.waiting] == [2]
    cancelling = apply(waiting, {"event": "cancel", "t": NOW})
    assert cancelling is not None
    asked = [a for a in actions(cancelling, put_back(), NOW) if isinstance(a, do.CancelJob)]
    assert {a.job_id for a in asked} == {"101", "102"}
    assert news(waiting, put_back(), POLICY, NOW) == []
