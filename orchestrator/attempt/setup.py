"""Before job.sh starts: the device, the secrets, the environment, and orch_trainer within the trainer's reach."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from orchestrator.folders import checkpoint_dir, replace_file
from orchestrator.records import AttemptSpec, StartRecord

_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "GPU_DEVICE_ORDINAL",
                     "ROCR_VISIBLE_DEVICES")
_NO_DEVICE = ("", "NoDevFiles", "-1")


class SetupError(Exception):
    """Why job.sh cannot be started, in words."""


def check_device(gres: str, environment: Mapping[str, str], proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> str:
    """The device in words, '' if none was asked for. Raises SetupError when one was, and none is visible."""
    if not any(part.strip().removeprefix("gres/").startswith("gpu") for part in gres.split(",")):
        return ""
    told = {name: environment[name] for name in _DEVICE_VARIABLES if name in environment}
    seen = [value for value in told.values() if value not in _NO_DEVICE]
    if not seen:
        what = ", ".join(f"{name}={value!r}" for name, value in told.items()) or f"no {_DEVICE_VARIABLES[0]}"
        raise SetupError(f"{gres} was asked for and Slurm made no GPU visible ({what})")
    if (proc / "driver" / "nvidia").exists():
        nodes = [path for path in dev.glob("nvidia[0-9]*") if _opens(path)]
        if not nodes:
            raise SetupError(f"{gres} was asked for and none of {dev}/nvidia0, ... can be opened: the driver or its "
                             "device files are missing on this node")
    return f"gpu {seen[0]}"


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def read_env_file(path: Path) -> dict[str, str]:
    """``KEY=VALUE`` lines. Raises SetupError, without a word of the content, for anything else or an open mode."""
    try:
        status = path.stat()
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"env_file {path}: {getattr(error, 'strerror', None) or 'not text'}") from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SetupError(f"env_file {path}: must be yours and of mode 0600, it has mode {status.st_mode & 0o777:04o} "
                         f"(chmod 600 {path})")
    secrets = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.isidentifier():
            raise SetupError(f"env_file {path}:{number}: not KEY=VALUE")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        secrets[key] = value[1:-1] if quoted else value
    return secrets


def job_environment(base: Mapping[str, str], spec: AttemptSpec, start: StartRecord, folder: Path, secrets: Mapping[str, str],
                    library: Path | None) -> dict[str, str]:
    """The environment of job.sh (docs/protocol.md)."""
    run_dir = Path(spec.run_dir)
    environment = {**base, **secrets}
    environment.update(
        ORCH_PROTOCOL="1", ORCH_TAG=spec.tag, ORCH_ATTEMPT=str(spec.number), ORCH_EPOCH=str(start.epoch),
        ORCH_RUN_DIR=str(run_dir), ORCH_ATTEMPT_DIR=str(folder), ORCH_CHECKPOINT_DIR=str(checkpoint_dir(run_dir)),
        ORCH_RESUME_FROM=start.resume_from or "", ORCH_CHECKPOINT_INTERVAL_S=f"{spec.interval_s:g}",
        ORCH_CHECKPOINTS_KEPT=str(spec.keep),
        ORCH_CONTROL_FILE=str(run_dir / "control.json"), ORCH_LEAD_S=f"{spec.lead_s:g}", ORCH_SIGNAL=spec.signal,
        ORCH_DEADLINE="" if start.deadline is None else f"{start.deadline:.3f}")
    if spec.local_dir:
        environment.update(ORCH_LOCAL_DIR=spec.local_dir, ORCH_LOCAL_INTERVAL_S=f"{spec.local_interval_s:g}")
    if spec.interval_steps is not None:
        environment["ORCH_CHECKPOINT_INTERVAL_STEPS"] = str(spec.interval_steps)
    if start.deadline is not None:
        environment["ORCH_STOP_AFTER_MIN"] = str(max(1, int((start.deadline - spec.lead_s - start.started_at) // 60)))
    if spec.save_at:
        environment["ORCH_SAVE_AT"] = " ".join(spec.save_at)
    if spec.hung_after_s is not None:
        environment["ORCH_HUNG_AFTER_S"] = f"{spec.hung_after_s:g}"
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if library is not None:
        before = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = f"{before}:{library}" if before else str(library)
        if environment.get("BASH_ENV"):
            environment["ORCH_USER_BASH_ENV"] = environment["BASH_ENV"]
        environment["BASH_ENV"] = str(folder / "bash_env.sh")
    return environment


def trainer_package() -> Path | None:
    """Where orch_trainer lies: beside this package, in a checkout as in site-packages."""
    beside = Path(__file__).resolve().parent.parent.parent / "orch_trainer"
    return beside if (beside / "__init__.py").exists() else None


def library_folder(runs: Path, package: Path) -> Path:
    """A folder with orch_trainer and nothing else, so that a trainer sees none of orch's own dependencies.

    Named by what it points to: two installations of orch in one repository do not pull the rug from each other.
    """
    folder = runs / ".lib" / f"{zlib.crc32(str(package).encode()):08x}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.symlink(package, folder / "orch_trainer", target_is_directory=True)
    return folder


# A trap before each command puts the folder back when job.sh has set PYTHONPATH anew. One compound command and its
# redirection, so that `set -x` shows nothing; the usual path runs no simple command, so `$_` stays; `:` restores it else.
# functrace: functions and subshells see it too.
_BASH_ENV = """\
# Made by orch: keeps orch_trainer importable when the script sets PYTHONPATH.
if [ -n "${{ORCH_USER_BASH_ENV-}}" ] && [ -r "${{ORCH_USER_BASH_ENV}}" ]; then . "${{ORCH_USER_BASH_ENV}}"; fi
trap '{{ case ":${{PYTHONPATH-}}:" in *:{pattern}:*) ;; *) for _orch in "$_"; do \
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{folder}; : "$_orch"; done ;; esac; }} 2>/dev/null' DEBUG
set -o functrace
"""


def bash_env(library: Path) -> str:
    """The text of the file that BASH_ENV names."""
    # within the single quotes of the trap, a quoted word is written in double quotes
    word = '"' + "".join("\\" + c if c in '\\"$`' else c for c in str(library)).replace("'", "'\\''") + '"'
    return _BASH_ENV.format(pattern=word, folder=word)


def write_bash_env(folder: Path, library: Path) -> None:
    replace_file(folder / "bash_env.sh", bash_env(library))


def command(job: Path) -> list[str]:
    """How job.sh is run: as the program it is, or by bash when its executable bit or its first line was lost."""
    try:
        with open(job, "rb") as file:
            first = file.read(2)
    except OSError as error:
        raise SetupError(f"{job}: {error.strerror}") from error
    return [str(job)] if first == b"#!" and os.access(job, os.X_OK) else ["/bin/bash", str(job)]

