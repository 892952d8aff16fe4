"""What a run is asked to wait for, against the runs that there are: tags and job ids told apart, cycles refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from orchestrator.config.after import Awaited
from orchestrator.control.ports import Ports, read_run, unknown_tag
from orchestrator.errors import UserError
from orchestrator.model import After

Waits = Mapping[str, After]


def split_after(tag: str, awaited: Iterable[Awaited], known: Collection[str]) -> tuple[dict[str, After], tuple[str, ...]]:
    """Tags with their conditions, and ids of other jobs. A run of that name wins over a job of that number, a later word
    over an earlier one. Raises UserError with file, line and key."""
    tags: dict[str, After] = {}
    jobs: dict[str, None] = {}
    for item in awaited:
        if item.name == tag:
            raise UserError(f"{item.where}{tag} cannot wait for itself", hint="leave it out")
        if item.name in known:
            tags[item.name] = item.condition or After.FINISHED
        elif (part := re.fullmatch(r"(\d+)[_+]\d+", item.name)) is not None:
            raise UserError(f"{item.where}{item.name} is a part of job {part[1]}, and orch waits for whole jobs",
                            hint=f"write {part[1]}")
        elif not item.name.isdigit():
            error = unknown_tag(item.name, sorted(known), "run to wait for called")
            raise type(error)(item.where + error.message, hint=error.hint)
        elif item.condition == After.FINISHED:
            raise UserError(f"{item.where}of another Slurm job orch knows that it ended, and not whether well",
                            hint=f"write {{{item.name}: ended}}, or the tag of a run")
        else:
            jobs[item.name] = None
    return tags, tuple(jobs)


def where_named(awaited: Iterable[Awaited], name: str) -> str:
    """Where that was written last, as the beginning of a complaint."""
    return next((item.where for item in reversed(tuple(awaited)) if item.name == name), "")


def refuse_cycle(ports: Ports, wanted: Mapping[str, Waits], where: Callable[[str, str], str]) -> list[str]:
    """The tags that are to be submitted, each behind what it waits for. Raises UserError that names a cycle as a path.

    Of runs that there are, only those wait that have not begun and are not over. ``where(tag, upstream)`` says where the one
    was asked to wait for the other.
    """
    graph: dict[str, Waits] = dict(wanted)
    unseen = [tag for waits in wanted.values() for tag in waits]
    while unseen:
        name = unseen.pop()
        if name not in graph:
            run = read_run(ports.repository, name)
            graph[name] = run.spec.after_tags if run is not None and not run.over and not run.begun else {}
            unseen += graph[name]
    try:
        return [tag for tag in TopologicalSorter(graph).static_order() if tag in wanted]
    except CycleError as error:
        path = _from_one_of(wanted, error.args[1][::-1])
    steps = ", ".join(f"{a} waits for {b}" for a, b in pairwise(path[1:]))
    raise UserError(f"{where(path[0], path[1])}{path[0]} cannot wait for {path[1]}: {steps}",
                    hint="one of them has to begin without another: take one of these out")


def _from_one_of(wanted: Collection[str], path: list[str]) -> list[str]:
    """A closed path, begun at one of the tags that are to be submitted."""
    begin = next((index for index, tag in enumerate(path) if tag in wanted), 0)
    ring = path[:-1]
    return [*ring[begin:], *ring[:begin], ring[begin % len(ring)]]
