"""What is told, and when: from journals, the queue and Slurm to messages. Values alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, start_record, started, submit

from orchestrator.control import observe
from orchestrator.core.news import news
from orchestrator.core.told import in_queue, listen, look_at_queue
from orchestrator.message import Kind, Message, QueueTold, SlurmTold
from orchestrator.model import After, Run
from orchestrator.views.facts import Progress
from orchestrator.views.messages import (
    SINGLY_AT_MOST,
    again,
    batches,
    drained,
    foreign,
    grouped,
    living,
    one_left,
    run_messages,
    slurm_message,
)

NIGHT = 1_700_000_000.0                # 22:13 UTC


def named(tag: str, *events: Any, after: tuple[str, ...] = (), at: float = 0.0) -> Run:
    run = run_of(*events, spec=replace(SPEC, tag=tag, after_tags=dict.fromkeys(after, After.FINISHED)))
    return replace(run, submitted_at=at)


def told(*events: Any, begin: int = 1, left: tuple[Run, ...] = ()) -> list[Message]:
    flat = [submit(t=NIGHT)]
    for item in events:
        flat.extend(item if isinstance(item, list) else [item])
    return run_messages(flat, begin, left)


FINISHED = (queued(1), started(1, NIGHT), ended(1, "crash", NIGHT + 500, saved_at=NIGHT + 400), queued(2),
            started(2, NIGHT + 501), ended(2, "finished", NIGHT + 3600),
            event("finished", NIGHT + 3601, metrics={"accuracy": 0.98765, "loss": 0.3}))


def test_a_finished_run() -> None:
    waiting = named("b", queued(1), at=5)
    message, = told(*FINISHED, left=(waiting,))
    assert message == Message(
        key="a/1700000000/9/finished", kind=Kind.FINISHED, at=NIGHT + 3601, tag="a",
        headline="a is finished: accuracy=0.9877 loss=0.3",
        lines=("2 attempts, 59m59s, of it 1m40s of lost work", "1 left in the queue: b (waiting)"))
    many = told(queued(1), event("finished", NIGHT, metrics={f"m{i}": i for i in range(40)}))[0]
    assert many.headline == "a is finished: m0=0 m1=1 m2=2" and len(many.facts) == 20 and many.facts[3] == ("m3", "3")


def test_each_fact_is_told_once_from_wherever_the_cursor_stands() -> None:
    whole = told(*FINISHED)
    for begin in range(1, 12):
        assert told(*FINISHED, begin=begin) == (whole if begin <= 9 else [])
    assert told(*FINISHED, event("finished", NIGHT + 9, metrics={}), begin=1) == whole  # two daemons told it twice


def test_a_held_run_says_what_helps() -> None:
    hold = event("held", NIGHT + 1, by="orch", reason="3 endings ...")
    message, = told(queued(1), started(1), ended(1, "crash", NIGHT), hold)
    assert message.headline == "a is held: 3 endings ..." and message.kind == Kind.HELD
    assert message.lines[0].startswith("`orch release a` goes on") and "`orch logs a`" in message.lines[1]
    assert message.lines[-1] == "nothing that could train is left in the queue"
    by_hand, = told(queued(1), started(1, NIGHT), event("held", NIGHT, by="user", reason="by hand"))
    assert by_hand.lines[0] == "`orch release a` lets it go on" and "attempt 1 still runs (job 101)" in by_hand.lines


def test_a_cancelled_run_leaves_the_queue() -> None:
    message, = told(queued(1), event("cancel", NIGHT, reason="by hand"), event("cancelled", NIGHT + 2, reason="by hand"))
    assert (message.kind, message.headline) == (Kind.CANCELLED, "a is cancelled: by hand")


def test_a_node_that_failed() -> None:
    events = [queued(1), started(1, NIGHT), ended(1, "node-failure", NIGHT + 60, reason="Slurm: NODE_FAIL", nodes="n2",
                                                  checkpoint_step=1200), queued(2), started(2, NIGHT + 70)]
    message, = told(*events)
    assert message.headline == "n2 is out: it failed under attempt 1 of a: Slurm: NODE_FAIL"
    assert message.lines[0] == "a goes on from its newest complete checkpoint (step 1200)"


@pytest.mark.parametrize("name", ["limit-saved", "preempted-saved", "crash", "out-of-memory", "vanished", "hung"])
def test_what_orch_settles_by_itself_is_no_message(name: str) -> None:
    assert told(queued(1), started(1), ended(1, name, NIGHT), queued(2), started(2), event("interval", interval_s=9)) == []


def test_released_and_held_again_are_two_facts() -> None:
    hold = event("held", NIGHT, by="orch", reason="no GPU")
    keys = [m.key for m in told(hold, event("released", NIGHT), hold)]
    assert len(set(keys)) == 2 and keys[0].endswith("/1/held") and keys[1].endswith("/3/held")


def test_foreign_text_is_one_short_line_without_code() -> None:
    assert foreign("a\n`b`\x1b[31m  c\u2028d") == "a 'b' [31m c d"
    assert len(foreign("x" * 999)) == 300 and foreign("漢" * 999) == "漢" * 149 + "…"  # columns, as a reader sees them
    finished, = told(event("finished", NIGHT, metrics={"a`b\n": "`c`", "n": 0.123456, "z": 3, "zz": "`" * 99}))
    assert finished.headline == "a is finished: a'b='c' n=0.1235 z=3"
    assert finished.facts == (("a'b", "'c'"), ("n", "0.1235"), ("z", "3"), ("zz", "'" * 99))
    message, = told(event("held", NIGHT, by="orch", reason="`rm -rf`\n# big"))
    assert message.headline == "a is held: 'rm -rf' # big"


# --- the queue ------------------------------------------------------------------------------------------------------------


def test_what_is_in_the_queue() -> None:
    held = named("held", event("held", by="orch"))
    holding = named("holding", started(1), event("held", by="user"))  # its live attempt goes on
    after_held = named("after-held", after=("held",), at=1)
    after_that = named("after-that", after=("after-held",), at=2)
    after_running = named("after-running", after=("holding",), at=3)
    over = named("over", event("finished"))
    found = in_queue([after_running, held, holding, after_held, after_that, over])
    assert [run.spec.tag for run in found] == ["holding", "after-running"]


def watch(*looks: tuple[float, int], left_at: frozenset[float] = frozenset()) -> list[tuple[float, int]]:
    """The levels that people hear of, and when, from what is seen when."""
    queue, heard = QueueTold(), []
    for now, left in looks:
        queue, news = look_at_queue(queue, left, something_left=now in left_at, now=now, settle_s=60)
        if news:
            heard.append((now, queue.level))
    return heard


def every(begin: int, end: int, left: int, step: int = 30) -> list[tuple[float, int]]:
    return [(float(t), left) for t in range(begin, end, step)]


def test_low_and_drained_are_told_once_when_they_last() -> None:
    assert watch(*every(0, 300, 3), *every(300, 600, 1), *every(600, 900, 0)) == [(360, 1), (660, 0)]
    assert watch(*every(0, 300, 2), *every(300, 600, 0)) == [(360, 0)]
    assert watch(*every(0, 900, 1)) == []                        # it was never more than one
    assert watch(*every(0, 900, 0)) == []                        # nor more than none


def test_a_queue_that_is_refilled_in_time_tells_nothing() -> None:
    looks = [look for t in range(0, 7200, 60) for look in ((t, 2), (t + 30, 0))]
    assert watch(*looks) == []
    assert watch(*looks, *every(7200, 7500, 0)) == [(7230.0, 0)]


def test_a_run_too_short_to_be_seen_drains_the_queue_too() -> None:
    assert watch(*every(0, 300, 0), left_at=frozenset({90.0})) == [(150, 0)]


def test_one_left() -> None:
    message = one_left([named("b", queued(1), started(1))], NIGHT)
    assert message.headline == "one run is left in the queue: b (running, attempt 1)"
    assert message.lines == ("the next one: `orch new TAG --from b`, then `orch submit TAG`",)


def test_drained_says_what_ended_since_for_how_long_the_gpu_is_idle_and_what_helps() -> None:
    earlier = named("old", started(1, 10), ended(1, "finished", 20), event("finished", 21))
    done = named("a", *FINISHED)
    held = named("b", queued(1), event("held", NIGHT + 9, by="orch", reason="no GPU"))
    waits = named("c", after=("b",))
    message = drained([earlier, done, held, waits], NIGHT - 60, NIGHT + 3690)
    assert message.headline == "the queue has drained: the GPU has been idle for 1m30s, since 23:13 UTC"
    assert message.lines[0].startswith("b held: no GPU (`orch release b` goes on")
    assert message.lines[1:] == ("a finished: accuracy=0.9877 loss=0.3", "waiting for a held one: c",
                                 "the next one: `orch new TAG --from a`, then `orch submit TAG`")
    many = drained([named(f"r{i}", event("finished", NIGHT + i)) for i in range(50)], NIGHT, NIGHT + 99)
    assert many.lines[0] == "29 before these; `orch status` shows all" and len(many.lines) == 22


def test_a_moment_that_no_calendar_has_hides_nothing() -> None:
    """A node's clock, or a hand, has written it."""
    for absurd in (1e13, 1e300, float("inf"), float("-inf"), float("nan")):
        run = named("a", queued(1), started(1, NIGHT), ended(1, "crash", absurd), event("held", NIGHT, by="orch", reason="x"))
        assert drained([run], NIGHT - 60, NIGHT).headline.startswith("the queue has drained: the GPU has been idle for ")
        assert living(run, Progress(), NIGHT).facts[0][1].startswith("1 attempt, ")
    assert drained([run], 0, NIGHT).headline.endswith("since unknown time")


def test_what_is_left_is_unknown_while_a_journal_cannot_be_read() -> None:
    message, = run_messages([submit(t=NIGHT), event("finished", NIGHT)], 1, None)
    assert message.lines == ("what is left in the queue is unknown: a run's journal cannot be read",)


# --- Slurm ----------------------------------------------------------------------------------------------------------------


def hear(*passes: tuple[float, bool]) -> list[tuple[float, Kind, str]]:
    slurm, heard = SlurmTold(), []
    for now, silent in passes:
        after, news = listen(slurm, silent, now=now, after_s=600)
        if news:
            message = slurm_message(slurm, "connect failure", now)
            heard.append((now, message.kind, message.headline))
        slurm = after
    return heard


def test_silence_is_told_after_a_while_and_its_end_when_it_lasts() -> None:
    away, back = [(NIGHT + t, True) for t in range(0, 1500, 300)], [(NIGHT + 1500 + t, False) for t in range(0, 900, 30)]
    assert hear(*away, *back) == [
        (NIGHT + 600, Kind.SLURM_SILENT, "Slurm has not answered for 10m: connect failure"),
        (NIGHT + 1500, Kind.SLURM_ANSWERS, "Slurm answers again; it was away from 22:13 UTC to 22:33 UTC")]
    assert hear(*away[:2], *back) == []  # five minutes are no news


def test_two_hours_of_flapping_are_two_messages() -> None:
    flapping = [(NIGHT + 30 * i, i % 2 == 0) for i in range(240)]
    calm = [(NIGHT + 7200 + 30 * i, False) for i in range(60)]
    heard = hear(*flapping, *calm)
    assert [kind for _, kind, _ in heard] == [Kind.SLURM_SILENT, Kind.SLURM_ANSWERS]
    assert heard[0][2] == "Slurm has answered only now and then for 10m: connect failure"
    assert "on and off" in heard[1][2]


# --- the living message ---------------------------------------------------------------------------------------------------


def test_the_living_message() -> None:
    run = run_of(queued(1), event("interval", interval_s=605.0, mtbi_h=104.2), started(1, NIGHT))
    progress = Progress(step=1200, of=5000, loss=0.31234, steps_per_s=12.345, left_s=307.0, at=NIGHT + 30)
    message = living(run, progress, NIGHT + 31)
    assert message == Message(
        key="a/0/progress", kind=Kind.PROGRESS, tag="a", at=NIGHT + 30, headline="a: running, step 1200 of 5000, loss 0.3123",
        facts=(("attempt", "1 on n1, job 101"), ("rate", "12.3 steps/s"), ("time left", "5m07s"), ("M", "104 h"),
               ("checkpoint every", "10m05s")))
    done = living(run_of(*FINISHED), Progress(step=5000), NIGHT)
    assert (done.headline, done.at) == ("a: finished, accuracy=0.9877 loss=0.3", NIGHT + 3601)
    assert done.facts[0][0] == "took"
    held = living(run_of(queued(1), event("held", by="orch", reason="no GPU")), Progress(), NIGHT)
    assert held.headline == "a: held" and held.lines == ("no GPU",)


# --- many at once ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "sizes"), [
    (0, []), (1, [1]), (5, [1] * 5), (6, [6]), (20, [20]), (25, [13, 12]), (40, [20, 20]), (60, [20, 20, 20]),
    (500, [460, 20, 20])])
def test_batches(count: int, sizes: list[int]) -> None:
    assert batches(count) == sizes and sum(sizes) == count


def test_what_is_left_after_one_batch_is_batched_alike() -> None:
    for count in range(SINGLY_AT_MOST + 1, 200):
        sizes = batches(count)
        assert batches(count - sizes[0]) == sizes[1:]


def some(count: int) -> list[Message]:
    return [Message(key=f"r{i}/0/3/held", kind=Kind.HELD if i % 4 else Kind.NODE_OUT, at=NIGHT + i, tag=f"r{i}",
                    headline=f"r{i} is held: no GPU", lines=(f"`orch release r{i}`",)) for i in range(count)]


def test_many_at_once_become_one() -> None:
    one, = some(1)
    assert grouped([one]) is one
    group = grouped([again(some(1)[0]), *some(8)[1:]])
    assert group.headline == "8 messages since 22:13 UTC: 6 held, 2 node-out" and group.at == NIGHT + 7
    assert group.lines[0] == "22:13 UTC (again) r0 is held: no GPU"
    assert group.lines[1] == "22:13 UTC r1 is held: no GPU (`orch release r1`)" and len(group.lines) == 8
    huge = grouped(some(460))
    assert huge.lines[0].startswith("440 before these;") and len(huge.lines) == 21 and "460 messages" in huge.headline


def test_a_trainer_that_cannot_save_and_can_again() -> None:
    fails = event("saves", NIGHT + 9, fail=True, step=40, checkpoint_step=30,
                  reason="OSError: [Errno 28] No space left on device")
    message, again = told(queued(1), started(1, NIGHT), fails, event("saves", NIGHT + 99, fail=False, checkpoint_step=60))
    assert (message.kind, message.at) == (Kind.SAVES_FAIL, NIGHT + 9)
    assert message.headline == "a cannot save: OSError: [Errno 28] No space left on device"
    assert message.lines[0] == "training goes on, and its newest complete checkpoint is step 30"
    assert (again.kind, again.headline) == (Kind.SAVES_AGAIN, "a saves again")


SAVED: dict[str, Any] = {"event": "saved", "step": 4}
LOCAL: dict[str, Any] = {**SAVED, "level": "local"}
FAILED: dict[str, Any] = {"event": "save_failed", "step": 5, "error": "full"}


@pytest.mark.parametrize(("lines", "before", "after_s", "expected"), [
    ([], None, 0, []),
    ([SAVED], None, 0, []),
    ([SAVED, FAILED], None, 0, [True]),
    ([FAILED], None, 0, [True]),                         # the first save failed
    ([FAILED, SAVED], None, 0, []),                      # it failed and the next one did not, between two passes
    ([SAVED, FAILED], True, 10, []),                     # told already
    ([FAILED, SAVED], True, 10, [False]),
    ([SAVED, FAILED], False, 10, []),                    # it comes and goes
    ([SAVED, FAILED], False, 3601, [True]),
    ([SAVED, FAILED, LOCAL], None, 0, [True]),           # that the node has room says nothing of the shared folder
    ([SAVED, FAILED, LOCAL], True, 10, []),
    ([LOCAL] * 9, True, 10, []),                         # the line of the one that failed lies too far back
    ([FAILED, LOCAL, SAVED], True, 10, [False]),
    ([{**FAILED, "level": "local"}, SAVED], None, 0, [True]),
    ([{**FAILED, "level": "local"}, SAVED, LOCAL], True, 10, [False]),
])
def test_a_full_disk_becomes_an_event(
    tmp_path: Path, lines: list[dict[str, Any]], before: bool | None, after_s: float, expected: list[bool],
) -> None:
    folder = tmp_path / "attempts" / "0001"
    folder.mkdir(parents=True)
    (folder / "start.json").write_text(start_record(1).to_json())
    (folder / "trainer.jsonl").write_text("".join(
        json.dumps({**line, "t": float(at)}) + "\n" for at, line in enumerate(lines, 1)))
    run = run_of(queued(1), started(1), *([event("saves", NIGHT, fail=before)] if before is not None else []))
    attempts, _ = observe._attempts(tmp_path, run, None, {}, [(1, folder)], observe.LinesOf())
    found = seen(job(1, "RUNNING"), attempts=attempts, checkpoint_step=4)
    facts = [fact for fact in news(run, found, POLICY, NIGHT + after_s) if fact["event"] == "saves"]
    assert [fact["fail"] for fact in facts] == expected
