"""What is checked before anything is submitted, each with one clear sentence. Writes nothing and takes no lock."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ConfigError, Refused, StorageError, UserError
from orchestrator.model import TAG_PATTERN, Profile
from orchestrator.slurm.fields import gres_counts
from orchestrator.slurm.protocol import NodeOffer, Site
from orchestrator.units import format_clock, format_size, slurm_minutes

ROOM_AT_LEAST_BYTES = 64 * 2**20


def check_tag(tag: str) -> None:
    """Raises UserError for a name that Slurm, a file system or a terminal would trip over."""
    if TAG_PATTERN.fullmatch(tag):
        return
    better = re.sub(r"[^A-Za-z0-9._-]+", "-", tag).strip("-._")[:64]
    raise UserError(
        f'"{tag}" cannot be a tag: letters, digits, ".", "_" and "-", a letter or digit first, at most 64 characters',
        hint=f'write for example "{better}"' if better else "")


def check_script(path: Path) -> None:
    """job.sh exists, can be run, is a script, parses, and has something to do. Raises UserError or ConfigError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist",
                        hint="write the training's command into it, below #!/usr/bin/env bash, and chmod +x it")
    data = path.read_bytes()
    if b"\r\n" in data:
        line = data[: data.index(b"\r\n")].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: has Windows line ends (CRLF), which bash takes for part of the command",
                          hint=f"sed -i 's/\\r$//' {path}")
    if not data.startswith(b"#!"):
        raise ConfigError(f"{path}:1: does not begin with #!, so nobody can tell what runs it",
                          hint="make its first line #!/usr/bin/env bash")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{path}: is not executable", hint=f"chmod +x {path}")
    if re.match(rb"#!.*\b(ba|da|k|z)?sh\b", data.splitlines()[0]):
        _check_shell(path, data.decode(errors="replace"))


_IDLE = re.compile(
    r"\s*(#.*|(set|export|cd|shopt|module|ulimit)\b[^;&|]*|:|true|\w+=[^\s;&|]*)?\s*")


def _check_shell(path: Path, text: str) -> None:
    parsed = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, timeout=30, check=False)
    if parsed.returncode:
        words = parsed.stderr.strip().splitlines()
        raise ConfigError(f"{path}: bash cannot parse it: {words[0] if words else 'syntax error'}")
    if all(_IDLE.fullmatch(line) for line in text.splitlines()):
        raise ConfigError(f"{path}: has no command in it", hint="write the training's command as its last line")


def options_without_effect(script: Path, profile: str) -> str:
    """A warning where job.sh was an sbatch script once: Slurm reads the script that orch generates; '' where it was not."""
    for number, line in enumerate(script.read_bytes().splitlines(), 1):
        if line.startswith(b"#SBATCH"):
            return (f'{script}:{number}: #SBATCH lines have no effect here; what Slurm is asked for stands in profile '
                    f'"{profile}" of orch.yaml')
    return ""


def check_repository_path(repository: Path) -> None:
    if any(c in str(repository) for c in "\n\r\0"):
        raise UserError(f"the repository's path {str(repository)!r} holds a newline, which no batch script can carry")


def run_validate(command: str, cwd: Path) -> None:
    """The trainer's own check of its arguments, run here and now. Raises Refused with the end of what it printed."""
    result = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, errors="replace",
                            stdin=subprocess.DEVNULL, check=False)
    if result.returncode:
        words = (result.stderr.strip() or result.stdout.strip()).splitlines()[-5:]
        raise Refused(f"validate: `{command}` ended with {result.returncode}" + "".join(f"\n  {w}" for w in words),
                      hint="nothing was submitted; mend it and submit again")


def check_fits(profile: Profile, offers: Sequence[NodeOffer]) -> None:
    """Some node of the partition can hold the request, and its limit the time. Raises Refused saying what is the most.

    Slurm itself lets a job above a partition's limit wait for ever.
    """
    here = offered(profile, offers)
    if not here:
        if profile.partition is not None:
            raise Refused(f'profile "{profile.name}": this Slurm has no partition "{profile.partition}"',
                          hint=f"there are: {', '.join(sorted({o.partition for o in offers}))}")
        return  # no default partition: sbatch will say so in its own words
    most, asked_s = longest_s(here), slurm_minutes(profile.time_s) * 60
    if most is not None and asked_s > most:
        raise Refused(f'profile "{profile.name}": time {format_clock(asked_s)} is above the limit of partition '
                      f"{here[0].partition} ({format_clock(most)}); Slurm would let the job wait for ever",
                      hint=f'set `time` to at most "{format_clock(most)}"; orch continues across limits by itself')
    cannot, hint = why_no_node(profile, here)
    if cannot:
        raise Refused(f'profile "{profile.name}": {cannot}', hint=hint)


def offered(profile: Profile, offers: Sequence[NodeOffer]) -> list[NodeOffer]:
    """The nodes of the partitions that this profile names, or of the default one."""
    wanted = None if profile.partition is None else set(profile.partition.split(","))
    return [o for o in offers if (o.default if wanted is None else o.partition in wanted)]


def longest_s(here: Sequence[NodeOffer]) -> float | None:
    """The longest time limit that one of these partitions allows; None: any."""
    limits = [o.time_limit_s for o in here]
    return None if None in limits else max((limit for limit in limits if limit is not None), default=None)


def why_no_node(profile: Profile, here: Sequence[NodeOffer]) -> tuple[str, str]:
    """Why no node, or not enough of them, could hold this even if all were free, and what to do; '' where some could."""
    fitting = Counter(o.partition for o in here if not misfit(profile, o))
    if not fitting:
        best = min(here, key=lambda o: len(misfit(profile, o)))
        return (f"no node of partition {best.partition} can hold this: " + "; ".join(misfit(profile, best)),
                "ask for less, or name another partition in orch.yaml's profile")
    partition, count = fitting.most_common(1)[0]
    if count < profile.nodes:
        return (f"{profile.nodes} nodes asked for, {count} of partition {partition} can hold this",
                "ask for fewer nodes, or name another partition in orch.yaml's profile")
    return "", ""


NAMES_AT_MOST = 4


def out_of_service(here: Sequence[NodeOffer]) -> str:
    """Nodes that take no jobs, and what was said of them: ``n1, n2 (drained: bad disk)``."""
    out: dict[str, dict[str, None]] = {}
    for offer in here:
        if re.search(r"down|drain|fail|error|\*$", offer.state):
            out.setdefault(offer.state + (f": {offer.reason}" if offer.reason else ""), {})[offer.node] = None
    return "; ".join(", ".join([*names][:NAMES_AT_MOST]) + (f" and {len(names) - NAMES_AT_MOST} more"
                     if len(names) > NAMES_AT_MOST else "") + f" ({words})" for words, names in out.items())


def misfit(profile: Profile, offer: NodeOffer) -> list[str]:
    """What this node lacks for the profile, in words; [] if it fits."""
    lacks = []
    if profile.cpus > offer.cpus:
        lacks.append(f"{profile.cpus} cpus asked for, {offer.node} has {offer.cpus}")
    if profile.memory_bytes is not None and profile.memory_bytes > offer.memory_bytes:
        lacks.append(f"{format_size(profile.memory_bytes)} memory asked for, {offer.node} has "
                     f"{format_size(offer.memory_bytes)}")
    have = gres_counts(offer.gres)
    for name, count in gres_counts(profile.gres or "").items():
        if count > have.get(name, 0):
            lacks.append(f"{name}:{count} asked for, {offer.node} has {have.get(name, 0)}")
    return lacks


def check_room(folder: Path, needed_bytes: int) -> None:
    """Room for the checkpoints that are kept, and one being written. Raises StorageError."""
    free = shutil.disk_usage(folder).free
    needed = max(needed_bytes, ROOM_AT_LEAST_BYTES)
    if free < needed:
        raise StorageError(f"{folder}: {format_size(free)} free, and the checkpoints kept need {format_size(needed)}",
                           hint="make room, or lower `checkpoint: {keep: ...}`")


def remembers(site: Site, every_s: float) -> str:
    """What it means that this Slurm keeps no accounts, "" where it does. An ended job must be met by two passes: Slurm may be
    slow to answer the first."""
    if site.accounting:
        return ""
    words = "this Slurm keeps no accounts: how an attempt ended is read from its own record"
    if not 0 < site.min_job_age_s < 2 * every_s:
        return words
    every = max(1.0, site.min_job_age_s // 2)
    return (f"{words}. It forgets an ended job after {site.min_job_age_s:.0f} s (MinJobAge) and passes come {every_s:g} s "
            "apart, so that an attempt which leaves no record will count as vanished, whatever ended it: set `daemon: "
            f"{{every: {every:.0f}s}}` in orch.yaml, or ask for a MinJobAge of {2 * every_s:.0f} s")
