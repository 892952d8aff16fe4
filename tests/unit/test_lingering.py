"""A job that stays COMPLETING: told of once, in the log, as a message and on ops/STATE.md, until it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import POLICY, event, job, queued, run_of, seen, started, submit
from simulation.slurm import NEVER
from test_withdraw import Full

from orchestrator.control.passes import pass_over_all, settled
from orchestrator.control.publish import publish_state
from orchestrator.core.lingering import LINGERS_AFTER_S
from orchestrator.core.news import news
from orchestrator.core.observation import Observation
from orchestrator.message import Kind
from orchestrator.model import Run
from orchestrator.sightings import JobSeen
from orchestrator.views.messages import run_messages

ENDED_AT = 1000.0
LONG = ENDED_AT + LINGERS_AFTER_S + 1.0
TOLD = event("lingers", LONG, submission_id="s1", job_id="101", since=ENDED_AT, nodes="n7")
OVER = event("lingers", LONG + 900.0, submission_id="s1", job_id="101", over=True)


def lingers(run: Run, observation: Observation, now: float) -> list[object]:
    return [fact.get("over", False) for fact in news(run, observation, POLICY, now) if fact["event"] == "lingers"]


def ending(**context: object) -> JobSeen:
    return job(1, "COMPLETING", **{"end_at": ENDED_AT, "nodes": "n7", **context})


@pytest.mark.parametrize(("observation", "now", "known", "expected"), [
    (seen(ending()), LONG, False, [False]),
    (seen(ending()), LONG - 2.0, False, []),             # an ordinary epilog
    (seen(ending(), asked_at=LONG - 2.0), LONG + 3600, False, []),   # the machine slept since Slurm was asked
    (seen(ending()), LONG + 3600, True, []),             # once
    (seen(ending(end_at=None)), LONG, False, []),        # nobody knows since when
    (seen(job(1, "FAILED", end_at=ENDED_AT)), LONG, True, [True]),
    (seen(), LONG, True, [True]),
    (Observation(silent="no answer"), LONG, True, []),
])
def test_when_it_is_noted(observation: Observation, now: float, known: bool, expected: list[bool]) -> None:
    run = run_of(queued(1), event("dropped", 4.0, submission_id="s1"), event("finished", 5.0), *([TOLD] if known else []))
    assert lingers(run, observation, now) == expected


def test_the_run_is_looked_at_until_its_job_is_gone() -> None:
    over = run_of(queued(1), event("dropped", 4.0, submission_id="s1"), event("finished", 5.0), TOLD)
    gone = run_of(queued(1), event("dropped", 4.0, submission_id="s1"), event("finished", 5.0), TOLD, OVER)
    assert (settled(over, 1e6), settled(gone, 1e6)) == (False, True)


def test_one_message_says_where_and_what_waits_with_it() -> None:
    story = [submit(), *queued(1), started(1, 10.0), *queued(2), TOLD, OVER]
    message, = run_messages(story, 1, ())
    assert (message.kind, message.headline) == (Kind.LINGERS, "job 101 of a has been ending for 5m01s on n7")
    assert message.lines[0].endswith("and job 102 waits with it") and "`sinfo -R`" in message.lines[1]


def test_the_log_and_the_page_tell_of_it_until_it_is_gone(tmp_path: Path) -> None:
    full = Full(tmp_path)
    slurm, stuck = full.slurm, full.slurm.jobs_by_id[1]
    stuck.state, stuck.node, stuck.end_at, stuck.kill_at = "COMPLETING", "n1", slurm.now, NEVER

    def after(seconds: float) -> tuple[list[str], str]:
        slurm.tick(slurm.now + seconds)
        report = pass_over_all(full.ports)
        publish_state(full.ports, report)
        lines = [str(line) for one in report.runs for line in one.lines if line.action == "lingers"]
        return lines, (tmp_path / "ops" / "STATE.md").read_text()

    lines, page = after(LINGERS_AFTER_S - 1.0)
    assert lines == [] and "ending since" not in page
    lines, page = after(2.0)
    assert lines == ["job 1 has been ending for 5m01s on n1: Slurm waits until nothing of it is left"]
    assert "**1 cannot be dealt with**" in page and "`a: job 1 has been ending since" in page, page
    lines, page = after(3600.0)
    assert lines == [] and "ending since" in page, "once"
    slurm.exited(stuck, 1)
    lines, page = after(1.0)
    assert lines == ["job 1 has come to its end at last"] and "ending since" not in page
