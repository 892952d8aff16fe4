"""When a trainer counts as hung: the limit, what it is learnt from, and what is not held against a trainer."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.attempt.life import Learnt, Life, Sign, hung_after_s, life_json, read_learnt, read_sign
from orchestrator.host import start_of
from orchestrator.records import AttemptSpec

ME = Sign(pid=os.getpid(), pid_start=start_of(os.getpid()), host="h", written_at=0.0, signs=1)


class Watched:
    """A Life and its ticks, one a second; the trainer's thread rewrites its file at each."""

    def __init__(self, fixed_s: float | None = None, before: Learnt | None = None, host: str = "h") -> None:
        self.life = Life(host, fixed_s, before or Learnt())
        self.now = 0.0
        self.sign = ME

    def pass_s(self, seconds: int, *, countable: bool = True, rewritten: bool = True) -> bool:
        hung = False
        for _ in range(seconds):
            self.now += 1.0
            if rewritten:
                self.sign = replace(self.sign, written_at=self.now)
            hung = self.life.tick(self.sign, self.now, countable=countable) or hung
        return hung

    def step(self, **changes: object) -> None:
        self.sign = replace(self.sign, signs=self.sign.signs + 1, **changes)  # type: ignore[arg-type]
        self.pass_s(1)


@pytest.fixture
def trains() -> Watched:
    watched = Watched()
    watched.step()
    return watched


def test_ten_minutes_before_anything_is_learnt(trains: Watched) -> None:
    assert not trains.pass_s(600)
    assert trains.pass_s(1)


def test_five_times_the_longest_gap_of_steps_for_steps_and_of_saves_for_saves(trains: Watched) -> None:
    trains.pass_s(300)
    trains.step(doing="saving")
    trains.pass_s(500)
    trains.step(doing="training")
    assert trains.life.limit_s == pytest.approx(1500.0, abs=10.0)
    trains.step(doing="saving")
    assert trains.life.limit_s == pytest.approx(2500.0, abs=10.0)
    trains.step(doing="training")
    assert not trains.pass_s(1490)
    assert trains.pass_s(20)


def test_long_saves_say_nothing_of_a_step(trains: Watched) -> None:
    trains.step(doing="saving")
    trains.pass_s(1500)
    trains.step(doing="training")
    assert trains.life.limit_s == 600.0


def test_patience_counts_for_what_was_announced_too() -> None:
    watched = Watched(before=Learnt(patience=2.0))
    watched.step(doing="evaluation", at_most_s=1000.0)
    assert not watched.pass_s(2000)
    assert watched.pass_s(2)


@pytest.mark.parametrize("doing", ["starting", "saving"])
def test_starting_and_the_first_save_may_take_half_an_hour(doing: str) -> None:
    watched = Watched()
    watched.step(doing=doing)
    assert not watched.pass_s(1800)
    assert watched.pass_s(1)


def test_how_long_starting_took_says_nothing_of_a_step() -> None:
    watched = Watched()
    watched.step(doing="starting")
    watched.pass_s(1000)
    watched.step(doing="training")
    assert watched.life.limit_s == 600.0


def test_a_phase_may_take_what_was_announced_and_teaches_nothing(trains: Watched) -> None:
    trains.step(doing="evaluation", at_most_s=5000.0)
    assert not trains.pass_s(5000)
    trains.step(doing="training", at_most_s=None)
    assert trains.life.limit_s == 600.0
    trains.step(doing="evaluation", at_most_s=700.0)
    assert trains.pass_s(702)


def test_a_short_announcement_shortens_nothing(trains: Watched) -> None:
    trains.step(doing="evaluation", at_most_s=5.0)
    assert not trains.pass_s(600)


def test_a_limit_that_was_set_is_not_learnt() -> None:
    watched = Watched(fixed_s=8.0, before=Learnt(longest_s=1e6, patience=4.0))
    watched.step()
    assert not watched.pass_s(8)
    assert watched.pass_s(1)


def test_without_a_file_nobody_hangs() -> None:
    life = Life("h", 1.0, Learnt())
    assert not any(life.tick(None, float(second), countable=True) for second in range(10_000))


def test_a_torn_file_is_no_sign_and_no_silence(trains: Watched) -> None:
    trains.pass_s(500)
    trains.now += 1
    assert not trains.life.tick(None, trains.now, countable=True)
    assert not trains.pass_s(500)


def test_the_time_in_which_the_supervisor_stood_still_too_does_not_count(trains: Watched) -> None:
    trains.now += 100_000.0            # Slurm suspended the whole job
    assert not trains.pass_s(590)


def test_what_may_be_the_file_servers_fault_does_not_count(trains: Watched) -> None:
    assert not trains.pass_s(5000, countable=False, rewritten=False)


def test_a_stopped_process_here_hangs_and_one_elsewhere_cannot_be_told_from_a_cut_network() -> None:
    here, elsewhere = Watched(), Watched(host="other")
    for watched, hangs in ((here, True), (elsewhere, False)):
        watched.step()
        assert watched.pass_s(2000, rewritten=False) is hangs
    elsewhere.step()
    assert elsewhere.pass_s(1300), "its thread writes and its loop does nothing"


def test_a_process_that_is_gone_or_another_does_not_hang() -> None:
    watched = Watched()
    watched.step(pid_start=ME.pid_start + 1)
    assert not watched.pass_s(5000)
    watched.step(pid_start=ME.pid_start)
    assert watched.life.silent_s < 2


def test_what_was_learnt_goes_on_and_patience_grows_at_most_fourfold(tmp_path: Path) -> None:
    patience = []
    learnt = Learnt(longest_s=200.0)
    for hung in (True, True, True, False):
        (tmp_path / "life.json").write_text(json.dumps(life_json(learnt, hung=hung)))
        learnt = read_learnt(tmp_path)
        patience.append(learnt.patience)
    assert (patience, learnt.longest_s) == ([2.0, 4.0, 4.0, 4.0], 200.0)
    watched = Watched(before=learnt)
    watched.step()
    assert watched.life.limit_s == 4000.0
    assert watched.life.learnt == learnt


@pytest.mark.parametrize("text", ["", "{", "[]", '{"longest_s": "x"}', '{"longest_s": null}'])
def test_a_life_json_of_somebody_else_teaches_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "life.json").write_text(text)
    assert read_learnt(tmp_path) == read_learnt(None) == Learnt()


def test_alive_json_is_read_if_it_is_of_this_start(tmp_path: Path) -> None:
    assert read_sign(tmp_path, 7) is None
    text = json.dumps({"pid": 5, "pid_start": 6, "host": "h", "epoch": 7, "t": 1.0, "signs": 3, "idle_s": 0.0, "step": None,
                       "doing": "evaluation", "at_most_s": 60, "later": 1})
    (tmp_path / "alive.json").write_text(text + 100 * " ")
    assert read_sign(tmp_path, 7) == Sign(pid=5, pid_start=6, host="h", written_at=1.0, signs=3, doing="evaluation",
                                          at_most_s=60.0)
    assert read_sign(tmp_path, 8) is None
    (tmp_path / "alive.json").write_text(text[:-9])
    assert read_sign(tmp_path, 7) is None


@pytest.mark.parametrize(("spec_s", "told", "limit_s"), [
    (None, None, None), (None, "12", 12.0), (None, "0", None), (None, "soon", None), (5.0, "12", 5.0)])
def test_where_the_limit_comes_from(spec_s: float | None, told: str | None, limit_s: float | None) -> None:
    spec = AttemptSpec(tag="a", repository="/", run_dir="/", number=1, submission_id="s", lead_s=1, signal="TERM",
                       time_limit_s=1, interval_s=1, hung_after_s=spec_s)
    assert hung_after_s(spec, {} if told is None else {"ORCH_HUNG_AFTER_S": told}) == limit_s
