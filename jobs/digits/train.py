#!/usr/bin/env python
"""A small neural network learns to read handwritten digits, in numpy alone, and stands being interrupted anywhere.

Everything that decides the weights is in the checkpoint or a function of (seed, step): which images make up a step,
how they are shifted and how much noise they get. So an interrupted run ends with the very weights of an uninterrupted one.
"""

import argparse
import hashlib
import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from orch_trainer import Training

DATA = Path(__file__).with_name("digits.csv.gz")
HELD_OUT = 360
BATCH = 256
RATE, MEAN_DECAY, SQUARE_DECAY, TINY = 1e-3, 0.9, 0.999, 1e-8     # Adam


def read_digits(path):
    """Images of 8 x 8 in 0..1 and their digits: training set and held-out set, by a fixed shuffle."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(table))
    images, digits = table[order, :64].reshape(-1, 8, 8) / 16, table[order, 64].astype(int)
    return (images[HELD_OUT:], digits[HELD_OUT:]), (images[:HELD_OUT], digits[:HELD_OUT])


def batch_of(step, seed, images, digits):
    """The images of one step: drawn at random, moved by up to a pixel, with a little noise."""
    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    chosen = random.integers(len(images), size=BATCH)
    down, right = random.integers(-1, 2, size=(2, BATCH, 1))
    padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)))
    rows, columns = 1 + down + np.arange(8), 1 + right + np.arange(8)
    moved = padded[np.arange(BATCH)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved + 0.1 * random.standard_normal(moved.shape, dtype=np.float32), digits[chosen]


def new_state(seed, hidden):
    """Weights, and Adam's means of gradients and of their squares."""
    random = np.random.Generator(np.random.PCG64(seed))
    state, sizes = {}, [64, hidden, hidden, 10]
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        scale = np.float32(np.sqrt(2 / inputs))
        state[f"weight{layer}"] = scale * random.standard_normal((inputs, outputs), dtype=np.float32)
        state[f"bias{layer}"] = np.zeros(outputs, np.float32)
    for name in list(state):
        state[f"mean.{name}"], state[f"square.{name}"] = np.zeros_like(state[name]), np.zeros_like(state[name])
    return state


def forward(state, images):
    """The activations of every layer; the last one's are the logarithms of the ten probabilities."""
    layers = [images.reshape(len(images), 64)]
    for layer in range(2):
        layers.append(np.maximum(layers[-1] @ state[f"weight{layer}"] + state[f"bias{layer}"], 0))
    scores = layers[-1] @ state["weight2"] + state["bias2"]
    scores -= scores.max(axis=1, keepdims=True)
    return [*layers, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))]


def train_step(state, step, images, digits):
    """One step of Adam on the cross-entropy; the loss before it."""
    *layers, logs = forward(state, images)
    error = np.exp(logs)
    error[np.arange(len(digits)), digits] -= 1
    error /= len(digits)
    for layer in (2, 1, 0):
        gradients = {f"weight{layer}": layers[layer].T @ error, f"bias{layer}": error.sum(axis=0)}
        error = (error @ state[f"weight{layer}"].T) * (layers[layer] > 0)
        for name, gradient in gradients.items():
            mean, square = state[f"mean.{name}"], state[f"square.{name}"]
            mean += (1 - MEAN_DECAY) * (gradient - mean)
            square += (1 - SQUARE_DECAY) * (gradient * gradient - square)
            size = np.sqrt(square / (1 - SQUARE_DECAY**step)) + TINY
            state[name] -= RATE / (1 - MEAN_DECAY**step) * mean / size
    return -logs[np.arange(len(digits)), digits].mean()


def accuracy(state, images, digits):
    return float((forward(state, images)[-1].argmax(axis=1) == digits).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--hidden", type=int, default=512, help="width of the two hidden layers: the work of a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=1000, metavar="STEPS")
    parser.add_argument("--out", type=Path, default=os.environ.get("ORCH_ATTEMPT_DIR", "."), help="where weights.npz goes")
    options = parser.parse_args()
    train, held_out = read_digits(DATA)

    with Training(total_steps=options.steps, config={"hidden": options.hidden, "seed": options.seed}) as training:
        step, state = 0, new_state(options.seed, options.hidden)
        if training.resume_from:
            with np.load(training.resume_from / "state.npz") as saved:
                step, state = int(saved["step"]), {name: saved[name] for name in state}
        while step < options.steps:
            step += 1
            loss = train_step(state, step, *batch_of(step, options.seed, *train))
            training.step(step, loss=loss)
            if step % options.evaluate_every == 0:
                print(f"step {step}  held-out accuracy {accuracy(state, *held_out):.4f}", flush=True)
            if training.should_save():
                with training.saving(step) as folder:
                    np.savez(folder / "state.npz", step=step, **state)
            if training.should_stop():
                break
        else:
            weights = {name: state[name] for name in state if "." not in name}
            digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
            np.savez(options.out / "weights.npz", **weights)
            training.finish({"accuracy": accuracy(state, *held_out), "weights_sha256": digest})


if __name__ == "__main__":
    main()
