"""Sending what waits in the outbox: an intent into the file, the message out, the result into the file.

A pass never sleeps here. A channel that asks for patience, is away or refuses gets a moment before which nothing is sent to
it; its messages wait. What is known of a channel stands in the outbox, so that a cron job knows it as well as a daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from orchestrator.message import Message
from orchestrator.model import Phase, Run
from orchestrator.notify.outbox import Channel, Living, Outbox, Waiting
from orchestrator.notify.result import Delivered, Refused, Rejected, Result, TryAgain
from orchestrator.views.messages import again, batches, grouped

BACKOFF_S = 15.0                       # doubled with every failure in a row, up to ...
BACKOFF_AT_MOST_S = 600.0
CLOCK_WAS_WRONG_S = 2 * 3600.0         # no channel is given more patience than an hour
WAITING_AT_MOST = 1000
EDITS_APART_S = 60.0
OLD_S = 3600.0                         # Discord limits edits of messages older than this ...
OLD_EDITS_APART_S = 300.0              # ... and does not say how far


Send = Callable[[Message, str], Result]  # a message, and the id of the earlier one that it replaces or ''


@dataclass(slots=True, kw_only=True)
class Sender:
    """One channel while a pass sends to it."""

    name: str
    channel: Channel
    send: Send
    save: Callable[[], None]           # the outbox, to disk
    clock: Callable[[], float]
    in_time: Callable[[], bool]        # False: this pass has sent for long enough
    version: str = ""                  # of the webhook's file
    lines: list[str] = field(default_factory=list)  # for the log

    def may_send(self, *, edits: bool = False) -> bool:
        channel, now = self.channel, self.clock()
        not_before = max(channel.not_before, channel.edits_not_before if edits else 0.0)
        if not_before - now > CLOCK_WAS_WRONG_S:
            not_before = now
        return now >= not_before and self.in_time() and not (channel.refused_by and channel.refused_by == self.version)

    def say(self, trouble: str) -> None:
        self.lines += said_once(self.name, self.channel, trouble)

    # what a result means for the channel

    def worked(self, result: Delivered) -> None:
        if self.channel.trouble:
            self.lines.append(f"{self.name}: delivers again")
        self.channel.failures, self.channel.refused_by, self.channel.trouble = 0, "", ""
        self.channel.not_before = self.clock() + result.pause_s if result.pause_s else 0.0

    def failed(self, result: TryAgain | Refused) -> None:
        if isinstance(result, Refused):
            self.channel.refused_by = self.version
            self.say(f"takes nothing from us ({result.why}); messages wait until the webhook's file is written anew")
        elif result.after_s is not None:
            self.channel.not_before = self.clock() + result.after_s
            if result.after_s >= BACKOFF_S:
                self.say(f"{result.why}; messages wait")
        else:
            self.channel.failures += 1
            wait_s = min(BACKOFF_S * 2 ** min(self.channel.failures - 1, 10), BACKOFF_AT_MOST_S)
            self.channel.not_before = self.clock() + wait_s
            self.say(f"{result.why}; messages wait")


def said_once(name: str, channel: Channel, trouble: str) -> list[str]:
    """A line for the log, unless this trouble has been said already."""
    before, channel.trouble = channel.trouble, trouble
    return [f"{name}: {trouble}"] if trouble != before else []


def deliver(sender: Sender) -> None:
    """Send what waits, oldest first, until it is all sent, the channel wants a pause, or the time is up."""
    channel = sender.channel
    while channel.waiting and sender.may_send():
        batch = next_batch(channel.waiting)
        for waiting in batch:
            waiting.sending = True
        sender.save()
        result = sender.send(grouped([again(w.message) if w.again else w.message for w in batch]), "")
        for waiting in batch:
            waiting.sending = False
        _settle(sender, batch, result)
        sender.save()


def enqueue(name: str, channel: Channel, new: list[Message]) -> list[str]:
    """Queue what is new. Lines for the log: what had to give way because nobody has taken anything for very long; a webhook
    may be gone for months, and the file is replaced whole."""
    channel.waiting += [Waiting(message=message) for message in new]
    dropped = channel.waiting[:-WAITING_AT_MOST]
    del channel.waiting[:-WAITING_AT_MOST]
    return [f"{name}: {WAITING_AT_MOST} messages wait already; dropped: {waiting.message.headline}" for waiting in dropped]


def next_batch(waiting: list[Waiting]) -> list[Waiting]:
    """The oldest ones that go out as one message."""
    if waiting[0].alone:
        return waiting[:1]
    return waiting[:batches(len(waiting))[0]]


def _settle(sender: Sender, batch: list[Waiting], result: Result) -> None:
    match result:
        case Delivered():
            del sender.channel.waiting[:len(batch)]
            sender.worked(result)
        case Rejected() if len(batch) > 1:
            for waiting in batch:
                waiting.alone = True
        case Rejected(why=why):
            sender.lines.append(f"{sender.name}: rejects this message, which is dropped: {batch[0].message.headline} ({why})")
            del sender.channel.waiting[:1]
        case TryAgain() | Refused():
            for waiting in batch:
                waiting.again = waiting.again or (isinstance(result, TryAgain) and result.unknown)
            sender.failed(result)


# --- living messages ------------------------------------------------------------------------------------------------------


def keep_living(sender: Sender, outbox: Outbox, runs: list[Run], show: Callable[[Run], Message | None]) -> None:
    """Post the living message of each run that trains, and edit those that have changed: at most once a minute, and once
    more when the run ends or is held. What has ended goes first and then what was shown longest ago: a pass may have time
    for a few only. ``show`` gives None where it cannot be told how a run stands."""
    def shown_at(run: Run) -> float:
        return outbox.living[run.spec.tag].edited_at if run.spec.tag in outbox.living else 0.0

    for run in sorted(runs, key=lambda run: (not run.over, shown_at(run))):
        tag, entry = run.spec.tag, _entry(outbox, run)
        if entry is None:
            continue
        if not entry.closed and (entry.message_id or run.live is not None):
            if not _due(entry, run, sender.clock()):
                continue
            if not sender.may_send(edits=True):
                return
            message = show(run)
            if message is None:
                continue
            changed = entry.shown is None or replace(entry.shown, at=0.0) != replace(message, at=0.0)
            if changed and not _show(sender, entry, message):
                continue
        if run.over:
            del outbox.living[tag]
            sender.save()


def _entry(outbox: Outbox, run: Run) -> Living | None:
    """The run's living message; it begins with an attempt that trains, and an earlier run of the tag has had another."""
    entry = outbox.living.get(run.spec.tag)
    if entry is not None and entry.born == run.submitted_at:
        return entry
    if run.live is None:
        outbox.living.pop(run.spec.tag, None)
        return None
    outbox.living[run.spec.tag] = Living(born=run.submitted_at)
    return outbox.living[run.spec.tag]


def _due(entry: Living, run: Run, now: float) -> bool:
    if not entry.message_id or (run.live is None and (run.over or run.phase == Phase.HELD)):
        return True
    apart_s = EDITS_APART_S if now - entry.posted_at < OLD_S else OLD_EDITS_APART_S
    return not 0 <= now - entry.edited_at < apart_s


def _show(sender: Sender, entry: Living, message: Message) -> bool:
    """Whether it is shown now, or never will be."""
    entry.sending = not entry.message_id  # an edit may be made twice; a message must not be posted twice without a word
    if entry.sending:
        sender.save()
    result = sender.send(again(message) if entry.again else message, entry.message_id)
    entry.sending = False
    match result:
        case Delivered():
            entry.message_id = entry.message_id or result.message_id
            entry.closed = not entry.message_id
            entry.shown, entry.edited_at, entry.again = message, sender.clock(), False
            entry.posted_at = entry.posted_at or entry.edited_at
            sender.worked(result)
        case Rejected(why=why):
            entry.closed = True
            if not entry.message_id:
                sender.lines.append(f"{sender.name}: rejects the living message of {message.tag} ({why})")
        case TryAgain(after_s=float(after_s)) if entry.message_id:
            sender.channel.edits_not_before = sender.clock() + max(after_s, EDITS_APART_S)
        case TryAgain() | Refused():
            entry.again = entry.again or (not entry.message_id and isinstance(result, TryAgain) and result.unknown)
            sender.failed(result)
    sender.save()
    return entry.closed or isinstance(result, Delivered)
