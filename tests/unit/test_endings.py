"""How an attempt ended, row by row of the design's table."""

from __future__ import annotations

from typing import Any

import pytest
from builders import end_record, job
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.endings import Evidence, classify, node_failure
from orchestrator.core.observation import NodeSeen
from orchestrator.model import ENDED_STATES, Ending
from orchestrator.sightings import JobGone, JobSeen, SlurmSilent

RAN = {"knows_orch": True, "first_step_at": 11.0, "last_step": 50}


@pytest.mark.parametrize(("record", "state", "ending"), [
    ({**RAN, "exit_code": 0, "trainer": "finished"}, "COMPLETED", Ending.FINISHED),
    ({"exit_code": 0, "finished_file": True}, "COMPLETED", Ending.FINISHED),
    ({"exit_code": 1, "finished_file": True}, "FAILED", Ending.CRASH),
    ({**RAN, "exit_code": 0}, "COMPLETED", Ending.NO_RESULT),
    ({"exit_code": 0}, "COMPLETED", Ending.NO_RESULT),
    ({**RAN, "exit_code": 75, "trainer": "stopped"}, "FAILED", Ending.LIMIT_SAVED),
    ({**RAN, "exit_code": 0, "trainer": "stopped"}, "COMPLETED", Ending.LIMIT_SAVED),   # by itself, under torchrun
    ({**RAN, "exit_code": 75, "trainer": "stopped", "notice": "limit", "saved_after_notice": True}, "FAILED",
     Ending.LIMIT_SAVED),
    ({**RAN, "exit_code": 0, "trainer": "stopped", "notice": "limit", "saved_after_notice": True}, "COMPLETED",
     Ending.LIMIT_SAVED),
    ({**RAN, "exit_code": 137, "notice": "limit"}, "TIMEOUT", Ending.LIMIT_UNSAVED),
    ({**RAN, "exit_code": 75, "notice": "preempt", "saved_after_notice": True}, "FAILED", Ending.PREEMPTED_SAVED),
    ({**RAN, "exit_code": 75, "notice": "preempt"}, "PREEMPTED", Ending.PREEMPTED_UNSAVED),
    ({**RAN, "exit_code": 75, "notice": "signal", "saved_after_notice": True}, "PREEMPTED", Ending.PREEMPTED_SAVED),
    ({**RAN, "exit_code": 75, "notice": "signal", "saved_after_notice": True}, "TIMEOUT", Ending.LIMIT_SAVED),
    ({**RAN, "exit_code": 75, "notice": "signal", "saved_after_notice": True}, "CANCELLED", Ending.CANCELLED),
    ({**RAN, "exit_code": 75, "notice": "cancel", "saved_after_notice": True}, "FAILED", Ending.CANCELLED),
    ({**RAN, "exit_code": 1, "trainer": "failed"}, "FAILED", Ending.CRASH),
    ({**RAN, "signal": 9, "exit_code": 137}, "FAILED", Ending.CRASH),
    ({**RAN, "exit_code": 1, "oom_kills": 1}, "COMPLETED", Ending.OUT_OF_MEMORY),
    ({**RAN, "signal": 9, "exit_code": 137}, "OUT_OF_MEMORY", Ending.OUT_OF_MEMORY),
    ({**RAN, "exit_code": 137, "signal": 9, "hung": True}, "FAILED", Ending.HUNG),
    ({"setup_error": "no GPU is visible", "exit_code": 78}, "FAILED", Ending.SETUP_FAILURE),
    ({"exit_code": 127}, "FAILED", Ending.SETUP_FAILURE),
    ({"exit_code": 2}, "FAILED", Ending.SETUP_FAILURE),
    ({"exit_code": 1}, "FAILED", Ending.CRASH),
    ({"exit_code": 1, "knows_orch": True}, "FAILED", Ending.SETUP_FAILURE),
    ({"signal": 9, "exit_code": 137, "knows_orch": True}, "FAILED", Ending.CRASH),
    ({**RAN, "exit_code": 1}, "NODE_FAIL", Ending.NODE_FAILURE),
])
def test_a_final_record_is_the_first_witness(record: dict[str, Any], state: str, ending: Ending) -> None:
    verdict = classify(Evidence(job=job(1, state), end=end_record(1, **record)))
    assert verdict is not None and verdict.ending == ending


@pytest.mark.parametrize(("state", "notice", "saved", "ending"), [
    ("NODE_FAIL", None, False, Ending.NODE_FAILURE),
    ("BOOT_FAIL", None, False, Ending.NODE_FAILURE),
    ("TIMEOUT", None, False, Ending.LIMIT_UNSAVED),
    ("TIMEOUT", "limit", True, Ending.LIMIT_SAVED),
    ("PREEMPTED", None, False, Ending.PREEMPTED_UNSAVED),
    ("PREEMPTED", "preempt", True, Ending.PREEMPTED_SAVED),
    ("OUT_OF_MEMORY", None, False, Ending.OUT_OF_MEMORY),
    ("CANCELLED", None, False, Ending.CANCELLED),
    ("CANCELLED", "signal", True, Ending.CANCELLED),
    ("FAILED", None, False, Ending.CRASH),
    ("FAILED", "limit", False, Ending.LIMIT_UNSAVED),
])
def test_without_a_final_record_slurm_speaks(state: str, notice: str | None, saved: bool, ending: Ending) -> None:
    end = end_record(1, provisional=True, notice=notice, notice_at=10.0) if notice else None
    verdict = classify(Evidence(job=job(1, state), end=end, saved_after_notice=saved))
    assert verdict is not None and verdict.ending == ending


def test_a_program_that_ignored_the_notice_is_said_to_have() -> None:
    killed = end_record(1, provisional=True, notice="limit", notice_at=10.0)
    for state in ("FAILED", "TIMEOUT", "PREEMPTED"):
        verdict = classify(Evidence(job=job(1, state), end=killed))
        assert verdict is not None and "had not stopped when Slurm killed it" in verdict.reason
    stopped = end_record(1, **RAN, exit_code=75, notice="limit")
    verdict = classify(Evidence(job=job(1, "FAILED"), end=stopped))
    assert verdict is not None and "killed" not in verdict.reason


def test_a_trainer_that_read_of_the_cancel_before_its_supervisor_did() -> None:
    end = end_record(1, **RAN, exit_code=75, trainer="stopped")
    for asked, ending in ((True, Ending.CANCELLED), (False, Ending.LIMIT_SAVED)):
        verdict = classify(Evidence(job=job(1, "FAILED"), end=end, cancel_requested=asked))
        assert verdict is not None and verdict.ending == ending


def test_a_signal_that_nobody_explained_waits_for_slurms_word() -> None:
    end = end_record(1, **RAN, exit_code=75, notice="signal", saved_after_notice=True)
    for unknown in (job(1, "RUNNING"), job(1, "COMPLETING"), SlurmSilent("down")):
        assert classify(Evidence(job=unknown, end=end)) is None
    gone = classify(Evidence(job=JobGone(), end=end))
    assert gone is not None and gone.ending == Ending.PREEMPTED_SAVED


@pytest.mark.parametrize("age_s", [None, 1000.0])
def test_vanished_only_when_the_heart_is_silent(age_s: float | None) -> None:
    verdict = classify(Evidence(job=JobGone(), heartbeat_age_s=age_s))
    assert verdict is not None and verdict.ending == Ending.VANISHED
    assert classify(Evidence(job=JobGone(), heartbeat_age_s=20.0)) is None


# --- Slurm calls it running, and is wrong ---------------------------------------------------------------------------------

GONE = "its supervisor is gone"


@pytest.mark.parametrize(("facts", "ending"), [
    ({"nothing_there": GONE, "heartbeat_age_s": 91.0}, Ending.VANISHED),
    ({"nothing_there": GONE, "heartbeat_age_s": 89.0}, None),                  # Slurm may yet say how it ended
    ({"heartbeat_age_s": 1e6}, None),                                          # the laptop slept, or it was stopped
    ({"nothing_there": GONE, "heartbeat_age_s": 91.0, "cancel_requested": True}, Ending.CANCELLED),
    ({"node_failed": "n1 is down", "heartbeat_age_s": 301.0}, Ending.NODE_FAILURE),
    ({"node_failed": "n1 is down", "heartbeat_age_s": 299.0}, None),
])
def test_slurms_running_is_overruled_only_where_it_is_certain(facts: dict[str, Any], ending: Ending | None) -> None:
    for state in ("RUNNING", "COMPLETING", "SUSPENDED"):
        verdict = classify(Evidence(job=job(1, state), **facts))
        assert (verdict.ending if verdict else None) == ending
    assert classify(Evidence(job=SlurmSilent("down"), **facts)) is None
    if ending is not None:
        assert verdict is not None and (GONE in verdict.reason or "n1 is down" in verdict.reason)


@pytest.mark.parametrize(("saved", "ending"), [(True, Ending.LIMIT_SAVED), (False, Ending.VANISHED)])
def test_a_power_cut_between_notice_and_end(saved: bool, ending: Ending) -> None:
    """Nobody knows whether the lead was too short: it was cut off, and is not raised for that."""
    end = end_record(1, **RAN, provisional=True, notice="limit", notice_at=10.0)
    verdict = classify(Evidence(job=job(1, "RUNNING"), end=end, saved_after_notice=saved, nothing_there=GONE,
                                heartbeat_age_s=200.0))
    assert verdict is not None and verdict.ending == ending


def test_a_final_record_does_not_wait_for_a_slurm_that_will_say_nothing_else() -> None:
    end = end_record(1, **RAN, exit_code=75, notice="signal", saved_after_notice=True)
    verdict = classify(Evidence(job=job(1, "RUNNING"), end=end, nothing_there=GONE, heartbeat_age_s=200.0))
    assert verdict is not None and verdict.ending == Ending.PREEMPTED_SAVED


@pytest.mark.parametrize(("state", "booted_at", "words"), [
    ("IDLE", 100.0, ""), ("MIXED+DRAIN", None, ""), ("ALLOCATED+PLANNED", 1000.0, ""), ("IDLE+POWERED_DOWN", 100.0, ""),
    ("DOWN", 100.0, "n2 is down"), ("DOWN+NOT_RESPONDING", 100.0, "n2 is down"), ("down*", 100.0, "n2 is down"),
    ("MIXED+NOT_RESPONDING", 100.0, ""), ("mixed*", None, ""),                 # its slurmd hangs, and the training goes on
    ("IDLE", 1000.1, "n2 was rebooted since"),
])
def test_what_slurm_says_of_the_nodes(state: str, booted_at: float | None, words: str) -> None:
    nodes = [NodeSeen(name="n1", state="MIXED", booted_at=1.0), NodeSeen(name="n2", state=state, booted_at=booted_at)]
    told = node_failure(nodes, last_beat_at=1000.0)
    assert words in told and bool(told) == bool(words)
    assert node_failure([], last_beat_at=1000.0) == "", "an answer that does not come says nothing"


_records = st.builds(
    end_record, st.just(1), provisional=st.just(True), notice=st.sampled_from([None, "limit", "preempt", "cancel", "signal"]))


@given(end=st.none() | _records, age=st.none() | st.floats(0, 1e6), cancel=st.booleans(), saved=st.booleans())
def test_slurms_silence_is_never_an_ending(end: Any, age: float | None, cancel: bool, saved: bool) -> None:
    assert classify(Evidence(job=SlurmSilent("down"), end=end, heartbeat_age_s=age, cancel_requested=cancel,
                             saved_after_notice=saved)) is None


_NOT_ENDED = ["PENDING", "REQUEUED", "REQUEUE_HOLD", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED"]


@given(state=st.sampled_from(_NOT_ENDED) | st.text(max_size=20), end=st.none() | _records)
def test_a_job_that_runs_or_is_in_a_state_of_the_future_has_not_ended(state: str, end: Any) -> None:
    if state not in ENDED_STATES:
        assert classify(Evidence(job=JobSeen(job_id="1", state=state), end=end)) is None


@given(state=st.sampled_from(sorted(ENDED_STATES)), end=st.none() | _records, saved=st.booleans())
def test_every_ended_job_has_an_ending_and_finished_needs_the_trainers_word(
    state: str, end: Any, saved: bool,
) -> None:
    verdict = classify(Evidence(job=JobSeen(job_id="1", state=state), end=end, saved_after_notice=saved))
    assert verdict is not None and verdict.ending != Ending.FINISHED
