"""What `training.step()` costs when nothing is due, against an empty method: nanoseconds per call.

    python benchmarks/trainer_step.py [--calls 1000000]
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orch_trainer import Training

LIMIT_NS = 2000


class Empty:
    def step(self, step, loss=None, **numbers):
        """The least a call with these arguments can cost."""


def nanoseconds_per_call(call, calls):
    """The best of five rounds: the others were disturbed."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for step in range(calls):
            call(step, loss=0.5)
        rounds.append((time.perf_counter_ns() - began) / calls)
    return min(rounds)


def polled_ns(training, calls):
    """A whole loop's share: step, should_save and should_stop."""

    def call(step, loss):
        training.step(step, loss=loss)
        training.should_save()
        training.should_stop()

    return nanoseconds_per_call(call, calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder, Training(checkpoint_dir=Path(folder, "checkpoints")) as training:
        empty = nanoseconds_per_call(Empty().step, calls)
        step = nanoseconds_per_call(training.step, calls)
        print(f"empty method                      {empty:7.0f} ns")
        print(f"step()                            {step:7.0f} ns   limit {LIMIT_NS} ns")
        print(f"step(), should_save, should_stop  {polled_ns(training, calls):7.0f} ns")
        over = threading.Event()
        saving = training.saving(calls, background=True)
        with saving as checkpoint:
            saving.rest(lambda: (over.wait(), Path(checkpoint, "state").write_bytes(b"x")))
        writing = nanoseconds_per_call(training.step, calls)
        print(f"step() while a save is written    {writing:7.0f} ns")
        print(f"all three while one is written    {polled_ns(training, calls):7.0f} ns")
        over.set()
        training.finish({"step_ns": step})
    return 0 if step < LIMIT_NS else 1


if __name__ == "__main__":
    sys.exit(main())
