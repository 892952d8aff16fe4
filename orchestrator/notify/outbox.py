"""The outbox: what is still to be told, and what has been, in one file that is replaced whole.

A fact and the place up to which its journal has been told go into the file together, so that a fact is queued exactly once.
Before a message is sent it is marked ``sending`` and the file replaced; after it, it is gone. A mark that is found at the
beginning of a pass was left by a crash: nobody knows whether that message arrived, and it goes out again, marked so.
Delivered messages leave nothing behind; the places in the journals stay for ever. Whoever reads and writes holds the lock
(``control.tell``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchestrator import folders
from orchestrator.errors import StorageError
from orchestrator.message import Message, Told

SCHEMA = 1


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A message that one channel still has to deliver."""

    message: Message
    sending: bool = False
    again: bool = False                # it may have arrived already
    alone: bool = False                # it was in a group that the channel rejected: one of them is at fault


@dataclass(slots=True, kw_only=True)
class Living:
    """The one message of a run that is edited."""

    born: float                        # of the run; another one of the same tag has its own
    posted_at: float = 0.0
    edited_at: float = 0.0
    message_id: str = ""               # '' until it is posted
    shown: Message | None = None       # as it was last delivered
    sending: bool = False
    again: bool = False
    closed: bool = False               # it was deleted, or cannot be edited: let it be


@dataclass(slots=True, kw_only=True)
class Channel:
    """One way to tell people."""

    waiting: list[Waiting] = field(default_factory=list)
    not_before: float = 0.0            # nothing is sent before
    edits_not_before: float = 0.0      # Discord limits edits of old messages apart
    failures: int = 0                  # in a row
    refused_by: str = ""               # the version of the webhook's file that it refused for good
    trouble: str = ""                  # why it delivers nothing, as last said: it is said once


@dataclass(slots=True, kw_only=True)
class Outbox:
    told: Told
    schema: int = SCHEMA
    channels: dict[str, Channel] = field(default_factory=dict)
    living: dict[str, Living] = field(default_factory=dict)


def outbox_path(repository: Path) -> Path:
    return repository / ".orch" / "notify" / "outbox.json"


def read_outbox(path: Path) -> Outbox | None:
    """None if there is none yet. Raises StorageError for one that cannot be read or was written by a newer orch."""
    try:
        outbox = msgspec.json.decode(path.read_bytes(), type=Outbox)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path}: not an outbox ({error})",
                           hint="delete it: what has ended within the last hour is then told again") from error
    if outbox.schema > SCHEMA:
        raise StorageError(f"{path}: written by a newer orch (schema {outbox.schema}, this one reads {SCHEMA})",
                           hint="use that newer orch here too")
    marked: list[Waiting | Living] = [waiting for channel in outbox.channels.values() for waiting in channel.waiting]
    for entry in [*marked, *outbox.living.values()]:
        entry.again, entry.sending = entry.again or entry.sending, False
    return outbox


def write_outbox(path: Path, outbox: Outbox) -> None:
    """Whole or not at all. Only its owner may read it: messages quote what programs said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folders.replace_file(path, msgspec.json.encode(outbox), mode=0o600)
