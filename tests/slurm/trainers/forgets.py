"""A training whose loss falls with its weight, and which resumes as FORGETS says: "nothing", "step" (it begins again),
"weights" (the step goes on, the weight is new).
"""

import os
import random
import time

from orch_trainer import Training

forgets = os.environ["FORGETS"]
with Training() as training:
    step, weight = 0, 1.0
    if training.resume_from and forgets != "step":
        step, weight = map(float, (training.resume_from / "state").read_text().split())
        if forgets == "weights":
            weight = 1.0
    while True:
        step, weight = int(step) + 1, weight * 0.995
        time.sleep(0.05)
        training.step(step, loss=1 + 4 * weight + random.gauss(0, 0.02))
        if training.should_save():
            with training.saving(step) as folder:
                (folder / "state").write_text(f"{step} {weight}")
        if training.should_stop():
            break
