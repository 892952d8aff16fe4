"""Views: equal runs give equal texts, a list fits a terminal, and what matters first stands first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import SPEC, ended, event, job, queued, run_of, started

from orchestrator.checkpoints import Checkpoint
from orchestrator.errors import JournalError
from orchestrator.model import JobSeen, Run
from orchestrator.views.facts import Progress, how_to_go_on, idle_s, run_as_json, state_word
from orchestrator.views.state import state_json, state_text
from orchestrator.views.status import run_lines, status_lines, timeline_lines

TWICE = run_of(
    queued(1), queued(2), started(1, 10), ended(1, "crash", 100, reason="exit 1", exit_code=1, last_step=70,
    checkpoint_step=50, saved_at=80),
    started(2, 101.5, resume_step=50), queued(3))
HELD = run_of(event("held", 5, by="orch", reason="attempt 1: setup-failure: no GPU"))
FINISHED = run_of(queued(1), started(1, 1), ended(1, "finished", 9), event("finished", 10, metrics={"accuracy": 0.98765}))


def jobs(*seen: JobSeen) -> dict[str, JobSeen]:
    return {j.comment.rpartition(":")[2]: j for j in seen}


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


def test_the_list() -> None:
    held_row = (replace(HELD, spec=replace(SPEC, tag="resnet-b")), {}, Progress())
    rows = [(TWICE, jobs(job(3, "PENDING", reason="Dependency")), Progress(step=90, loss=0.123456)), held_row]
    assert status_lines(rows, 161.5) == [
        "TAG       STATE    ATT  STEP  LOSS    FOR    NOTE",
        "a         running  2    90    0.1235  1m     job 102 on n1, next 103",
        "resnet-b  held     0    -     -       2m36s  attempt 1: setup-failure: no GPU",
    ]
    assert status_lines([], 0) == ["TAG  STATE  ATT  STEP  LOSS  FOR  NOTE"]


def test_a_waiting_run_says_what_it_waits_for() -> None:
    def last(run: Run, seen: dict[str, JobSeen]) -> str:
        return status_lines([(run, seen, Progress())], 0)[1].rpartition("  ")[2]

    assert last(run_of(queued(1)), jobs(job(1, "PENDING", reason="Resources"))) == "job 101 (Resources)"
    assert last(run_of(spec=replace(SPEC, after_tags=("base",))), {}) == "after base"
    assert last(FINISHED, {}) == "accuracy=0.9877"


def test_one_run_whole() -> None:
    newest = Checkpoint(path=Path("/c"), step=50, saved_at=90.0, size_bytes=3 * 2**20)
    lines = run_lines(TWICE, jobs(job(3, "PENDING", reason="Dependency", dependency="afterany:102(unfulfilled)")),
                      Progress(step=90, loss=0.5, steps_per_s=12.0, interval_s=1800.0), [newest], 161.5)
    assert lines == [
        "a: running, profile p, checkpoint every 30m",
        "step 90, loss 0.5, 12.0 steps/s",
        "",
        "ATTEMPT  JOB  ON  RAN    STEPS  ENDING          IDLE AFTER  LOST",
        "1        101  n1  1m30s  0-70   crash (exit 1)  1.5s        20s",
        "2        102  n1  1m     50-90  runs",
        "",
        "next: attempt 3, job 103, pending (Dependency), afterany:102(unfulfilled)",
        "",
        "complete checkpoints: step 50 (3M each, the newest 1m12s old)",
    ]


def test_a_requeued_job_shows_its_restart() -> None:
    run = run_of(queued(1), started(1, 10), ended(1, "vanished", 20), event(
        "started", 30, number=2, submission_id="s1", job_id="101", restart_count=1, epoch=2, host="n2", started_at=30))
    assert "101.1" in timeline_lines(run.attempts, 31)[2]


def test_json_has_stable_keys_and_is_json() -> None:
    data = json.loads(json.dumps(run_as_json(TWICE, jobs(job(3, "PENDING")), Progress(step=9))))
    assert set(data) == {"tag", "state", "reason", "since", "profile", "after", "step", "loss",
                         "checkpoint_interval_s", "metrics", "what",
                         "jobs", "attempts"}
    assert data["jobs"] == [{"job_id": "103", "attempt": 3, "state": "PENDING", "why": "", "behind": "singleton"}]
    assert data["attempts"][0]["ending"] == "crash" and data["attempts"][1]["ending"] is None


def test_the_page_for_agents() -> None:
    text = state_text([TWICE, HELD, FINISHED], [JournalError("runs/b/journal.jsonl:2: not an event")])
    assert text == """\
# State

1 running, 0 waiting, 1 held, 1 over.

- **damaged**: runs/b/journal.jsonl:2: not an event
## Held

- `a`: held, attempt 1: setup-failure: no GPU — """ + how_to_go_on(HELD) + """

## Running

- `a`: running, job 102 on n1, next 103

## Over

- `a`: finished, accuracy=0.9877
"""


def test_an_empty_queue_is_said_first() -> None:
    assert state_text([], []).splitlines()[2].startswith("**The queue is empty.**")
    assert state_text([FINISHED], []).splitlines()[2].startswith("**The queue is empty.**")
    assert "empty" not in state_text([run_of(queued(1))], [])


def test_the_state_as_json() -> None:
    data = json.loads(state_json([HELD], [JournalError("x")]))
    assert data["errors"] == ["x"] and data["runs"][0]["state"] == "held"
    assert state_json([HELD], []) == state_json([HELD], [])
