"""For trainers that are shell scripts: `orch should-save`, `orch notify-save STEP PATH` and `orch should-stop`.

    while (( step < 100 )); do
      ./simulate state.bin && step=$((step + 1))
      if orch should-save; then orch notify-save "$step" state.bin; fi
      if orch should-stop; then orch notify-save "$step" state.bin; exit 0; fi
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

EXIT_STOP = EXIT_SAVE = 0
EXIT_GO_ON, EXIT_USAGE, EXIT_FENCED = 1, 2, 76
EXIT_NOT_SAVED = 1
ERROR_CHARACTERS_MAX = 1000
USAGE = """usage: should-stop                          exit code 0: a notice or a stop request came, save and leave; 1: go on
       should-save                          exit code 0: a save is due or was asked for; 1: go on
       notify-save STEP PATH [--stall S]    PATH, a file or a folder, is the state after STEP: make it a complete checkpoint
                                            (S: seconds for which training stood still to write it)"""


def main(words: Sequence[str]) -> int:
    """The exit code."""
    if list(words) == ["should-stop"]:
        return should_stop(os.environ, time.time())
    if list(words) == ["should-save"]:
        return should_save(os.environ, time.time())
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
    if _is_outside(environ):
        return EXIT_GO_ON
    folder = Path(environ["ORCH_ATTEMPT_DIR"])
    try:
        _register(folder, environ, now)
    except OSError:
        pass                                            # then it gets a signal like any program
    reason, deadline = _notice(environ)
    if reason is None:
        return EXIT_GO_ON
    print("notice: {}{}".format(reason, "" if deadline is None else "  {:.0f} s left".format(deadline - now)), flush=True)
    return EXIT_STOP


def should_save(environ: Mapping[str, str], now: float) -> int:
    """By the interval, by `orch save`, or by a time in `save_at:`. At a notice it is `should-stop` that asks for a save. What
    cannot be read asks nobody."""
    from orch_trainer.pace import Pace
    from orch_trainer.settings import next_time, read_settings

    if _is_outside(environ) or _notice(environ)[0] is not None:
        return EXIT_GO_ON
    settings, control, folder = read_settings(environ, None, None, None), _control(environ), Path(environ["ORCH_ATTEMPT_DIR"])
    try:
        begun = _newest_line(folder, "saving", "first_step")
        saved = _newest_line(folder, "saved")
        if begun is None:
            _first_step(folder, environ, now)
    except OSError:
        begun = saved = None
    if begun is None:
        return EXIT_GO_ON
    interval_s = control.interval_s if control is not None else None
    pace = Pace(interval_s=interval_s or settings.interval_s, now=begun["t"], wall=begun["t"], saved_step=None,
                deadline=settings.deadline, lead_s=settings.lead_s or 0.0,
                next_time=lambda wall: next_time(settings.save_times, wall))
    pace.request_save(begun.get("request") or 0)        # what was asked for before is answered by then
    pace.request_save(control.save if control is not None else 0)
    if saved is not None:
        pace.save_done(saved["step"], saved["durable_s"])
    return EXIT_SAVE if pace.save_due(now, now) else EXIT_GO_ON


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
    control = _control(environ)
    lines.write("saving", "", request=None if control is None else control.save)
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


def _is_outside(environ: Mapping[str, str]) -> bool:
    return "ORCH_RUN_DIR" not in environ or "ORCH_ATTEMPT_DIR" not in environ


def _notice(environ: Mapping[str, str]) -> tuple[str | None, float | None]:
    """Why to stop, and when this attempt will be killed."""
    from orch_trainer.control import read_notice

    notice, control = read_notice(Path(environ["ORCH_ATTEMPT_DIR"], "notice.json")), _control(environ)
    if notice is not None:
        return notice.reason, notice.deadline
    reason = control.stop if control is not None else None
    if reason is None and _is_fenced(environ):
        reason = "a newer start has taken this run"
    return reason, None


def _control(environ: Mapping[str, str]) -> Any:
    from orch_trainer.control import read_control

    path = environ.get("ORCH_CONTROL_FILE") or os.path.join(environ.get("ORCH_RUN_DIR", ""), "control.json")
    return read_control(Path(path))


def _newest_line(folder: Path, *events: str) -> Any:
    """What was said last in this attempt, of these events; None if nothing was. Raises OSError."""
    path = folder / "trainer.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""     # the last line may be torn
    for line in reversed(whole.splitlines()):
        if any('"event": "{}"'.format(event).encode() in line for event in events):
            return json.loads(line.decode())
    return None


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

    content = {"pid": pid, "pid_start": start, "host": host, "rank": 0, "epoch": int(environ.get("ORCH_EPOCH") or 0),
               "stacks_signal": None, "asks": True}
    path.parent.mkdir(exist_ok=True)
    files, temporary = Files(), attempt_dir / ".trainer-{}-{}-asks".format(host, pid)
    files.write(temporary, json.dumps(content).encode() + b"\n")
    files.rename(temporary, path)
    if _newest_line(attempt_dir, "first_step") is None:
        _first_step(attempt_dir, environ, now)


def _first_step(attempt_dir: Path, environ: Mapping[str, str], now: float) -> None:
    """Saves that were asked for until now were asked of somebody before us."""
    from orch_trainer.lines import Lines

    control = _control(environ)
    Lines(attempt_dir / "trainer.jsonl").write({"t": now, "event": "first_step", "step": None,
                                                "request": None if control is None else control.save})


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
