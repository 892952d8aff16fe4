"""``orch cluster``: a private Slurm in a folder. Arguments in, text out; the work is done by ``orchestrator.cluster``."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import click

from orchestrator import cluster
from orchestrator.cli.context import this_program
from orchestrator.errors import UserError
from orchestrator.startup import short_path
from orchestrator.units import parse_size_bytes, slurm_memory_mib

_FOLDER = click.option(
    "--folder", type=click.Path(path_type=Path), default=None, metavar="DIR",
    help="Where the cluster lives; .orch/cluster in the repository by default.",
)


@click.group("cluster")
def cluster_group() -> None:
    """A private Slurm on this machine, without root and without touching any other Slurm.

    \b
    Examples:
      orch cluster up
      orch cluster status
    """


@cluster_group.command("up")
@click.option("--nodes", type=click.IntRange(min=1), default=None, metavar="N", help="Nodes, all on this machine; 1.")
@click.option("--gpus", type=click.IntRange(min=0), default=None, metavar="N", help="GPUs of each node; those found.")
@click.option("--cpus", type=click.IntRange(min=1), default=None, metavar="N", help="CPUs of each node; this machine's.")
@click.option("--memory", default=None, metavar="SIZE", help="Memory of each node, as 8G; this machine's.")
@click.option("--preemption/--no-preemption", default=None, help="Partitions low and high, of which high preempts low.")
@click.option("--at-boot/--no-at-boot", default=None, help="Start this and orch daemon with the machine, or no more.")
@_FOLDER
def up_command(
    nodes: int | None, gpus: int | None, cpus: int | None, memory: str | None, preemption: bool | None,
    at_boot: bool | None, folder: Path | None,
) -> None:
    """Start the private Slurm, or what is missing of it, and wait until its nodes take jobs; what isn't given stays.

    \b
    Examples:
      orch cluster up
      orch cluster up --nodes 2 --gpus 1 --cpus 4 --memory 8G
      orch cluster up --at-boot
    """
    place = _folder(folder)
    asked = {
        "nodes": nodes, "gpus": gpus, "cpus": cpus, "preemption": preemption,
        "memory_mib": None if memory is None else _memory_mib(memory),
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    before = cluster.recorded_spec(place) or cluster.ClusterSpec(folder=place)
    made = cluster.up(dataclasses.replace(before, **given))
    click.echo(f"started {', '.join(made.started)}" if made.started else "already up")
    for node in cluster.status(place).nodes:
        click.echo(f"{node.name}  {node.state}")
    if made.tracking is cluster.Tracking.LINUXPROC:
        click.echo("memory limits are not enforced here (no cgroups of our own)")
    click.echo(_export(made.slurm_conf))
    if at_boot is not None:
        for line in (cluster.at_boot if at_boot else cluster.not_at_boot)(_boot(made)):
            click.echo(line)


@cluster_group.command("status")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_FOLDER
def status_command(as_json: bool, folder: Path | None) -> None:
    """Show which daemons of the private Slurm live and what state its nodes are in.

    \b
    Examples:
      orch cluster status
      orch cluster status --json
    """
    seen = cluster.status(_folder(folder))
    if as_json:
        click.echo(json.dumps(_as_object(seen)))
        return
    for daemon in seen.daemons:
        click.echo(f"{daemon.name:<12} {'pid ' + str(daemon.pid) if daemon.alive else 'not running'}")
    for node in seen.nodes:
        click.echo(f"{node.name:<12} {node.state}" + (f"  ({node.reason})" if node.reason else ""))
    click.echo(_export(seen.slurm_conf) if seen.running else "start what is missing: orch cluster up")


@cluster_group.command("down")
@_FOLDER
def down_command(folder: Path | None) -> None:
    """End the private Slurm with its running jobs, and keep its queue on disk for the next up.

    \b
    Examples:
      orch cluster down
      orch cluster down --folder /tmp/try
    """
    place = _folder(folder)
    if folder is None and place.exists() and Path.cwd() != place.parent.parent:
        raise UserError(f"this is not the folder of the private Slurm: that is {place}",
                        hint=f"`orch cluster down --folder {place}` ends it, with its running jobs")
    ended = cluster.down(place)
    click.echo(f"ended {ended} process{'es' if ended != 1 else ''} of {place}" if ended else "nothing was running")


def _folder(given: Path | None) -> Path:
    return given or (_repository() or Path.cwd()) / ".orch" / "cluster"


def _repository() -> Path | None:
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "orch.yaml").exists()), None)


def _boot(made: cluster.Cluster) -> cluster.Boot:
    """What a start of the machine is to start: this cluster, and the daemon of the repository that this was said in."""
    repository = _repository()
    folder = made.spec.folder
    found_anyway = repository is not None and folder == (repository / ".orch" / "cluster").resolve()
    orch = this_program()
    programs = [Path(found) for name in ("sbatch", "slurmctld") if (found := shutil.which(name))]
    return cluster.Boot(
        folder=folder, repository=repository, orch=orch, path=short_path(orch, programs),
        slurm_conf=None if found_anyway else made.slurm_conf)


def _memory_mib(text: str) -> int:
    try:
        return slurm_memory_mib(parse_size_bytes(text))
    except ValueError as error:
        raise UserError(f"--memory: {error}") from None


def _export(conf: Path) -> str:
    return f"export SLURM_CONF={conf}"


def _as_object(seen: cluster.ClusterStatus) -> dict[str, object]:
    return {
        "running": seen.running,
        "folder": str(seen.folder),
        "slurm_conf": str(seen.slurm_conf),
        "daemons": [{"name": daemon.name, "pid": daemon.pid, "alive": daemon.alive} for daemon in seen.daemons],
        "nodes": [dataclasses.asdict(node) for node in seen.nodes],
    }
