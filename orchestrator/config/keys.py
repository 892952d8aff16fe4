"""The keys of orch.yaml, job.yaml and campaigns as types: names, defaults, units, and what each means.

The tables in docs/configuration.md are written from here (ops/docs.py).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from orchestrator.config.document import Quantity

EnvValue = str | bool | int | float | None


def says(text: str, *, default: str | None = None, unit: str | None = None) -> msgspec.Meta:
    """What a key means, for the documentation. ``default``: in words, where it is computed; ``unit``: what it counts in."""
    extra: dict[str, Any] = {name: value for name, value in (("default", default), ("unit", unit)) if value is not None}
    return msgspec.Meta(description=text, extra=extra)


def duration(text: str, *, default: str | None = None) -> msgspec.Meta:
    return says(text, default=default, unit="duration")


def size(text: str, *, default: str | None = None) -> msgspec.Meta:
    return says(text, default=default, unit="size")


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class ProfileFile(_Strict, frozen=True):
    """``profiles: NAME:`` in orch.yaml."""

    partition: Annotated[str | None, says("Slurm's name of it", default="Slurm's own")] = None
    account: Annotated[str | None, says("Slurm's name of it", default="Slurm's own")] = None
    qos: Annotated[str | None, says("Slurm's name of it", default="Slurm's own")] = None
    reservation: Annotated[str | None, says(
        "Slurm's name of one to run in; an attempt then ends at its end, if that comes before the limit, with the notice "
        "`lead` before", default="none")] = None
    gres: Annotated[str | None, says(
        "GPUs a node, as `gpu:1` or `gpu:a100:2`; the submission is read back and refused if Slurm dropped it")] = None
    nodes: Annotated[int, says("nodes of one attempt")] = 1
    cpus: Annotated[int, says("CPUs of the job's one task")] = 1
    memory: Annotated[Quantity | None, size("memory a node", default="Slurm's own")] = None
    time: Annotated[Quantity, duration("Slurm's limit for one attempt, rounded up to minutes")] = "8h"
    lead: Annotated[Quantity, duration(
        "between the notice and that limit; shorter than `time`, longer than the slowest save")] = "5m"
    signal: Annotated[str, says("the signal of the notice: TERM, USR1, USR2 or INT")] = "TERM"


class CheckpointFile(_Strict, frozen=True):
    """``checkpoint:`` in orch.yaml."""

    interval: Annotated[Quantity | None, duration(
        "from the start of a save to the start of the next, fixed by hand; without it T* = sqrt(2 C M) is computed from "
        "the measured stall C and the measured M, and set in the running trainer too", default="computed")] = None
    at_most: Annotated[Quantity | None, duration(
        "the cap of a computed interval; it is never below the time until a save is usable", default="`30m`")] = None
    keep: Annotated[int | None, says("complete checkpoints that stay; at least 2", default="3")] = None
    local: Annotated[str | None, says(
        "an absolute folder on every node, on a disk of its own or in memory (`/dev/shm/NAME`, yours alone): jobs of one "
        "node save there often and to the shared folder seldom, and an attempt resumes from the newest of both",
        default="none")] = None
    local_interval: Annotated[Quantity | None, duration(
        "of saves to `local`, fixed by hand", default="computed")] = None


class RecoveryFile(_Strict, frozen=True):
    """``recovery:`` in orch.yaml."""

    endings_without_progress: Annotated[int, says(
        "endings in a row (crash, hung, limit-unsaved, vanished) without a newer checkpoint until the run is held")] = 3
    retries: Annotated[dict[str, int], says(
        "`ENDING: N`: of one kind, how many in a row without a newer checkpoint are followed by another attempt, instead "
        "of the common count; for `crash`, `hung`, `out-of-memory`, `setup-failure` and `no-result`. `retries: "
        "{setup-failure: 2}` tries a node without its GPU twice more. By default "
        "the last two are held at once (0)", default="none")] = {}
    backoff: Annotated[Quantity, duration(
        "wait after an ending without progress that counts, doubling, with a tenth of jitter; none after planned stops, "
        "preemptions and dead nodes")] = "30s"
    backoff_at_most: Annotated[Quantity, duration("where it stops doubling")] = "30m"
    memory_factor: Annotated[float, says(
        "after an out-of-memory the next attempt asks for so many times as much, up to the largest node's")] = 1.25
    lead_factor: Annotated[float, says("after a limit without a save the lead grows, up to half the limit")] = 2.0
    exclude_node_for: Annotated[Quantity, duration(
        "a node that failed under an attempt, or on which two in a row got nowhere, is left out for so long, ...")] = "2h"
    exclude_share: Annotated[float, says("... unless that were more than this share of the partition's nodes")] = 0.25


class ReliabilityFile(_Strict, frozen=True):
    """``reliability:`` in orch.yaml."""

    prior_mtbi: Annotated[Quantity | None, duration(
        "the M to begin with; worth 1.3 interruptions", default="104 h on 32 nodes, 425 h on one")] = None


class SlurmFile(_Strict, frozen=True):
    """``slurm:`` in orch.yaml."""

    conf: Annotated[str | None, says("the slurm.conf to use", default="see below")] = None
    timeout: Annotated[Quantity, duration("limit of every Slurm command")] = "30s"
    backend: Annotated[str, says(
        "what reads the jobs of a pass: `commands` (squeue), or `pyslurm` where it is installed for the very release that "
        "runs; where it is not, one line says so and squeue is used")] = "commands"


class DaemonFile(_Strict, frozen=True):
    """``daemon:`` in orch.yaml."""

    every: Annotated[Quantity, duration(
        "between passes, with a tenth of jitter; while Slurm is silent up to ten times as long")] = "30s"


class DiscordFile(_Strict, frozen=True):
    """``notify: discord:`` in orch.yaml."""

    webhook_file: Annotated[str | None, says(
        "a file with mode 0600 that has the webhook's URL in it; see [notifications.md](notifications.md)",
        default="the systemd credential `discord-webhook`")] = None


class NotifyFile(_Strict, frozen=True):
    """``notify:`` in orch.yaml."""

    discord: Annotated[DiscordFile | None, says("messages to Discord")] = None
    command: Annotated[list[str] | None, says(
        "a program and its arguments; gets each message as JSON on standard input")] = None
    slurm_silent_after: Annotated[Quantity, duration("how long Slurm must not have answered before that is told")] = "10m"


class ConfigFile(_Strict, frozen=True):
    """orch.yaml."""

    profiles: Annotated[dict[str, ProfileFile], says("the fixed resources of a kind of job", default="required")]
    default_profile: Annotated[str | None, says("the profile of jobs that name none", default="the first")] = None
    successors_ahead: Annotated[int, says("attempts queued behind the live one; 0 turns it off")] = 1
    queue: Annotated[str, says(
        "first attempts get `--nice=100`, so that a run's successor goes before a new run; `share`: no")] = "finish_first"
    checkpoint: CheckpointFile = CheckpointFile()
    recovery: RecoveryFile = RecoveryFile()
    reliability: ReliabilityFile = ReliabilityFile()
    slurm: SlurmFile = SlurmFile()
    daemon: DaemonFile = DaemonFile()
    notify: NotifyFile = NotifyFile()
    env: Annotated[dict[str, EnvValue], says(
        "`NAME: VALUE`: environment of every job; no value: the submitting shell's. Recorded in the journal, so no "
        "secrets",
        default="none")] = {}


class JobCheckpointFile(_Strict, frozen=True):
    """``checkpoint:`` in job.yaml."""

    interval: Annotated[Quantity | None, duration("for this run", default="orch.yaml's")] = None
    keep: Annotated[int | None, says("for this run", default="orch.yaml's")] = None
    local: Annotated[str | None, says("for this run; `none`: none", default="orch.yaml's")] = None
    local_interval: Annotated[Quantity | None, duration("for this run", default="orch.yaml's")] = None


class JobFile(_Strict, frozen=True):
    """job.yaml."""

    what: Annotated[str, says("what changed against which run, and why", default="")] = ""
    profile: Annotated[str | None, says("resources", default="`default_profile`")] = None
    after: Annotated[Any, says(
        "what must be before the first attempt: `[TAG, ...]` or `{TAG: finished, TAG: ended}`, see "
        "[campaigns.md](campaigns.md); or ids of other Slurm jobs, whose end is waited for",
        default="none")] = None
    validate: Annotated[str | None, says(
        "a command that must exit 0 before anything is submitted, run where you are")] = None
    env: Annotated[dict[str, EnvValue], says("as in orch.yaml, and before it", default="none")] = {}
    env_file: Annotated[str | None, says(
        "a file of `KEY=VALUE` lines with mode 0600 (relative to jobs/TAG), read on the node and recorded nowhere")] = None
    finished_when: Annotated[str | None, says(
        "a file that, newer than the attempt's start and with exit 0, means finished: for trainers that know nothing of "
        "orch. A relative name is looked for in `$ORCH_RUN_DIR` and `$ORCH_ATTEMPT_DIR`; in the repository too if "
        "`{tag}`, which becomes the run's name, is in it (`results/{tag}/cv.json`), so that no run's file finishes "
        "another")] = None
    hung_after: Annotated[Quantity | None, duration(
        "no step, save or announced phase for so long: stack dump, TERM, KILL. Learnt: five times the longest step so far,"
        " of saves for saves, at least 10 min (30 while starting or saving); announce a long evaluation with "
        "`training.phase(\"evaluation\", at_most_s=3600)`",
        default="learnt")] = None
    checkpoint: JobCheckpointFile = JobCheckpointFile()
    save_at: Annotated[list[str | int], says(
        "steps (`5000`) and times of day (`22:00`, the node's) at which a checkpoint is saved beside the periodic ones; a "
        "time at the first step behind it. For trainers that use orch_trainer", default="none")] = []


class CampaignPartFile(_Strict, frozen=True):
    """``runs: TAG:`` in a campaign."""

    profile: Annotated[str | None, says("resources", default="its job.yaml's")] = None
    after: Annotated[Any, says(
        "`[TAG, ...]` (each finished) or `{TAG: finished, TAG: ended}`, besides what its job.yaml says; tags of this file or "
        "of runs that there are already", default="none")] = None


class CampaignFile(_Strict, frozen=True):
    """jobs/NAME.campaign.yaml."""

    runs: Annotated[dict[str, CampaignPartFile | None], says("folders in jobs/, in any order", default="required")]
