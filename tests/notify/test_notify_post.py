"""Sending over a real connection to a server that answers in every way, or not at all."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import BAD, BROKEN, CLOSE, HANG, ID, LOST, NO_CONTENT, NO_WEBHOOK, TOKEN, Loopback, Reply, cloudflare, limited

from orchestrator.message import Kind, Message
from orchestrator.notify.command import as_json, run_command
from orchestrator.notify.post import Answer, Patience, edit_url, post, post_url, read_answer
from orchestrator.notify.result import Delivered, Refused, Rejected, Result, TryAgain

SHORT = Patience(connect_s=1.0, read_s=0.2, whole_s=2.0)
BODY = {"content": "hello", "allowed_mentions": {"parse": []}}


@pytest.fixture
def discord() -> Iterator[Loopback]:
    with Loopback() as server:
        yield server


def test_a_message_and_its_edit(discord: Loopback) -> None:
    assert post(discord.url, BODY, patience=SHORT) == Delivered(message_id="1000")
    assert post(discord.url, {**BODY, "content": "later"}, message_id="1000", patience=SHORT) == Delivered(message_id="1000")
    assert discord.contents() == ["later"]
    first, second = discord.arrived
    assert first.path.endswith("?wait=true") and second.method == "PATCH" and second.path.endswith("/messages/1000")
    assert first.headers["User-Agent"].startswith("DiscordBot (") and "Authorization" not in first.headers


@pytest.mark.parametrize(("reply", "result"), [
    (NO_CONTENT, Delivered()),
    (BAD, Rejected(why='400: {"message": "Invalid Form Body", "code": 50035}')),
    (limited(0.729), TryAgain(why="rate limited (429)", after_s=0.729)),
    (limited(2285), TryAgain(why="rate limited (429)", after_s=2285)),
    (limited(1e9), TryAgain(why="rate limited (429)", after_s=3600)),
    (cloudflare("90"), TryAgain(why="rate limited (429)", after_s=90)),
    (cloudflare(None), TryAgain(why="rate limited (429)", after_s=60)),
    (cloudflare("Wed, 21 Oct 2015 07:28:00 GMT"), TryAgain(why="rate limited (429)", after_s=60)),
    (Reply(429, {"code": 0, "message": "You are being blocked from accessing our API temporarily"}),
     TryAgain(why="rate limited (429)", after_s=60)),
    (BROKEN, TryAgain(why="it answers 500")),
    (Reply(503, "<html>"), TryAgain(why="it answers 503")),
    (Reply(504, "<html>"), TryAgain(why="it answers 504", unknown=True)),
    (NO_WEBHOOK, Refused(why='404: {"message": "Unknown Webhook", "code": 10015}')),
    (Reply(404, {"message": f"No /api/webhooks/{ID}/{TOKEN}", "code": 0}),  # as some servers write
     Refused(why='404: {"message": "No /api/webhooks/.../...", "code": 0}')),
    (Reply(400, f"No /api/webhooks/{ID}/{TOKEN}"), Rejected(why="400: No /api/webhooks/.../...")),
    (Reply(401, {"message": "Invalid Webhook Token", "code": 50027}),
     Refused(why='401: {"message": "Invalid Webhook Token", "code": 50027}')),
    (Reply(413, {"message": "Request entity too large", "code": 40005}),
     Rejected(why='413: {"message": "Request entity too large", "code": 40005}')),
    *((Reply(status, "<html>", {"Content-Type": "text/html"}), TryAgain(why=f"it answers {status}"))
      for status in (400, 401, 404, 405, 413)),  # a proxy's or a portal's word
    (Reply(404, ""), TryAgain(why="it answers 404")), (Reply(401, "no"), TryAgain(why="it answers 401")),
    (Reply(403, "the proxy says no"), TryAgain(why="it answers 403")),
    (Reply(302, "", {"Location": "http://127.0.0.1:1/log-in"}), TryAgain(why="it answers 302")),
    (Reply(403, {"message": "Missing Permissions", "code": 50013}),
     Refused(why='403: {"message": "Missing Permissions", "code": 50013}')),
    (Reply(403, {"message": "internal network error", "code": 40333}),
     TryAgain(why="Cloudflare, in front of it, turns this machine away (403)")),
    (Reply(403, "error code: 1010"), TryAgain(why="Cloudflare, in front of it, turns this machine away (403)")),
    (Reply(301, "", {"Location": "http://127.0.0.1:1/elsewhere"}), TryAgain(why="it answers 301")),
    (CLOSE, TryAgain(why="the answer got lost (ConnectionError)", unknown=True)),
    (LOST, TryAgain(why="the answer got lost (ConnectionError)", unknown=True)),
], ids=lambda value: f"{value.status}" if isinstance(value, Reply) else "")
def test_every_answer(discord: Loopback, reply: Reply, result: Result) -> None:
    discord.replies = [reply]
    assert post(discord.url, BODY, patience=SHORT) == result
    assert len(discord.arrived) == 1   # nothing is retried, and no redirection followed


def test_a_server_that_hangs_costs_as_long_as_was_said(discord: Loopback) -> None:
    discord.replies = [HANG, HANG]
    began = time.monotonic()
    assert post(discord.url, BODY, patience=SHORT) == TryAgain(why="no answer in time", unknown=True)
    whole = Patience(connect_s=9, read_s=9, whole_s=0.2)  # what no time-out of a connection bounds: a name server, say
    assert post(discord.url, BODY, patience=whole) == TryAgain(why="no answer within 0.2 s", unknown=True)
    assert time.monotonic() - began < 1.5


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/api/webhooks/1/{TOKEN}"
        assert post(url, BODY, patience=SHORT) == TryAgain(why="no connection (refused, or its name is not found)")
    unknown = post(f"https://orch.invalid/api/webhooks/1/{TOKEN}", BODY, patience=SHORT)
    assert isinstance(unknown, TryAgain) and not unknown.unknown and TOKEN not in repr(unknown)


def test_headers_say_when_the_bucket_is_empty() -> None:
    def taken(**headers: str) -> Result:
        return read_answer(Answer(200, {name.replace("_", "-"): value for name, value in headers.items()}, b'{"id": "7"}'))

    assert taken(x_ratelimit_remaining="0", x_ratelimit_reset_after="1.25") == Delivered(message_id="7", pause_s=1.25)
    assert taken(x_ratelimit_remaining="1", x_ratelimit_reset_after="1.25") == Delivered(message_id="7")
    assert taken(x_ratelimit_remaining="0") == Delivered(message_id="7")


def test_an_edit_of_a_message_that_is_gone_says_nothing_of_the_webhook() -> None:
    gone = Answer(404, {}, b'{"message": "Unknown Message", "code": 10008}')
    assert read_answer(gone, editing=True) == Rejected(why="that message is gone")
    assert isinstance(read_answer(Answer(404, {}, b'{"code": 10015}'), editing=True), Refused)
    assert isinstance(read_answer(gone), Refused)
    assert read_answer(Answer(404, {"content-type": "text/html"}, b"<html>"), editing=True) == TryAgain(why="it answers 404")


def test_addresses() -> None:
    base = "https://discord.com/api/v10/webhooks/1/abc"
    assert post_url(base) == f"{base}?wait=true" and edit_url(base, "7") == f"{base}/messages/7"
    assert post_url(f"{base}?thread_id=5&wait=false#x") == f"{base}?thread_id=5&wait=true"
    assert edit_url(f"{base}/?thread_id=5&wait=true", "7") == f"{base}/messages/7?thread_id=5"


# --- commands -------------------------------------------------------------------------------------------------------------

HELD = Message(key="a/0/3/held", kind=Kind.HELD, at=5.0, tag="a", headline="a is held: exit 1", lines=("`orch release a`",),
               facts=(("loss", "é"),), again=True)


def test_a_command_reads_json(tmp_path: Path) -> None:
    command = ("sh", "-c", "cat > told.json; pwd > where")
    assert run_command(command, as_json(HELD, "vision"), tmp_path, limit_s=5) == Delivered()
    assert json.loads((tmp_path / "told.json").read_text()) == {
        "key": "a/0/3/held", "kind": "held", "tag": "a", "repository": "vision", "at": 5.0, "again": True,
        "headline": "a is held: exit 1", "lines": ["`orch release a`"], "facts": {"loss": "é"},
        "text": "(again) a is held: exit 1\n`orch release a`\nloss: é"}
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)


def test_what_a_commands_exit_means(tmp_path: Path) -> None:
    def ends(code: int) -> Result:
        return run_command(("sh", "-c", f"exit {code}"), "{}", tmp_path, limit_s=5)

    assert ends(0) == Delivered() and ends(65) == Rejected(why="sh ended with 65")
    assert ends(1) == TryAgain(why="sh ended with 1") and ends(75) == TryAgain(why="sh ended with 75")
    assert run_command(("./missing",), "{}", tmp_path, limit_s=5) == TryAgain(why="./missing: No such file or directory")


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    result = run_command(("sh", "-c", "sleep 60 & echo $! > pid; wait"), "{}", tmp_path, limit_s=0.3)
    assert result == TryAgain(why="sh took longer than 0.3 s", unknown=True) and time.monotonic() - began < 3
    child, give_up = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat", time.monotonic() + 5
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < give_up, "its child lives on"
        os.sched_yield()
