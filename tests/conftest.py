"""Shared by all tests: helpers beside the tests are importable, hypothesis is repeatable in CI."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

for folder in ("unit", "slurm"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Where the tests run in the background of a script, SIGINT is ignored, and the programs that they start would ignore it too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
