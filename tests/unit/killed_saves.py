"""Kills a saving trainer at each of its file operations in turn, and looks at what is left. One JSON line a kill.

    python tests/unit/killed_saves.py FOLDER foreground|background [--table]

Counted are the calls of `os` that change a file system, in whatever thread: the library's and the trainer's own. At the
k-th the process kills itself right before it; at a write, half of the bytes are written first. `saved` is the newest step
whose save the trainer had been told to be complete. Then the run is started anew, as the next attempt, and saves once.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from orch_trainer import Training
from orch_trainer.complete import complete_checkpoints, damage

CALLS = ("mkdir", "open", "write", "pwrite", "fsync", "rename", "unlink", "rmdir", "ftruncate")
STEPS = 2                           # with keep=1 the second one removes the first
PIECES = 3


def content(step):
    return [bytes([step]) * (1000 * step + piece) for piece in range(PIECES)]


class Deadly:
    """Counts, tells which call comes, and ends the process at the k-th."""

    def __init__(self, kill_at, tell):
        self.left, self.tell, self.lock = kill_at, tell, threading.Lock()
        self.real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, lambda *args, _name=name, **keys: self.call(_name, *args, **keys))

    def call(self, name, *args, **keys):
        if (args and args[0] == self.tell) or (name == "open" and not args[1] & os.O_CREAT):
            return self.real[name](*args, **keys)
        with self.lock:
            self.left -= 1
            if self.left == 0:
                told = {"call": name, "path": self.path(name, args, keys)}
                self.real["write"](self.tell, json.dumps(told).encode() + b"\n")
                if name in ("write", "pwrite"):
                    self.real["write"](args[0], bytes(args[1])[:len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        return self.real[name](*args, **keys)

    def path(self, name, args, keys):
        path = str(args[0])
        if isinstance(args[0], int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif keys.get("dir_fd") is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{keys['dir_fd']}"), path)
        return path


def save(training, step, background, tell):
    def write(folder):
        for piece, data in enumerate(content(step)):
            name = folder / "shards" / str(piece) if piece else folder / "state"
            name.parent.mkdir(exist_ok=True)
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(descriptor, data)
            os.close(descriptor)

    training.step(step)
    saving = training.saving(step, background=background)
    with saving as folder:
        if background:
            saving.rest(lambda: write(folder))
        else:
            write(folder)
    if background:
        training._saver.wait()
    os.write(tell, json.dumps({"saved": step}).encode() + b"\n")


def train(run_dir, epoch, attempt, steps, background, tell, kill_at=0):
    os.environ.update(ORCH_RUN_DIR=str(run_dir), ORCH_EPOCH=str(epoch), ORCH_ATTEMPT=str(attempt))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    training = Training(keep=1)
    resumed = int(training.resume_from.name.split("-")[1]) if training.resume_from else 0
    if kill_at:
        Deadly(kill_at, tell)
    with training:
        os.write(tell, json.dumps({"resumed": resumed}).encode() + b"\n")
        for step in steps:
            save(training, step, background, tell)
        training.finish()
    return 0


def forked(*args, **keys):
    """What the process told, and its wait status."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        code = 9
        try:
            code = train(*args, tell=write_end, **keys)
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as told:
        lines = [json.loads(line) for line in told]
    return lines, os.waitpid(child, 0)[1]


def newest_of(checkpoints):
    """The newest complete step (0: none), and whether its content is what was written."""
    found = complete_checkpoints(checkpoints)
    if not found:
        return 0, True
    step, path = found[-1].step, found[-1].path
    data = [(path / (f"shards/{piece}" if piece else "state")).read_bytes() for piece in range(PIECES)]
    return step, data == content(step) and not damage(path)


def kill_one(folder, kill_at, background):
    run_dir = folder / str(kill_at)
    checkpoints = run_dir / "checkpoints"
    checkpoints.mkdir(parents=True)
    (run_dir / "epoch").write_text("7")
    lines, status = forked(run_dir, 7, 1, range(1, STEPS + 1), background, kill_at=kill_at)
    newest, whole = newest_of(checkpoints)
    complete = {one.path.name for one in complete_checkpoints(checkpoints)}
    call = next((line for line in lines if "call" in line), {"call": "none", "path": ""})
    report = {
        "kill_at": kill_at, "killed": os.WIFSIGNALED(status), **call, "newest": newest, "whole": whole,
        "saved": max((line["saved"] for line in lines if "saved" in line), default=0),
        "incomplete": [path.name for path in checkpoints.iterdir() if path.name[0] != "." and path.name not in complete],
        "left": sorted(path.name.split("-")[0] for path in checkpoints.glob(".*"))}
    (run_dir / "epoch").write_text("8")
    if newest:
        os.environ["ORCH_RESUME_FROM"] = str(checkpoints / f"step-{newest:08d}")
    after, status = forked(run_dir, 8, 2, [10], background)
    os.environ.pop("ORCH_RESUME_FROM", None)
    report.update(after_status=status, resumed=next((line["resumed"] for line in after if "resumed" in line), None),
                  after=newest_of(checkpoints), after_left=[path.name for path in checkpoints.glob(".*")])
    return report


def what(report):
    """The operation in words: the call, and what kind of path it was about."""
    path = Path(report["path"])
    checkpoints = next((i for i, part in enumerate(path.parts) if part == "checkpoints"), None)
    if checkpoints is None or len(path.parts) == checkpoints + 1:
        kind = path.name if path.suffix else "folder of the run"
        kind = "registration" if "-" in kind or "trainers" in path.parts else kind
    else:
        first, *rest = path.parts[checkpoints + 1:]
        where = first.lstrip(".").split("-")[0] if first.startswith(".") else "step"
        kind = f"{where}/{'/'.join(rest)}" if rest else where
    return f"{report['call']} {kind}"


def table(reports):
    """Operation by operation, alike ones together: what was the newest checkpoint after a kill there."""
    rows = {}
    for report in reports:
        rows.setdefault(what(report), []).append(report)
    print("| killed at | times | newest complete | left behind | next start |")
    print("|---|---|---|---|---|")
    for name, found in rows.items():
        newest = sorted({"none" if r["newest"] == 0 else f"step {r['newest']}" for r in found})
        left = sorted({" ".join(r["left"]) or "nothing" for r in found})
        fine = all(r["whole"] and not r["incomplete"] and r["newest"] >= r["saved"] for r in found)
        after = all(r["after"] == (10, True) and not r["after_left"] and r["resumed"] == r["newest"] for r in found)
        print(f"| {name} | {len(found)} | {', '.join(newest)}{'' if fine else ' WRONG'} | {', '.join(left)} | "
              f"{'resumed from it, saved, cleaned up' if after else 'WRONG'} |")


def main():
    folder, background = Path(sys.argv[1]), sys.argv[2] == "background"
    reports = [{"killed": True}]
    began = time.monotonic()
    while reports[-1]["killed"]:
        reports.append(kill_one(folder, len(reports), background))
        if "--table" not in sys.argv:
            print(json.dumps(reports[-1]), flush=True)
    if "--table" in sys.argv:
        table(reports[1:-1])
    print(f"{len(reports) - 2} kills in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
