"""For trainers that are shell scripts: `orch should-stop` and `orch notify-save STEP PATH`.

    while (( step < 100 )); do
      ./simulate state.bin && step=$((step + 1))
      orch notify-save "$step" state.bin
      orch should-stop && exit 0
    done

Each call is a process, so what a call does not need it does not import. The first `should-stop` of an attempt registers the
script as one that asks: at a notice it gets no signal, and neither does the program that it runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

EXIT_STOP, EXIT_GO_ON, EXIT_USAGE, EXIT_FENCED = 0, 1, 2, 76
EXIT_NOT_SAVED = 1
ERROR_CHARACTERS_MAX = 1000
USAGE = """usage: should-stop                          exit code 0: a notice or a stop request came, save and leave; 1: go on
       notify-save STEP PATH [--stall S]    PATH, a file or a folder, is the state after STEP: make it a complete checkpoint
                                            (S: seconds for which training stood still to write it)"""


def main(words: Sequence[str]) -> int:
    """The exit code."""
    if list(words) == ["should-stop"]:
        return should_stop(os.environ, time.time())
    if words[:1] == ["notify-save"]:
        try:
            step, path, stall_s = _arguments(words[1:])
        except ValueError as error:
            print("orch: notify-save: {}\n{}".format(error, USAGE), file=sys.stderr)
            return EXIT_USAGE
        return notify_save(step, path, stall_s, os.environ)
    print(USAGE, file=sys.stderr)
    return EXIT_USAGE


def should_stop(environ: Mapping[str, str], now: float) -> int:
    """What cannot be read asks nobody to stop."""
    from orch_trainer.control import read_control, read_notice

    if "ORCH_RUN_DIR" not in environ or "ORCH_ATTEMPT_DIR" not in environ:
        return EXIT_GO_ON
    folder = Path(environ["ORCH_ATTEMPT_DIR"])
    try:
        _register(folder, environ, now)
    except OSError:
        pass                                            # then it gets a signal like any program
    notice = read_notice(folder / "notice.json")
    control = read_control(Path(environ.get("ORCH_CONTROL_FILE") or Path(environ["ORCH_RUN_DIR"], "control.json")))
    reason = notice.reason if notice is not None else control.stop if control is not None else None
    if reason is None and _is_fenced(environ):
        reason = "a newer start has taken this run"
    if reason is None:
        return EXIT_GO_ON
    deadline = notice.deadline if notice is not None else None
    print("notice: {}{}".format(reason, "" if deadline is None else "  {:.0f} s left".format(deadline - now)), flush=True)
    return EXIT_STOP


def notify_save(step: int, path: Path, stall_s: float | None, environ: Mapping[str, str]) -> int:
    """Publish what lies at PATH: a folder directly in the checkpoint folder where it lies, anything else as a copy."""
    from orch_trainer.checkpoint import Checkpoints
    from orch_trainer.fence import Fence, Fenced
    from orch_trainer.files import Files
    from orch_trainer.settings import read_settings

    settings, began = read_settings(environ, None, None, None), time.monotonic()
    lines = Told(settings.attempt_dir, step)
    resumed = _step_of(settings.resume_from)
    checkpoints = Checkpoints(settings.checkpoint_dir, Fence(settings.epoch_file, settings.epoch), attempt=settings.attempt,
                              keep=settings.keep, files=Files(), resumed_step=resumed)
    try:
        checkpoints.check()                             # nobody copies gigabytes that could not be published
        made = _publish(checkpoints, step, path)
        durable_s = time.monotonic() - began + (stall_s or 0.0)
        lines.write("saved", "saved step {}  {:.1f} MB  {:.2f} s".format(step, made.size_bytes / 1e6, durable_s),
                    path=str(made.path), stall_s=stall_s, write_s=stall_s, durable_s=durable_s, size_bytes=made.size_bytes,
                    first=lines.is_first, background=False, waited_s=0.0, slowdown=None)
        checkpoints.retire(step)
        checkpoints.empty(checkpoints.set_aside())
    except Fenced as fenced:
        lines.write("fenced", "FENCED  a newer start ({}) has taken this run; nothing was written".format(fenced.epoch),
                    epoch=fenced.epoch)
        return EXIT_FENCED
    except OSError as error:
        why = "{}: {}".format(type(error).__name__, error)[:ERROR_CHARACTERS_MAX]
        lines.write("save_failed", "WARNING: no checkpoint of step {}: {}".format(step, why), error=why)
        return EXIT_NOT_SAVED
    return 0


class Told:
    """What is said of one save, in trainer.jsonl and on standard output."""

    def __init__(self, attempt_dir: Path | None, step: int) -> None:
        from orch_trainer.lines import Lines

        path = None if attempt_dir is None else attempt_dir / "trainer.jsonl"
        before = path.read_bytes() if path is not None and path.exists() else b""
        self.is_first = b'"event": "saved"' not in before
        self._step = step
        self._lines = Lines(path)

    def write(self, event: str, text: str, **keys: Any) -> None:
        self._lines.write(dict(keys, t=time.time(), event=event, step=self._step), text)


def _publish(checkpoints: Any, step: int, path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError("{}: no such file or folder".format(path))
    parent = checkpoints.parent
    parent.mkdir(parents=True, exist_ok=True)
    if path.resolve() in (parent.resolve(), *parent.resolve().parents):
        raise IsADirectoryError("{} holds the checkpoint folder itself: name what is to be saved".format(path))
    if path.is_dir() and path.resolve().parent == parent.resolve() and not path.name.startswith("."):
        return checkpoints.mark(step, path, checkpoints.sync(path), time.time())
    folder = checkpoints.temporary(step, os.getpid())
    checkpoints.begin(folder)
    try:
        _copy(path, folder)
        return checkpoints.publish(step, folder, checkpoints.sync(folder), time.time())
    except BaseException:
        checkpoints.discard(folder)
        raise


def _copy(path: Path, folder: Path) -> None:
    """A copy and no link: the script goes on to write into its own."""
    import shutil

    if not path.is_dir():
        shutil.copy2(str(path), str(folder / path.name))
        return
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.copytree(str(entry), str(folder / entry.name))
        else:
            shutil.copy2(str(entry), str(folder / entry.name))


def _arguments(words: Sequence[str]) -> tuple[int, Path, float | None]:
    rest, stall_s = list(words), None
    if "--stall" in rest:
        at = rest.index("--stall")
        if at + 1 >= len(rest):
            raise ValueError("--stall needs seconds")
        stall_s = _number(rest.pop(at + 1), "--stall")
        rest.pop(at)
    if len(rest) != 2:
        raise ValueError("write STEP and PATH")
    if not rest[0].isdigit():
        raise ValueError("{!r} is no step, a whole number".format(rest[0]))
    return int(rest[0]), Path(rest[1]), stall_s


def _number(word: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("{} {!r}: seconds".format(name, word))
    return value


def _step_of(folder: Path | None) -> int | None:
    from orch_trainer.complete import read_checkpoint

    found = read_checkpoint(folder) if folder is not None else None
    return found.step if found is not None else None


def _is_fenced(environ: Mapping[str, str]) -> bool:
    try:
        return int(Path(environ["ORCH_RUN_DIR"], "epoch").read_text()) > int(environ["ORCH_EPOCH"])
    except (OSError, ValueError, KeyError):
        return False


# --- who asks -------------------------------------------------------------------------------------------------------------


def _register(attempt_dir: Path, environ: Mapping[str, str], now: float) -> None:
    """Once an attempt: the process that the script is, and the attempt's first step."""
    pid, start = _script()
    host = os.uname().nodename
    path = attempt_dir / "trainers" / "{}-{}.json".format(host, pid)
    try:
        if json.loads(path.read_text())["pid_start"] == start:
            return
    except (OSError, ValueError, KeyError, TypeError):
        pass
    from orch_trainer.files import Files
    from orch_trainer.lines import Lines

    content = {"pid": pid, "pid_start": start, "host": host, "rank": 0, "epoch": int(environ.get("ORCH_EPOCH") or 0),
               "stacks_signal": None, "asks": True}
    path.parent.mkdir(exist_ok=True)
    files, temporary = Files(), attempt_dir / ".trainer-{}-{}-asks".format(host, pid)
    files.write(temporary, json.dumps(content).encode() + b"\n")
    files.rename(temporary, path)
    Lines(attempt_dir / "trainer.jsonl").write({"t": now, "event": "first_step", "step": None})


def _script() -> tuple[int, int]:
    """The topmost process of the job above this one, below the supervisor or Slurm's own, and its start: it lives as long as
    the script does, whatever subshell has asked."""
    ancestors = []
    pid = os.getppid()
    while pid > 1:
        stat = Path("/proc", str(pid), "stat").read_text()
        name, fields = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()
        if name.startswith("slurmstepd") or not _is_of_the_job(pid):
            break
        ancestors.append((pid, int(fields[19])))
        pid = int(fields[1])
    return ancestors[-1] if ancestors else (os.getppid(), 0)


def _is_of_the_job(pid: int) -> bool:
    """The supervisor gives its children what names the attempt, and has it not itself."""
    try:
        return b"ORCH_ATTEMPT_DIR=" in Path("/proc", str(pid), "environ").read_bytes()
    except OSError:
        return False
