"""A message as Discord's JSON: whatever is in it, Discord takes it, shows it as it was, and nobody is mentioned."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import mistakes

from orchestrator.message import Kind, Message
from orchestrator.notify.discord import SILENT, clean, cut, edit, markdown, payload

ANY = st.text(st.characters(), max_size=60)  # surrogates too
PIECES = ["\\", "`", "``", "*", "_", "||", "@everyone", "<@&123456789012345678>", "\n# ", "\n- ", "\n1. ", ":tada:", "[](x)",
          "\ud83d", "😀", "e\u0301", "~~", "\n> ", "-# "]
NASTY = st.lists(st.one_of(ANY, st.sampled_from(PIECES)), max_size=30).map("".join)


def tokens(escaped: str) -> list[str]:
    """Escapes, pieces of code, and characters that stand for themselves."""
    return re.findall(r"\\.|`[^`\n]+`|.", escaped, re.DOTALL)


def shown(escaped: str) -> str:
    """What a reader sees of escaped text: Discord drops a backslash before punctuation, except in code."""
    return "".join(token[1:] if token[0] == "\\" else token for token in tokens(escaped)).replace("\u200b", "")


def message(**changes: object) -> Message:
    values: dict[str, object] = {"key": "k", "kind": Kind.HELD, "at": 1_700_000_000.0, "headline": "a is held"}
    return Message(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("plain", "escaped"), [
    ("resnet_a *finished*", r"resnet\_a \*finished\*"),
    ("`orch release a_b` lets it go on", "`orch release a_b` lets it go on"), ("a lone ` tick", r"a lone \` tick"),
    ("# no heading\n- no list\n12. nor this", "\\# no heading\n\\- no list\n12\\. nor this"),
    ("a # b - c 1. d", "a # b - c 1. d"), ("||spoiler|| ~~gone~~", r"\|\|spoiler\|\| \~\~gone\~\~"),
    ("@everyone and @HERE and a@b", "@\u200beveryone and @\u200bHERE and a@b"), ("<@&123> <t:1>", r"\<@&123\> \<t:1\>"),
    (":tada: 12:30", r"\:tada: 12:30"), ("[x](http://y)", r"\[x\](http://y)"), ("C:\\x", r"C:\\x"),
    ("half \ud83d of a smile\x00\x07", "half \ufffd of a smile\ufffd\ufffd")])
def test_escaping(plain: str, escaped: str) -> None:
    assert markdown(plain) == escaped


@given(NASTY)
def test_nothing_formats_and_all_is_shown(text: str) -> None:
    escaped = markdown(text)
    assert shown(escaped) == clean(text).replace("\u200b", "")
    outside = "".join("x" if token[0] in "\\`" and len(token) > 1 else token for token in tokens(escaped))
    assert not re.search(r"[*_~`|<>\[\]\\]|^\s*[-+#]|^\s*\d+[.)](\s|$)", outside, re.MULTILINE)
    assert "@everyone" not in outside
    escaped.encode()                   # no half of a surrogate pair


@given(NASTY, st.integers(3, 80))
def test_cutting_never_splits_an_escape(text: str, at_most: int) -> None:
    whole = markdown(text)
    short = cut(whole, at_most)
    assert len(short) <= at_most
    if short == whole:
        return
    assert short.endswith("…")
    kept = short[:-1]
    assert whole.startswith(kept) or (kept.endswith("`") and whole.startswith(kept[:-1]))
    backslashes = len(kept) - len(kept.rstrip("\\"))
    assert backslashes % 2 == 0        # a backslash alone at the end would swallow what follows
    assert "`" not in tokens(kept)     # code that was begun is closed


def test_cutting_in_the_middle_of_code() -> None:
    assert cut("run `orch new a-very-long-tag` now", 16) == "run `orch new `…"
    assert cut("ab`cdefghij`", 4) == "ab…"
    assert cut(r"a\*b", 3) == "a…" and cut(r"a\*b", 4) == r"a\*b"
    assert cut("😀" * 5, 3) == "😀😀…"    # Discord counts code points


@settings(max_examples=40)
@given(NASTY, st.lists(NASTY, max_size=9), st.lists(st.tuples(NASTY, NASTY), max_size=30), st.sampled_from(Kind), ANY)
def test_whatever_is_in_it_discord_takes_it(
    headline: str, lines: list[str], facts: list[tuple[str, str]], kind: Kind, repository: str,
) -> None:
    tall = message(headline=f"a{headline}", lines=tuple(lines), facts=tuple(facts), kind=kind)
    assert mistakes(payload(tall, repository)) == {}
    assert mistakes(edit(tall, repository)) == {}


@pytest.mark.parametrize("wide", ["x", "*", "😀", "ﷺ"])
def test_the_largest_message_is_cut_to_every_limit(wide: str) -> None:
    huge = message(headline=wide * 9000, lines=(wide * 9000,) * 20, facts=((wide * 9000, wide * 9000),) * 60)
    body = payload(huge, wide * 9000)
    assert mistakes(body) == {}
    embed = body["embeds"][0]
    assert len(body["content"]) in (1999, 2000) and len(embed["description"]) in (4095, 4096)
    assert embed["fields"]             # there is room for one at least


def test_a_phone_shows_the_headline_and_the_embed_when_it_was() -> None:
    body = payload(message(lines=("`orch release a` lets it go on",), facts=(("loss", "0.5"),)), "vision")
    assert body["content"] == "a is held" and body["allowed_mentions"] == {"parse": []}
    assert body["embeds"] == [{
        "description": "`orch release a` lets it go on", "fields": [{"name": "loss", "value": "0.5", "inline": True}],
        "color": 0xE74C3C, "timestamp": "2023-11-14T22:13:20+00:00", "footer": {"text": "vision"}}]
    assert payload(message(), "vision")["embeds"] == []
    assert payload(message(again=True), "vision")["content"] == "(again) a is held"


@pytest.mark.parametrize("at", [1e13, 1e300, float("inf"), float("nan")])
def test_a_moment_that_no_calendar_has_is_left_out(at: float) -> None:
    embed = payload(message(at=at, lines=("x",)), "vision")["embeds"][0]
    assert "timestamp" not in embed and embed["description"] == "x"


def test_a_living_message_makes_no_noise_and_forbids_mentions_in_edits_too() -> None:
    living = message(kind=Kind.PROGRESS)
    assert payload(living, "r")["flags"] == SILENT and "flags" not in edit(living, "r")  # an edit cannot set it
    assert "flags" not in payload(message(), "r") and edit(living, "r")["allowed_mentions"] == {"parse": []}
