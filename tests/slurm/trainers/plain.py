"""A trainer that knows nothing of orch: notes every SIGTERM with its sender, takes 8 s to save, then leaves with 75.

Modes: workers (two forked children, which die of a SIGTERM), session (a session of its own), ignore (never leaves),
quick (saves at once). Lines go to signals.jsonl in the attempt's folder.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["ORCH_ATTEMPT_DIR"])
SAVE_S = 8.0


def note(**words):
    with open(FOLDER / "signals.jsonl", "a") as file:
        file.write(json.dumps({"t": time.time(), "pid": os.getpid(), **words}) + "\n")


def listen(role, seconds):
    """Whether a SIGTERM came within these seconds."""
    heard = signal.sigtimedwait([signal.SIGTERM], seconds)
    if heard is not None:
        note(role=role, sender=heard.si_pid)
    return heard is not None


def worker(parent):
    while os.getppid() == parent:
        if listen("worker", 0.2):
            os._exit(15)
    os._exit(0)


def main():
    modes = set(sys.argv[1:])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if "session" in modes:
        os.setsid()
    if "workers" in modes:
        for _ in range(2):
            parent = os.getpid()
            if os.fork() == 0:
                worker(parent)
    note(role="main", began=True)
    print("training", flush=True)
    while not listen("main", 1.0):
        pass
    until = time.monotonic() + (0.1 if "quick" in modes else SAVE_S)
    while time.monotonic() < until or "ignore" in modes:
        listen("main", 0.2)
    (FOLDER / "saved").write_text("saved\n")
    sys.exit(75)


if __name__ == "__main__":
    main()
