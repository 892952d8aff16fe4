"""What the callbacks for transformers.Trainer and Lightning cost at a step at which nothing is due: microseconds per call.

    python benchmarks/callbacks_step.py [--calls 20000]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

LIMIT_US = 50


def microseconds_per_call(call, calls):
    """The best of five rounds: the others were disturbed."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter_ns() - began) / calls / 1000)
    return min(rounds)


def hf(calls):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from orch_trainer.hf import OrchCallback

    arguments = TrainingArguments(tempfile.mkdtemp(), report_to=[], use_cpu=True)
    state, control, callback = TrainerState(max_steps=10 ** 9, global_step=7), TrainerControl(), OrchCallback()
    callback.on_train_begin(arguments, state, control)
    return microseconds_per_call(lambda: callback.on_step_end(arguments, state, control), calls)


def lightning(calls):
    import torch

    from orch_trainer.lightning import OrchCallback

    trainer, outputs = SimpleNamespace(max_steps=10 ** 9, global_step=7), {"loss": torch.tensor(0.5)}
    callback = OrchCallback()
    callback.on_train_start(trainer, None)
    return microseconds_per_call(lambda: callback.on_train_batch_end(trainer, None, outputs, None, 0), calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    calls = parser.parse_args().calls
    found = {}
    for name, measure in (("transformers.Trainer", hf), ("Lightning", lightning)):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "epoch").write_text("000000000001\n")
            os.environ.update(ORCH_RUN_DIR=folder, ORCH_EPOCH="1")
            found[name] = measure(calls)
    for name, cost_us in found.items():
        print(f"{name:22} {cost_us:6.1f} us   limit {LIMIT_US} us")
    return 0 if max(found.values()) < LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
