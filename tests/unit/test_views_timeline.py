"""The timeline: everything that happened in its order, saves counted, with the cost of each ending."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from builders import ended, event, queued, run_of, started, submit

from orchestrator.views.text import columns, plain
from orchestrator.views.timeline import Saves, attempt_table, moment_lines, moments, saves_of

EVENTS: list[dict[str, Any]] = [
    submit(), *queued(1), started(1, 10),
    event("interval", 11, interval_s=300.0, mtbi_h=10.0, ended=0), event("interval", 12, interval_s=300.0, kept=True),
    ended(1, "crash", 100, reason="exit 1", exit_code=1, last_step=70, checkpoint_step=50, saved_at=80),
    *queued(2), started(2, 101.5, resume_step=50), event("dropped", 150, submission_id="s9", why="gone", reason="x"),
    ended(2, "limit-saved", 200, reason="saved after the notice", saved_at=200), *queued(3), started(3, 260, resume_step=90),
    ended(3, "finished", 300), event("finished", 301, metrics={"accuracy": 0.98765})]
RUN = run_of(EVENTS[1:])


def said(*lines: tuple[str, float, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"event": name, "t": t, **more} for name, t, more in lines]


TRAINERS = {
    1: said(("start", 10, {}), ("saved", 30, {"step": 20}), ("saved", 60, {"step": 40}), ("saved", 80, {"step": 50})),
    2: said(("saved", 150, {"step": 80}), ("notice", 190, {"reason": "signal", "deadline": 250}),
            ("notice", 191, {"reason": "limit", "deadline": 250.0}), ("saved", 199, {"step": 90}),
            ("stopped", 200, {"step": 90}))}


def test_everything_in_order() -> None:
    assert [moment.words for moment in moments(RUN, EVENTS, TRAINERS)] == [
        "submitted", "attempt 1 started on n1 (job 101)", "checkpoint every 5m from now on (M 10 h)",
        "3 saves, the last at step 50", "attempt 1 ended: crash (exit 1); 20s of work lost",
        "attempt 2 started on n1 (job 102) from step 50 after 1.5s idle", "saved step 80", "notice: signal, 1m ahead",
        "notice: limit, 59s ahead", "saved step 90", "attempt 2 ended: limit-saved",
        "attempt 3 started on n1 (job 103) from step 90 after 1m idle", "attempt 3 ended: finished",
        "finished: accuracy=0.9877"]


def test_a_row_of_saves_stands_at_the_time_of_its_last() -> None:
    [row] = [moment for moment in moments(RUN, EVENTS, TRAINERS) if "3 saves" in moment.words]
    assert row.at == 80 and row.attempt == 1


@pytest.mark.parametrize(("journal", "expected"), [
    (event("held", 5, by="user", reason="by hand"), "held: by hand"), (event("released", 6), "released"),
    (event("cancel", 7, reason="by hand"), "cancel was asked for: by hand"),
    (event("rejected", 3, submission_id="s1", reason="QOS\nlimit"), "Slurm refused a job of it: QOS limit"),
    (event("interval", 3, interval_s=300.0, local_interval_s=3.0),
     "checkpoint every 5m, to the node every 3s, from now on"),
    (event("interval", 3, interval_s=300.0, local_interval_s=300.0), "checkpoint every 5m from now on"),
    (event("canary", 3, state="stopping", epoch=1, attempt=1, reason="x"), "attempt 1 is stopped to prove that it resumes"),
    (event("canary", 3, state="proven", epoch=2, attempt=2, reason="it went on"), "its resume is proven: it went on"),
    (event("rollback", 3, to_step=50, checkpoint="step-50", reason="ann: spike"), "goes back to step 50: ann: spike"),
    (event("adjusted", 3, reason="memory x 1.25"), "adjusted: memory x 1.25"),
    (event("dropped", 3, submission_id="s1", why="stood down", reason="held"), "job 101 of attempt 1 stood down: held"),
    (event("dropped", 3, submission_id="s1", why="gone", reason="unknown"), "job 101 of attempt 1 is gone: unknown"),
    (event("note", 3, text="\x1b[31mtorn"), "note: [31mtorn"), (event("reopened", 3, reason="submitted again"),
                                                                "opened again: submitted again")])
def test_what_the_journal_tells(journal: dict[str, Any], expected: str) -> None:
    run = run_of(queued(1))
    assert [moment.words for moment in moments(run, [journal], {})] == [expected]


@pytest.mark.parametrize("journal", [
    event("queueing", 1, submission_id="s1", number=1), event("asked", 1, kind="cancel", job_id="1"), event("unheard-of", 1),
    event("dropped", 3, submission_id="s1", why="cancelled", reason="cancelled by orch"),
    event("started", 1, epoch=99), event("ended", 1, epoch=99)])
def test_what_is_no_news_is_left_out(journal: dict[str, Any]) -> None:
    assert moments(run_of(queued(1)), [journal], {}) == []


def test_what_a_trainer_tells_of_trouble() -> None:
    lines = said(("save_failed", 1, {"step": 1, "error": "disk\nfull"}), ("fenced", 2, {"epoch": 3}),
                 ("failed", 3, {"error": "Boom"}), ("saved", 4, {"step": "odd"}))
    assert [m.words for m in moments(RUN, [], {1: lines})] == [
        "a save failed: disk full", "fenced: a newer start exists, nothing was written", "failed: Boom", "saved step None"]


def test_saves_are_counted() -> None:
    assert saves_of(TRAINERS[1]) == Saves(count=3, last_step=50, last_at=80.0)
    assert saves_of(said(("start", 1, {}))) == Saves()


def test_the_table_of_attempts() -> None:
    table = attempt_table(RUN.attempts, {1: Saves(count=3), 2: Saves(count=2)}, None, 400, None)
    assert [plain(line) for line in table] == [
        "ATT  JOB  ON  RAN    STEPS  SAVES  LOST  IDLE  ENDING",
        "1    101  n1  1m30s  0-70   3      20s   1.5s  crash (exit 1)",
        "2    102  n1  1m38s  50-    2      0s    1m    limit-saved",
        "3    103  n1  40s    90-                       finished",
    ]


def test_of_many_attempts_the_latest_are_shown() -> None:
    lines = [plain(line) for line in attempt_table(RUN.attempts, {}, None, 400, None, at_most=1)]
    assert lines[1].split() == ["…", "2", "earlier", "ones"] and lines[2].split()[0] == "3" and len(lines) == 3
    assert len(attempt_table(RUN.attempts, {}, None, 400, None, at_most=3)) == 4


def test_a_requeued_job_shows_its_restart() -> None:
    run = run_of(queued(1), started(1, 10), ended(1, "vanished", 20), event(
        "started", 30, number=2, submission_id="s1", job_id="101", restart_count=1, epoch=2, host="n2", started_at=30))
    assert "101.1" in plain(attempt_table(run.attempts, {}, None, 31, None)[2])
    assert "(job 101, restart 1)" in moments(run, [event("started", 30, epoch=2)], {})[0].words


def test_lines_show_the_latest_and_say_how_many_came_before() -> None:
    found = moments(RUN, EVENTS, TRAINERS)
    lines = [plain(line) for line in moment_lines(found, "a", 3, None, UTC)]
    assert lines == [
        "TIME            EVENT", "… 11 earlier ones: `orch status a --all`",
        "01-01 00:04:20  attempt 3 started on n1 (job 103) from step 90 after 1m idle",
        "01-01 00:05:00  attempt 3 ended: finished", "01-01 00:05:01  finished: accuracy=0.9877"]
    assert len(moment_lines(found, "a", None, None, UTC)) == len(found) + 1


def test_what_happened_within_an_attempt_is_indented_and_long_words_are_wrapped_under_themselves() -> None:
    lines = [plain(line) for line in moment_lines(moments(RUN, EVENTS, TRAINERS), "a", None, 50, UTC)]
    assert "01-01 00:01:20    3 saves, the last at step 50" in lines
    assert all(columns(line) <= 50 for line in lines)
    assert all(line[:1].strip() or line.startswith(" " * 18) for line in lines)
