"""A submission for which Slurm has no room: a successor is left out, a run without a job comes back later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started
from simulation.slurm import SimulatedSlurm
from test_withdraw import Still

from orchestrator import journal
from orchestrator.control.campaign import Checked, Member, submit_campaign
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, require_run
from orchestrator.control.submit import submit
from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.news import news
from orchestrator.errors import NoRoom
from orchestrator.folders import run_dir
from orchestrator.model import Run

LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit"


class FullSlurm(SimulatedSlurm):
    """Takes so many jobs that have not ended, as a QOS does."""

    room = 1
    asked = 0

    def submit(self, script: Path, environment: Any) -> str:
        self.asked += 1
        if sum(not job.ended for job in self.jobs_by_id.values()) >= self.room:
            raise NoRoom(LIMIT)
        return super().submit(script, environment)


@pytest.fixture
def full(tmp_path: Path) -> tuple[FullSlurm, Ports]:
    slurm = FullSlurm(Still(), nodes=("n1",), now=1000.0)
    ids = iter(range(100))
    (tmp_path / "jobs" / "a").mkdir(parents=True)
    (tmp_path / "jobs" / "a" / "job.sh").write_text("#!/bin/sh\ntrue\n")
    return slurm, Ports(repository=tmp_path, slurm=slurm, policy=POLICY, clock=lambda: slurm.now,
                        new_id=lambda: f"id{next(ids)}")


def test_of_a_campaign_what_finds_no_room_is_recorded_and_comes_by_itself(full: tuple[FullSlurm, Ports]) -> None:
    _, ports = full
    for tag in ("b", "c"):
        (ports.repository / "jobs" / tag).mkdir()
        (ports.repository / "jobs" / tag / "job.sh").write_text("#!/bin/sh\ntrue\n")
    specs = {tag: replace(asked_for(ports), tag=tag) for tag in "abc"}
    checked = Checked(name="all", specs=specs, members=tuple(Member(tag=tag, after={}, run=None) for tag in "abc"))
    told: list[str] = []
    with pytest.raises(NoRoom) as raised:
        submit_campaign(ports, checked, lambda run, already: told.append(run.spec.tag))
    assert told == ["a"]
    assert "b is recorded" in raised.value.message and "c is recorded" in raised.value.message
    assert "--again" not in raised.value.hint
    assert [require_run(ports.repository, tag).phase for tag in "abc"] == ["active"] * 3


def asked_for(ports: Ports) -> Any:
    return replace(SPEC, repository=str(ports.repository))


def lines(ports: Ports) -> list[str]:
    return [str(line) for run in pass_over_all(ports).runs for line in run.lines]


def test_a_successor_is_left_out_with_one_line_and_asked_for_once(full: tuple[FullSlurm, Ports]) -> None:
    slurm, ports = full
    run = submit(ports, asked_for(ports)).run
    assert [s.state for s in run.submissions] == ["queued", "rejected"] and run.phase == "active"
    slurm.tick(slurm.now)
    for _ in range(20):
        slurm.now += 30.0
        lines(ports)
    assert slurm.asked == 2


def test_the_line_says_what_slurm_said(full: tuple[FullSlurm, Ports]) -> None:
    slurm, ports = full
    slurm.room = 0
    with pytest.raises(NoRoom, match=r"is recorded, and Slurm takes no further job for now: .*QOSMaxSubmit"):
        submit(ports, asked_for(ports))
    slurm.now += 35.0
    slurm.room = 1
    said = lines(ports)
    assert sum("Slurm refused it: sbatch: error: QOSMaxSubmitJobPerUserLimit; there is room when another job has ended"
               in line for line in said) == 1
    assert not any("refused" in line for _ in range(5) for line in lines(ports))


def test_a_run_without_a_job_is_not_held_and_comes_back_with_a_growing_wait(full: tuple[FullSlurm, Ports]) -> None:
    slurm, ports = full
    slurm.room = 0
    with pytest.raises(NoRoom):
        submit(ports, asked_for(ports))
    for _ in range(240):
        slurm.now += 30.0
        lines(ports)
    assert require_run(ports.repository, "a").phase == "active"
    asked = slurm.asked
    assert 6 <= asked <= 12, f"{asked} times in two hours: waits double up to half an hour"
    slurm.room = 5
    for _ in range(70):
        slurm.now += 30.0
        lines(ports)
    run = require_run(ports.repository, "a")
    assert [s.state for s in run.submissions][-2:] == ["queued", "queued"]
    events = [e["event"] for e in journal.read(run_dir(ports.repository, "a"))[0]]
    assert events.count("rejected") == asked, "none of these storms"


def no_room_after(number: int, t: float) -> list[dict[str, Any]]:
    return [queued(number, t)[0], event("rejected", t, submission_id=f"s{number}", reason=LIMIT, for_now=True)]


def actions(run: Run, now: float) -> list[do.Action]:
    return decide(run, seen(job(1, "RUNNING"), asked_at=now), POLICY, now)


def test_when_the_live_attempt_has_ended_the_next_one_is_asked_for_at_once() -> None:
    live = run_of(queued(1), started(1), no_room_after(2, 5.0))
    assert [type(a) for a in actions(live, 900.0) if not isinstance(a, do.WriteControl)] in ([], [do.Wait])
    over = run_of(queued(1), started(1), no_room_after(2, 5.0), ended(1, "limit-saved", 1000.0, checkpoint_step=5))
    assert not [fact for fact in news(over, seen(asked_at=1001.0), POLICY, 1001.0) if fact["event"] == "held"]
    assert any(isinstance(action, do.QueueAttempt) for action in decide(over, seen(asked_at=1001.0), POLICY, 1001.0))


def test_a_refusal_for_good_holds() -> None:
    run = run_of(queued(1)[0], event("rejected", submission_id="s1", reason="Invalid qos specification"))
    [held] = [fact for fact in news(run, seen(asked_at=9.0), POLICY, 9.0) if fact["event"] == "held"]
    assert "Invalid qos" in str(held["reason"])
