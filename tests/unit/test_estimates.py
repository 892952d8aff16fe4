"""When it will start: kept for a minute, compared with what came of earlier guesses, and what it waits for."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from builders import event, queued, run_of, started

from orchestrator.core.estimates import Estimate, Misses, came_true, estimates, misses, sooner_s, still_good
from orchestrator.core.fold import apply
from orchestrator.core.waiting import Evidence, why
from orchestrator.views.waits import estimate_lines, waiting_lines

NOW = 1_000.0


def told(t: float = NOW, **changes: Any) -> dict[str, Any]:
    return event("estimated", t, **{"submission_id": "s1", "start_at": 4600.0, "planned_at": None, "without": {}, **changes})


def one(**changes: Any) -> Estimate:
    return estimates([told(**changes)])[0]


def test_an_estimate_goes_into_the_journal_and_comes_back() -> None:
    first = one(planned_at=4000.0, without={"without gpu:1": 1000.0})
    assert estimates([event("note", 1), {"event": "estimated", "t": NOW, **first.as_event()}]) == [first]


def test_it_changes_nothing_of_the_run() -> None:
    run = run_of(queued(1))
    after = apply(run, told())
    assert after is not None and after.spec == run.spec and after.submissions == run.submissions and after.attempts == ()


def test_it_is_kept_for_a_minute_while_the_same_is_asked_for() -> None:
    assert still_good([told()], "s1", NOW + 59) == one()
    assert still_good([told(), event("interval", NOW)], "s1", NOW + 59) == one()
    assert still_good([told()], "s1", NOW + 61) is None
    assert still_good([told()], "s1", NOW - 5) is None, "the clock was set back"
    assert still_good([told()], "s2", NOW + 1) is None
    for name in ("update", "changed", "repointed", "resumed"):
        assert still_good([told(), event(name, NOW)], "s1", NOW + 1) is None
    assert still_good([], "s1", NOW) is None


def test_what_it_waits_for_is_what_it_would_start_sooner_without() -> None:
    without = {"without gpu:1": 1000.0, "with hardly any memory": 4590.0}
    assert sooner_s(one(without=without)) == {"without gpu:1": 3600.0}


def test_guesses_are_compared_with_the_first_start_of_their_submission() -> None:
    run = run_of(queued(1), started(1, 4000.0), event("requeued", 4100, submission_id="s1"),
                 {**started(1, 9000.0), "epoch": 7, "restart_count": 1})
    told_of = [one(), one(submission_id="s9")]
    assert came_true(run, told_of) == [(told_of[0], 4000.0)]


def test_how_far_off_they_were() -> None:
    assert misses([]) is None
    assert misses([(100.0, 160.0), (100.0, 40.0), (100.0, 130.0)]) == Misses(
        count=3, median_s=30.0, earliest_s=-60.0, latest_s=60.0)


def test_in_words() -> None:
    guess = one(planned_at=2800.0, without={
        "without gpu:1": 1000.0, "with hardly any memory": 4600.0, "without gpu:1 and with hardly any memory": 1000.0})
    assert estimate_lines(guess, [], NOW + 20, UTC) == [
        "start: about 01-01 00:46:40, in 29m40s, by Slurm's plan for this job",
        "start: about 01-01 01:16:40, in 59m40s, by `sbatch --test-only` with the same request, which Slurm puts behind "
        "all that wait, this job too (asked 20s ago)",
        "       without gpu:1: 1h sooner", "       with hardly any memory: no sooner",
        "       without gpu:1 and with hardly any memory: 1h sooner",
        "so it would start sooner without gpu:1: that is what it waits for",
        "before: no guess that was told in this repository has come true yet, so nobody knows how good they are"]
    past = [(one(planned_at=4000.0), 4000.5), (one(), 1000.0), (one(), 4660.0)]
    assert estimate_lines(one(), past, NOW, UTC)[-2:] == [
        "before: after 3 such guesses by `sbatch --test-only` the real start came 10m sooner, from 1h sooner to 1m later",
        "before: after 1 such guess by Slurm's plans the real start came on time"]
    turn = estimate_lines(one(without={"without gpu:1": 4600.0}), [], NOW, UTC)
    assert "so it waits for its turn, or for what it cannot do without" in turn


def test_why_it_waits_in_words() -> None:
    def lines(reason: str, **more: Any) -> list[str]:
        seen = Evidence(reason=reason, tag="a", job_id="7", **more)
        return waiting_lines(why(seen), seen, UTC)

    assert lines("Priority", ahead=2, not_before=4600.0)[:2] == [
        "job 7: 2 jobs of its partition come first (Priority)",
        "Slurm plans to start it 01-01 01:16:40, a guess that changes; `orch explain a --start` says more"]
    assert lines("BadConstraints")[0] == "job 7: will never start like this: no node is as it asks for (BadConstraints)"
    assert lines("Resources", cannot="too big")[0] == "job 7: can never start: too big (Resources)"
    assert lines("BeginTime", not_before=4600.0) == [
        "job 7: its time to begin has not come (BeginTime)", "Slurm will not start it before 01-01 01:16:40"]
    assert lines("NewInSlurm30") == ["job 7: NewInSlurm30"]
    assert lines("JobHeldUser", not_before=4600.0) == [
        "job 7: held in Slurm by its user (JobHeldUser)", "what helps: `scontrol release 7`"]
