"""Steps that take their time until the run has been interrupted as often as its test wants, however slow the machine is."""

import os
import time
from pathlib import Path

HURRY = Path(os.environ.get("ORCH_RUN_DIR", "."), "hurry")


def wait(seconds):
    """So long; half of it once the run's folder has a file `hurry`."""
    time.sleep(seconds / 2 if HURRY.exists() else seconds)
