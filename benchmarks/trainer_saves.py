"""C, t and the slowdown of a save of a given size, in the foreground and in the background, beside steps of numpy.

    python benchmarks/trainer_saves.py FOLDER [--mb 1024] [--saves 5]

FOLDER is on the storage to be measured. The write is plain: the state's bytes into one file; the snapshot is a copy.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from orch_trainer import Training

STEPS_BETWEEN = 150


def step_of(weights):
    return np.tanh(weights @ weights) * 0.01


def train(folder, state, saves, background, environ):
    """The `saved` lines of this training, but the first."""
    weights, snapshot = np.random.default_rng(0).standard_normal((384, 384)), state.copy()
    os.environ.update(environ, ORCH_RUN_DIR=str(folder / "run"), ORCH_EPOCH="1", ORCH_ATTEMPT="1")
    with Training(checkpoint_dir=folder / "run" / "checkpoints", keep=1, interval_s=1e9) as training:
        step = 0
        for _ in range(saves + 1):
            for _ in range(STEPS_BETWEEN):
                step += 1
                weights = step_of(weights)
                training.step(step)
            saving = training.saving(step, background=background)
            with saving as target:
                if background:
                    np.copyto(snapshot, state)          # into memory that is there, as pinned buffers are
                    saving.rest(lambda target=target: snapshot.tofile(target / "state"))
                else:
                    state.tofile(target / "state")
            while background and training._pace.writing:
                step += 1
                weights = step_of(weights)
                training.step(step)
        training.finish()
    lines = map(json.loads, (folder / "run" / "attempts" / "0001" / "trainer.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "saved"][1:]


def show(name, lines):
    def middle(key):
        values = [line[key] for line in lines if line[key] is not None]
        return f"{statistics.median(values):8.3f}" if values else "       -"

    print(f"{name:12} C {middle('stall_s')} s   t {middle('durable_s')} s   slowdown {middle('slowdown')}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    state = np.random.default_rng(1).integers(0, 255, options.mb << 20, dtype=np.uint8)
    rows = []
    for background in (False, True):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            (Path(folder) / "run" / "attempts" / "0001").mkdir(parents=True)
            (Path(folder) / "run" / "epoch").write_text("1")
            rows.append(("background" if background else "foreground",
                         train(Path(folder), state, options.saves, background, {"OMP_NUM_THREADS": "1"})))
    began = time.perf_counter()
    print(f"{options.mb} MB, {options.saves} saves each")
    for name, lines in rows:
        show(name, lines)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
