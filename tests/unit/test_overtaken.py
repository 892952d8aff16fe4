"""News and decisions where Slurm's word of a job is not so, and where an ending has overtaken what waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import POLICY, attempt_seen, ended, event, job, queued, run_of, seen, started
from test_decide import CONTROL, actions, kinds, settle

from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.records import StoodDown

# --- Slurm calls it running, and is wrong -----------------------------------------------------------------------------------

NOTHING = replace(attempt_seen(1), heartbeat_at=100.0, nothing_there="its supervisor is gone")


def test_a_job_of_which_nothing_is_there_has_vanished_and_is_cancelled_for_its_successor() -> None:
    both = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL, attempts=(NOTHING,))
    run = settle(run_of(queued(1), queued(2), started(1, 10)), both, 200.0)
    [attempt] = run.attempts
    assert (attempt.ending, attempt.ended_at) == ("vanished", 100.0) and "its supervisor is gone" in attempt.reason
    cancels = [a for a in decide(run, both, POLICY, 200.0) if isinstance(a, do.CancelJob)]
    assert [a.job_id for a in cancels] == ["101"] and "its supervisor is gone" in cancels[0].why
    asked = apply(run, event("asked", 200.0, kind="cancel", job_id="101"))
    assert asked is not None and not [a for a in decide(asked, both, POLICY, 201.0) if isinstance(a, do.CancelJob)]


@pytest.mark.parametrize("ending", ["limit-saved", "finished", "node-failure"])
def test_a_job_whose_end_slurm_missed_is_cancelled_too(ending: str) -> None:
    """The power went right after its end record."""
    run = run_of(queued(1), queued(2), started(1, 10), ended(1, ending, 100))
    still = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL, attempts=(NOTHING,))
    assert "101" in [a.job_id for a in actions(run, still, 200.0) if isinstance(a, do.CancelJob)]
    for job_1, record in ((job(1, "COMPLETING"), NOTHING), (job(1, "RUNNING"), attempt_seen(1))):
        calm = seen(job_1, job(2, "PENDING"), control=CONTROL, attempts=(record,))
        assert "101" not in [a.job_id for a in actions(run, calm, 200.0) if isinstance(a, do.CancelJob)]


def test_a_job_that_runs_again_is_not_cancelled_for_its_first_start() -> None:
    again = {**started(1, 150), "number": 3, "restart_count": 1, "epoch": 3}
    run = run_of(queued(1), started(1, 10), ended(1, "vanished", 100), again)
    assert not [a for a in actions(run, seen(job(1, "RUNNING"), control=CONTROL, attempts=(NOTHING,)), 200.0)
                if isinstance(a, do.CancelJob)]


@pytest.mark.parametrize(("restart", "words"), [(1, "requeued"), (0, "anew")])
def test_a_job_that_slurm_ran_again_leaves_a_vanished_attempt(restart: int, words: str) -> None:
    again = replace(attempt_seen(1).start, number=3, restart_count=restart, epoch=3, started_at=50.0)
    records = (attempt_seen(1), replace(attempt_seen(1), start=again, heartbeat_at=50.0))
    run = settle(run_of(queued(1), started(1, 10)), seen(job(1, "RUNNING"), attempts=records), 60.0)
    assert [a.ending for a in run.attempts] == ["vanished", None]
    assert words in run.attempts[0].reason and run.submissions[0].state == "started"


@pytest.mark.parametrize(("job_id", "now", "ending"), [
    ("101", 101.0, "vanished"), ("101", 99.0, None),    # not before its heart has been silent for a minute and a half
    ("109", 101.0, "crash"),                            # a doubled sbatch: another job of this submission stood down
])
def test_a_job_that_ran_again_and_stood_down_tells_nothing_of_the_first_time(
        job_id: str, now: float, ending: str | None) -> None:
    """Its supervisor died within seconds of its start, and slurmctld lost what it knew: FAILED is said of the second time."""
    again = StoodDown(submission_id="s1", job_id=job_id, at=60.0, reason="attempt 1 was taken by job 101 (restart 0)")
    run = settle(run_of(queued(1), started(1, 10)),
                 seen(job(1, "FAILED", end_at=61.0), attempts=(attempt_seen(1),), stood_down=(again,)), now)
    assert run.attempts[0].ending == ending


# --- a successor that asks for what an ending has overtaken ---------------------------------------------------------------


@pytest.mark.parametrize("story", [
    [ended(1, "out-of-memory", 20), event("adjusted", 21, memory_bytes=2**33)],
    [ended(1, "limit-unsaved", 20), event("adjusted", 21, lead_s=120.0)],
    [ended(1, "node-failure", 20, nodes="n7")],
])
def test_a_waiting_successor_from_before_is_withdrawn_and_queued_anew(story: list[Any]) -> None:
    run = run_of(queued(1), queued(2), started(1, 10), *story)
    waits = seen(job(2, "PENDING"), control=CONTROL, partition_nodes=8, memory_at_most_bytes=2**36)
    [found] = actions(run, waits, 30.0)
    assert isinstance(found, do.Withdraw) and (found.job_id, found.submission_id) == ("102", "s2")
    begun = seen(job(2, "RUNNING"), control=CONTROL, partition_nodes=8, memory_at_most_bytes=2**36)
    assert not [a for a in actions(run, begun, 30.0) if isinstance(a, do.Withdraw)], "one that has started is left alone"
    gone = run_of(queued(1), queued(2), started(1, 10), *story, event("paused", submission_id="s2"),
                  event("asked", 30.0, kind="cancel", job_id="102"))
    assert kinds(gone, seen(job(2, "CANCELLED"), control=CONTROL, partition_nodes=8), 31.0) == ["QueueAttempt"]
    asked = seen(job(2, "PENDING"), control=CONTROL, partition_nodes=8, memory_at_most_bytes=2**36)
    assert not [a for a in actions(gone, asked, 31.0) if isinstance(a, do.ResumeJob | do.Withdraw)], "it must not start now"
    fresh = run_of(queued(1), queued(2), started(1, 10), *story, event("dropped", submission_id="s2"), queued(3))
    assert kinds(fresh, seen(job(3, "PENDING"), control=CONTROL, partition_nodes=8), 31.0) == ["QueueAttempt"], "behind it"


@pytest.mark.parametrize(("how", "nodes", "now"), [
    (ended(1, "limit-saved", 20), 8, 30.0), (ended(1, "crash", 20, checkpoint_step=5), 8, 30.0),
    (ended(1, "node-failure", 20, nodes="n7"), 2, 30.0),           # without it too few were left
    (ended(1, "node-failure", 20, nodes="n[7-8]"), 8, 30.0),       # nobody knows which of them it was
    (ended(1, "node-failure", 20, nodes="n7"), 8, 1e5),            # long ago
])
def test_a_successor_is_not_withdrawn_for_what_changes_nothing(how: dict[str, Any], nodes: int, now: float) -> None:
    run = run_of(queued(1), queued(2), started(1, 10), how)
    assert kinds(run, seen(job(2, "PENDING"), control=CONTROL, partition_nodes=nodes), now) == ["QueueAttempt"], "behind it"
