"""A training of small steps that fails on demand: STEPS, STEP_S, and DO="STEP:WHAT,...", WHAT one of crash, kill, exit0,
hang (in a step that never ends: deaf to a notice), slow (ten times as long a step from there on), stop (SIGSTOPs itself), eat
(allocates without end), eat-worker (a child of its does, and is killed for it: this program goes on), phase (announces five
seconds and takes them), wait (for a file `go` in the run's folder, or a notice: what a test does meanwhile comes before the
next step, however slow the machine is). TAKEN=1: SIGUSR2 is its own.

Each is done once in a run, the first time that its step is reached; with "-always" behind it, every time.
"""

import os
import signal
import sys
import time
from pathlib import Path

from orch_trainer import Training

steps, step_s = int(os.environ.get("STEPS", "40")), float(os.environ.get("STEP_S", "0.05"))
plan = dict(item.split(":") for item in os.environ.get("DO", "").split(",") if item)


def eat(alone):
    """Allocate at most 2 GB, by oneself or in a child that is waited for."""
    pid = 0 if alone else os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    eaten = []
    for _ in range(100):
        eaten.append(b"x" * 20_000_000)
        time.sleep(0.01)
    os._exit(1)


if os.environ.get("TAKEN"):
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

with Training() as training:
    state = int((training.resume_from / "state").read_text()) if training.resume_from else 0
    while state < steps:
        state += 1
        time.sleep(step_s)
        training.step(state, loss=1 / state)
        what = plan.get(str(state), "")
        done = Path(os.environ["ORCH_RUN_DIR"]) / f"did-{state}"
        if what and ("always" in what or not done.exists()):
            done.touch()
            if what.startswith("crash"):
                raise RuntimeError("as planned")
            if what.startswith("slow"):
                step_s *= 10
                continue
            while what.startswith("hang"):
                time.sleep(1.0)
            if what.startswith("eat"):
                eat(alone=what == "eat")
                continue
            while what == "wait" and not training.should_stop() and not done.with_name("go").exists():
                time.sleep(0.05)
            if what == "wait":
                continue
            if what.startswith("phase"):
                with training.phase("evaluation", at_most_s=20):
                    time.sleep(5.0)
                continue
            if what.startswith("stop"):
                os.kill(os.getpid(), signal.SIGSTOP)
                continue
            if what.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        if training.should_save():
            with training.saving(state) as folder:
                (folder / "state").write_text(str(state))
        if training.should_stop():
            break
    else:
        training.finish({"state": state})
sys.exit(0)
