"""When to save and when to stop: tables, no clock."""

import time

import pytest

from orch_trainer.pace import LOCAL, SHARED, Pace
from orch_trainer.settings import next_time, read_settings


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


def test_a_due_save_waits_for_the_one_being_written_and_says_so_each_time_the_wait_has_doubled():
    it = pace()
    it.save_begun(130)
    it.write_begun(131, wall=0, step=10)
    it.request_save(1)
    it.request_save(2)
    assert it.overdue_s(140) == 10                      # asked for
    assert not it.save_due(140, wall=0)
    said = [now for now in range(141, 1000) if it.overdue_s(now) is not None]
    assert said == [150, 170, 210, 290, 450, 770]
    assert [it.is_stuck(seconds) for seconds in (599, 600)] == [False, True]
    it.writing = False
    it.save_done(10, cost_s=300)
    assert it.save_due(1000, wall=0)
    assert [it.is_stuck(seconds) for seconds in (1499, 1500)] == [False, True]


@pytest.mark.parametrize(("deadline", "saves"), [(1000 + 60 + 126, True), (1000 + 60 + 124, False)])
def test_after_the_notice_there_must_be_time_for_the_write_under_way_too(deadline, saves):
    it = pace(deadline=deadline)
    it.save_begun(100)
    it.save_done(1, cost_s=100)
    it.save_begun(200)
    it.write_begun(240, wall=1000, step=2)                      # 40 s of its 100 are over
    it.step = 9
    it.stop("limit")
    assert it.save_due(240, wall=1000) is saves


def test_the_state_that_is_being_written_at_the_notice_is_not_saved_again():
    it = pace()
    it.save_begun(130)
    it.write_begun(131, wall=0, step=10)
    it.step = 10
    it.stop("limit")
    assert (it.save_due(132, wall=0), it.stop_due(wall=0)) == (False, True)
    it.step = 11
    assert (it.save_due(132, wall=0), it.stop_due(wall=0)) == (True, False)


@pytest.mark.parametrize(("now", "requested", "level"), [(129, False, LOCAL), (199, False, LOCAL), (200, False, SHARED),
                                                         (110, True, SHARED)])
def test_the_level_of_a_save(now, requested, level):
    it = pace(interval_s=100.0, local_interval_s=30.0)
    if requested:
        it.request_save(1)
        it.request_save(2)
    assert it.level(now, wall=0) == level


def test_a_local_save_leaves_the_shared_one_due():
    it = pace(interval_s=100.0, local_interval_s=30.0)
    assert not it.save_due(129, wall=0)
    assert it.save_due(130, wall=0)
    it.save_begun(190, LOCAL)
    it.save_done(5, 1.0, LOCAL)
    assert not it.save_due(199, wall=0)
    assert it.save_due(200, wall=0)
    assert it.level(200, wall=0) == SHARED
    it.save_begun(200, SHARED)
    assert not it.save_due(229, wall=0)
    assert it.save_due(230, wall=0)


def test_the_last_save_goes_to_the_local_level_where_time_is_too_short_for_the_shared_one():
    it = pace(interval_s=100.0, local_interval_s=30.0, deadline=1050.0)
    for level, cost_s in ((SHARED, 60.0), (LOCAL, 2.0)):
        it.save_begun(110, level)
        it.save_done(5, cost_s, level)
    it.step = 9
    it.stop("limit")
    assert it.save_due(120, wall=960.0)
    assert it.level(120, wall=960.0) == SHARED
    assert it.save_due(120, wall=1000.0)
    assert it.level(120, wall=1000.0) == LOCAL
    assert not it.save_due(120, wall=1049.0)


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize(("level", "left_s", "saves"), [(LOCAL, 60.0, True), (LOCAL, 1.0, False), (SHARED, 60.0, False)])
def test_a_step_saved_on_the_node_alone_is_saved_once_more_where_there_is_time(level, left_s, saves, writing):
    it = pace(interval_s=100.0, local_interval_s=30.0, deadline=1000.0 + left_s)
    for at in (SHARED, LOCAL):
        it.save_begun(110, at)
        it.save_done(5, {SHARED: 10.0, LOCAL: 0.1}[at], at)
    it.save_begun(120, level)
    if writing:
        it.write_begun(120, wall=1000.0, step=9, level=level)
    else:
        it.save_done(9, {SHARED: 10.0, LOCAL: 0.1}[level], level)
    it.step = 9
    it.stop("limit")
    assert (it.save_due(121, wall=1000.0), it.stop_due(wall=1000.0)) == (saves, not saves)
    assert not saves or it.level(121, wall=1000.0) == SHARED


@pytest.mark.parametrize(("lead_s", "told"), [(None, None), (60.0, None), (50.0, None), (49.0, 50.0)])
def test_a_lead_too_short_for_a_save_is_told_once(lead_s, told):
    it = pace()
    assert it.lead_short_of_s(lead_s) is None
    it.save_begun(100)
    it.save_done(1, cost_s=40.0)
    assert it.lead_short_of_s(lead_s) == told
    assert it.lead_short_of_s(lead_s) is None


def test_the_first_reason_to_stop_stays():
    it = pace()
    it.stop("cancel")
    it.stop("signal")
    assert it.stop_reason == "cancel"


def test_milestones_are_saved_once_each_and_those_before_the_resumed_step_are_not():
    it = pace(saved_step=40, save_steps=(30, 50, 60))
    for step, due in ((41, False), (49, False), (50, True)):
        it.step = step
        assert it.save_due(101, wall=0) is due
    it.save_begun(101)
    it.save_done(50, cost_s=1.0)
    for step, due in ((51, False), (61, True)):         # 60 itself was not asked about
        it.step = step
        assert it.save_due(102, wall=0) is due
    assert it.is_milestone(60) and not it.is_milestone(61)


@pytest.mark.parametrize(("step", "passed_s", "due"), [(49, 5, False), (50, 5, True), (51, 5, False), (50, 601, False)])
def test_a_milestone_waits_for_a_write_under_way_in_its_block_unless_that_is_stuck(step, passed_s, due):
    it = pace(saved_step=40, save_steps=(50,))
    it.save_begun(110)
    it.write_begun(110, wall=0, step=48)
    it.step = step
    assert it.save_due(110 + passed_s, wall=0) is due
    it.writing = False
    assert it.save_due(110 + passed_s, wall=0) is (step >= 50 or passed_s > 30)


def test_a_time_of_day_is_saved_at_the_first_step_behind_it():
    it = pace(next_time=lambda wall: 1000.0 * (wall // 1000 + 1), wall=500.0)
    assert not it.save_due(101, wall=999.0)
    assert it.save_due(101, wall=1001.0)
    it.save_begun(101, wall=1001.0)
    assert not it.save_due(102, wall=1002.0)
    assert it.save_due(102, wall=2000.0)


@pytest.mark.parametrize(("wall", "due"), [(974.0, True), (976.0, False), (1000.0, False), (1011.0, True)])
def test_a_periodic_save_that_would_run_into_the_lead_is_left_out(wall, due):
    """It takes 20 s, and the notice comes at 1000; when that has not come 10 s later, nobody waits for it any more."""
    it = pace(deadline=1100.0, lead_s=100.0)
    it.save_begun(100)
    it.save_done(1, cost_s=20.0)
    it.step = 2
    assert it.save_due(200, wall=wall) is due


def test_what_is_asked_for_is_saved_in_the_lead_too():
    it = pace(deadline=1100.0, lead_s=100.0)
    it.request_save(0)
    it.request_save(1)
    assert it.save_due(101, wall=999.0)


def test_the_next_of_several_times_of_day():
    begin = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))
    times = read_settings({"ORCH_RUN_DIR": "/r", "ORCH_SAVE_AT": "5000 22:00 7:05"}, None, None, None).save_times
    assert times == ((22, 0), (7, 5))
    tonight, tomorrow = begin + 10 * 3600, begin + 19 * 3600 + 300
    assert (next_time(times, begin), next_time(times, tonight)) == (tonight, tomorrow)
    assert next_time((), begin) is None


def test_steps_and_lead_come_from_the_environment():
    read = read_settings({"ORCH_RUN_DIR": "/r", "ORCH_SAVE_AT": "5000 22:00 70", "ORCH_LEAD_S": "300"}, None, None, None)
    assert (read.save_steps, read.lead_s) == ((5000, 70), 300.0)
