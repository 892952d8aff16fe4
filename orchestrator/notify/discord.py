"""A message as Discord's JSON: escaped, without mentions, within its limits. Pure.

Discord counts Unicode code points, as Python does: 2,000 of content, 4,096 of an embed's description, 6,000 of all that is
in embeds. The headline is the content, since that is what a phone shows; the rest stands in one embed, whose timestamp shows
when it happened, in the reader's own zone, however late it is delivered.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from orchestrator.message import Kind, Message

CONTENT_AT_MOST = 2000
DESCRIPTION_AT_MOST = 4096
FIELDS_AT_MOST = 25
NAME_AT_MOST = 256
VALUE_AT_MOST = 1024
FOOTER_AT_MOST = 100                   # Discord's is 2,048; a repository's name needs no more
EMBEDS_AT_MOST = 6000                  # title, description, field names and values, footer and author together

SILENT = 1 << 12                       # SUPPRESS_NOTIFICATIONS
_GREEN, _RED, _ORANGE, _BLUE, _GREY = 0x2ECC71, 0xE74C3C, 0xE67E22, 0x3498DB, 0x95A5A6
_COLOURS = {Kind.FINISHED: _GREEN, Kind.HELD: _RED, Kind.NODE_OUT: _ORANGE, Kind.SLURM_SILENT: _ORANGE,
            Kind.SAVES_FAIL: _ORANGE, Kind.SAVES_AGAIN: _GREEN, Kind.LINGERS: _ORANGE,
            Kind.SLURM_ANSWERS: _GREEN, Kind.ONE_LEFT: _BLUE, Kind.DRAINED: _BLUE}


def payload(message: Message, repository: str) -> dict[str, Any]:
    """What to POST for a new message."""
    body = edit(message, repository)
    return {**body, "flags": SILENT} if message.kind == Kind.PROGRESS else body


def edit(message: Message, repository: str) -> dict[str, Any]:
    """What to PATCH an earlier one with. Mentions are forbidden here too: an edit does not inherit that."""
    embed = _embed(message, repository)
    return {"content": cut(markdown(message.title), CONTENT_AT_MOST) or "-", "allowed_mentions": {"parse": []},
            "embeds": [embed] if embed["description"].strip() or embed["fields"] else []}


def _embed(message: Message, repository: str) -> dict[str, Any]:
    footer = cut(clean(repository), FOOTER_AT_MOST) or "-"
    description = cut(markdown("\n".join(message.lines)), DESCRIPTION_AT_MOST)
    room = EMBEDS_AT_MOST - len(footer) - len(description)
    fields: list[dict[str, Any]] = []
    for name, value in message.facts[:FIELDS_AT_MOST]:
        shown = cut(markdown(name), NAME_AT_MOST) or "-", cut(markdown(value), VALUE_AT_MOST) or "-"
        room -= len(shown[0]) + len(shown[1])
        if room < 0:
            break
        fields.append({"name": shown[0], "value": shown[1], "inline": True})
    return {"description": description, "fields": fields, "color": _COLOURS.get(message.kind, _GREY), **_when(message.at),
            "footer": {"text": footer}}


def _when(at: float) -> dict[str, str]:
    """Nothing for a moment that no calendar has, as a clock that was wrong leaves it behind."""
    try:
        return {"timestamp": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")}
    except (OverflowError, ValueError, OSError):
        return {}


# --- escaping -------------------------------------------------------------------------------------------------------------

_CODE = re.compile(r"(`[^`\n]+`)")
_ANYWHERE = re.compile(r"[\\*_~`|<>\[\]]|:(?=[\w+-]{1,64}:)")  # the last: an emoji by its name
_LINE_BEGIN = re.compile(r"(?m)^(\s*)([-+#])")                 # lists, headings, small print
_NUMBERED = re.compile(r"(?m)^(\s*\d+)([.)])(?=\s|$)")
_EVERYONE = re.compile(r"@(?=everyone|here)", re.IGNORECASE)
_NO_TEXT = re.compile(r"[\ud800-\udfff]|[\x00-\x09\x0b-\x1f\x7f]")  # halves of surrogate pairs, control characters
_TOKEN = re.compile(r"\\.|`[^`\n]+`|.", re.DOTALL)


def markdown(text: str) -> str:
    """Plain text as Discord shows it unchanged; `code` stays code."""
    parts = _CODE.split(clean(text))
    return "".join(part if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    """A backslash before a punctuation mark is never shown, so that one too many does no harm."""
    text = _ANYWHERE.sub(r"\\\g<0>", text)
    text = _NUMBERED.sub(r"\1\\\2", _LINE_BEGIN.sub(r"\1\\\2", text))
    return _EVERYONE.sub("@\u200b", text)  # allowed_mentions forbids the ping; this, that it looks like one


def clean(text: str) -> str:
    """Without what cannot be sent as text."""
    return _NO_TEXT.sub("\ufffd", text)


def cut(text: str, at_most: int) -> str:
    """Escaped text in at most so many characters, never ending within an escape, and closing the code that it cuts."""
    if len(text) <= at_most:
        return text
    kept = ""
    for token in _TOKEN.findall(text):
        room = at_most - 1 - len(kept)     # the last character says that something is missing
        if len(token) > room:
            if token[0] == "`" and room >= 3:
                kept += token[:room - 1] + "`"
            break
        kept += token
    return kept + "…"
