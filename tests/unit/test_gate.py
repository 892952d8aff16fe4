"""The gate: may this submission train now?"""

from __future__ import annotations

from typing import Any

import pytest
from builders import end_record, ended, event, job, queued, run_of, started
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.endings import Evidence
from orchestrator.core.gate import Leave, Predecessor, ask
from orchestrator.core.pending import Upstream
from orchestrator.model import After, Ending, Run
from orchestrator.sightings import JobGone, SlurmSilent


def behind(evidence: Evidence, *, alive: bool = False, resume_step: int | None = None) -> Predecessor:
    return Predecessor(number=1, epoch=1, resume_step=resume_step, alive=alive, evidence=evidence)


TWO = run_of(queued(1), queued(2), started(1, 10))
RAN: dict[str, Any] = {"knows_orch": True, "first_step_at": 11.0}


@pytest.mark.parametrize(("evidence", "leave"), [
    (Evidence(job=job(1, "COMPLETED"), end=end_record(1, exit_code=0, trainer="finished")), Leave.DONE),
    (Evidence(job=job(1, "FAILED"), end=end_record(1, exit_code=75, notice="limit", saved_after_notice=True)), Leave.GO),
    (Evidence(job=job(1, "TIMEOUT")), Leave.GO),
    (Evidence(job=job(1, "PREEMPTED")), Leave.GO),
    (Evidence(job=job(1, "NODE_FAIL")), Leave.GO),
    (Evidence(job=job(1, "FAILED"), end=end_record(1, exit_code=1, **RAN), checkpoint_step=5), Leave.GO),
    (Evidence(job=job(1, "FAILED"), end=end_record(1, exit_code=1, **RAN)), Leave.STAND_DOWN),
    (Evidence(job=job(1, "OUT_OF_MEMORY")), Leave.STAND_DOWN),
    (Evidence(job=job(1, "CANCELLED")), Leave.STAND_DOWN),
    (Evidence(job=job(1, "COMPLETED"), end=end_record(1, exit_code=0)), Leave.STAND_DOWN),
    (Evidence(job=job(1, "FAILED"), end=end_record(1, exit_code=78, setup_error="no GPU")), Leave.STAND_DOWN),
    (Evidence(job=SlurmSilent("down")), Leave.ASK_AGAIN),
    (Evidence(job=job(1, "RUNNING")), Leave.ASK_AGAIN),
    (Evidence(job=JobGone(), heartbeat_age_s=5.0), Leave.ASK_AGAIN),
    (Evidence(job=JobGone(), heartbeat_age_s=500.0), Leave.GO),
])
def test_what_follows_from_the_predecessors_ending(evidence: Evidence, leave: Leave) -> None:
    assert ask(TWO, "s2", behind(evidence)).leave == leave


def test_no_progress_beyond_the_resume_step_is_no_progress() -> None:
    crash = Evidence(job=job(1, "FAILED"), end=end_record(1, exit_code=1, **RAN), checkpoint_step=5)
    assert ask(TWO, "s2", behind(crash, resume_step=4)).leave == Leave.GO
    assert ask(TWO, "s2", behind(crash, resume_step=5)).leave == Leave.STAND_DOWN


def test_first_attempt_goes() -> None:
    assert ask(run_of(queued(1)), "s1", None).leave == Leave.GO


def test_a_living_predecessor_is_waited_for() -> None:
    assert ask(TWO, "s2", behind(Evidence(job=job(1, "NODE_FAIL")), alive=True)).leave == Leave.ASK_AGAIN


def test_queued_in_the_knowledge_of_the_ending_goes() -> None:
    """After an out-of-memory the daemon queues a changed attempt; its gate must not refuse what the daemon decided."""
    run = run_of(queued(1), started(1, 10), ended(1, "out-of-memory", 20), queued(2))
    assert ask(run, "s2", behind(Evidence(job=job(1, "OUT_OF_MEMORY")))).leave == Leave.GO


@pytest.mark.parametrize("fact", [event("held", by="user"), event("cancel"), event("cancelled")])
def test_no_leave_in_a_run_that_is_not_active(fact: dict[str, Any]) -> None:
    run = run_of(queued(1), queued(2), started(1, 10), fact)
    assert ask(run, "s2", behind(Evidence(job=job(1, "TIMEOUT")))).leave == Leave.STAND_DOWN


def test_finished_is_done() -> None:
    assert ask(run_of(queued(1), queued(2), event("finished")), "s2", None).leave == Leave.DONE


_UPSTREAM = {
    "unreadable": None, "training": run_of(queued(1), started(1, 10)),
    "between attempts": run_of(queued(1), started(1, 10), ended(1, "limit-saved", 20)),
    "finished": run_of(event("finished")), "cancelling": run_of(event("cancel")), "cancelled": run_of(event("cancelled")),
    "failed": run_of(event("held", by="orch", reason="crash")), "held by hand": run_of(event("held", by="user")),
    "held, still training": run_of(queued(1), started(1, 10), event("held", by="orch"))}


@pytest.mark.parametrize(("upstream", "finished", "ended_"), [
    ("unreadable", Leave.ASK_AGAIN, Leave.ASK_AGAIN), ("training", Leave.STAND_DOWN, Leave.STAND_DOWN),
    ("between attempts", Leave.STAND_DOWN, Leave.STAND_DOWN), ("finished", Leave.GO, Leave.GO),
    ("cancelling", Leave.STAND_DOWN, Leave.STAND_DOWN), ("cancelled", Leave.STAND_DOWN, Leave.GO),
    ("failed", Leave.STAND_DOWN, Leave.GO), ("held by hand", Leave.STAND_DOWN, Leave.STAND_DOWN),
    ("held, still training", Leave.STAND_DOWN, Leave.STAND_DOWN)])
def test_what_it_waits_for_decides_before_the_first_attempt(upstream: str, finished: Leave, ended_: Leave) -> None:
    for condition, leave in ((After.FINISHED, finished), (After.ENDED, ended_)):
        behind_it = (Upstream(tag="b", condition=condition, run=_UPSTREAM[upstream]),)
        assert ask(run_of(queued(1)), "s1", None, behind_it).leave == leave


def test_what_it_waited_for_is_past_once_it_has_trained() -> None:
    reopened = (Upstream(tag="b", condition=After.FINISHED, run=_UPSTREAM["training"]),)
    saved = behind(Evidence(job=job(1, "TIMEOUT"), end=end_record(1, exit_code=75, trainer="stopped", knows_orch=True,
                                                                 first_step_at=1.0)))
    noted = run_of(queued(1), queued(2), started(1, 10), ended(1, "limit-saved", 20))
    assert ask(noted, "s2", saved, reopened).leave == Leave.GO
    assert ask(run_of(queued(1), queued(2)), "s2", saved, reopened).leave == Leave.GO, "no pass has noted its attempt yet"
    again = run_of(queued(1), started(1, 10), ended(1, "finished", 20), event("finished"), event("reopened"), queued(2))
    assert ask(again, "s2", saved, reopened).leave == Leave.STAND_DOWN, "submitted again, so it waits again"


def test_a_dropped_submission_and_an_unknown_one_do_not_train() -> None:
    assert ask(run_of(queued(1), event("dropped", submission_id="s1")), "s1", None).leave == Leave.STAND_DOWN
    assert ask(run_of(queued(1)), "s9", None).leave == Leave.ASK_AGAIN


_runs = st.sampled_from([
    TWO, run_of(queued(1), queued(2), started(1, 10), event("held")), run_of(queued(1), queued(2), event("cancel")),
    run_of(queued(1), queued(2), event("finished")), run_of(queued(1), queued(2), event("cancelled"))])
_states = st.sampled_from(["RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
                           "OUT_OF_MEMORY", "WHAT_IS_THIS"])


@given(run=_runs, state=_states, code=st.sampled_from([None, 0, 1, 2, 75, 78, 137]), alive=st.booleans(),
       step=st.none() | st.integers(0, 10), resume=st.none() | st.integers(0, 10))
def test_leave_is_given_only_to_an_active_run_behind_something_dead(
    run: Run, state: str, code: int | None, alive: bool, step: int | None, resume: int | None,
) -> None:
    end = end_record(1, exit_code=code, **RAN) if code is not None else None
    answer = ask(run, "s2", behind(Evidence(job=job(1, state), end=end, checkpoint_step=step), alive=alive,
                                   resume_step=resume))
    if answer.leave == Leave.GO:
        assert run.phase == "active" and not alive
        assert end is not None or state not in ("RUNNING", "WHAT_IS_THIS")
    assert answer.reason


def test_every_ending_has_an_answer() -> None:
    from orchestrator.model import GOES_ON, GOES_ON_WITH_PROGRESS

    stands_down = set(Ending) - GOES_ON - GOES_ON_WITH_PROGRESS - {Ending.FINISHED}
    assert stands_down == {Ending.OUT_OF_MEMORY, Ending.SETUP_FAILURE, Ending.NO_RESULT, Ending.CANCELLED}
