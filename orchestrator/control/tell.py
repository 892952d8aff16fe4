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
from orchestrator.control.look import progress_of
from orchestrator.control.passes import PassReport
from orchestrator.control.ports import Ports, runs_now
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
    """For the log: what happened once, and what is wrong with the outbox or with telling a run for as long as it is."""

    lines: tuple[str, ...] = ()
    trouble: str = ""


def tell(ports: Ports, report: PassReport, patience: Patience = PATIENCE) -> Telling:
    """Queue what is new and send what is due. Never raises; at most a few seconds, also when nobody answers."""
    if not ports.notify.channels:
        return Telling()
    try:
        with _locked(ports.repository, wait_s=0.0):
            return _tell(ports, report, patience)
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


def _tell(ports: Ports, report: PassReport, patience: Patience) -> Telling:
    path, now = outbox_path(ports.repository), ports.clock()
    found = read_outbox(path)
    since = now - NEWS_WHEN_NEW_S if found is None else 0.0
    outbox = found or Outbox(told=Told(queue=QueueTold(drained_at=since)))
    told = outbox.told
    runs, errors = runs_now(ports.repository)  # a damaged journal is the pass's to complain of
    troubles: list[str] = []
    outbox.told, new = collect(ports, report, told, runs, since, all_read=not errors, troubles=troubles)
    known = outbox.channels
    outbox.channels = {name: known.get(name, Channel()) for name in ports.notify.channels}
    lines = [f"{name}: is no channel in orch.yaml any more; dropped: {waiting.message.headline}"
             for name, channel in known.items() if name not in outbox.channels for waiting in channel.waiting]
    lines += [line for name, channel in outbox.channels.items() for line in enqueue(name, channel, new)]
    if new or found is None or outbox.told != told or set(known) != set(outbox.channels):
        write_outbox(path, outbox)
    lines += _send_all(ports, outbox, runs, patience, troubles)
    return Telling(lines=tuple(lines), trouble="\n".join(troubles))


@contextlib.contextmanager
def _by_itself(run: Run, troubles: list[str]) -> Iterator[None]:
    """What is wrong with telling one run must not stop the others; it is tried again in the next pass."""
    try:
        yield
    except OrchError as error:
        troubles.append(f"{run.spec.tag} cannot be told: {error.message}")
    except OSError as error:
        troubles.append(f"{run.spec.tag} cannot be told: {storage_error(error)}")
    except Exception:                  # a mistake of ours: it is printed whole
        troubles.append(f"{run.spec.tag} cannot be told, a mistake in orch: {traceback.format_exc()}")


# --- what is new ----------------------------------------------------------------------------------------------------------


def collect(
    ports: Ports, report: PassReport, told: Told, runs: list[Run], since: float, *, all_read: bool, troubles: list[str],
) -> tuple[Told, list[Message]]:
    """What has been told after this look, and the messages that make it so: facts from ``since`` on, older ones without.
    Unless all journals could be read, nobody knows how full the queue is. Runs that cannot be told go into ``troubles``."""
    now = ports.clock()
    left = news.in_queue(runs) if all_read else None
    new: list[Message] = []
    cursors = dict(told.runs)
    for run in runs:
        tag, born = run.spec.tag, run.submitted_at
        begin = cursors[tag].events if tag in cursors and cursors[tag].born == born else 0
        if begin != run.events:
            with _by_itself(run, troubles):
                events, _ = journal.read(folders.run_dir(ports.repository, tag))
                events = events[:run.events]  # it may have grown meanwhile, and the rest is the next pass's
                new += words.run_messages(events, begin, left)
                cursors[tag] = Cursor(born=born, events=len(events))
    new = sorted((message for message in new if message.at >= since), key=lambda message: message.at)
    queue = told.queue
    if left is not None:
        queue, about_queue = _look_at_queue(ports, queue, runs, left, new)
        new += about_queue
    slurm, heard = _listen(told.slurm, report, now, ports.notify.slurm_silent_after_s)
    if heard:
        silent = report.snapshot.silent if report.snapshot is not None else None
        new.append(words.slurm_message(told.slurm, silent or "", now))
    return replace(told, runs=cursors, queue=queue, slurm=slurm), new


def _look_at_queue(
    ports: Ports, told: QueueTold, runs: list[Run], left: list[Run], new: list[Message],
) -> tuple[QueueTold, list[Message]]:
    now, something_left = ports.clock(), any(message.kind in words.LEAVES for message in new)
    queue, heard = news.look_at_queue(told, len(left), something_left=something_left, now=now, settle_s=ports.notify.settle_s)
    if not heard:
        return queue, []
    if queue.level:
        return queue, [words.one_left(left, now)]
    return replace(queue, drained_at=now), [words.drained(runs, queue.drained_at, now)]


def _listen(told: SlurmTold, report: PassReport, now: float, after_s: float) -> tuple[SlurmTold, bool]:
    if report.snapshot is None:        # nothing is under way, so nobody was asked
        return (told if told.told else SlurmTold()), False
    return news.listen(told, report.snapshot.silent is not None, now=now, after_s=after_s)


# --- sending --------------------------------------------------------------------------------------------------------------


def _send_all(ports: Ports, outbox: Outbox, runs: list[Run], patience: Patience, troubles: list[str]) -> list[str]:
    def show(run: Run) -> Message | None:
        with _by_itself(run, troubles):
            return words.living(run, progress_of(ports, run), ports.clock())
        return None

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
            keep_living(sender, outbox, runs, show)
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
