"""Telling people after a pass: what journals have that was not told, and how queue and Slurm stand, into the outbox and out.

Level-triggered like the pass itself: what is told depends on journals and outbox, never on who looked or how often. Trouble
with telling never touches a run: it comes back as lines for the log.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

from orchestrator import folders, journal
from orchestrator.config.notify import read_webhook
from orchestrator.control.deliver import Send, Sender, deliver, enqueue, keep_living, said_once
from orchestrator.control.look import progress_of, runs_now
from orchestrator.control.passes import PassReport
from orchestrator.control.ports import Ports
from orchestrator.core import told as news
from orchestrator.errors import ConfigError, OrchError, RunLocked, storage_error
from orchestrator.message import Cursor, Kind, Message, QueueTold, SlurmTold, Told
from orchestrator.model import Run
from orchestrator.notify.command import as_json, run_command
from orchestrator.notify.discord import edit, payload
from orchestrator.notify.outbox import Channel, Outbox, outbox_path, read_outbox, write_outbox
from orchestrator.notify.post import Patience, post
from orchestrator.notify.result import Delivered, Result
from orchestrator.views import messages as words

NEWS_WHEN_NEW_S = 3600.0               # a repository that begins to tell does not tell its whole past
PATIENCE = Patience()
SENDING_AT_MOST_S = 3.0                # a channel gets no further message in a pass after this long


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """For the log: what happened once, and what is wrong with the outbox itself for as long as it is."""

    lines: tuple[str, ...] = ()
    trouble: str = ""


def tell(ports: Ports, report: PassReport, patience: Patience = PATIENCE) -> Telling:
    """Queue what is new and send what is due. Never raises; at most a few seconds, also when nobody answers."""
    if not ports.notify.channels:
        return Telling()
    try:
        with _locked(ports.repository, wait_s=0.0):
            return Telling(lines=tuple(_tell(ports, report, patience)))
    except RunLocked:
        return Telling()               # another pass tells it
    except OrchError as error:
        return Telling(trouble=f"nothing can be told: {error.message}" + (f" ({error.hint})" if error.hint else ""))
    except OSError as error:
        return Telling(trouble=f"nothing can be told: {storage_error(error)}")
    except Exception:                  # a mistake of ours in telling must not stop the passes: it is printed whole
        return Telling(trouble=f"a mistake in orch: {traceback.format_exc()}")


@contextlib.contextmanager
def _locked(repository: Path, *, wait_s: float) -> Iterator[None]:
    path = outbox_path(repository).with_name("lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        journal.take_lock(descriptor, path, wait_s)
        yield
    finally:
        os.close(descriptor)


def _tell(ports: Ports, report: PassReport, patience: Patience) -> list[str]:
    path, now = outbox_path(ports.repository), ports.clock()
    found = read_outbox(path)
    since = now - NEWS_WHEN_NEW_S if found is None else 0.0
    outbox = found or Outbox(told=Told(queue=QueueTold(drained_at=since)))
    told = outbox.told
    runs, _ = runs_now(ports.repository)  # a damaged journal is the pass's to complain of
    outbox.told, new = collect(ports, report, told, runs, since)
    known = set(outbox.channels)
    outbox.channels = {name: outbox.channels.get(name, Channel()) for name in ports.notify.channels}
    lines = [line for name, channel in outbox.channels.items() for line in enqueue(name, channel, new)]
    if new or found is None or outbox.told != told or known != set(outbox.channels):
        write_outbox(path, outbox)
    return lines + _send_all(ports, outbox, runs, patience)


# --- what is new ----------------------------------------------------------------------------------------------------------


def collect(ports: Ports, report: PassReport, told: Told, runs: list[Run], since: float) -> tuple[Told, list[Message]]:
    """What has been told after this look, and the messages that make it so: facts from ``since`` on, older ones without."""
    now = ports.clock()
    left = news.in_queue(runs)
    new: list[Message] = []
    cursors = dict(told.runs)
    for run in runs:
        tag, born = run.spec.tag, run.submitted_at
        begin = cursors[tag].events if tag in cursors and cursors[tag].born == born else 0
        if begin != run.events:
            events, _ = journal.read(folders.run_dir(ports.repository, tag))
            events = events[:run.events]  # it may have grown meanwhile, and the rest is the next pass's
            new += words.run_messages(events, begin, left)
            cursors[tag] = Cursor(born=born, events=len(events))
    new = sorted((message for message in new if message.at >= since), key=lambda message: message.at)
    something_left = any(message.kind in words.LEAVES for message in new)
    queue, heard = news.look_at_queue(told.queue, len(left), something_left=something_left, now=now,
                                      settle_s=ports.notify.settle_s)
    if heard and queue.level:
        new.append(words.one_left(left, now))
    elif heard:
        new.append(words.drained(runs, queue.drained_at, now))
        queue = replace(queue, drained_at=now)
    slurm, heard = _listen(told.slurm, report, now, ports.notify.slurm_silent_after_s)
    if heard:
        silent = report.snapshot.silent if report.snapshot is not None else None
        new.append(words.slurm_message(told.slurm, silent or "", now))
    return replace(told, runs=cursors, queue=queue, slurm=slurm), new


def _listen(told: SlurmTold, report: PassReport, now: float, after_s: float) -> tuple[SlurmTold, bool]:
    if report.snapshot is None:        # nothing is under way, so nobody was asked
        return (told if told.told else SlurmTold()), False
    return news.listen(told, report.snapshot.silent is not None, now=now, after_s=after_s)


# --- sending --------------------------------------------------------------------------------------------------------------


def _send_all(ports: Ports, outbox: Outbox, runs: list[Run], patience: Patience) -> list[str]:
    lines: list[str] = []
    for name, channel in outbox.channels.items():
        save = partial(write_outbox, outbox_path(ports.repository), outbox)
        try:
            send, version = _channel(ports, name, patience)
        except ConfigError as error:
            said = said_once(name, channel, error.message + (f" ({error.hint})" if error.hint else ""))
            if said:
                save()
            lines += said
            continue
        sender = Sender(name=name, channel=channel, send=send, save=save, clock=ports.clock, version=version,
                        in_time=_for_seconds(SENDING_AT_MOST_S))
        deliver(sender)
        if name == "discord":
            keep_living(sender, outbox, runs, lambda run: words.living(run, progress_of(ports, run), ports.clock()))
        lines += sender.lines
    return lines


def _for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _channel(ports: Ports, name: str, patience: Patience, errors: int = DEVNULL) -> tuple[Send, str]:
    """How to send by this channel, and the version of the webhook's file. Raises ConfigError."""
    repository = ports.repository.name
    if name == "command":
        def run(message: Message, message_id: str) -> Result:
            return run_command(ports.notify.command, as_json(message, repository), ports.repository,
                               limit_s=patience.whole_s, errors=errors)
        return run, ""
    webhook = read_webhook(ports.notify)

    def send(message: Message, message_id: str) -> Result:
        body = edit(message, repository) if message_id else payload(message, repository)
        return post(webhook.url, body, message_id=message_id, patience=patience)
    return send, webhook.version


def send_test(ports: Ports, patience: Patience = PATIENCE, errors: int = DEVNULL) -> list[tuple[str, Result]]:
    """One message to every channel, now; a channel that delivers it is taken to be mended. ``errors``: the descriptor for a
    command's standard error. Raises ConfigError for a webhook's file that is no good, RunLocked when a pass is sending."""
    message = Message(key="test", kind=Kind.TEST, at=ports.clock(), headline=f"a test from {ports.repository.name}",
                      lines=("`orch notify test` sent this: what orch tells arrives here",))
    results: list[tuple[str, Result]] = []
    with _locked(ports.repository, wait_s=10.0):
        outbox = read_outbox(outbox_path(ports.repository))
        for name in ports.notify.channels:
            send, _ = _channel(ports, name, patience, errors)
            results.append((name, result := send(message, "")))
            if outbox is not None and isinstance(result, Delivered) and (channel := outbox.channels.get(name)):
                channel.not_before, channel.failures, channel.refused_by, channel.trouble = 0.0, 0, "", ""
                write_outbox(outbox_path(ports.repository), outbox)
    return results
