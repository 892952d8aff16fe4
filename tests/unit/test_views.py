"""Lists and one run's page: equal runs give equal texts, a list fits a terminal, and what matters first stands first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest
from builders import SPEC, ended, event, job, queued, run_of, started

from orchestrator.checkpoints import Checkpoint
from orchestrator.model import After, Canary, Run
from orchestrator.sightings import JobSeen
from orchestrator.views.facts import Progress, Shown, idle_s, metrics_in_words, run_as_json, state_word, why_waiting
from orchestrator.views.reasons import reason_in_words
from orchestrator.views.status import View, Whole, at_rest, run_lines, status_lines
from orchestrator.views.text import Line, columns, plain
from orchestrator.views.timeline import Moment, Saves

TWICE = run_of(
    queued(1), queued(2), started(1, 10), ended(1, "crash", 100, reason="exit 1", exit_code=1, last_step=70,
    checkpoint_step=50, saved_at=80),
    started(2, 101.5, resume_step=50), queued(3))
HELD = run_of(event("held", 5, by="orch", reason="attempt 1: setup-failure: no GPU"))
FINISHED = run_of(queued(1), started(1, 1), ended(1, "finished", 9), event("finished", 10, metrics={"accuracy": 0.98765}))
DAY_S = 86400.0


def jobs(*seen: JobSeen) -> dict[str, JobSeen]:
    return {j.comment.rpartition(":")[2]: j for j in seen}


def texts(lines: Sequence[Line]) -> list[str]:
    return [plain(line) for line in lines]


def view(now: float, **changes: object) -> View:
    return View(now=now, zone=UTC, **changes)  # type: ignore[arg-type]


def named(run: Run, tag: str) -> Shown:
    return Shown(run=replace(run, spec=replace(run.spec, tag=tag)))


@pytest.mark.parametrize(("run", "seen", "word"), [
    (run_of(), {}, "waiting"), (run_of(queued(1)), {}, "waiting"), (run_of(queued(1)), jobs(job(1, "PENDING")), "waiting"),
    (run_of(queued(1)), jobs(job(1, "RUNNING")), "starting"), (TWICE, {}, "running"), (HELD, {}, "held"),
    (FINISHED, {}, "finished"), (run_of(event("cancel")), {}, "cancelling"), (run_of(event("cancel"), event("cancelled")), {},
                                                                              "cancelled")])
def test_one_word(run: Run, seen: dict[str, JobSeen], word: str) -> None:
    assert state_word(run, seen) == word


def test_idle_time_between_attempts() -> None:
    first, second = TWICE.attempts
    assert idle_s(first, second) == 1.5
    assert idle_s(second, first) is None
    assert idle_s(first, replace(second, started_at=50.0)) == 0.0  # clocks of two hosts


# --- the list -----------------------------------------------------------------------------------------------------------


def test_the_list() -> None:
    running = Shown(run=TWICE, jobs=jobs(job(3, "PENDING", reason="Dependency")),
                    progress=Progress(step=90, of=200, loss=0.123456, left_s=100.0, at=160.0))
    assert texts(status_lines([running, named(HELD, "resnet-b")], view(161.5))) == [
        "TAG       STATE    FOR    STEP    LOSS    LEFT   ATTEMPT",
        "a         running  1m     90/200  0.1235  1m38s  2 on n1, job 102, next 103",
        "resnet-b  held     2m36s  attempt 1: setup-failure: no GPU",
    ]
    assert status_lines([], view(0)) == []


def test_a_list_without_anything_running_has_no_columns_for_it() -> None:
    assert texts(status_lines([Shown(run=HELD)], view(5)))[0].split() == ["TAG", "STATE", "FOR", "NOTE"]


def test_ordinary_tags_fit_80_columns_uncut() -> None:
    busy = Shown(run=replace(TWICE, spec=replace(SPEC, tag="resnet50-lr3e-4")),
                 progress=Progress(step=41200, of=90000, loss=0.1234, left_s=7800.0, at=161.0))
    for line in texts(status_lines([busy], view(161.5))):
        assert columns(line) <= 96                       # whole, where there is room
    for line in texts(status_lines([busy], view(161.5, width=80))):
        assert columns(line) <= 80
    assert "41200/90000" in texts(status_lines([busy], view(161.5, width=80)))[1]


@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_no_line_is_wider_than_the_terminal_and_what_is_cut_says_so(width: int) -> None:
    long = replace(HELD, phase_reason="x" * 300)
    rows = [named(TWICE, "t" * 64), named(long, "b"), named(FINISHED, "c" * 40)]
    lines = texts(status_lines(rows, view(20, width=width)))
    assert all(columns(line) <= width for line in lines)
    assert ("…" in lines[1]) is (width < 120) and lines[2].endswith("…")
    assert not any("…" in line for line in texts(status_lines(rows, view(20))))  # into a pipe nothing is cut


def test_what_ended_more_than_a_day_ago_is_only_counted() -> None:
    old = [named(FINISHED, f"old-{n}") for n in range(3)]
    cancelled = named(run_of(event("cancel", 1), event("cancelled", 2)), "gone")
    fresh = named(replace(FINISHED, phase_since=DAY_S), "fresh")
    rows = [*old, cancelled, fresh]
    lines = texts(status_lines(rows, view(DAY_S + 100)))
    assert [line.split()[0] for line in lines[:-1]] == ["TAG", "fresh"]
    assert lines[-1] == "and 3 finished, 1 cancelled earlier: `orch status --all`"
    assert len(status_lines(rows, view(DAY_S + 100, everything=True))) == 6
    assert texts(status_lines(old, view(2 * DAY_S))) == ["3 finished earlier: `orch status --all`"]


def test_held_runs_are_never_folded() -> None:
    assert "held" in texts(status_lines([Shown(run=HELD)], view(100 * DAY_S)))[1]


def test_a_low_terminal_folds_what_is_over_first() -> None:
    rows = [*(named(replace(FINISHED, phase_since=float(n)), f"f{n}") for n in range(10)), named(TWICE, "busy")]
    lines = texts(status_lines(rows, view(20, height=5)))
    assert len(lines) == 5
    assert [line.split()[0] for line in lines] == ["TAG", "f8", "f9", "busy", "and"]


def test_a_waiting_run_says_what_it_waits_for() -> None:
    assert why_waiting(Shown(run=run_of(queued(1)), jobs=jobs(job(1, "PENDING", reason="Resources")))) == \
        "job 101, waits for free resources (Resources)"
    after = run_of(spec=replace(SPEC, after_tags={"base": After.FINISHED}))
    assert why_waiting(Shown(run=after)) == "waits for base to finish"
    behind = run_of(queued(1), spec=replace(SPEC, after_tags={"base": After.FINISHED}))
    pending = jobs(job(1, "PENDING", reason="Dependency"))
    assert why_waiting(Shown(run=behind, jobs=pending)) == "job 101, waits for base to finish"
    assert why_waiting(Shown(run=behind, jobs=pending, met=frozenset({"base"}))) == \
        "job 101, waits for the end of another job (Dependency)"
    assert why_waiting(Shown(run=behind, jobs=jobs(job(1, "PENDING", reason="JobHeldUser")))) == \
        "job 101, held in Slurm by its user (JobHeldUser)"
    starting = Shown(run=run_of(queued(1)), jobs=jobs(job(1, "RUNNING")))
    assert why_waiting(starting) == "job 101, has its nodes; its supervisor has not reported yet"
    assert state_word(starting.run, starting.jobs) == "starting"
    assert state_word(starting.run, jobs(job(1, "REQUEUED", reason="BeginTime"))) == "waiting"
    assert "orch explain a" in why_waiting(Shown(run=run_of()))
    unsettled = run_of(event("queueing", 0, submission_id="s1", number=1, dependency="singleton"))
    assert "not settled" in why_waiting(Shown(run=unsettled))


@pytest.mark.parametrize(("reason", "words"), [
    ("Resources", "waits for free resources (Resources)"),
    ("ReqNodeNotAvail, UnavailableNodes:d[001-032]",
     "nodes that it needs are down, drained or do not answer (ReqNodeNotAvail, UnavailableNodes:d[001-032])"),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "nodes that it needs are down, drained or reserved for jobs of partitions that come first"),
    ("Reservation x was deleted", "its reservation was deleted; Slurm holds it for that (Reservation x was deleted)"),
    ("QOSMaxSubmitJobPerUserLimit",
     "its user has as many jobs under its QOS as one may have (QOSMaxSubmitJobPerUserLimit)"),
    ("NewInSlurm30", "NewInSlurm30"), ("", ""), ("new\nword", "new word")])
def test_slurms_reasons_in_words(reason: str, words: str) -> None:
    assert reason_in_words(reason) == words


def test_metrics_in_few_words() -> None:
    assert metrics_in_words({"accuracy": 0.98765, "weights": "ab" * 40, "n": 3}) == \
        "accuracy=0.9877 weights=abababababababa… n=3"
    assert metrics_in_words({"a": 1, "b": 2, "c": 3}, 2) == "a=1 b=2"
    assert columns(metrics_in_words({"k\n" * 100: "v\x1b[31m" * 100})) < 80


# --- one run --------------------------------------------------------------------------------------------------------------


def whole(**changes: object) -> Whole:
    newest = Checkpoint(path=Path("/c"), step=50, saved_at=90.0, size_bytes=3 * 2**20)
    values: dict[str, object] = {
        "shown": Shown(run=TWICE, jobs=jobs(job(3, "PENDING", reason="Dependency", dependency="afterany:102(unfulfilled)")),
                       progress=Progress(step=90, of=1000, loss=0.5, steps_per_s=12.0, left_s=75.0, at=160.0,
                                         memory_bytes=2**30, gpu_memory_bytes=11 * 2**30, interval_s=1800.0)),
        "checkpoints": [newest], "saves": {1: Saves(count=4, last_step=50, last_at=80.0)},
        "moments": [Moment(at=10.0, words="attempt 1 started"), Moment(at=80.0, words="4 saves", attempt=1)]}
    return Whole(**{**values, **changes})  # type: ignore[arg-type]


def test_one_run_whole() -> None:
    assert texts(run_lines(whole(), view(161.5))) == [
        "a: running, profile p, checkpoint every 30m",
        "step 90 of 1000 (9 %), loss 0.5, 12 steps/s, 1m14s left (until 01-01 00:03:55), memory 1G, GPU memory 11G",
        "",
        "ATT  JOB  ON  RAN    STEPS  SAVES  LOST  IDLE  ENDING",
        "1    101  n1  1m30s  0-70   4      20s   1.5s  crash (exit 1)",
        "2    102  n1  1m     50-90                     runs",
        "",
        "TIME            EVENT",
        "01-01 00:00:10  attempt 1 started",
        "01-01 00:01:20    4 saves",
        "",
        "next: attempt 3, job 103, pending behind job 102",
        "",
        "complete checkpoints: step 50 (3M each, the newest 1m12s old)",
    ]


@pytest.mark.parametrize(("reason", "state", "words"), [
    ("Resources", "PENDING", "pending, waits for free resources (Resources), about 01-01 01:00:00 by Slurm's guess"),
    ("BeginTime", "PENDING", "pending, its time to begin has not come (BeginTime), not before 01-01 01:00:00"),
    ("", "RUNNING", "running, has its nodes; its supervisor has not reported yet")])
def test_when_a_waiting_job_may_start(reason: str, state: str, words: str) -> None:
    shown = Shown(run=run_of(queued(1)), jobs=jobs(job(1, state, reason=reason, start_at=3600.0)))
    lines = texts(run_lines(whole(shown=shown, saves={}, moments=[], checkpoints=[]), view(0)))
    assert f"next: attempt 1, job 101, {words}" in lines


@pytest.mark.parametrize("width", [60, 80])
def test_one_runs_page_fits_the_terminal(width: int) -> None:
    long = [Moment(at=float(n), words="attempt 1 ended: crash (" + "why " * 40 + ")") for n in range(3)]
    lines = run_lines(whole(moments=long), view(161.5, width=width))
    assert all(columns(plain(line)) <= width for line in lines)
    joined = " ".join(" ".join(texts(lines)).split())
    assert joined.count("why why") > 30          # prose is wrapped, never cut


def test_a_held_run_begins_with_why_and_what_helps() -> None:
    lines = texts(run_lines(Whole(shown=Shown(run=HELD), saves={}), view(6)))
    assert lines[0].startswith("a: held since 01-01 00:00:05") and lines[1] == "attempt 1: setup-failure: no GPU"
    assert "orch release a" in lines[2] and "orch submit a --again" in lines[2]


def test_a_finished_run_begins_with_its_result_and_has_no_time_left() -> None:
    shown = Shown(run=FINISHED, progress=Progress(step=9, of=9, left_s=0.0, at=9.0))
    lines = texts(run_lines(Whole(shown=shown, saves={}), view(20)))
    assert lines[1] == "result: accuracy=0.9877" and "left" not in lines[2]


@pytest.mark.parametrize(("run", "expected"), [
    (replace(TWICE, canary=Canary.WANTED), "its resume is still to be proven"),
    (replace(FINISHED, canary=Canary.STOPPING), "it ended before its resume could be proven")])
def test_a_proof_that_is_not_there_is_said(run: Run, expected: str) -> None:
    assert expected in texts(run_lines(Whole(shown=Shown(run=run), saves={}), view(200)))
    proven = texts(run_lines(Whole(shown=Shown(run=replace(run, canary=Canary.PROVEN)), saves={}), view(200)))
    assert expected not in proven


def test_slurms_silence_is_said() -> None:
    assert "Slurm does not answer: down" in texts(run_lines(whole(silent="down"), view(161.5)))
    waits = Whole(shown=Shown(run=run_of(queued(1))), saves={}, silent="down")
    assert not any("not seen in Slurm" in line for line in texts(run_lines(waits, view(1)))), "nobody looked"
    assert any("not seen in Slurm" in line for line in texts(run_lines(replace(waits, silent=None), view(1))))


def test_a_low_terminal_shows_fewer_of_the_older_moments() -> None:
    many = [Moment(at=float(n), words=f"moment {n}") for n in range(20)]
    lines = texts(run_lines(whole(moments=many), view(161.5, height=20)))
    assert len(lines) == 20 and "moment 19" in "\n".join(lines) and "moment 3" not in "\n".join(lines)
    assert "earlier ones: `orch status a --all`" in "\n".join(lines)


def test_at_rest() -> None:
    assert at_rest(HELD) and at_rest(FINISHED) and not at_rest(TWICE) and not at_rest(run_of(queued(1)))
    assert not at_rest(run_of(queued(1), started(1, 1), event("held", 5, by="user")))


def test_json_has_stable_keys_and_is_json() -> None:
    data = json.loads(json.dumps(run_as_json(TWICE, jobs(job(3, "PENDING")), Progress(step=9, of=10, left_s=1.0))))
    assert set(data) == {"tag", "state", "reason", "since", "profile", "after", "step", "of", "loss", "steps_per_s", "left_s",
                         "memory_bytes", "gpu_memory_bytes", "progress_at", "checkpoint_interval_s", "metrics", "what",
                         "jobs", "attempts", "campaign", "resume_proof"}
    assert data["jobs"] == [{"job_id": "103", "attempt": 3, "state": "PENDING", "why": "", "waits": "",
                             "behind": "singleton"}]
    assert data["attempts"][0]["ending"] == "crash" and data["attempts"][1]["ending"] is None
    assert data["of"] == 10 and data["left_s"] == 1.0
