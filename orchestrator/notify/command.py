"""Any other channel: a program that gets each message as JSON on its standard input.

Exit 0: delivered. Exit 65 (EX_DATAERR): this message is no good, the next may be. Anything else: tried again later.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from orchestrator.message import Message
from orchestrator.notify.result import Delivered, Rejected, Result, TryAgain

EXIT_NOT_THIS_ONE = 65                 # EX_DATAERR


def as_json(message: Message, repository: str) -> str:
    """What the program reads: one line of JSON."""
    return json.dumps({
        "key": message.key, "kind": str(message.kind), "tag": message.tag, "repository": repository, "at": message.at,
        "again": message.again, "headline": message.headline, "lines": list(message.lines), "facts": dict(message.facts),
        "text": message.text()}, ensure_ascii=True) + "\n"


def run_command(
    command: tuple[str, ...], line: str, folder: Path, *, limit_s: float, errors: int = subprocess.DEVNULL,
) -> Result:
    """Run it in ``folder`` and give it ``line``; after ``limit_s`` it and what it started are killed. ``errors``: where its
    standard error goes; nowhere, as a rule, since it may speak of what it needs to log in."""
    try:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                                   text=True, start_new_session=True)
    except OSError as error:
        return TryAgain(why=f"{command[0]}: {error.strerror}")
    with process:
        try:
            process.communicate(line, timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return TryAgain(why=f"{command[0]} took longer than {limit_s:g} s", unknown=True)
    if process.returncode == 0:
        return Delivered()
    if process.returncode == EXIT_NOT_THIS_ONE:
        return Rejected(why=f"{command[0]} ended with {EXIT_NOT_THIS_ONE}")
    return TryAgain(why=f"{command[0]} ended with {process.returncode}")
