"""A trainer with orch's library: saves for 8 s after the notice. ``finish`` as argument: finishes after three steps."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from orch_trainer import Training

FOLDER = Path(os.environ["ORCH_ATTEMPT_DIR"])


def note_signals():
    before = signal.getsignal(signal.SIGTERM)

    def handler(number, frame):
        with open(FOLDER / "signals.jsonl", "a") as file:
            file.write(json.dumps({"t": time.time(), "pid": os.getpid(), "role": "main", "sender": None}) + "\n")
        before(number, frame)

    signal.signal(signal.SIGTERM, handler)


with Training() as training:
    note_signals()
    for step in range(1, 100000):
        time.sleep(0.1)
        training.step(step, loss=1.0 / step)
        if training.should_save():
            with training.saving(step) as folder:
                (folder / "state").write_text(str(step))
                time.sleep(8.0)
        if training.should_stop() or (step == 3 and sys.argv[1:] == ["finish"]):
            break
    if sys.argv[1:] == ["finish"]:
        training.finish({"loss": 0.5})
