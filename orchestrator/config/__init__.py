"""orch.yaml and job.yaml: read, checked, and turned into the values of ``model``.

PyYAML parses, msgspec checks types; what is added here is that every complaint names file, line and key, the nearest known
key for an unknown one, and what to write instead. Numbers without a unit are refused for durations and sizes, also the ones
that YAML itself makes out of ``12:30:00``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config.after import Awaited, parse_after
from orchestrator.config.document import Document, Quantity
from orchestrator.config.keys import ConfigFile, EnvValue, JobFile, ProfileFile
from orchestrator.config.notify import NOBODY, Notify, parse_notify
from orchestrator.errors import UserError
from orchestrator.model import RETRIED, Ending, Policy, Profile

CONFIG_NAME = "orch.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """orch.yaml, checked: profiles by name, the policy, how to reach Slurm."""

    path: Path
    profiles: dict[str, Profile]
    default_profile: str
    policy: Policy
    slurm_conf: Path | None
    slurm_timeout_s: float
    slurm_backend: str = "commands"
    every_s: float
    environment: dict[str, str | None]
    notify: Notify = NOBODY

    def profile(self, name: str | None) -> Profile:
        wanted = name or self.default_profile
        if wanted not in self.profiles:
            near = difflib.get_close_matches(wanted, self.profiles, 1)
            raise UserError(f'no profile "{wanted}" in {self.path.name}',
                            hint=f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(self.profiles)}")
        return self.profiles[wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """job.yaml, checked."""

    profile: str | None = None
    after: tuple[Awaited, ...] = ()
    validate: str | None = None
    environment: dict[str, str | None]
    env_file: str | None = None
    finished_when: str | None = None
    hung_after_s: float | None = None
    save_at: tuple[str, ...] = ()
    interval_s: float | None = None
    keep: int | None = None
    local: str | None = None
    local_interval_s: float | None = None
    what: str = ""


def load_config(repository: Path) -> Config:
    """Raises ConfigError naming file, line, key and remedy."""
    path = repository / CONFIG_NAME
    if not path.exists():
        raise UserError(f"no {CONFIG_NAME} in {repository}", hint="run `orch init` there first")
    document = Document(path)
    file = document.convert(ConfigFile)
    profiles = {name: _profile(document, name, profile) for name, profile in file.profiles.items()}
    if not profiles:
        raise document.error("profiles", "is empty", "write at least one profile; `orch init` shows how in a new folder")
    default = file.default_profile or next(iter(profiles))
    if default not in profiles:
        raise document.error("default_profile", f'"{default}" is not one of {", ".join(profiles)}', "")
    if file.queue not in ("finish_first", "share"):
        raise document.error("queue", f'"{file.queue}" is not known', "write finish_first or share")
    if file.slurm.backend not in ("commands", "pyslurm"):
        raise document.error("slurm.backend", f'"{file.slurm.backend}" is not known', "write commands or pyslurm")
    every_s = document.duration_s("daemon.every", file.daemon.every)
    return Config(
        path=path, profiles=profiles, default_profile=default, policy=_policy(document, file),
        slurm_conf=repository / Path(file.slurm.conf).expanduser() if file.slurm.conf else None,
        slurm_timeout_s=document.duration_s("slurm.timeout", file.slurm.timeout), slurm_backend=file.slurm.backend,
        every_s=every_s, environment=_environment(document, file.env),
        notify=parse_notify(document, file.notify, repository, every_s))


def default_config(repository: Path) -> Config:
    """What holds while orch.yaml is wrong: no profiles, so that nothing new can be submitted, and defaults for the rest."""
    return Config(path=repository / CONFIG_NAME, profiles={}, default_profile="", policy=Policy(), slurm_conf=None,
                  slurm_timeout_s=30.0, every_s=30.0, environment={})


def load_job(folder: Path) -> Job:
    """job.yaml of this job folder, all defaults if there is none. Raises ConfigError."""
    path = folder / "job.yaml"
    if not path.exists():
        return Job(environment={})
    document = Document(path)
    file = document.convert(JobFile)
    interval = file.checkpoint.interval
    return Job(
        profile=file.profile, after=parse_after(document, "after", file.after), validate=file.validate,
        environment=_environment(document, file.env), env_file=file.env_file, finished_when=file.finished_when,
        hung_after_s=document.duration_s("hung_after", file.hung_after) if file.hung_after is not None else None,
        save_at=_save_at(document, len(file.save_at)),
        interval_s=document.duration_s("checkpoint.interval", interval) if interval is not None else None,
        keep=_keep(document, file.checkpoint.keep), local=_local(document, file.checkpoint.local),
        local_interval_s=_seconds(document, "checkpoint.local_interval", file.checkpoint.local_interval), what=file.what)


def _save_at(document: Document, count: int) -> tuple[str, ...]:
    """As written: YAML would make seconds of 22:00."""
    moments = tuple(document.written(f"save_at[{index}]").strip() for index in range(count))
    for index, moment in enumerate(moments):
        if not re.fullmatch(r"[1-9]\d*|([01]?\d|2[0-3]):[0-5]\d", moment):
            raise document.error(f"save_at[{index}]", f'"{moment}" is no step and no time of day',
                                 'write a step like 5000, or a time like "22:00"')
    return moments


def _profile(document: Document, name: str, file: ProfileFile) -> Profile:
    key = f"profiles.{name}"
    time_s = document.duration_s(f"{key}.time", file.time)
    lead_s = document.duration_s(f"{key}.lead", file.lead)
    if lead_s >= time_s:
        raise document.error(f"{key}.lead", f"the lead ({file.lead}) is not shorter than the time limit ({file.time})",
                             "the trainer needs the lead to save before the limit; shorten it or lengthen `time`")
    if lead_s > 65535:
        raise document.error(f"{key}.lead", f"{file.lead} is more than Slurm takes", "at most 65535s")
    signal = file.signal.upper().removeprefix("SIG")
    if signal not in ("TERM", "USR1", "USR2", "INT"):
        raise document.error(f"{key}.signal", f'"{file.signal}" cannot give notice', "write TERM, USR1, USR2 or INT")
    if file.cpus < 1 or file.nodes < 1:
        raise document.error(f"{key}.{'cpus' if file.cpus < 1 else 'nodes'}", "must be at least 1", "")
    for field in ("partition", "account", "qos", "reservation", "gres"):
        if "\n" in (getattr(file, field) or ""):
            raise document.error(f"{key}.{field}", "is more than one line", "write it behind the colon, without | or >")
    memory = document.size_bytes(f"{key}.memory", file.memory) if file.memory is not None else None
    return Profile(name=name, partition=file.partition, account=file.account, qos=file.qos,
                   reservation=file.reservation, gres=file.gres, nodes=file.nodes, cpus=file.cpus, memory_bytes=memory,
                   time_s=time_s, lead_s=lead_s, signal=signal)


def _policy(document: Document, file: ConfigFile) -> Policy:
    interval = file.checkpoint.interval
    policy = Policy(
        successors_ahead=file.successors_ahead, finish_first=file.queue == "finish_first",
        endings_without_progress=file.recovery.endings_without_progress,
        retries=_retries(document, file.recovery.retries),
        backoff_s=document.duration_s("recovery.backoff", file.recovery.backoff),
        backoff_at_most_s=document.duration_s("recovery.backoff_at_most", file.recovery.backoff_at_most),
        memory_factor=file.recovery.memory_factor, lead_factor=file.recovery.lead_factor,
        exclude_node_s=document.duration_s("recovery.exclude_node_for", file.recovery.exclude_node_for),
        exclude_share=file.recovery.exclude_share)
    _check_recovery(document, policy)
    if file.successors_ahead not in (0, 1):
        raise document.error("successors_ahead", f"{file.successors_ahead} is not possible", "write 0 or 1")
    if interval is not None:
        policy = replace(policy, checkpoint_interval_s=document.duration_s("checkpoint.interval", interval))
    if file.checkpoint.at_most is not None:
        policy = replace(policy, checkpoint_at_most_s=document.duration_s("checkpoint.at_most", file.checkpoint.at_most))
    if file.reliability.prior_mtbi is not None:
        hours = document.duration_s("reliability.prior_mtbi", file.reliability.prior_mtbi) / 3600
        policy = replace(policy, prior_mtbi_h=hours)
    local = _local(document, file.checkpoint.local)
    policy = replace(
        policy, checkpoint_local="" if local in (None, "none") else str(local),
        checkpoint_local_interval_s=_seconds(document, "checkpoint.local_interval", file.checkpoint.local_interval))
    keep = _keep(document, file.checkpoint.keep)
    return replace(policy, checkpoints_kept=keep) if keep is not None else policy


def _check_recovery(document: Document, policy: Policy) -> None:
    for name, factor in (("memory_factor", policy.memory_factor), ("lead_factor", policy.lead_factor)):
        if not 1 <= factor <= 100:     # .nan too
            raise document.error(f"recovery.{name}", f"{factor:g} is not from 1 to 100",
                                 "write 1 for no change, or for example 1.5")
    if not 0 <= policy.exclude_share <= 1:
        raise document.error("recovery.exclude_share", f"{policy.exclude_share:g} is no share", "write 0.25 for a quarter")
    if policy.endings_without_progress < 1:
        raise document.error("recovery.endings_without_progress", f"{policy.endings_without_progress} is below 1",
                             "write 1 to hold the run at the first ending without progress")
    if policy.backoff_s > policy.backoff_at_most_s:
        raise document.error("recovery.backoff", "is longer than where it stops doubling",
                             "write a longer backoff_at_most too (30m by default)")


def _retries(document: Document, written: dict[str, int]) -> dict[Ending, int]:
    for name, count in written.items():
        if name not in RETRIED:
            near = difflib.get_close_matches(name, sorted(RETRIED), 1)
            raise document.error(f"recovery.retries.{name}", "is no ending that could be retried",
                                 f'did you mean "{near[0]}"?' if near else f"these are: {', '.join(sorted(RETRIED))}")
        if count < 0:
            raise document.error(f"recovery.retries.{name}", f"{count} is below 0", "write 0 to hold the run at once")
    return {Ending(name): count for name, count in written.items()}


def _local(document: Document, local: str | None) -> str | None:
    if local is not None and local != "none" and not (local.startswith("/") and "\n" not in local):
        raise document.error("checkpoint.local", f'"{local}" is no absolute path',
                             "write one that every node has, as /dev/shm/orch")
    return local


def _seconds(document: Document, key: str, value: Quantity | None) -> float | None:
    return document.duration_s(key, value) if value is not None else None


def _keep(document: Document, keep: int | None) -> int | None:
    if keep is not None and keep < 2:
        raise document.error("checkpoint.keep", f"{keep} is too few",
                             "keep at least 2: the newest may be half-written when the older one goes")
    return keep


_SECRET = re.compile(
    r"TOKEN(?!S|I)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|WEBHOOK|(_|^)(KEY|PAT|PASS|PWD|AUTH)$|PGPASS",
    re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@")  # a URL with a password in it


def _environment(document: Document, env: dict[str, EnvValue]) -> dict[str, str | None]:
    for name in env:
        if _SECRET.search(name) or _SECRET_VALUE.search(str(env[name])):
            raise document.error(f"env.{name}", "looks like a secret, and what `env:` names is recorded in the journal",
                                 "put it into a file with mode 0600 and name that file with `env_file:` in job.yaml")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise document.error(f"env.{name}", "is no name of an environment variable", "")
    return {name: None if value is None else document.written(f"env.{name}") for name, value in env.items()}
