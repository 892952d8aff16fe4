"""A training that saves in the background, each write taking WRITE_S; or, with `levels`, dies at step 40 by SIGKILL, once."""

import os
import signal
import sys
import time

from orch_trainer import Training

WRITE_S, STEPS = 1.5, 700
levels = sys.argv[1:] == ["levels"]


def write(folder, step):
    (folder / "state").write_text(str(step))
    time.sleep(0 if levels else WRITE_S)


with Training() as training:
    step = int((training.resume_from / "state").read_text()) if training.resume_from else 0
    print("resumed at", step, "from", training.resume_from, flush=True)
    while step < (60 if levels else STEPS):
        step += 1
        time.sleep(0.1)
        training.step(step)
        if training.should_save():
            saving = training.saving(step, background=not levels)
            with saving as folder:
                if levels:
                    write(folder, step)
                else:
                    saving.rest(lambda folder=folder, step=step: write(folder, step))
        if levels and step == 40 and not training.resume_from:
            os.kill(os.getpid(), signal.SIGKILL)
        if training.should_stop():
            break
    else:
        training.finish({"steps": step})
