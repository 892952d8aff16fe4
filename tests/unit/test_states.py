"""Every state and flag of 22.05 to 26.05, and what it means for us: a row here for a row of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import POLICY, attempt_seen, job, queued, run_of, seen, start_record, started

from orchestrator.core.endings import Evidence, classify
from orchestrator.core.news import news
from orchestrator.core.observation import AttemptSeen
from orchestrator.model import ENDED_STATES, Ending
from orchestrator.sightings import JobSeen
from orchestrator.states import (
    ALLOCATED_STATES,
    ENDING_STATES,
    STATES,
    WAITING_STATES,
    Cause,
    Stage,
    cause_of,
    exit_code,
    exit_code_words,
    stage_of,
    state_word,
)

NOW = 1000.0

# word, code, stage, and how an attempt has ended that left no record of its own (None: nobody can say, or it has not)
ROWS: list[tuple[str, str, str, Ending | None]] = [
    ("PENDING", "PD", "waiting", None),
    ("RUNNING", "R", "allocated", None),
    ("SUSPENDED", "S", "allocated", None),
    ("COMPLETED", "CD", "ended", Ending.CRASH),       # without a record: its supervisor was killed
    ("CANCELLED", "CA", "ended", Ending.CANCELLED),
    ("FAILED", "F", "ended", Ending.CRASH),
    ("TIMEOUT", "TO", "ended", Ending.LIMIT_UNSAVED),
    ("NODE_FAIL", "NF", "ended", Ending.NODE_FAILURE),
    ("PREEMPTED", "PR", "ended", Ending.PREEMPTED_UNSAVED),
    ("BOOT_FAIL", "BF", "ended", Ending.NODE_FAILURE),
    ("DEADLINE", "DL", "ended", Ending.LIMIT_UNSAVED),
    ("OUT_OF_MEMORY", "OOM", "ended", Ending.OUT_OF_MEMORY),
    ("COMPLETING", "CG", "ending", None),
    ("STAGE_OUT", "SO", "ending", None),
    ("CONFIGURING", "CF", "allocated", None),
    ("EXPEDITING", "", "waiting", None),
    ("RESIZING", "RS", "allocated", None),
    ("REQUEUED", "RQ", "waiting", None),
    ("REQUEUE_FED", "RF", "waiting", None),
    ("REQUEUE_HOLD", "RH", "waiting", None),
    ("SPECIAL_EXIT", "SE", "waiting", None),
    ("STOPPED", "ST", "allocated", None),
    ("REVOKED", "RV", "unknown", None),
    ("RESV_DEL_HOLD", "RD", "waiting", None),
    ("SIGNALING", "SI", "allocated", None),
    ("LAUNCH_FAILED", "", "unknown", None),
    ("UPDATE_DB", "", "unknown", None),
    ("RECONFIG_FAIL", "", "unknown", None),
    ("POWER_UP_NODE", "", "allocated", None),
    ("GETENV_FAILED", "", "unknown", None),
]
CAUSES = {
    "COMPLETED": Cause.ITSELF, "FAILED": Cause.ITSELF, "CANCELLED": Cause.PERSON, "TIMEOUT": Cause.LIMIT,
    "DEADLINE": Cause.LIMIT, "NODE_FAIL": Cause.NODE, "BOOT_FAIL": Cause.NODE, "PREEMPTED": Cause.PREEMPTION,
    "OUT_OF_MEMORY": Cause.MEMORY}


def test_the_table_has_a_test_for_each_row() -> None:
    assert [row[0] for row in ROWS] == [state.word for state in STATES]


@pytest.mark.parametrize(("word", "code", "stage", "ending"), ROWS, ids=[row[0] for row in ROWS])
def test_a_state_and_what_it_means(word: str, code: str, stage: str, ending: Ending | None) -> None:
    assert stage_of(word) == stage
    assert cause_of(word) is CAUSES.get(word)
    for text in filter(None, [word, word.lower(), f"{word}+", f"{word} by 1000", code, code.lower()]):
        assert state_word(text) == word
    verdict = classify(Evidence(job=JobSeen(job_id="7", state=word), heartbeat_age_s=20.0))
    assert (verdict.ending if verdict is not None else None) == ending


def test_the_sets_are_the_tables() -> None:
    assert {row[0] for row in ROWS if row[2] == "ended"} == ENDED_STATES
    assert {row[0] for row in ROWS if row[2] == "waiting"} == WAITING_STATES
    assert {row[0] for row in ROWS if row[2] == "allocated"} == ALLOCATED_STATES
    assert {row[0] for row in ROWS if row[2] == "ending"} == ENDING_STATES
    assert all((state.cause is not None) == (state.stage is Stage.ENDED) for state in STATES)
    codes = [state.code for state in STATES if state.code]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(("cut", "word"), [
    ("OUT_OF_ME+", "OUT_OF_MEMORY"), ("CANCELLED+", "CANCELLED"), ("REQUEUE_H+", "REQUEUE_HOLD"),
    ("RESV_DEL_+", "RESV_DEL_HOLD"), ("SPECIAL_E+", "SPECIAL_EXIT"), ("CONFIGURI+", "CONFIGURING"),
    ("COMPLETED+", "COMPLETED"), ("cancelled by 1001", "CANCELLED"), ("OUT_O+", "OUT_OF_MEMORY"), (" CG ", "COMPLETING")])
def test_words_cut_short_and_words_with_more(cut: str, word: str) -> None:
    assert state_word(cut) == word


@pytest.mark.parametrize("text", ["", "?", "REBALANCING", "COMPLETED_NOT", "ENDED", "RE+", "COMPL+", "+", "C", "1"])
def test_what_nobody_knows_is_shown_as_it_is_and_is_no_end(text: str) -> None:
    assert state_word(text) == text
    assert stage_of(text) is Stage.UNKNOWN and cause_of(text) is None
    assert classify(Evidence(job=JobSeen(job_id="7", state=text), heartbeat_age_s=20.0)) is None


@pytest.mark.parametrize(("text", "code"), [
    ("0:9", "0:9"), ("0:125", "0:125"), ("1:0", "1:0"), ("0:0", "0:0"), ("75:0", "75:0"), ("0", "0:0"), ("768", "3:0"),
    ("9", "0:9"), ("125", "0:125"), ("19200", "75:0"), ("53", "0:53"), ("137", "0:9"), ("", ""), ("N/A", ""), ("1:", ""),
    ("-1", ""), ("(null)", ""), ("²", "")])
def test_exit_codes(text: str, code: str) -> None:
    assert exit_code(text) == code


@pytest.mark.parametrize(("code", "words"), [
    ("0:9", "killed by signal 9"), ("0:125", "killed for memory"), ("1:0", "exit 1"), ("0:0", ""), ("", ""),
    ("75:0", "exit 75"), ("0:15", "killed by signal 15"), ("0:53", "Slurm could not open its files (is the folder of its "
                                                                 "output there?)")])
def test_exit_codes_in_words(code: str, words: str) -> None:
    assert exit_code_words(code) == words


# --- what runs make of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*(row[0] for row in ROWS if row[2] != "ended"), "REBALANCING", "?"])
def test_a_state_that_is_no_end_ends_nothing(state: str) -> None:
    """Neither what waits nor what has its nodes, whatever Slurm calls it, if need be with a word of a later release's."""
    waiting, live = run_of(queued(1)), run_of(queued(1), started(1, t=990.0))
    events = [fact["event"] for run, seen_now in (
        (waiting, seen(job(1, state), asked_at=NOW)),
        (live, seen(job(1, state), attempts=(replace(attempt_seen(1), heartbeat_at=990.0),), asked_at=NOW)))
        for fact in news(run, seen_now, POLICY, NOW)]
    assert set(events) <= {"interval"}


@pytest.mark.parametrize(("code", "told"), [
    ("0:53", "FAILED: Slurm could not open its files (is the folder of its output there?)"), ("1:0", "FAILED: exit 1"),
    ("0:9", "FAILED: killed by signal 9"), ("", "FAILED")])
def test_a_job_that_ended_before_it_could_report_is_told_with_its_exit_code(code: str, told: str) -> None:
    dropped, held = news(run_of(queued(1)), seen(job(1, "FAILED", exit_code=code, end_at=900.0), asked_at=NOW), POLICY, NOW)
    assert f"job 101 ended ({told}) before its supervisor could report" in str(dropped["reason"])
    assert held["event"] == "held"


def test_a_restart_count_above_the_known_one_is_a_new_attempt() -> None:
    run = run_of(queued(1), started(1, t=10.0))
    again = AttemptSeen(start=start_record(2, submission_id="s1", job_id="101", restart_count=1, started_at=200.0),
                        heartbeat_at=990.0)
    now_seen = seen(job(1, "RUNNING", restart_count=1, start_at=200.0), attempts=(attempt_seen(1), again), asked_at=NOW)
    [fact] = news(run, now_seen, POLICY, NOW)
    assert (fact["event"], fact["epoch"], fact["restart_count"], fact["job_id"]) == ("started", 2, 1, "101")
