"""When to save and when to stop: tables, no clock."""

import pytest

from orch_trainer.pace import Pace


def pace(**keys):
    return Pace(**{"interval_s": 30.0, "now": 100.0, "deadline": None, "saved_step": None, **keys})


@pytest.mark.parametrize(("now", "due"), [(100, False), (129.9, False), (130, True), (500, True)])
def test_interval_counts_from_the_start_of_training(now, due):
    assert pace().save_due(now, wall=0) is due


def test_interval_counts_from_the_start_of_the_last_save():
    it = pace()
    it.save_begun(130)
    it.save_done(10, cost_s=20)
    assert not it.save_due(159, wall=0)
    assert it.save_due(160, wall=0)


def test_a_failed_save_is_tried_again_an_interval_later():
    it = pace()
    it.save_begun(130)
    assert not it.save_due(140, wall=0)
    assert it.save_due(160, wall=0)


def test_each_rise_asks_for_one_save_and_an_old_number_for_none():
    it = pace()
    it.request_save(7)
    assert not it.save_due(101, wall=0)
    it.request_save(9)
    assert it.save_due(101, wall=0)
    it.save_begun(101)
    assert not it.save_due(102, wall=0)
    it.request_save(9)
    assert not it.save_due(102, wall=0)


@pytest.mark.parametrize(
    ("step", "saved_step", "save_s", "deadline", "saves"),
    [
        (10, None, None, None, True),       # nothing measured, no deadline: try
        (10, 9, 5.0, None, True),
        (10, 10, 5.0, None, False),         # this very step is saved
        (10, 9, 5.0, 1007.0, True),         # 7 s left, 6.25 s needed
        (10, 9, 5.0, 1006.0, False),        # cannot be made in time
        (10, 9, None, 1001.0, True),        # nothing measured: try
        (10, 9, 5.0, 900.0, False),
    ],
)
def test_after_the_notice(step, saved_step, save_s, deadline, saves):
    it = pace(saved_step=saved_step, deadline=deadline)
    if save_s is not None:
        it.save_begun(100)
        it.save_done(saved_step, save_s)
    it.step = step
    it.stop("limit")
    assert it.save_due(101, wall=1000.0) is saves
    assert it.stop_due(wall=1000.0) is not saves


def test_stop_follows_the_last_save_also_where_steps_are_counted_otherwise():
    it = pace()
    it.step = 10
    it.stop("limit")
    it.save_begun(101)
    assert not it.stop_due(wall=0)
    it.save_done(11, cost_s=1)
    assert it.stop_due(wall=0)
    assert not it.save_due(200, wall=0)


def test_two_failed_last_saves_are_enough():
    it = pace()
    it.step = 10
    it.stop("limit")
    for now in (101, 102):
        assert it.save_due(now, wall=0)
        it.save_begun(now)
    assert not it.save_due(103, wall=0)
    assert it.stop_due(wall=0)


def test_the_first_reason_to_stop_stays():
    it = pace()
    it.stop("cancel")
    it.stop("signal")
    assert it.stop_reason == "cancel"
