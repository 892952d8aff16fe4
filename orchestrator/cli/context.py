"""What every command needs: the repository, its Slurm, and how to print. No logic of orch's own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.errors import ConfigError, UserError

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.control.ports import Ports
    from orchestrator.slurm.commands import SlurmCommands


SYSTEM_CONF = "/etc/slurm/slurm.conf"


def find_repository(start: Path | None = None) -> Path:
    """The nearest folder upwards that has an orch.yaml. Raises UserError."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (folder / "orch.yaml").exists():
            return folder
    raise UserError(f"no orch.yaml in {here} or above it", hint="`orch init` in your repository's folder makes one")


def slurm_conf(repository: Path, config: Config | None) -> Path | None:
    """Which slurm.conf to use: orch.yaml's, the environment's, this repository's private Slurm; None: the system's."""
    if config is not None and config.slurm_conf is not None:
        return config.slurm_conf
    if os.environ.get("SLURM_CONF"):
        return None
    private = repository / ".orch" / "cluster" / "etc" / "slurm.conf"
    return private if private.exists() else None


def _private_folder(conf: str) -> Path | None:
    """The folder of the private cluster that this slurm.conf belongs to."""
    folder = Path(conf).parent.parent
    return folder if conf and (folder / "cluster.json").exists() else None


def _how_to_start(repository: Path, folder: Path | None) -> str:
    if folder is None:
        return ""
    where = "" if folder == repository / ".orch" / "cluster" else f" --folder {folder}"
    return f"if its private Slurm is down, `orch cluster up{where}` starts it again"


def _say_if_another(repository: Path, config: Config) -> None:
    """SLURM_CONF, left in the shell by work in another repository, goes before this repository's own private Slurm."""
    own, given = repository / ".orch" / "cluster" / "etc" / "slurm.conf", os.environ.get("SLURM_CONF", "")
    if config.slurm_conf is None and given and own.exists() and not own.samefile(given if Path(given).exists() else "/"):
        click.echo(f"orch: asking the Slurm of SLURM_CONF={given}, not this repository's own; `unset SLURM_CONF` asks that",
                   err=True)


def open_ports(repository: Path | None = None, *, any_config: bool = False) -> tuple[Ports, Config]:
    """The world of this repository, by default the one that we stand in. ``any_config``: for commands about runs that exist,
    which must work while orch.yaml is wrong."""
    from orchestrator.config import default_config, load_config
    from orchestrator.control.ports import Ports
    from orchestrator.errors import SlurmError
    from orchestrator.slurm.commands import SlurmCommands

    asked, repository = repository is None, repository or find_repository()
    try:
        config = load_config(repository)
    except ConfigError as error:
        if not any_config:
            raise
        click.echo(f"orch: {error.message}; going on with defaults", err=True)
        config = default_config(repository)
    if asked:
        _say_if_another(repository, config)
    conf = slurm_conf(repository, config)
    name = str(conf or os.environ.get("SLURM_CONF") or "")
    hint = _how_to_start(repository, _private_folder(name))
    slurm = SlurmCommands(conf=conf, timeout_s=config.slurm_timeout_s, hint=hint)
    if config.slurm_backend == "pyslurm":
        with contextlib.suppress(SlurmError):          # while it is silent nobody knows what fits
            slurm = _bindings(slurm)
    return Ports(
        repository=repository, slurm=slurm,
        slurm_name="" if name == SYSTEM_CONF else name, policy=config.policy, notify=config.notify,
        clock=time.time,
        new_id=lambda: secrets.token_hex(6)), config


@functools.lru_cache
def _bindings(slurm: SlurmCommands) -> SlurmCommands:
    """Found out and said once in a process. Raises SlurmError."""
    from orchestrator.slurm.bindings import choose

    chosen, trouble = choose(slurm)
    if trouble:
        click.echo(f"orch: {trouble}", err=True)
    return chosen


def this_program() -> Path:
    """``orch``, absolute. Raises UserError where it was not started as a program."""
    called = Path(sys.argv[0]).absolute()
    if called.name == "orch" and os.access(called, os.X_OK):
        return called
    found = shutil.which("orch") or shutil.which("orch", path=str(Path(sys.executable).parent))
    if found is None:
        raise UserError("there is no program orch in this shell's PATH", hint="install orch, or activate its environment")
    return Path(found).absolute()


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, sort_keys=True, default=str))
