"""Processes as /proc tells of them: a table, families, and signals that reach exactly the process that was meant."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.host import all_pids, is_alive, read_stat

Signal = signal.Signals

PR_SET_CHILD_SUBREAPER = 36

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*[a-z]?|(ba|da|z|k|mk)?sh")
# Of both Python and the shells. What follows any other option may be code, a value or an argument of it.
_OPTIONS_WITHOUT_VALUE = frozenset({"-u", "-B", "-E", "-I", "-O", "-OO", "-P", "-e", "-x", "-eu", "-ex", "-l"})
_FILE_NAME = re.compile(r"\w[\w.+-]{0,60}\.(py|pyz|sh|bash|zsh)")


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment; ``start`` (field 22 of its stat) tells it from a later one of the same pid."""

    pid: int
    parent: int
    start: int
    name: str
    arguments: tuple[str, ...] = ()
    reads_pipe: bool = False           # its standard input is a pipe: the right side of a pipeline
    program: str = ""                  # base name of the executable


def become_subreaper() -> bool:
    """From now on, whatever a descendant leaves behind becomes a child of this process."""
    import ctypes
    try:
        return int(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def descendants(root: int) -> list[Process]:
    """Everything below this process that is no zombie, nearest first, without the details of ``describe``."""
    children: dict[int, list[Process]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None:
            parent, start, state, name = stat
            kept = Process(pid, parent, start, "" if state in "ZX" else name)
            children.setdefault(parent, []).append(kept)
    found: list[Process] = []
    level = [root]
    while level:
        below = [child for pid in level for child in sorted(children.get(pid, []), key=lambda c: (c.start, c.pid))]
        found += [child for child in below if child.name]
        level = [child.pid for child in below]
    return found


def describe(process: Process) -> Process:
    """The same process with its arguments, its program and what its standard input is."""
    def link(name: str) -> str:
        try:
            return os.readlink(f"/proc/{process.pid}/{name}")
        except OSError:
            return ""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            words = tuple(word.decode(errors="replace") for word in file.read(8192).split(b"\0") if word)
    except OSError:
        words = ()
    program = os.path.basename(link("exe").removesuffix(" (deleted)"))
    return Process(process.pid, process.parent, process.start, process.name, words,
                   link("fd/0").startswith("pipe:"), program)


def label(process: Process) -> str:
    """A process for people: pid, program, and the script it interprets. No other argument: there may be a secret in it."""
    name = process.program or process.name
    script = _script(process)
    return f"{process.pid} {name} {script}" if script else f"{process.pid} {name}"


def _script(process: Process) -> str:
    """The base name of the file that an interpreter runs; '' unless it is certain which argument that is."""
    if not _INTERPRETER.fullmatch(process.program):
        return ""
    for word in process.arguments[1:]:
        if word in _OPTIONS_WITHOUT_VALUE:
            continue
        name = os.path.basename(word)
        return name if not word.startswith("-") and _FILE_NAME.fullmatch(name) else ""
    return ""


def send(pid: int, start: int, number: int) -> bool:
    """Signal this very process; False if it is gone. Between the check and the signal the pid cannot change hands."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:                    # a kernel without pidfd: the check alone must do
        return is_alive(pid, start) and _kill(pid, number)
    try:
        if not is_alive(pid, start):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_all(processes: Iterable[Process], number: int) -> list[Process]:
    """Signal each of them; those that got it."""
    return [process for process in processes if send(process.pid, process.start, number)]


def catches(pid: int, number: int) -> bool:
    """Whether this process has a handler for the signal."""
    try:
        with open(f"/proc/{pid}/status") as file:
            mask = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def signal_number(name: str) -> int:
    """TERM, USR1, ... as orch.yaml has it; TERM for anything that is no signal."""
    return getattr(signal, "SIG" + name.removeprefix("SIG"), signal.SIGTERM)
