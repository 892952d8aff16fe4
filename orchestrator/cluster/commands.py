"""What a private cluster's own slurmctld is asked and told while the cluster is started and ended.

The cluster package stands below everything else that speaks to Slurm, so that it has these few commands of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass

from orchestrator.cluster.machine import clean_environment, program
from orchestrator.cluster.spec import Layout
from orchestrator.errors import SlurmError, SlurmUnreachable

_COMMAND_S = 15.0
_ON_NODES = "--states=running,completing,suspended,configuring,stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as Slurm shows it; ``unknown`` when Slurm does not answer."""

    name: str
    state: str
    reason: str = ""
    registered: bool = True          # since slurmctld started: a drained node's state does not show it


def is_ready(node: Node) -> bool:
    """It has registered since slurmctld started: a star marks a node that does not answer."""
    return node.registered and not node.state.endswith("*") and node.state not in ("unknown", "down")


def ask_nodes(layout: Layout) -> list[Node]:
    """The nodes as sinfo shows them; none when slurmctld does not answer."""
    try:
        answer = run(layout, "sinfo", "--noheader", "--Node", "--partition=main", "--format=%N|%T|%v|%E")
    except SlurmError:
        return []
    rows = (line.split("|", 3) for line in answer.splitlines())
    return [
        Node(name=name, state=state, reason="" if reason == "none" else reason, registered=version != "N/A")
        for name, state, version, reason in rows
    ]


def run(layout: Layout, *command: str) -> str:
    try:
        answer = subprocess.run(
            [program(command[0]), *command[1:]], env=clean_environment(layout.slurm_conf), timeout=_COMMAND_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmUnreachable(f"{command[0]}: no answer within {_COMMAND_S:.0f} s") from None
    if answer.returncode != 0:
        raise SlurmError(f"{' '.join(command)}: {(answer.stderr or answer.stdout).strip()}")
    return answer.stdout


def close_partitions(layout: Layout, names: list[str]) -> None:
    """Let nothing start any more; slurm.conf opens them again when slurmctld starts.

    A slurmctld that does not answer cannot be told, and is about to be ended anyway.
    """
    with contextlib.suppress(SlurmError):
        for name in names:
            run(layout, "scontrol", "update", f"partitionname={name}", "state=down")


def jobs_on_nodes(layout: Layout) -> int:
    """How many jobs Slurm believes to be on nodes."""
    return len(run(layout, "squeue", "--noheader", "--all", _ON_NODES, "--format=%i").split())


def nodes_with_jobs(layout: Layout) -> list[str]:
    """The nodes on which Slurm believes jobs to be."""
    lists = run(layout, "squeue", "--noheader", "--all", _ON_NODES, "--format=%N").split()
    return run(layout, "scontrol", "show", "hostnames", ",".join(lists)).split() if lists else []


def set_node(layout: Layout, name: str, state: str, reason: str) -> None:
    run(layout, "scontrol", "update", f"nodename={name}", f"state={state}", f"reason={reason}")
