"""The rule of every ending: whether the run goes on, after which wait, and what ``orch explain`` says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import POLICY, ended, event, job, queued, run_of, seen, started

from orchestrator.core import actions as do
from orchestrator.core.decide import decide
from orchestrator.core.recovery import RULES, excluded_nodes, rule_in_words, why_hold
from orchestrator.model import RETRIED, Ending, Run


def after(*endings: str, saves: bool = False) -> Run:
    """A run whose attempts ended like this, one after the other, 100 s each; every one saved, or none did."""
    story: list[Any] = []
    for number, ending in enumerate(endings, 1):
        begin = 1000.0 * number
        story += [queued(number, begin), started(number, begin),
                  ended(number, ending, begin + 100, reason="exit 1", checkpoint_step=number if saves else None)]
    return run_of(*story)


def test_every_ending_has_a_rule() -> None:
    assert set(RULES) == set(Ending)


@pytest.mark.parametrize("ending", sorted(Ending))
def test_explain_names_the_rule_of_every_ending(ending: Ending) -> None:
    words = rule_in_words(after(ending), POLICY)
    assert words.startswith(f"rule for {ending}: ")
    assert rule_in_words(run_of(queued(1)), POLICY) == ""


@pytest.mark.parametrize(("ending", "words"), [
    ("limit-saved", "rule for limit-saved: planned stop: the successor goes on"),
    ("crash", "1 of at most 2 endings in a row without a newer checkpoint; after a back-off of"),
    ("out-of-memory", "memory x 1.25 up to the largest node's"),
    ("limit-unsaved", "lead x 2 up to half the limit"),
    ("node-failure", "for 2h, unless that were more than 25% of the partition"),
    ("setup-failure", "rule for setup-failure: held at once")])
def test_a_rule_names_its_numbers(ending: str, words: str) -> None:
    assert words in rule_in_words(after(ending), POLICY)


def test_a_rule_that_holds_the_run_says_so_and_nothing_of_a_next_attempt() -> None:
    words = rule_in_words(after("crash", "crash", "crash"), POLICY)
    assert words == (
        "rule for crash: held: 3 endings in a row without a newer checkpoint (`endings_without_progress: 3`)")
    once = replace(POLICY, retries={Ending.SETUP_FAILURE: 1})
    assert rule_in_words(after("setup-failure", "setup-failure"), once) == (
        "rule for setup-failure: held: 2 in a row without a newer checkpoint, at most 1 are retried")
    assert "begins anew" in rule_in_words(after("setup-failure"), once)
    never = replace(POLICY, retries={Ending.CRASH: 0})
    assert rule_in_words(after("crash"), never) == "rule for crash: held at once" and why_hold(after("crash"), seen(), never)
    saved = after("crash", saves=True)
    assert "held" not in rule_in_words(saved, never) and not why_hold(saved, seen(), never), "it brought a newer checkpoint"


def test_what_orch_itself_cancelled_is_not_called_held() -> None:
    story: list[Any] = [queued(1), started(1), event("cancel", 50, reason="by hand")]
    for run in (run_of(*story, ended(1, "cancelled", 60)), run_of(*story, ended(1, "cancelled", 60), event("cancelled", 61))):
        assert rule_in_words(run, POLICY) == "rule for cancelled: nothing follows, as `orch cancel` asked"
    assert "held" in rule_in_words(run_of(*story[:2], ended(1, "cancelled", 60)), POLICY)


def test_progress_takes_the_count_and_the_back_off_away() -> None:
    assert rule_in_words(after("crash", "crash", "crash", saves=True), POLICY).endswith(
        "it made progress, so nothing counts against it")
    silent = replace(after("crash").attempts[0], checkpoint_step=None, last_step=None, resume_step=None, knows_orch=False,
                     ended_at=1e6)
    assert rule_in_words(replace(after("crash"), attempts=(silent,)), POLICY).endswith(
        "nobody knows whether it made progress, so nothing counts against it")


@pytest.mark.parametrize("ending", ["setup-failure", "no-result"])
def test_what_is_held_at_once_can_be_retried(ending: str) -> None:
    """A node whose GPU is gone, a file server that is not there yet: with retries the next attempt comes after a back-off."""
    twice = replace(POLICY, retries={Ending(ending): 2})
    assert why_hold(after(ending), seen(), POLICY) == f"attempt 1: {ending}: exit 1"
    assert why_hold(after(ending, ending), seen(), twice) == ""
    assert why_hold(after(ending, ending, ending), seen(), twice).startswith("3 in a row")
    [action] = decide(after(ending), seen(), twice, 1101.0)
    assert isinstance(action, do.QueueAttempt) and 20 < action.delay_s < 40 and "back-off" in action.why


def test_retries_of_one_kind_replace_the_common_count() -> None:
    once = replace(POLICY, retries={Ending.CRASH: 1})
    assert why_hold(after("crash"), seen(), once) == ""
    assert why_hold(after("crash", "crash"), seen(), once).startswith("2 in a row")
    assert why_hold(after("crash", "hung"), seen(), once) == ""
    many = replace(POLICY, retries={Ending.CRASH: 9})
    assert why_hold(after(*["crash"] * 9), seen(), many) == ""
    assert why_hold(after(*["crash"] * 9, saves=True), seen(), once) == ""


def test_a_memory_that_grows_can_be_limited_in_number() -> None:
    once = replace(POLICY, retries={Ending.OUT_OF_MEMORY: 1})
    story = ("out-of-memory", "out-of-memory")
    assert why_hold(after(*story), seen(memory_at_most_bytes=2**40), once).startswith("2 in a row")


def test_no_successor_waits_ahead_where_one_more_ending_would_hold_the_run() -> None:
    """It would train before anybody could hold it: Slurm starts it within a second of a limit without a save."""
    story = [queued(3, 3000.0), started(3, 3000.0)]
    twice = run_of(*_events("limit-unsaved", "limit-unsaved"), *story)
    [wait] = [a for a in decide(twice, seen(job(3, "RUNNING")), POLICY, 3001.0) if not isinstance(a, do.WriteControl)]
    assert isinstance(wait, do.Wait) and "holds the run" in wait.why
    once = run_of(*_events("limit-unsaved"), queued(2, 3000.0), started(2, 3000.0))
    assert any(isinstance(a, do.QueueAttempt) for a in decide(once, seen(job(2, "RUNNING")), POLICY, 3001.0))


def test_no_successor_waits_behind_a_last_chance_that_still_waits_itself() -> None:
    """It was queued in the same pass, and the run had a fourth ending without progress; with two ahead also a fifth."""
    thrice = [job(3, "PENDING"), job(4, "PENDING")]
    waiting = run_of(*_events("limit-unsaved", "limit-unsaved"), queued(3, 3000.0))
    assert not any(isinstance(a, do.QueueAttempt) for a in decide(waiting, seen(*thrice), POLICY, 3001.0))
    two = replace(POLICY, successors_ahead=2)
    behind = run_of(*_events("limit-unsaved"), queued(2, 3000.0), started(2, 3000.0), queued(3, 3000.0))
    assert not any(isinstance(a, do.QueueAttempt) for a in decide(behind, seen(job(2, "RUNNING"), *thrice), two, 3001.0))
    assert any(isinstance(a, do.QueueAttempt) for a in decide(
        behind, seen(job(2, "RUNNING"), *thrice), replace(two, endings_without_progress=4), 3001.0))


def _events(*endings: str) -> list[Any]:
    return [item for number, ending in enumerate(endings, 1)
            for item in (queued(number, 1000.0 * number), started(number, 1000.0 * number),
                         ended(number, ending, 1000.0 * number + 100))]


def test_only_endings_that_the_daemon_answers_alone_can_be_given_retries() -> None:
    """With the others a successor trains before any pass."""
    assert {Ending.LIMIT_SAVED, Ending.NODE_FAILURE, Ending.CANCELLED, Ending.FINISHED}.isdisjoint(RETRIED)


def test_a_node_on_which_a_run_gets_nowhere_twice_is_left_out_where_there_are_enough() -> None:
    """A dead GPU that Slurm does not notice: both attempts land on the same free node, and the third would too."""
    def crashed(*nodes: str) -> Run:
        return run_of(*[item for number, node in enumerate(nodes, 1)
                        for item in (queued(number, 1000.0 * number), started(number, 1000.0 * number),
                                     ended(number, "crash", 1000.0 * number + 100, nodes=node))])
    many, few = seen(partition_nodes=8), seen(partition_nodes=2)
    assert excluded_nodes(crashed("n1", "n1"), many, POLICY, 2200.0) == ("n1",)
    assert excluded_nodes(crashed("n1", "n2"), many, POLICY, 2200.0) == ()
    assert excluded_nodes(crashed("n1", "n1"), few, POLICY, 2200.0) == ()
    assert excluded_nodes(crashed("n1", "n1"), many, POLICY, 2200.0 + POLICY.exclude_node_s) == ()
