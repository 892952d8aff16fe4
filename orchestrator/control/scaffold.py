"""The files that ``orch init`` and ``orch new`` write. Each is written only where nothing stands."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator import folders
from orchestrator.config import CONFIG_NAME
from orchestrator.control.checks import check_tag
from orchestrator.control.ports import job_tags, unknown_tag
from orchestrator.errors import UserError

ORCH_YAML = """\
# What jobs ask of Slurm stands here, in one place, and nowhere else.
# Durations need a unit (90s, 20m, 8h, "12:30:00" in quotes), sizes too (512M, 36G).
profiles:
  default:
    # partition: main        # default: the Slurm's own
    # account:
    # qos:
    # gres: gpu:1            # GPUs a node
    cpus: 1
    memory: 2G
    time: 8h                 # Slurm's limit for one attempt; a run goes on across as many as it needs
    lead: 5m                 # notice before the limit; longer than your slowest save
    # signal: TERM

checkpoint:
  at_most: 30m               # the interval is computed from what is measured (T* = sqrt(2CM)), and never above this
  # interval: 10m            # or fixed by hand
  keep: 3                    # complete checkpoints that stay

# successors_ahead: 1        # attempts queued behind the live one; 0 turns it off
# queue: finish_first        # or share: first attempts get no --nice
# recovery: {endings_without_progress: 3, backoff: 30s, backoff_at_most: 30m}
# reliability: {prior_mtbi: 200h}  # the M to begin with, for a run's number of nodes
# daemon: {every: 30s}
# notify: {discord: {webhook_file: ~/.config/orch/discord-webhook}}   # mode 0600; then `orch notify test`
# slurm: {conf: /path/to/slurm.conf, timeout: 30s}
# env: {OMP_NUM_THREADS: 2}
"""

DECISIONS = """\
# Decisions

Why each experiment was made. Append; never rewrite.
"""

AGENTS = """\
# For agents: experiments on Slurm by `orch`

Read `ops/STATE.md` first. Its first line says what you must know; below it stand what is held and the command that
helps, what runs, what waits and why, and what has ended with which result. `orch tick` renews it and does what is
due; where `orch daemon` runs that happens by itself. `ops/state.json` has the same for programs.

Never write sbatch by hand, nor srun or scancel. `orch submit` keeps the resources fixed, queues the next attempt
behind each one, and resumes from checkpoints after time limits, crashes and dead nodes. Jobs go on without you:
queue what is to be queued and leave, do not wait for a run to end.

## Queue the next experiment

1. `orch new NEW --from OLD` copies `jobs/OLD` to `jobs/NEW`. Tags: letters, digits, `.`, `_`, `-`.
2. Edit `jobs/NEW/job.sh`, the whole command (it runs in the repository's folder: a path `jobs/OLD/...` in it still
   means OLD's file), and `what:` in `jobs/NEW/job.yaml`: what changed against OLD, and why. Change one thing at a
   time. Resources stand in a profile of `orch.yaml`; leave those to people.
3. `orch submit NEW --dry-run` checks everything; `orch submit NEW` queues it (`--after OTHER`: when OTHER has
   finished; `--after OTHER:ended`: however it ended). Once it is submitted, editing `jobs/NEW/job.sh` changes nothing of it.
4. Append a line to `ops/decisions.md`: date, NEW, what changed against which run, why, what you expect. Leave the
   older lines as they are.

## Look

`orch status` (a line a run), `orch status TAG` (attempts, what happened when, M and T*), `orch logs TAG` (what it
printed), `orch explain TAG` (what comes next and why), `orch queue` (everybody's jobs). `status` and `queue` take
`--json`. A command that fails says why and what to do instead.

## A run is held

Nothing of it goes on until somebody acts; its checkpoints stay. Find the cause first: its line in `ops/STATE.md`,
then `orch logs TAG`. Then one of these:

- the cause has passed (a full disk, a broken node): `orch release TAG`
- the command was wrong: mend `jobs/TAG/job.sh`, then `orch submit TAG --again`; it resumes from its newest checkpoint
- somebody held it by hand: leave it
- it waits for a run that is held or cancelled: mend that one, and it goes on by itself
- it is not worth mending: `orch cancel TAG`

Write into `ops/decisions.md` what you found and did. Held again for the same reason: leave it held, and say so there.

## Do not touch

`runs/` (above all `journal.jsonl` and `control.json`: orch alone writes them), `ops/STATE.md` and `ops/state.json`
(written anew by each pass), `.orch/`.
"""

VENDORED = "VENDORED"
IGNORED = ("/runs/", "/.orch/", "/ops/STATE.md", "/ops/state.json", "/ops/*.log")

JOB_SH = """\
#!/usr/bin/env bash
# The whole command, nothing left out. It runs in the repository's folder, with the ORCH_* variables set
# (ORCH_RESUME_FROM: the newest complete checkpoint, empty on the first attempt).
set -euo pipefail

# exec python train.py
"""

JOB_YAML = """\
# what: what changed against which run, and why
# profile: default
# after: {OTHER_TAG: finished}   # begins when that run has finished; `ended`: however it ended
# validate: python train.py --check-arguments    # must exit 0 before anything is submitted
# env: {SEED: 1, CUDA_HOME: }    # a name without a value takes the submitting shell's
# env_file: secrets.env          # mode 0600, KEY=VALUE lines, read on the node and recorded nowhere
# finished_when: cv.json         # for trainers that know nothing of orch: $ORCH_RUN_DIR/cv.json and exit 0 mean finished
# hung_after: 20m                # no sign of life for so long means hung; learnt from the run's own steps otherwise
# checkpoint: {interval: 10m, keep: 3}
"""


def init_repository(folder: Path) -> list[str]:
    """Lines that say what was made and what was left. Raises UserError inside another repository of orch's."""
    above = next((parent for parent in folder.absolute().parents if (parent / CONFIG_NAME).exists()), None)
    if above is not None and not (folder / CONFIG_NAME).exists():
        raise UserError(f"{above} has an {CONFIG_NAME} already, and this folder is below it",
                        hint=f"work from there; a repository of its own begins with `touch {CONFIG_NAME}` here")
    lines = []
    for name, text in ((CONFIG_NAME, ORCH_YAML), ("ops/decisions.md", DECISIONS), ("AGENTS.md", AGENTS)):
        lines.append(_write_new(folder / name, text, folder))
    (folder / "jobs").mkdir(exist_ok=True)
    lines.append(_ignore(folder / ".gitignore"))
    lines.append("next: look at orch.yaml, then `orch new TAG`; no Slurm here? `orch cluster up`")
    return lines


def _write_new(path: Path, text: str, base: Path) -> str:
    if path.exists():
        return f"{path.relative_to(base)} is there already: left as it is"
    path.parent.mkdir(parents=True, exist_ok=True)
    folders.replace_file(path, text)
    return f"wrote {path.relative_to(base)}"


def _ignore(path: Path) -> str:
    present = path.read_text().splitlines() if path.exists() else []
    missing = [line for line in IGNORED if line not in present]
    if not missing:
        return ".gitignore has all lines already"
    with path.open("a") as file:
        file.write(("\n" if present and present[-1] else "") + "\n".join(["# orch", *missing]) + "\n")
    return f"added {len(missing)} lines to .gitignore"


def new_job(repository: Path, tag: str, source: str | None) -> list[str]:
    """Make jobs/TAG. Raises UserError if it is there already or ``source`` is not."""
    check_tag(tag)
    target = folders.job_dir(repository, tag)
    if target.exists():
        raise UserError(f"{target} is there already", hint="choose another tag, or edit that one")
    if source is not None:
        check_tag(source)
        origin = folders.job_dir(repository, source)
        if not origin.is_dir():
                raise unknown_tag(source, job_tags(repository), "job folder")
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
        return [f"copied jobs/{source} to jobs/{tag}", f"next: edit jobs/{tag}/job.sh, then `orch submit {tag}`"]
    target.mkdir(parents=True)
    folders.replace_file(target / "job.sh", JOB_SH, mode=0o755)
    folders.replace_file(target / "job.yaml", JOB_YAML)
    return [f"wrote jobs/{tag}/job.sh and jobs/{tag}/job.yaml",
            f"next: write the command into jobs/{tag}/job.sh, then `orch submit {tag}`"]


def vendor_library(repository: Path) -> str:
    """Copy the trainer library into the repository; only an earlier copy is ever replaced."""
    import orch_trainer

    source, target = Path(orch_trainer.__file__).resolve().parent, repository / "orch_trainer"
    if target.resolve() == source:
        raise UserError(f"{target} is the library itself", hint="nothing needs to be copied here")
    if target.exists() and not (target / VENDORED).exists():
        raise UserError(f"{target} is there already, and is no earlier copy", hint="move it out of the way first")
    fresh = repository / ".orch_trainer.new"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh, ignore=shutil.ignore_patterns("__pycache__"))
    (fresh / VENDORED).write_text("A copy made by `orch vendor`; run it again to renew it.\n")
    if target.exists():
        shutil.rmtree(target)
    fresh.rename(target)
    return f"copied the trainer library to {target}; commit it"
