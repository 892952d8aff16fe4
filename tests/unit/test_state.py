"""``ops/STATE.md`` and ``ops/state.json``: first what must be known; bounded, equal for equal states, and safe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import SPEC, ended, event, job, queued, run_of, started

from orchestrator.model import Run
from orchestrator.sightings import JobSeen
from orchestrator.views.facts import Progress, Shown, how_to_go_on
from orchestrator.views.state import PAGE_AT_MOST, page_of, state_json, state_text

DAY_S = 86400.0
FIRST = [queued(1), queued(2), started(1, 10)]
HOLD = event("held", 60, by="orch", reason="attempt 1: setup-failure: no GPU")
HELD = run_of(queued(1), started(1, 10), ended(1, "setup-failure", 50, checkpoint_step=40), HOLD)
RUNNING = run_of(
    *FIRST, event("interval", 11, interval_s=720.0, optimum_s=700.0, mtbi_h=14.2), spec=replace(SPEC, what="a wider one"))
FINISHED = run_of(queued(1), started(1, 1), ended(1, "crash", 5), queued(2), started(2, 6), ended(2, "finished", 9),
                  event("finished", 10, metrics={"accuracy": 0.98765}))


def named(run: Run, tag: str, **changes: Any) -> Shown:
    return Shown(run=replace(run, spec=replace(run.spec, tag=tag)), **changes)


def text(*shown: Shown, troubles: Sequence[str] = (), silent: str | None = None, now: float = 100.0) -> str:
    return state_text(page_of(shown, troubles, silent, now))


def first(*shown: Shown, **context: Any) -> str:
    return text(*shown, **context).splitlines()[0]


def waiting(tag: str, reason: str = "Resources", start_at: float | None = None) -> Shown:
    return named(run_of(queued(1)), tag, jobs={"s1": job(1, "PENDING", reason=reason, start_at=start_at)})


def lines_of(page: str, title: str) -> list[str]:
    """The lines of one section."""
    after = page.partition(f"## {title}")[2].partition("\n")[2]
    return [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("- ")]


# --- the first line -------------------------------------------------------------------------------------------------------


def test_an_empty_queue_is_said_first_with_since_when_the_gpu_is_idle() -> None:
    line = first(named(FINISHED, "done"))
    assert line.startswith("**The queue is empty and the GPU is idle since 1970-01-01T00:00Z: queue the next one")
    assert "1 ended in the last 24 hours" in line
    without_gpu = replace(FINISHED, spec=replace(SPEC, profile=replace(SPEC.profile, gres=None)))
    assert first(Shown(run=without_gpu)).startswith("**The queue is empty and nothing trains since")
    assert first().startswith("**The queue is empty")


def test_what_is_held_comes_before_what_runs() -> None:
    line = first(named(HELD, "bad"), named(RUNNING, "good"))
    assert line.startswith("**1 held: `bad`**; what helps stands below. 1 running: `good`; **nothing waits behind")


def test_running_and_waiting_runs_are_named() -> None:
    assert first(named(RUNNING, "x"), waiting("y"), waiting("z")) == "1 running: `x`; 2 waiting: `y`, `z`."


def test_nothing_running_with_something_waiting_says_why() -> None:
    assert first(waiting("y")) == ("**Nothing runs**; 1 waiting: `y`, the first because of this: "
                                   "`job 101, waits for free resources (Resources)`.")


def test_a_held_run_whose_attempt_goes_on_leaves_no_gpu_idle() -> None:
    live = named(run_of(*FIRST, event("held", 20, by="user", reason="by hand")), "h")
    assert "idle" not in text(live) and "1 running: `h`" in first(live)
    assert "attempt 1 still runs (job 101)" in lines_of(text(live), "Held")[0]


def test_silence_and_troubles_come_before_everything() -> None:
    line = first(named(HELD, "bad"), silent="no `answer`\n", troubles=["runs/b/journal.jsonl:2: not an event (repair it)"])
    assert line.startswith("**Slurm does not answer** (`no 'answer'`): what follows is what was known before. **1 cannot be")
    since = page_of([], [], "down", 600.0, 540.0).first
    assert since.startswith("**Slurm does not answer since 1970-01-01T00:09Z** (`down`)")
    assert line.index("cannot") < line.index("held")


# --- a line a run ---------------------------------------------------------------------------------------------------------


def test_a_running_run() -> None:
    progress = Progress(step=41200, of=90000, loss=0.1234, steps_per_s=12.3, left_s=3600.0, at=60.0, interval_s=720.0)
    [line] = lines_of(text(named(RUNNING, "x", progress=progress)), "Running")
    assert line == (
        "- `x` step 41200 of 90000, loss 0.1234, 12.3 steps/s, done about 1970-01-01T01:01Z; "
        "attempt 1 since 1970-01-01T00:00Z on `n1` (job 101), its successor waits (job 102); "
        "checkpoint every 12m (M 14.2 h, T* 11m40s); what: `a wider one`")


def test_time_left_is_the_trainers_never_the_time_limits() -> None:
    assert "done about" not in text(named(RUNNING, "x", progress=Progress(step=5)))


def test_a_waiting_run_says_why_in_words_and_slurms_guess() -> None:
    [line] = lines_of(text(waiting("y", "Priority", start_at=7200.0)), "Waiting")
    assert line == ("- `y` waiting since 1970-01-01T00:00Z: `job 101, other jobs come first (Priority)`; "
                    "about 1970-01-01T02:00Z by Slurm's guess")


def test_a_held_run_has_the_reason_its_checkpoint_and_the_commands_that_help() -> None:
    [line] = lines_of(text(named(HELD, "bad")), "Held")
    assert line == ("- `bad` since 1970-01-01T00:01Z: `attempt 1: setup-failure: no GPU`; its newest checkpoint has step 40; "
                    "`orch logs bad` shows why; " + how_to_go_on(replace(HELD, spec=replace(SPEC, tag="bad"))))


def test_what_ended_has_its_result_and_what_ended_long_ago_is_counted() -> None:
    old = named(replace(FINISHED, phase_since=-DAY_S), "old")
    page = text(named(FINISHED, "new"), old)
    assert lines_of(page, "Ended") == ["- `new` finished 1970-01-01T00:00Z: `accuracy=0.9877`; 2 attempts, 1 interrupted"]
    assert "\n1 ended before that: `orch status --all`.\n" in page and "`old`" not in page


def test_the_page_says_how_to_queue_the_next_after_the_newest_run() -> None:
    newest = replace(FINISHED, submitted_at=50.0)
    assert "`orch new NEW --from newest`" in text(named(FINISHED, "a"), named(newest, "newest"))


# --- bounded, equal, safe -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_equal_states_give_equal_bytes_whatever_the_order_and_the_time(order: int) -> None:
    shown = [named(HELD, "a"), named(HELD, "b"), waiting("c"), named(RUNNING, "d"), named(FINISHED, "e")]
    page, data = page_of(shown, [], None, 100.0), page_of(shown[::order], [], None, 100.0 + DAY_S / 2)
    assert state_text(page).encode() == state_text(data).encode()
    assert state_json(page).encode() == state_json(data).encode()


def many(count: int) -> list[Shown]:
    """So many runs of every kind, each with as much to say as can be."""
    long = replace(SPEC, what="w" * 2000, profile=replace(SPEC.profile, name="p" * 30))
    held = replace(HELD, spec=long, phase_reason="r" * 5000)
    running = replace(RUNNING, spec=long)
    finished = replace(FINISHED, spec=long, metrics={f"metric-{n}" * 9: "v" * 99 for n in range(30)})
    jobs = {"s1": job(1, "PENDING", reason="q" * 3000)}
    kinds = (held, running, run_of(queued(1), spec=long), finished)
    return [named(kinds[n % 4], f"run-{n:04d}-{'t' * 50}", jobs=jobs if n % 4 == 2 else {}) for n in range(count)]


@pytest.mark.parametrize("count", [40, 500])
def test_hundreds_of_runs_stay_within_4000_tokens(count: int) -> None:
    page = page_of(many(count), ["trouble " * 100] * 50, "silent " * 200, 100.0)
    shown = state_text(page)
    assert len(shown) <= PAGE_AT_MOST == 14_000
    for title in ("Held", "Running", "Waiting", "Ended"):   # none crowds out another
        assert lines_of(shown, title)
        assert re.search(r"- and \d+ more: `orch status`", shown.partition(f"## {title}")[2].partition("\n## ")[0])
    assert "- and 45 more: `orch tick`" in shown


def test_the_json_is_bounded_too() -> None:
    ordinary = [named(FINISHED, f"f{n}") for n in range(500)] + [named(HELD, f"h{n}") for n in range(500)]
    assert len(state_json(page_of(ordinary, [], None, 100.0))) < 60_000


def test_what_is_left_out_and_what_is_shown_are_all_runs() -> None:
    page = page_of(many(500), [], None, 100.0)
    more = sum(int(n) for n in re.findall(r"- and (\d+) more: `orch status`", state_text(page)))
    assert more + len(re.findall(r"^- `run-", state_text(page), re.MULTILINE)) == 500
    data = json.loads(state_json(page))
    assert data["left_out"] == more and len(data["runs"]) == 500 - more


def test_the_newest_held_run_is_never_left_out() -> None:
    runs = [named(replace(HELD, phase_since=float(n), phase_reason="r" * 500), f"h{n}") for n in range(300)]
    assert lines_of(text(*runs), "Held")[0].startswith("- `h299`")


HOSTILE = "# title\n- `fake`: held\n**bold** [x](http://y) <img src=x> | ` \x1b[31m \u202e \ud800 ```\n## Held"


def test_hostile_words_stay_within_their_line_and_their_code_span() -> None:
    plain = text(named(HELD, "h"), named(RUNNING, "r"), waiting("w"), named(FINISHED, "f"))
    hostile_spec = replace(SPEC, what=HOSTILE)
    page = text(
        named(replace(HELD, phase_reason=HOSTILE), "h"),
        named(replace(RUNNING, spec=replace(hostile_spec), attempts=(replace(RUNNING.attempts[0], host=HOSTILE),)), "r"),
        waiting("w", HOSTILE), named(replace(FINISHED, metrics={HOSTILE: HOSTILE, "x": [HOSTILE]}), "f"),
        troubles=[HOSTILE], silent=HOSTILE)
    page.encode()
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == ["## Trouble", *(line for line in plain.splitlines() if line.startswith("#"))]
    assert sum(line.startswith("- `") for line in page.splitlines()) == 5
    for line in page.splitlines():
        assert line.count("`") % 2 == 0 and line.isprintable()
        outside = "".join(line.split("`")[::2])          # what is not in a code span
        assert "<img" not in outside and "[x]" not in outside and "fake" not in outside


def test_the_state_as_json() -> None:
    progress = Progress(step=5, of=9, loss=0.5, left_s=4.0, at=50.0)
    data = json.loads(state_json(page_of([named(HELD, "h"), named(RUNNING, "r", progress=progress)], ["x"], None, 100.0)))
    assert data["errors"] == ["x"] and data["first"].startswith("**1 cannot be dealt with**")
    held, running = data["runs"]
    assert held["state"] == "held" and "orch release h" in held["helps"] and held["attempts"] == 1
    assert held["attempt"]["ending"] == "setup-failure"
    assert (running["step"], running["of"], running["left_s"], running["mtbi_h"], running["helps"]) == (5, 9, 4.0, 14.2, None)


def test_a_run_that_was_never_started_and_cancelled() -> None:
    seen: dict[str, JobSeen] = {}
    gone = named(run_of(event("cancel", 1), event("cancelled", 2, reason="by hand")), "g", jobs=seen)
    assert lines_of(text(gone), "Ended") == ["- `g` cancelled 1970-01-01T00:00Z: `by hand`; never started"]
