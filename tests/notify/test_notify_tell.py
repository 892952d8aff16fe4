"""From journals to a channel and back: each fact arrives once, whatever the channel does and whenever the process dies."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import ended, event, queued, started
from loopback import BAD, BROKEN, CLOSE, HANG, ID, LOST, NO_CONTENT, NO_WEBHOOK, TOKEN, Loopback, Reply, cloudflare, limited
from tellers import BEGAN, SHORT, Teller, files_with, make_teller

from orchestrator.control.deliver import Sender, deliver, enqueue
from orchestrator.control.tell import send_test
from orchestrator.message import Kind, Message, Told
from orchestrator.notify.outbox import Channel, Outbox, Waiting, outbox_path, read_outbox, write_outbox
from orchestrator.notify.post import Patience
from orchestrator.notify.result import Delivered, Result, TryAgain


@pytest.fixture
def discord() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


@pytest.fixture
def quiet(tmp_path: Path, discord: Loopback) -> Teller:
    """A repository that has told people before, so that what happens next is news; nothing is queued."""
    made = make_teller(tmp_path, discord)
    made.pass_()
    return made


@pytest.fixture
def teller(quiet: Teller) -> Teller:
    """The same with a run that waits, so that the queue does not drain."""
    quiet.journal("waits", queued(1))
    quiet.pass_()
    return quiet


# --- what is told ---------------------------------------------------------------------------------------------------------


def test_each_fact_is_told_once_however_often_a_pass_runs(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.finishes("a", accuracy=0.91)
    for _ in range(5):
        teller.pass_()
        teller.now += 1
    assert discord.contents() == ["a is finished: accuracy=0.91"]
    body = discord.posts()[0].body
    assert body["embeds"][0]["timestamp"] == "2023-11-14T22:13:20+00:00" and body["embeds"][0]["footer"] == {"text": "vision"}


def test_a_repository_that_begins_to_tell_does_not_tell_its_past(tmp_path: Path, discord: Loopback) -> None:
    teller = make_teller(tmp_path, discord)
    teller.starts("old")
    teller.finishes("old", accuracy=0.5)
    teller.now += 3000
    teller.starts("late")
    teller.finishes("late", accuracy=0.6)
    teller.now += 1800
    teller.pass_()
    assert discord.contents() == ["late is finished: accuracy=0.6"]
    teller.passes(600)
    assert discord.contents()[1:] == ["the queue has drained: the GPU has been idle for 31m, since 23:03 UTC"]
    assert "old finished" not in discord.posts()[-1].everything


def test_nor_that_its_queue_drained_long_ago(tmp_path: Path, discord: Loopback) -> None:
    teller = make_teller(tmp_path, discord)
    teller.starts("old")
    teller.finishes("old")
    teller.now += 7200
    teller.passes(600)
    assert discord.contents() == []


def test_a_run_of_the_same_tag_is_another_run(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.finishes("a", loss=1)
    teller.pass_()
    (teller.repository / "runs/a/journal.jsonl").unlink()
    teller.now += 60
    teller.starts("a")
    teller.finishes("a", loss=2)
    teller.pass_()
    assert discord.contents() == ["a is finished: loss=1", "a is finished: loss=2"]


def test_a_damaged_journal_hides_no_other_run(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.journal("b")
    (teller.repository / "runs/b/journal.jsonl").write_text("no event\n")
    teller.finishes("a", loss=1)
    assert teller.pass_().trouble == "" and discord.contents() == ["a is finished: loss=1"]


def test_while_a_journal_cannot_be_read_nobody_knows_whether_the_queue_has_drained(quiet: Teller, discord: Loopback) -> None:
    quiet.starts("a")
    quiet.pass_()
    path = quiet.repository / "runs/a/journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"no event\n")
    quiet.starts("b")
    quiet.finishes("b")
    quiet.passes(600)
    assert discord.contents() == ["b is finished"]
    assert "what is left in the queue is unknown" in discord.posts()[-1].everything
    path.write_bytes(whole)
    quiet.finishes("a")
    quiet.passes(600)
    assert [content.partition(":")[0] for content in discord.contents()] == [
        "b is finished", "a is finished", "the queue has drained"]


def test_a_run_that_cannot_be_told_hides_no_other(tmp_path: Path, discord: Loopback) -> None:
    """Somebody has written a word for a number into its journal."""
    teller = make_teller(tmp_path, discord, command=TELL)
    teller.pass_()
    teller.journal("waits", queued(1))
    teller.starts("bad")
    teller.pass_()
    teller.journal("bad", ended(1, "crash", teller.now, saved_at="soon"), event("finished", teller.now))
    teller.starts("a")
    teller.holds("a")
    teller.passes(60)
    assert discord.contents() == ["a is held: no GPU"] == told_by_command(teller)
    told = teller.pass_()
    assert told.lines == () and "bad cannot be told, a mistake in orch: Traceback" in told.trouble
    path = teller.repository / "runs/bad/journal.jsonl"
    path.write_text(path.read_text().replace('"soon"', "null"))
    teller.passes(120)
    assert discord.contents()[1:] == ["bad is finished"] and teller.pass_().trouble == ""


def test_an_attempt_that_ended_when_no_clock_can_show_drains_the_queue_too(quiet: Teller, discord: Loopback) -> None:
    quiet.starts("a")
    quiet.pass_()
    quiet.journal("a", ended(1, "node-failure", 1e13, nodes="n1"), event("held", quiet.now, by="orch", reason="x"))
    quiet.passes(120)
    assert sorted(content.partition(":")[0] for content in discord.contents()) == [
        "a is held", "n1 is out", "the queue has drained"] and quiet.pass_().trouble == ""


def test_low_then_drained(quiet: Teller, discord: Loopback) -> None:
    for tag in ("a", "b"):
        quiet.starts(tag)
    quiet.passes(120)
    quiet.finishes("a", accuracy=0.91)
    quiet.passes(300)
    quiet.finishes("b", accuracy=0.93)
    quiet.passes(900)
    contents = discord.contents()
    assert contents == [
        "a is finished: accuracy=0.91", "one run is left in the queue: b (running, attempt 1)",
        "b is finished: accuracy=0.93", "the queue has drained: the GPU has been idle for 1m30s, since 22:20 UTC"]
    last = next(body for body in discord.messages.values() if body["content"] == contents[-1])
    assert last["embeds"][0]["description"].splitlines() == [
        "a finished: accuracy=0.91", "b finished: accuracy=0.93",
        "the next one: `orch new TAG --from b`, then `orch submit TAG`"]


def test_a_queue_that_is_refilled_within_a_minute_never_drains(quiet: Teller, discord: Loopback) -> None:
    for number in range(15):
        quiet.starts(f"r{number}")
        quiet.passes(60)
        quiet.finishes(f"r{number}")
        quiet.passes(30)
    assert not [content for content in discord.contents() if "drained" in content]
    quiet.passes(120)
    assert len([content for content in discord.contents() if "drained" in content]) == 1


def test_a_slurm_that_flaps_for_two_hours_is_two_messages(teller: Teller, discord: Loopback) -> None:
    teller.passes(7200, silent=lambda now: "connect failure" if (now - BEGAN) // 30 % 2 else None)
    teller.passes(1200)
    silent, answers = discord.contents()
    assert silent.startswith("Slurm has answered only now and then for 10m: connect failure")
    assert answers.startswith("Slurm answers again")


def test_nobody_asked_is_no_silence(teller: Teller, discord: Loopback) -> None:
    teller.pass_(silent="connect failure")
    teller.now += 86400                # nothing was under way meanwhile
    teller.pass_(asked=False)
    teller.pass_(silent="connect failure")
    assert discord.contents() == []


def test_forty_runs_on_a_node_that_fails_are_a_few_messages(teller: Teller, discord: Loopback) -> None:
    for number in range(40):
        teller.starts(f"r{number}")
    teller.pass_()
    posted = len(discord.posts())
    for number in range(40):
        teller.journal(f"r{number}", ended(1, "node-failure", teller.now, reason="Slurm: NODE_FAIL", nodes="n7"), queued(2))
    teller.passes(120)
    contents = discord.contents()
    assert len(contents) == 2 == len(discord.posts()) - posted
    assert all(content.startswith("20 messages since 22:13 UTC: 20 node-out") for content in contents)
    assert "".join(one.everything for one in discord.posts()).count("n7 is out") == 40


# --- what a channel does --------------------------------------------------------------------------------------------------


def test_an_outage_in_the_middle_of_a_drain(quiet: Teller, discord: Loopback) -> None:
    """Nothing is lost, nothing comes twice, and what comes late says when it was."""
    for tag in ("a", "b", "c"):
        quiet.starts(tag)
    quiet.passes(60)
    quiet.finishes("a", accuracy=0.91)
    quiet.passes(60)
    discord.usual = BROKEN
    quiet.holds("b", "attempt 1: crash: exit 1")
    quiet.journal("b", ended(1, "crash", quiet.now, reason="exit 1"))
    quiet.passes(240)
    quiet.finishes("c", accuracy=0.93)
    quiet.passes(1200)
    during = len([one for one in discord.arrived if one.status == 500])
    assert quiet.waiting()[0] == "b is held: attempt 1: crash: exit 1" and len(quiet.waiting()) == 4
    discord.usual = None
    quiet.passes(660)
    assert quiet.waiting() == [] and len(discord.contents()) == 5
    assert [content.split(":")[0] for content in discord.contents()] == [
        "a is finished", "b is held", "one run is left in the queue", "c is finished", "the queue has drained"]
    held = next(body for body in discord.messages.values() if body["content"].startswith("b is held"))
    assert held["embeds"][0]["timestamp"] == "2023-11-14T22:15:20+00:00"
    assert quiet.said == ["discord: it answers 500; messages wait", "discord: delivers again"]
    assert during < 12                 # 27 minutes of 500s: asked a few times, not every 30 s


def test_back_off_doubles_to_ten_minutes(teller: Teller, discord: Loopback) -> None:
    discord.usual = BROKEN
    teller.starts("a")
    teller.finishes("a")
    teller.passes(3600, every_s=1)
    waits = [round(later.at - earlier.at) for earlier, later in pairwise(discord.arrived)]
    assert waits == [15, 30, 60, 120, 240, 480, 600, 600, 600, 600]


@pytest.mark.parametrize(("reply", "wait_s"), [
    (limited(42.5), 43), (cloudflare("90"), 90), (cloudflare(None), 60), (limited(2285), 2285)])
def test_patience_as_asked_for_and_never_in_the_pass(teller: Teller, discord: Loopback, reply: Reply, wait_s: int) -> None:
    discord.replies = [reply]
    teller.starts("a")
    teller.finishes("a")
    began = time.monotonic()
    teller.passes(2400, every_s=1)
    assert time.monotonic() - began < 60  # 2,400 passes
    first, second = discord.arrived
    assert second.at - first.at == wait_s and discord.contents() == ["a is finished"]


def test_an_empty_bucket_is_waited_for(teller: Teller, discord: Loopback) -> None:
    discord.remaining = lambda: {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "1.5"}
    for tag in ("a", "b"):
        teller.holds(tag)
    teller.pass_()
    assert len(discord.contents()) == 1
    teller.now += 1
    teller.pass_()
    assert len(discord.contents()) == 1
    teller.now += 1
    teller.pass_()
    assert len(discord.contents()) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_webhook_that_is_no_more_is_left_alone_until_its_file_changes(
    teller: Teller, discord: Loopback, status: int, tmp_path: Path,
) -> None:
    discord.usual = Reply(status, {"message": "no", "code": 10015})
    teller.holds("a")
    teller.passes(3600)
    assert len(discord.arrived) == 1 and len([line for line in teller.said if "takes nothing from us" in line]) == 1
    teller.holds("b")
    teller.passes(60)
    assert len(discord.arrived) == 1 and teller.waiting()[0] == "a is held: no GPU"
    discord.usual = None
    os.utime(tmp_path / "hook", ns=(5, 5))
    teller.pass_()
    assert discord.contents()[0] == "a is held: no GPU" and teller.waiting() == []


def test_a_message_that_is_rejected_is_dropped_with_a_word_and_blocks_nothing(teller: Teller, discord: Loopback) -> None:
    discord.replies = [BAD]
    for tag in ("a", "b"):
        teller.holds(tag)
    teller.pass_()
    assert discord.contents() == ["b is held: no GPU"] and teller.waiting() == []
    assert teller.said == ['discord: rejects this message, which is dropped: a is held: no GPU '
                           '(400: {"message": "Invalid Form Body", "code": 50035})']


def test_of_a_group_that_is_rejected_only_the_one_at_fault_is_dropped(teller: Teller, discord: Loopback) -> None:
    discord.replies = [BAD, Reply(200, {"id": "1"}, taken=True), BAD]  # the group, the first of it, the second
    for number in range(8):
        teller.holds(f"r{number}")
    teller.passes(90)
    assert sorted(content.split()[0] for content in discord.contents()) == ["r0", "r2", "r3", "r4", "r5", "r6", "r7"]
    assert len([line for line in teller.said if "r1 is held" in line]) == 1


def test_a_channel_without_answers_delivers_too(teller: Teller, discord: Loopback) -> None:
    discord.replies = [NO_CONTENT]
    teller.holds("a")
    teller.passes(60)
    assert discord.contents() == ["a is held: no GPU"]


@pytest.mark.parametrize("reply", [LOST, CLOSE, Reply(504, "<html>")], ids=["lost", "closed", "gateway"])
def test_a_message_whose_answer_got_lost_comes_again_and_says_so(teller: Teller, discord: Loopback, reply: Reply) -> None:
    discord.replies = [reply]
    teller.holds("a")
    teller.passes(120)
    assert [one.content for one in discord.arrived] == ["a is held: no GPU", "(again) a is held: no GPU"]


def test_a_channel_that_hangs_costs_a_pass_its_patience_and_no_more(teller: Teller, discord: Loopback) -> None:
    discord.usual = HANG
    for number in range(4):
        teller.holds(f"r{number}")
    began = time.monotonic()
    teller.pass_(patience=Patience(connect_s=1, read_s=0.2, whole_s=1))
    assert time.monotonic() - began < 1.5 and len(discord.arrived) == 1
    assert teller.said == ["discord: no answer in time; messages wait"] and len(teller.waiting()) == 4


def test_a_night_of_messages_that_could_not_be_sent_becomes_three(teller: Teller, discord: Loopback) -> None:
    discord.usual = BROKEN
    for number in range(500):
        teller.holds(f"r{number}")
    teller.pass_()
    discord.usual = None
    teller.now += 30
    teller.pass_()
    assert [content.split()[0] for content in discord.contents()] == ["460", "20", "20"] and teller.waiting() == []


def test_an_outbox_that_nobody_empties_stays_small() -> None:
    channel, lines = Channel(), list[str]()
    for number in range(1002):
        lines += enqueue("discord", channel, [Message(key=str(number), kind=Kind.HELD, at=0, headline=f"r{number} is held")])
    assert lines == [f"discord: 1000 messages wait already; dropped: r{number} is held" for number in (0, 1)]
    assert len(channel.waiting) == 1000 and channel.waiting[0].message.key == "2"


def test_a_clock_that_was_wrong_silences_nobody(teller: Teller, discord: Loopback) -> None:
    teller.now += 10 * 365 * 86400
    discord.replies = [limited(60)]
    teller.holds("a")
    teller.pass_()
    teller.now = BEGAN + 60
    teller.pass_()
    assert discord.contents() == ["a is held: no GPU"]


# --- dying in the middle --------------------------------------------------------------------------------------------------

ONE_PASS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from orchestrator.config.notify import Notify
from tellers import Teller
hook = Path(sys.argv[2])
Teller(repository=Path(sys.argv[1]), notify=Notify(discord=True, webhook_file=hook, where="orch.yaml:3")).pass_()
"""


@pytest.mark.parametrize("reply", [HANG, replace(HANG, taken=True)], ids=["not-delivered", "delivered"])
def test_killed_between_sending_and_result(teller: Teller, discord: Loopback, tmp_path: Path, reply: Reply) -> None:
    discord.replies = [reply]
    teller.holds("a")
    here = Path(__file__).parent
    arguments = [teller.repository, tmp_path / "hook", here, here.parent / "unit"]
    with subprocess.Popen([sys.executable, "-c", ONE_PASS, *map(str, arguments)]) as process:
        try:
            give_up = time.monotonic() + 20
            while not discord.arrived and time.monotonic() < give_up:
                os.sched_yield()
        finally:
            process.send_signal(signal.SIGKILL)
    assert len(discord.arrived) == 1
    teller.pass_()
    assert [one.content for one in discord.arrived] == ["a is held: no GPU", "(again) a is held: no GPU"]
    teller.passes(120)
    assert len([one for one in discord.arrived if one.content.startswith("a is held")]) == 1


class Killed(BaseException):
    """The process dies here."""


def test_killed_at_any_instant_nothing_is_lost_and_only_what_may_have_arrived_comes_again(tmp_path: Path) -> None:
    """The process dies before or after its n-th write of the outbox, or its n-th sending; then one that lives goes on."""
    for moment in range(40):
        path, arrived, left = tmp_path / f"outbox{moment}", list[Message](), [moment]
        write_outbox(path, Outbox(told=Told(), channels={"x": Channel(waiting=[
            Waiting(message=Message(key=str(i), kind=Kind.HELD, at=float(i), headline=f"r{i}")) for i in range(3)])}))
        survived = _deliver_all(path, arrived, left)
        if not survived:
            assert _deliver_all(path, arrived, [1000])
        keys = [message.key for message in arrived]
        assert sorted(set(keys)) == ["0", "1", "2"], moment
        repeated = [message for index, message in enumerate(arrived) if message.key in keys[:index]]
        assert len(repeated) <= 1 and all(message.again for message in repeated), moment
        if survived:
            return
    raise AssertionError("the process never lived to the end")


def _deliver_all(path: Path, arrived: list[Message], left: list[int]) -> bool:
    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    outbox = read_outbox(path)
    assert outbox is not None

    def save() -> None:
        step()
        write_outbox(path, outbox)
        step()

    def send(message: Message, message_id: str) -> Result:
        step()
        arrived.append(message)
        step()
        return Delivered()

    try:
        deliver(Sender(name="x", channel=outbox.channels["x"], send=send, save=save, clock=lambda: 0.0, in_time=lambda: True))
    except Killed:
        return False
    return True


# --- living messages ------------------------------------------------------------------------------------------------------


def edits(discord: Loopback) -> list[tuple[float, str]]:
    return [(one.at - BEGAN, one.content) for one in discord.arrived if one.method == "PATCH"]


def test_one_living_message_a_run_edited_at_most_once_a_minute(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    for _ in range(20):
        teller.now += 15
        teller.progress("a", step=int(teller.now - BEGAN))
        teller.pass_()
    posts = [one for one in discord.posts() if "flags" in one.body]
    assert len(posts) == 1 and posts[0].content == "a: running, step 15, loss 0.5"
    times = [at for at, _ in edits(discord)]
    assert times == [75, 135, 195, 255]
    teller.finishes("a", accuracy=0.9)
    teller.now += 15
    teller.pass_()
    assert edits(discord)[-1] == (315, "a: finished, accuracy=0.9")
    teller.passes(3600)
    assert len(edits(discord)) == 5 and teller.outbox().living == {}


def test_forty_runs_take_turns_and_those_that_end_come_first(teller: Teller, discord: Loopback) -> None:
    """A pass has time for five edits, as Discord's bucket has it: five, then two seconds of nothing."""
    sent = 0

    def bucket() -> dict[str, str]:
        nonlocal sent
        sent += 1
        return {"X-RateLimit-Remaining": str(-sent % 5), "X-RateLimit-Reset-After": "2"}

    discord.remaining = bucket
    tags = [f"r{number:02}" for number in range(40)]
    for tag in tags:
        teller.starts(tag)
    for step in range(1, 33):
        teller.now += 30
        for tag in tags:
            teller.progress(tag, step)
        teller.pass_()
    counts = Counter(one.content.partition(":")[0] for one in discord.arrived)
    assert counts == dict.fromkeys(tags, 4)  # 32 passes of five
    for tag in tags[-5:]:
        teller.finishes(tag)
    teller.now += 30
    teller.passes(90)                  # their messages, then the living ones
    assert {body["content"] for body in discord.messages.values() if "flags" in body and "finished" in body["content"]} == {
        f"{tag}: finished" for tag in tags[-5:]}
    assert not set(tags[-5:]) & set(teller.outbox().living)


def test_nothing_new_is_no_edit(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.progress("a", step=7)
    teller.passes(600)
    assert len(discord.arrived) == 1


def test_an_old_message_is_edited_less_often(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    for step in range(1, 400):
        teller.now += 30
        teller.progress("a", step=step)
        teller.pass_()
    late = [at for at, _ in edits(discord) if at > 4000]
    assert min(later - earlier for earlier, later in pairwise(late)) >= 300


def test_limited_edits_hold_up_no_message(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.pass_()
    discord.replies = [Reply(429, {"message": "Maximum number of edits to messages older than 1 hour reached", "code": 30046,
                                   "retry_after": 600.0})]
    teller.now += 60
    teller.progress("a", step=3)
    teller.pass_()
    teller.holds("b")
    teller.passes(540)
    assert discord.contents()[0] == "b is held: no GPU" and edits(discord) == [(60, "a: running, step 3, loss 0.5")]
    teller.passes(120)
    assert len(edits(discord)) == 2


def test_a_living_message_that_somebody_deleted_is_let_be(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.pass_()
    discord.messages.clear()
    for step in range(1, 20):
        teller.now += 60
        teller.progress("a", step=step)
        teller.pass_()
    assert len(edits(discord)) == 1 and len(discord.posts()) == 1 and teller.said == []
    teller.finishes("a")
    teller.pass_()
    assert discord.contents() == ["a is finished"] and teller.outbox().living == {}


def test_a_living_message_that_is_rejected_is_said_and_let_be(teller: Teller, discord: Loopback) -> None:
    discord.replies = [BAD]
    teller.starts("a")
    teller.passes(600)
    assert len(discord.arrived) == 1
    assert [line[:44] for line in teller.said] == ["discord: rejects the living message of a (40"]


def test_a_living_message_whose_answer_got_lost_comes_again(teller: Teller, discord: Loopback) -> None:
    discord.replies = [LOST]
    teller.starts("a")
    teller.passes(60)
    assert [one.content for one in discord.posts()] == ["a: running", "(again) a: running"]


def test_the_last_edit_is_made_when_discord_is_back(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.pass_()
    discord.usual = BROKEN
    teller.finishes("a", accuracy=0.9)
    teller.passes(300)
    discord.usual = None
    teller.passes(300)
    assert discord.messages["1000"]["content"] == "a: finished, accuracy=0.9"


def test_a_run_continued_after_its_end_has_a_new_living_message(teller: Teller, discord: Loopback) -> None:
    teller.starts("a")
    teller.pass_()
    teller.finishes("a")
    teller.pass_()
    teller.journal("a", event("reopened", teller.now), queued(2), started(2, teller.now))
    teller.passes(60)
    assert len([one for one in discord.posts() if "flags" in one.body]) == 2


# --- commands, several channels, and what is wrong here -------------------------------------------------------------------

TELL = ("sh", "-c", "cat >> told.jsonl")


def told_by_command(teller: Teller) -> list[str]:
    path = teller.repository / "told.jsonl"
    return [json.loads(line)["headline"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_command_is_told_all_but_progress(tmp_path: Path) -> None:
    teller = make_teller(tmp_path, None, command=TELL)
    teller.pass_()
    teller.starts("a")
    teller.passes(60)
    teller.finishes("a", accuracy=0.9)
    teller.passes(180)
    assert told_by_command(teller)[0] == "a is finished: accuracy=0.9" and len(told_by_command(teller)) == 2


def test_one_channel_that_is_away_holds_up_no_other(tmp_path: Path, discord: Loopback) -> None:
    teller = make_teller(tmp_path, discord, command=TELL)
    teller.pass_()
    discord.usual = BROKEN
    teller.holds("a")
    teller.passes(60)
    assert told_by_command(teller) == ["a is held: no GPU"] and teller.waiting() and teller.waiting("command") == []
    teller.notify = replace(teller.notify, discord=False)  # not to be told any more: its messages go with it, into the log
    assert teller.pass_().lines == ("discord: is no channel in orch.yaml any more; dropped: a is held: no GPU",)
    assert teller.pass_().lines == ()
    teller.notify = replace(teller.notify, discord=True)
    discord.usual = None
    teller.holds("b")
    teller.passes(60)
    assert discord.contents()[0] == "b is held: no GPU"


def test_a_command_that_fails_is_tried_again(tmp_path: Path) -> None:
    script = "test -e ready || exit 1; cat >> told.jsonl"
    teller = make_teller(tmp_path, None, command=("sh", "-c", script))
    teller.holds("a")
    teller.pass_()
    teller.passes(60)
    assert teller.said == ["command: sh ended with 1; messages wait"]
    (teller.repository / "ready").touch()
    teller.passes(120)
    assert told_by_command(teller)[0] == "a is held: no GPU" and teller.said[-1] == "command: delivers again"


def test_a_webhooks_file_that_is_no_good_is_said_once_and_costs_no_message(
    teller: Teller, discord: Loopback, tmp_path: Path,
) -> None:
    (tmp_path / "hook").chmod(0o644)
    teller.holds("a")
    teller.passes(300)
    assert len(teller.said) == 1 and "has mode 0644" in teller.said[0] and "`chmod 600 " in teller.said[0]
    (tmp_path / "hook").chmod(0o600)
    teller.pass_()
    assert discord.contents()[0] == "a is held: no GPU" and teller.said[1:] == ["discord: delivers again"]


def test_an_outbox_that_cannot_be_read_is_said_and_kept(teller: Teller, discord: Loopback) -> None:
    path = outbox_path(teller.repository)
    path.write_text("{")
    told = teller.pass_()
    assert "not an outbox" in told.trouble and "delete it" in told.trouble and path.read_text() == "{"


def test_a_disk_that_is_full_loses_nothing(teller: Teller, discord: Loopback) -> None:
    teller.holds("a")
    at_most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, at_most[1]))
    try:
        told = teller.pass_()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, at_most)
    assert "nothing can be told: File too large" in told.trouble and discord.arrived == []
    teller.pass_()
    assert discord.contents() == ["a is held: no GPU"]


def test_two_passes_at_once_tell_once(teller: Teller, discord: Loopback) -> None:
    """fcntl's locks are between processes: another one holds it."""
    path = outbox_path(teller.repository).with_name("lock")
    code = ("import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); "
            "sys.stdin.read()")
    teller.holds("a")
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            told = teller.pass_()
            assert told.trouble == "" and discord.arrived == []
        finally:
            other.communicate(b"")
    teller.pass_()
    assert discord.contents() == ["a is held: no GPU"]


def test_the_webhook_stands_in_its_file_and_nowhere_else(teller: Teller, discord: Loopback, tmp_path: Path) -> None:
    """After every kind of answer, also none: not in the log, the outbox, an error or a message."""
    discord.replies = [BROKEN, HANG, CLOSE, LOST, limited(1), cloudflare("1"), BAD, Reply(504, ""),
                       Reply(400, f"No /api/webhooks/{ID}/{TOKEN}"),
                       Reply(404, {"message": f"No /api/webhooks/{ID}/{TOKEN}", "code": 10015})]
    teller.starts("run")
    for number in range(12):
        teller.holds(f"r{number}")
        teller.now += 700
        teller.pass_()
        os.utime(tmp_path / "hook", ns=(number, number))
    teller.holds("last")
    with Loopback() as gone:
        (tmp_path / "hook").write_text(gone.url)
    teller.now += 700
    teller.pass_()                     # nobody listens there any more
    assert any("no connection" in line for line in teller.said) and len(teller.said) > 6
    assert TOKEN not in "\n".join(teller.said) + "".join(one.everything for one in discord.arrived)
    assert files_with(tmp_path, TOKEN) == [tmp_path / "hook"]
    assert outbox_path(teller.repository).stat().st_mode & 0o777 == 0o600


def test_a_test_message_goes_to_every_channel_and_mends_what_it_can(tmp_path: Path, discord: Loopback) -> None:
    teller = make_teller(tmp_path, discord, command=TELL)
    teller.pass_()
    discord.replies = [NO_WEBHOOK]
    teller.holds("a")
    teller.pass_()
    results = dict(send_test(teller.ports, SHORT))
    assert results == {"discord": Delivered(message_id="1000"), "command": Delivered()}
    assert discord.contents() == ["a test from vision"] and told_by_command(teller)[-1] == "a test from vision"
    teller.pass_()
    assert "a is held: no GPU" in discord.contents()


def test_a_test_before_the_first_pass_leaves_no_trace(tmp_path: Path, discord: Loopback) -> None:
    teller = make_teller(tmp_path, discord)
    discord.replies = [BROKEN]
    assert send_test(teller.ports, SHORT) == [("discord", TryAgain(why="it answers 500"))]
    assert read_outbox(outbox_path(teller.repository)) is None


def test_without_channels_there_is_no_outbox(tmp_path: Path) -> None:
    teller = make_teller(tmp_path, None)
    teller.holds("a")
    teller.pass_()
    assert not (teller.repository / ".orch").exists()
