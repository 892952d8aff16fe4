"""Whom a notice goes to when no trainer has registered: a pure choice from a table of processes.

One program is meant, not its workers: of what runs below job.sh the topmost python, else the first program that is no
shell, no filter at the end of a pipe and no wrapper that would die of the signal and leave its child behind. An ``srun``
client is never signalled (TERM to it kills its tasks without their handlers running); its tasks are reached as a job step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from orchestrator.attempt.processes import Process

_PYTHON = re.compile(r"(python|pypy)[0-9.]*[a-z]?")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "tcsh", "csh", "busybox"})
_FILTERS = frozenset({"tee", "cat", "ts", "grep", "egrep", "fgrep", "sed", "awk", "gawk", "mawk", "head", "tail", "tr", "cut",
                      "sort", "uniq", "logger", "less", "more", "sleep", "perl", "rotatelogs", "multilog", "svlogd"})
_WRAPPERS = frozenset({"time", "timeout", "setsid", "script", "unbuffer", "uv", "conda", "mamba", "micromamba", "pixi",
                       "poetry", "pipenv", "sudo", "su", "strace", "ltrace", "xargs", "parallel", "make", "env", "nice",
                       "unshare", "nsenter", "bwrap"})
CLIENTS = frozenset({"srun"})


def program(process: Process) -> str:
    return process.program or process.name


def is_python(process: Process) -> bool:
    """A Python that trains: one that merely runs another program (``conda run``) is a wrapper."""
    runs_python = bool(_PYTHON.fullmatch(program(process)))
    return runs_python and not (set(map(os.path.basename, process.arguments[1:3])) & {"conda", "mamba", "poetry", "pipenv"})


def has_client(processes: Collection[Process]) -> bool:
    """Whether a job step of the user's runs: there is a client of one."""
    return any(program(p) in CLIENTS for p in processes)


def choose(processes: Collection[Process], roots: Collection[int]) -> list[Process]:
    """The programs to signal, of all that run at or below these roots; empty if there is none."""
    levels = _levels(processes, roots)
    for level in levels:
        pythons = [p for p in level if is_python(p)]
        if pythons:
            return [p for p in pythons if not p.reads_pipe] or pythons[:1]
    for level in levels:
        others = [p for p in level if not is_python(p) and program(p) not in SHELLS | _FILTERS | _WRAPPERS]
        if others:
            return others[:1]
    return []


def _levels(processes: Collection[Process], roots: Collection[int]) -> list[list[Process]]:
    """Generation by generation, leaving out srun clients and what is below them."""
    def kept(process: Process) -> bool:
        return program(process) not in CLIENTS
    level = [p for p in processes if p.pid in roots and kept(p)]
    levels: list[list[Process]] = []
    while level:
        levels.append(level)
        parents = {p.pid for p in level}
        level = [p for p in processes if p.parent in parents and p.pid not in roots and kept(p)]
    return levels
