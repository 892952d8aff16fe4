"""News and decisions: pure, level-triggered, and never two jobs for one attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import POLICY, SPEC, attempt_seen, end_record, ended, event, job, queued, run_of, seen, started
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Control, Observation
from orchestrator.core.pending import Upstream
from orchestrator.core.recovery import without_progress
from orchestrator.model import After, Phase, Policy, Run

CONTROL = Control(seq=1, interval_s=POLICY.checkpoint_interval_s)


def settle(run: Run, observation: Observation, now: float, policy: Policy = POLICY) -> Run:
    """The run once the journal has caught up with this observation."""
    for _ in range(20):
        facts = news(run, observation, policy, now)
        if not facts:
            return run
        for fact in facts:
            changed = apply(run, {"t": now, **fact})
            assert changed is not None
            run = changed
    raise AssertionError(facts)


def actions(run: Run, observation: Observation, now: float = 100.0, policy: Policy = POLICY) -> list[do.Action]:
    return decide(settle(run, observation, now, policy), observation, policy, now)


def kinds(run: Run, observation: Observation, now: float = 100.0, policy: Policy = POLICY) -> list[str]:
    return [type(a).__name__ for a in actions(run, observation, now, policy)]


def test_a_new_run_gets_its_first_attempt_then_a_successor_then_rest() -> None:
    first = actions(run_of(), seen())
    assert first == [do.QueueAttempt(behind=(), nice=True, delay_s=0.0, why="first attempt")]
    successor = actions(run_of(queued(1)), seen(job(1, "PENDING"), control=CONTROL))
    assert [a.behind for a in successor if isinstance(a, do.QueueAttempt)] == [("101",)]
    assert kinds(run_of(queued(1), queued(2)), seen(job(1, "PENDING"), job(2, "PENDING"), control=CONTROL)) == ["Wait"]


@pytest.mark.parametrize(("step", "words"), [(7, "it goes on from step 7"), (None, "it goes on")])
def test_what_a_person_let_go_on_is_no_first_attempt(step: int | None, words: str) -> None:
    run = run_of(queued(1), started(1, 10), ended(1, "crash", 20), event("held", 20), event("released", 30))
    [queue] = [a for a in actions(run, seen(control=CONTROL, checkpoint_step=step)) if isinstance(a, do.QueueAttempt)]
    assert queue.why == words


def test_no_successor_when_turned_off() -> None:
    none = replace(POLICY, successors_ahead=0)
    assert kinds(run_of(queued(1)), seen(job(1, "PENDING"), control=CONTROL), policy=none) == ["Wait"]


def test_a_live_attempt_gets_a_successor() -> None:
    run = run_of(queued(1), started(1, 10))
    assert kinds(run, seen(job(1, "RUNNING"), control=CONTROL)) == ["QueueAttempt"]
    assert kinds(run, seen(job(1, "COMPLETING"), control=CONTROL)) == ["Wait"]


def test_an_unsettled_sbatch_is_never_doubled() -> None:
    run = run_of(event("queueing", 95.0, submission_id="s1", number=1))
    assert kinds(run, seen(control=CONTROL)) == ["Wait"]
    found = settle(run, seen(job(1, "PENDING")), 100.0)
    assert found.submissions[0].job_id == "101"
    assert kinds(run, seen(control=CONTROL), now=200.0) == ["QueueAttempt"]  # Slurm has answered for a minute: lost


def test_silence_decides_nothing() -> None:
    for run in (run_of(), run_of(queued(1), started(1)), run_of(queued(1), event("cancel"))):
        assert kinds(run, Observation(silent="down"), now=1e6) == ["Wait"]


def test_an_ended_attempt_without_a_successor_is_followed_by_one() -> None:
    run = run_of(queued(1), started(1, 10))
    over = end_record(1, exit_code=75, notice="limit", saved_after_notice=True, trainer="stopped")
    found = actions(run, seen(job(1, "FAILED"), attempts=(attempt_seen(1, over),)))
    assert found == [do.QueueAttempt(behind=(), nice=False, delay_s=0.0,
                                     why="attempt 1 ended (limit-saved): the next one continues")]


@pytest.mark.parametrize(("record", "phase"), [
    ({"exit_code": 0, "trainer": "finished"}, Phase.FINISHED),
    ({"exit_code": 0}, Phase.HELD),
    ({"exit_code": 78, "setup_error": "no GPU"}, Phase.HELD),
    ({"exit_code": 1, "first_step_at": 1.0, "knows_orch": True}, Phase.ACTIVE),
])
def test_what_an_ending_means_for_the_run(record: dict[str, Any], phase: Phase) -> None:
    run = settle(run_of(queued(1), queued(2), started(1, 10)),
                 seen(job(1, "FAILED"), job(2, "PENDING"), attempts=(attempt_seen(1, end_record(1, **record)),)), 100.0)
    assert run.phase == phase
    found = decide(run, seen(job(2, "PENDING"), control=CONTROL), POLICY, 100.0)
    cancels = [a.job_id for a in found if isinstance(a, do.CancelJob)]
    assert cancels == ([] if phase == Phase.ACTIVE else ["102"])


def test_endings_without_progress_are_counted_backed_off_and_held() -> None:
    story: list[Any] = []
    for number in (1, 2):
        story += [queued(number), started(number, 10), ended(number, "crash", 20)]
    run = run_of(*story)
    assert without_progress(run) == 2 and run.phase == Phase.ACTIVE
    [again] = [a for a in actions(run, seen(), now=21.0) if isinstance(a, do.QueueAttempt)]
    assert 53.0 <= again.delay_s <= 65.0  # a minute, a tenth of jitter
    run = settle(run_of(*story, queued(3), started(3, 30), ended(3, "crash", 40)), seen(), 50.0)
    assert run.phase == Phase.HELD and "3 endings in a row" in run.phase_reason
    released = apply(run, event("released", 60.0))
    assert released is not None and kinds(released, seen(), 61.0) == ["QueueAttempt"]


def test_progress_resets_the_count() -> None:
    run = run_of(queued(1), started(1), ended(1, "crash"), queued(2), started(2), ended(2, "crash", checkpoint_step=5),
                 queued(3), started(3, resume_step=5), ended(3, "crash", checkpoint_step=5))
    assert without_progress(run) == 1


def test_a_held_run_pauses_or_cancels_what_waits() -> None:
    both = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL)
    by_user = run_of(queued(1), queued(2), started(1), event("held", by="user"))
    assert kinds(by_user, both) == ["PauseJob"]
    assert kinds(run_of(queued(1), queued(2), started(1), event("held", by="orch")), both) == ["CancelJob"]
    paused = run_of(queued(1), queued(2), started(1), event("held", by="user"), event("paused", submission_id="s2"))
    assert kinds(paused, both) == ["Wait"]
    back = apply(paused, event("released"))
    assert back is not None and kinds(back, both) == ["ResumeJob"]


def test_cancel_asks_the_trainer_then_ends_the_job() -> None:
    run = run_of(queued(1), queued(2), started(1), event("cancel", 100.0))
    both = seen(job(1, "RUNNING"), job(2, "PENDING"), control=CONTROL)
    found = decide(run, both, POLICY, 100.0)
    assert [type(a).__name__ for a in found] == ["WriteControl", "CancelJob"]
    assert [a.job_id for a in found if isinstance(a, do.CancelJob)] == ["102"]
    late = [a.job_id for a in decide(run, both, POLICY, 221.0) if isinstance(a, do.CancelJob)]
    assert late == ["102", "101"]
    at_once = run_of(queued(1), started(1), event("cancel", 100.0, now=True))
    assert [a.job_id for a in decide(at_once, both, POLICY, 100.0) if isinstance(a, do.CancelJob)] == ["101"]


def test_who_asks_for_the_cancel_once_more_grants_no_further_lead() -> None:
    """`orch cancel` once a minute put the end of a trainer that does not stop off for ever."""
    run = run_of(queued(1), started(1), event("cancel", 100.0), event("cancel", 160.0))
    assert [a.job_id for a in decide(run, seen(job(1, "RUNNING"), control=CONTROL), POLICY, 221.0)
            if isinstance(a, do.CancelJob)] == ["101"]


def test_what_took_over_in_the_moment_of_the_finish_is_ended() -> None:
    """Slurm had called the node failed, and the attempt on it lived on and finished: its successor trained on to the end."""
    run = run_of(queued(1), started(1), queued(2), started(2), ended(1, "finished"), event("finished"))
    assert run.live is not None
    [action] = [a for a in decide(run, seen(job(1, "NODE_FAIL"), job(2, "RUNNING")), POLICY, 200.0)
                if not isinstance(a, do.WriteControl)]
    assert isinstance(action, do.CancelJob) and action.job_id == "102"


def test_a_waiting_job_cancelled_by_somebody_holds_the_run() -> None:
    run = settle(run_of(queued(1)), seen(job(1, "CANCELLED")), 100.0)
    assert run.phase == Phase.HELD and "cancelled outside orch" in run.phase_reason
    ours = settle(run_of(queued(1), event("cancel"), event("asked", kind="cancel", job_id="101")),
                  seen(job(1, "CANCELLED")), 100.0)
    assert ours.phase == Phase.CANCELLED


def test_a_job_that_failed_before_its_supervisor_spoke_is_given_time_then_held() -> None:
    fresh = settle(run_of(queued(1)), seen(job(1, "FAILED", end_at=95.0)), 100.0)
    assert fresh.phase == Phase.ACTIVE and fresh.waiting
    stale = settle(run_of(queued(1)), seen(job(1, "FAILED", end_at=50.0)), 100.0)
    assert stale.phase == Phase.HELD and "setup-failure" in stale.phase_reason


def test_a_refused_first_job_holds_and_a_refused_successor_does_not() -> None:
    refused = event("rejected", submission_id="s1", reason="Invalid qos")
    run = settle(run_of(queued(1)[:1], refused), seen(), 100.0)
    assert run.phase == Phase.HELD and "Invalid qos" in run.phase_reason
    successor = run_of(queued(1), started(1), queued(2)[:1], event("rejected", submission_id="s2", reason="limit"))
    assert kinds(successor, seen(job(1, "RUNNING"), control=CONTROL)) == ["Wait"]
    after = apply(successor, ended(1, "limit-saved"))
    assert after is not None and kinds(after, seen()) == ["QueueAttempt"]


def test_jobs_that_the_journal_lost_are_taken_back() -> None:
    run = settle(run_of(), seen(job(7, "RUNNING")), 100.0)
    assert [(s.id, s.job_id, s.number) for s in run.submissions] == [("s7", "107", 7)]


def test_dependents_wait_and_follow() -> None:
    def upstream(run: Run | None) -> tuple[Upstream, ...]:
        return (Upstream(tag="b", condition=After.FINISHED, run=run),)

    spec = replace(SPEC, after_tags={"b": After.FINISHED})
    assert kinds(run_of(spec=spec), seen(upstream=upstream(None))) == ["Wait"]
    assert kinds(run_of(spec=spec), seen(upstream=upstream(run_of(event("held", by="user"))))) == ["Wait"]
    [queue] = actions(run_of(spec=spec), seen(upstream=upstream(run_of(queued(50)))))
    assert isinstance(queue, do.QueueAttempt) and queue.behind == ("150",)
    moved = seen(job(1, "PENDING"), job(2, "PENDING"), control=CONTROL,
                 upstream=upstream(run_of(queued(50), started(50), queued(51))))
    [repoint] = actions(run_of(queued(1), queued(2), spec=spec), moved)
    assert isinstance(repoint, do.Repoint) and repoint.dependency == "afterany:151,singleton"
    [queue] = actions(run_of(spec=spec), seen(upstream=upstream(run_of(queued(50), event("finished")))))
    assert isinstance(queue, do.QueueAttempt) and queue.behind == ()


# --- properties ---------------------------------------------------------------------------------------------------------

_JOB_STATES = ["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"]


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[Run, Observation]:
    story: list[Any] = []
    count = draw(st.integers(0, 3))
    for number in range(1, count + 1):
        story.append(queued(number) if draw(st.booleans()) else queued(number)[:1])
        if draw(st.booleans()):
            story.append(started(number, number * 10.0))
            if draw(st.booleans()):
                how = draw(st.sampled_from(["crash", "limit-saved", "node-failure"]))
                story.append(ended(number, how, number * 10 + 5.0))
    if draw(st.booleans()):
        story.append(event(draw(st.sampled_from(["held", "cancel", "finished", "cancelled"])), 50.0, by="user"))
    jobs = [job(n, draw(st.sampled_from(_JOB_STATES)), end_at=1.0) for n in range(1, count + 1) if draw(st.booleans())]
    records = tuple(
        attempt_seen(n, draw(st.none() | st.builds(end_record, st.just(n), exit_code=st.sampled_from([0, 1, 75]),
                                                   trainer=st.sampled_from([None, "finished", "stopped"]))))
        for n in range(1, count + 1) if draw(st.booleans()))
    return run_of(*story), seen(*jobs, attempts=records, checkpoint_step=draw(st.none() | st.integers(0, 5)))


@given(_worlds(), st.floats(60.0, 1e5))
def test_news_settles_and_decisions_are_safe(world: tuple[Run, Observation], now: float) -> None:
    run, observation = world
    run = settle(run, observation, now)
    found = decide(run, observation, POLICY, now)
    assert found == decide(run, observation, POLICY, now)
    queues = [a for a in found if isinstance(a, do.QueueAttempt)]
    assert len(queues) <= 1
    if run.phase != Phase.ACTIVE:
        assert not queues, "nothing is ever submitted for a run that is finished, held or cancelled"
    if queues:
        assert not any(s.state == "intended" for s in run.waiting), "an unsettled sbatch is settled first"
        ahead = len(run.waiting) - (0 if run.live else 1)
        assert ahead < POLICY.successors_ahead
        live_jobs = {s.job_id for s in run.waiting} | ({run.live.job_id} if run.live else set())
        assert not live_jobs or set(queues[0].behind) & live_jobs, "a successor always waits behind what is there"
    if run.phase == Phase.ACTIVE or (run.phase == Phase.HELD and run.live):
        cancelled = {a.job_id for a in found if isinstance(a, do.CancelJob)}
        assert run.live is None or run.live.job_id not in cancelled, "a live attempt of a wanted run is never ended"


@given(_worlds())
def test_silence_changes_nothing(world: tuple[Run, Observation]) -> None:
    run, observation = world
    silent = replace(observation, silent="down", jobs={})
    assert [type(a) for a in decide(run, silent, POLICY, 1e9)] == [do.Wait]
    for fact in news(run, replace(silent, attempts=(), stood_down=()), POLICY, 1e9):
        assert fact["event"] in ("finished", "held", "cancelled"), "only what the journal itself says"


# --- what reviews found ---------------------------------------------------------------------------------------------------


def test_an_old_stop_request_is_gone_before_the_next_attempt_is_queued() -> None:
    run = run_of(event("cancel"), event("cancelled"), event("reopened"))
    stale = Control(seq=4, interval_s=CONTROL.interval_s, stop="cancel")
    found = actions(run, seen(control=stale))
    assert [type(a).__name__ for a in found] == ["WriteControl", "QueueAttempt"]
    assert isinstance(found[0], do.WriteControl) and found[0].control.stop is None


def test_unknown_progress_is_not_none_unless_it_was_too_short() -> None:
    """A trainer that knows nothing of orch keeps its own checkpoints."""
    long: list[Any] = []
    short: list[Any] = []
    for number in (1, 2, 3):
        long += [queued(number), started(number, 0), ended(number, "crash", 600, knows_orch=False)]
        short += [queued(number), started(number, 0), ended(number, "crash", 2, knows_orch=False)]
    assert settle(run_of(*long), seen(), 700.0).phase == Phase.ACTIVE
    assert settle(run_of(*short), seen(), 700.0).phase == Phase.HELD


def test_a_training_that_never_saves_within_its_limit_is_held() -> None:
    story: list[Any] = []
    for number in (1, 2, 3):
        story += [queued(number), started(number, 0), ended(number, "limit-unsaved", 3600)]
    assert settle(run_of(*story), seen(), 4000.0).phase == Phase.HELD
    preempted = [{**e, "ending": "preempted-unsaved"} if isinstance(e, dict) and e["event"] == "ended" else e for e in story]
    assert settle(run_of(*preempted), seen(), 4000.0).phase == Phase.ACTIVE


def test_a_job_that_was_given_up_and_is_still_there_is_cancelled() -> None:
    run = run_of(queued(1), event("dropped", submission_id="s1", why="gone"), queued(2), started(2))
    found = actions(run, seen(job(1, "PENDING"), job(2, "RUNNING"), control=CONTROL))
    assert "101" in [a.job_id for a in found if isinstance(a, do.CancelJob)]


def test_standing_down_again_and_again_backs_off() -> None:
    story: list[Any] = []
    for number in (1, 2, 3):
        story += [queued(number), event("dropped", 100.0 + number, submission_id=f"s{number}", why="stood down")]
    [again] = [a for a in actions(run_of(*story), seen(), now=103.0) if isinstance(a, do.QueueAttempt)]
    assert 54.0 <= again.delay_s <= 66.0
    [first] = [a for a in actions(run_of(*story[:2]), seen(), now=103.0) if isinstance(a, do.QueueAttempt)]
    assert first.delay_s == 0.0


def test_a_scancel_at_the_gate_is_a_persons_word() -> None:
    from orchestrator.records import StoodDown

    told = StoodDown(submission_id="s1", job_id="101", at=90.0, reason="told to stop while waiting")
    run = settle(run_of(queued(1)), seen(job(1, "CANCELLED"), stood_down=(told,)), 100.0)
    assert run.phase == Phase.HELD and "cancelled outside orch" in run.phase_reason


def test_submitted_again_waits_for_the_job_it_names() -> None:
    spec = replace(SPEC, after_jobs=("77",))
    run = run_of(queued(1), started(1), ended(1, "finished"), event("finished"), event("reopened"), spec=spec)
    [again] = [a for a in actions(run, seen()) if isinstance(a, do.QueueAttempt)]
    assert again.behind == ("77",)


def test_a_provisional_record_does_not_say_when_the_attempt_ended() -> None:
    notice = end_record(1, provisional=True, notice="limit", notice_at=10.0)
    run = settle(run_of(queued(1), started(1, 0)),
                 seen(job(1, "TIMEOUT", end_at=70.0), attempts=(replace(attempt_seen(1, notice), heartbeat_at=60.0),)), 100.0)
    assert run.attempts[0].ended_at == 70.0


# --- what follows from an ending ------------------------------------------------------------------------------------------

BIG = replace(SPEC, profile=replace(SPEC.profile, memory_bytes=8 * 2**30))


def test_out_of_memory_asks_for_more_up_to_the_largest_node_then_holds() -> None:
    story: list[Any] = [queued(1), started(1), ended(1, "out-of-memory", 10)]
    unknown = settle(run_of(*story, spec=BIG), seen(), 20.0)
    assert unknown.phase == Phase.ACTIVE and kinds(unknown, seen()) == ["Wait"]
    more = settle(run_of(*story, spec=BIG), seen(memory_at_most_bytes=64 * 2**30), 20.0)
    assert more.spec.profile.memory_bytes == 10 * 2**30 and kinds(more, seen()) == ["QueueAttempt"]
    capped = settle(run_of(*story, spec=BIG), seen(memory_at_most_bytes=9 * 2**30), 20.0)
    assert capped.spec.profile.memory_bytes == 9 * 2**30
    full = settle(run_of(*story, spec=BIG), seen(memory_at_most_bytes=8 * 2**30), 20.0)
    assert full.phase == Phase.HELD and "the largest node has 8G" in full.phase_reason
    unnamed = settle(run_of(*story), seen(memory_at_most_bytes=64 * 2**30), 20.0)
    assert unnamed.phase == Phase.HELD and "names no memory" in unnamed.phase_reason


def test_a_limit_without_a_save_raises_the_lead_up_to_half_the_limit() -> None:
    run = settle(run_of(queued(1), started(1), ended(1, "limit-unsaved", 10)), seen(), 20.0)
    assert run.spec.profile.lead_s == 120.0
    both = run_of(queued(1), queued(2), started(1), ended(1, "limit-unsaved", 10), started(2, 11))
    assert settle(both, seen(job(2, "RUNNING")), 20.0).spec.profile.lead_s == 120.0, "also while the successor trains already"
    long = replace(SPEC, profile=replace(SPEC.profile, lead_s=1800.0))
    assert settle(run_of(queued(1), started(1), ended(1, "limit-unsaved", 10), spec=long), seen(), 20.0).spec == long


def test_a_node_that_failed_is_left_out_for_a_while_where_there_are_enough() -> None:
    run = run_of(queued(1), started(1), ended(1, "node-failure", 10, nodes="n7"))
    [action] = [a for a in actions(run, seen(partition_nodes=8), 20.0) if isinstance(a, do.QueueAttempt)]
    assert action.exclude == ("n7",)
    for few in (seen(partition_nodes=2), seen()):
        [action] = [a for a in actions(run, few, 20.0) if isinstance(a, do.QueueAttempt)]
        assert action.exclude == ()
    [action] = [a for a in actions(run, seen(partition_nodes=8), 1e5) if isinstance(a, do.QueueAttempt)]
    assert action.exclude == ()


def test_a_node_that_slurm_missed_for_minutes_was_dead_at_its_last_sign_of_life() -> None:
    record = replace(attempt_seen(1), heartbeat_at=100.0, heard_at=110.0)
    run = settle(run_of(queued(1), started(1, 0)), seen(job(1, "NODE_FAIL", end_at=400.0), attempts=(record,)), 500.0)
    assert run.attempts[0].ended_at == 140.0
