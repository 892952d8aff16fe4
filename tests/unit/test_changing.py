"""`orch update` as the journal and the decisions know it: a wish, done to what waits, then how the run is."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started

from orchestrator.core.actions import ChangeJob, QueueAttempt, ResumeJob, TakeScript, Wait
from orchestrator.core.decide import decide
from orchestrator.core.fold import apply
from orchestrator.core.news import news
from orchestrator.core.observation import Control, Observation
from orchestrator.core.script import batch_script
from orchestrator.model import Run
from orchestrator.sightings import JobSeen

NOW = 100.0
INTERVAL = event("interval", 0, interval_s=POLICY.checkpoint_interval_s, ended=0)
CONTROL = Control(seq=1, interval_s=POLICY.checkpoint_interval_s)
UPDATE = event("update", 50, memory_bytes=28 << 30, time_s=14400.0, nice=100)


def run(*events: dict[str, Any] | list[dict[str, Any]]) -> Run:
    return run_of(INTERVAL, *events)


def pending(number: int, reason: str = "Resources", state: str = "PENDING") -> JobSeen:
    return job(number, state, reason=reason)


def look(*jobs: JobSeen, **context: Any) -> Observation:
    return seen(*jobs, control=CONTROL, **context)


def facts(run: Run, observation: Observation) -> list[str]:
    return [str(fact["event"]) for fact in news(run, observation, POLICY, NOW)]


def test_waiting_jobs_are_changed_where_they_wait_and_nothing_else_is_done_before() -> None:
    wanted = run(queued(1), UPDATE)
    observation = look(pending(1))
    assert facts(wanted, observation) == []
    [action] = decide(wanted, observation, POLICY, NOW)
    assert action == ChangeJob(submission_id="s1", job_id="101", memory_bytes=28 << 30, time_s=14400.0, nice=100,
                               why="memory 28G, time 4:00:00, nice 100 from now on")
    done = apply(wanted, event("changed", 60, submission_id="s1"))
    assert done is not None and facts(done, observation) == ["updated"]


def test_once_it_is_so_the_run_asks_for_it_and_a_successor_does_too() -> None:
    changed = run(queued(1), UPDATE, event("changed", 60, submission_id="s1"), event("updated", 60))
    profile = changed.spec.profile
    assert (profile.memory_bytes, profile.time_s, changed.spec.nice, changed.change) == (28 << 30, 14400.0, 100, None)
    actions = decide(changed, look(pending(1)), POLICY, NOW)
    assert [type(action) for action in actions] == [QueueAttempt]
    script = batch_script(changed.spec, number=2, submission_id="s2", folder=Path("/r/a"), behind=("101",),
                          nice=False, entry="/o/supervisor")
    assert "--mem=28672M" in script and "--time=240" in script and "--nice=100" in script


def test_what_is_not_named_stays() -> None:
    changed = run(event("update", 1, nice=5), event("updated", 1))
    assert (changed.spec.profile, changed.spec.nice, changed.spec.script_sha256) == (SPEC.profile, 5, SPEC.script_sha256)


def test_with_nothing_waiting_it_is_so_at_once() -> None:
    assert facts(run(UPDATE), look()) == ["updated"]


def test_an_attempt_that_runs_is_left_alone_and_its_successor_changed() -> None:
    wanted = run(queued(1), started(1, 10), queued(2), UPDATE)
    [action] = decide(wanted, look(job(1, "RUNNING"), pending(2, "Dependency")), POLICY, NOW)
    assert isinstance(action, ChangeJob) and action.job_id == "102"


@pytest.mark.parametrize("observation", [
    Observation(silent="no answer"), look(), look(pending(1, state="REQUEUED"))])
def test_it_is_not_called_done_while_a_job_may_wait_unseen_or_slurm_is_silent(observation: Observation) -> None:
    assert "updated" not in facts(run(queued(1), UPDATE), observation)


@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "COMPLETING"])
def test_a_job_that_started_meanwhile_keeps_what_it_has(state: str) -> None:
    wanted = run(queued(1, 90), UPDATE)
    assert not any(isinstance(action, ChangeJob) for action in decide(wanted, look(pending(1, "", state)), POLICY, NOW))
    assert "updated" in facts(wanted, look(pending(1, "", state)))


def came_back(*between: dict[str, Any] | list[dict[str, Any]]) -> Run:
    """Its job ran when the wish came true, and waits again."""
    return run(queued(1), started(1, 10), queued(2), UPDATE, event("changed", 51, submission_id="s2"), event("updated", 51),
               *between, ended(1, "vanished", 60), event("requeued", 60, submission_id="s1"))


def test_a_job_that_is_put_back_is_asked_for_what_it_missed_and_once() -> None:
    observation = look(pending(1, "BeginTime"), pending(2, "Dependency"))
    back = came_back()
    [action] = decide(back, observation, POLICY, NOW)
    assert action == ChangeJob(submission_id="s1", job_id="101", memory_bytes=28 << 30, time_s=14400.0, nice=100,
                               why="memory 28G, time 4:00:00, nice 100 from now on")
    later = came_back(event("update", 52, time_s=600.0), event("changed", 53, submission_id="s2"), event("updated", 53))
    [action] = decide(later, observation, POLICY, NOW)
    assert isinstance(action, ChangeJob) and (action.memory_bytes, action.time_s) == (28 << 30, 600.0)
    for word in ("changed", "unchanged"):              # also when Slurm refused: it waits as it is
        asked = apply(back, event(word, 61, submission_id="s1"))
        assert asked is not None and asked.spec == back.spec
        assert not any(isinstance(one, ChangeJob) for one in decide(asked, observation, POLICY, NOW))


@pytest.mark.parametrize(("restarts", "asked"), [(1, ["101"]), (0, [])])
def test_it_may_start_again_before_its_last_attempt_is_known_to_have_ended(restarts: int, asked: list[str]) -> None:
    """No end record, and a heart that has been silent for too short a time. With the same restart count it runs: that
    squeue was older than the start."""
    live = run(queued(1), started(1, 10), queued(2), UPDATE, event("changed", 51, submission_id="s2"), event("updated", 51))
    actions = decide(live, look(job(1, "PENDING", restart_count=restarts), pending(2)), POLICY, NOW)
    assert [action.job_id for action in actions if isinstance(action, ChangeJob)] == asked


def test_a_job_from_before_the_run_was_submitted_again_is_asked_for_what_that_asked_for() -> None:
    other = asdict(replace(SPEC, profile=replace(SPEC.profile, time_s=600.0)))
    again = run(queued(1), started(1, 10), ended(1, "finished", 20), event("finished", 20), event("reopened", 30, spec=other),
                event("requeued", 40, submission_id="s1"))
    [action] = decide(again, look(pending(1)), POLICY, NOW)
    assert isinstance(action, ChangeJob) and (action.job_id, action.memory_bytes, action.time_s) == ("101", None, 600.0)


def test_nothing_is_queued_with_what_a_wish_is_about_to_change() -> None:
    """Slurm does not show the waiting job yet; a successor from now would never be asked for it."""
    assert [type(action) for action in decide(run(queued(1), UPDATE), look(), POLICY, NOW)] == [Wait]


def test_an_sbatch_that_is_not_settled_is_waited_for() -> None:
    wanted = run(event("queueing", 40, submission_id="s1", number=1, dependency="singleton"), UPDATE)
    assert facts(wanted, look(asked_at=NOW)) == []
    assert [type(action) for action in decide(wanted, look(asked_at=NOW), POLICY, NOW)] == [Wait]


@pytest.mark.parametrize(("events", "reason"), [
    ([event("held", 45, by="user"), event("paused", 46, submission_id="s1")], "JobHeldUser"),
    ([], "JobHeldAdmin"), ([], "job requeued in held state")])
def test_a_held_job_gets_no_nice_value_which_would_let_it_go(events: list[dict[str, Any]], reason: str) -> None:
    [action] = decide(run(queued(1), *events, UPDATE), look(pending(1, reason)), POLICY, NOW)
    assert isinstance(action, ChangeJob) and action.nice is None and action.memory_bytes == 28 << 30


def test_a_wish_comes_before_the_release_of_what_waits() -> None:
    held = run(queued(1), event("held", 45, by="user"), event("paused", 46, submission_id="s1"), UPDATE,
               event("released", 60))
    observation = look(pending(1, "JobHeldUser"))
    assert [type(action) for action in decide(held, observation, POLICY, NOW)] == [ChangeJob]
    changed = run(queued(1), event("held", 45, by="user"), event("paused", 46, submission_id="s1"), UPDATE,
                  event("released", 60), event("changed", 61, submission_id="s1"), event("updated", 61))
    assert ResumeJob in [type(action) for action in decide(changed, observation, POLICY, NOW)]


def test_a_wish_on_top_of_another_is_both_and_changes_again_what_had_only_the_first() -> None:
    both = run(queued(1), event("update", 50, memory_bytes=1 << 30, script_sha256="f"), event("script_taken", 51),
               event("changed", 51, submission_id="s1"), event("update", 52, time_s=600.0))
    assert both.change is not None and both.change.script_taken
    [action] = decide(both, look(pending(1)), POLICY, NOW)
    assert isinstance(action, ChangeJob) and (action.memory_bytes, action.time_s) == (1 << 30, 600.0)


def test_what_slurm_refuses_leaves_the_run_as_it_was() -> None:
    refused = run(queued(1), UPDATE, event("unchanged", 60, reason="job 101: Access/permission denied"))
    assert (refused.change, refused.spec) == (None, SPEC)
    assert not any(isinstance(action, ChangeJob) for action in decide(refused, look(pending(1)), POLICY, NOW))


def test_job_sh_is_taken_once_and_no_job_is_asked_for_that() -> None:
    wanted = run(queued(1), event("update", 50, script_sha256="f00"))
    [action] = decide(wanted, look(pending(1)), POLICY, NOW)
    assert isinstance(action, TakeScript) and action.sha256 == "f00"
    taken = apply(wanted, event("script_taken", 51))
    assert taken is not None and facts(taken, look(pending(1))) == ["updated"]
    after = apply(taken, event("updated", 52))
    assert after is not None and after.spec.script_sha256 == "f00"


def test_job_sh_that_was_taken_stays_taken_when_slurm_refuses_the_rest() -> None:
    refused = run(queued(1), event("update", 50, script_sha256="f00", nice=-5), event("script_taken", 51),
                  event("unchanged", 52, reason="no"))
    assert (refused.spec.script_sha256, refused.spec.nice) == ("f00", None)


@pytest.mark.parametrize("name", ["cancel", "finished"])
def test_a_run_that_ends_takes_the_wish_with_it(name: str) -> None:
    over = run(queued(1), UPDATE, event(name, 60))
    assert facts(over, look(pending(1)))[:1] == ["unchanged"]
    assert run(event("finished", 40), UPDATE).change is None, "nothing is wished of one that is over"


def test_a_run_that_is_rolled_back_goes_on_as_is_wanted() -> None:
    """Nothing of it waits any more; job.sh is taken before the next attempt is queued."""
    wanted = run(queued(1), event("rollback", 40, to_step=10), event("dropped", 45, submission_id="s1"),
                 event("update", 50, memory_bytes=28 << 30, script_sha256="ab"))
    assert facts(wanted, look()) == []
    assert [type(action) for action in decide(wanted, look(), POLICY, NOW)] == [TakeScript]
    taken = apply(wanted, event("script_taken", 60))
    assert taken is not None and facts(taken, look()) == ["updated"]


def test_events_that_come_late_or_twice_change_nothing() -> None:
    assert run(queued(1), event("updated", 1), event("unchanged", 2), event("script_taken", 3)).spec == SPEC
