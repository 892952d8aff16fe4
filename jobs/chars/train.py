#!/usr/bin/env python
"""A small transformer learns to write like Lewis Carroll, one character at a time, in one process or in several (torchrun).

What decides the weights is in the checkpoint: weights, optimiser, scheduler, every rank's random numbers, the sampler's
place. So an interrupted run ends with the very weights of an uninterrupted one. All ranks save and stop at one step, in
the middle of an evaluation too.
"""

import argparse
import gzip
import hashlib
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orch_trainer import Training

TEXT = Path(__file__).with_name("alice.txt.gz")
CONTEXT = 64


class Writer(nn.Module):
    """Logits of the next character at each place of a window."""

    def __init__(self, characters, width, layers):
        super().__init__()
        self.letters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, window):
        hidden = self.letters(window) + self.places.weight
        return self.head(self.body(hidden, mask=self.mask, is_causal=True))


class Sampler:
    """Windows of the text in a new order each epoch; a step's windows are dealt out to the ranks. Its place is saved."""

    def __init__(self, windows, batch, seed, rank, ranks):
        self.windows, self.batch, self.seed, self.rank, self.ranks = windows, batch, seed, rank, ranks
        self.place = {"epoch": 0, "taken": 0}

    def next(self):
        if self.place["taken"] + self.batch > len(self.windows):
            self.place = {"epoch": self.place["epoch"] + 1, "taken": 0}
        random = torch.Generator().manual_seed(1000 * self.seed + self.place["epoch"])
        order = torch.randperm(len(self.windows), generator=random)
        taken = self.place["taken"]
        self.place["taken"] += self.batch
        return self.windows[order[taken + self.rank:taken + self.batch:self.ranks]]


def read_windows():
    """Windows of CONTEXT + 1 characters as numbers: training set, held-out set, and how many characters there are."""
    text = gzip.decompress(TEXT.read_bytes()).decode("ascii").replace("\r\n", "\n").rstrip("\x1a")
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    numbers = torch.tensor([letters[letter] for letter in text])
    windows = numbers.unfold(0, CONTEXT + 1, CONTEXT)
    held_out = len(windows) // 10
    return windows[:-held_out], windows[-held_out:], len(letters)


def loss_of(model, windows):
    logits = model(windows[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def join():
    """This process's rank and how many there are."""
    if "RANK" not in os.environ:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def digest(model):
    """One number for all weights."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


class Learner:
    """All that decides the weights: model, optimiser, scheduler, the sampler's place, this rank's random numbers."""

    def __init__(self, options, train, characters, rank, ranks):
        torch.manual_seed(options.seed)
        self.model = Writer(characters, options.width, options.layers)
        torch.manual_seed(options.seed + rank)          # each rank drops out for itself
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(
            (step + 1) / options.warm_up, 0.55 + 0.45 * math.cos(math.pi * step / options.steps)))
        self.sampler = Sampler(train, options.batch, options.seed, rank, ranks)
        self.shared = DistributedDataParallel(self.model) if ranks > 1 else self.model
        self.rank = rank

    def write(self, folder, step):
        torch.save(torch.get_rng_state(), folder / f"random-{self.rank}.pt")
        if self.rank == 0:
            torch.save({"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                        "scheduler": self.scheduler.state_dict(), "place": self.sampler.place}, folder / "state.pt")

    def read(self, folder):
        """The step at which it was written."""
        saved = torch.load(folder / "state.pt", weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.sampler.place = saved["place"]
        torch.set_rng_state(torch.load(folder / f"random-{self.rank}.pt", weights_only=True))
        return saved["step"]


def stopped(training, learner, step):
    """Save where that is due; whether to stop. All ranks come to the same answer at the same call."""
    if training.should_save():
        with training.saving(step) as folder:
            learner.write(folder, step)
    return training.should_stop()


def evaluate(training, learner, step, windows, ranks):
    """The held-out loss, None if stopped in the middle: the next attempt evaluates this step again."""
    learner.model.eval()
    losses = []
    with torch.no_grad():
        for few in windows[learner.rank:len(windows) // ranks * ranks:ranks].split(8):
            losses.append(loss_of(learner.model, few))
            training.step(step)                         # a sign of life, and the moment at which the ranks agree
            if stopped(training, learner, step):
                return None
    learner.model.train()
    mean = torch.stack(losses).mean() / ranks
    if ranks > 1:
        dist.all_reduce(mean)
    return mean.item()


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="windows a step, over all ranks")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=100, metavar="STEPS")
    parser.add_argument("--evaluate-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = read_options()
    rank, ranks = join()                                # before Training: its ranks agree over this
    torch.use_deterministic_algorithms(True)
    train, held_out, characters = read_windows()
    learner = Learner(options, train, characters, rank, ranks)
    step = 0
    with Training(total_steps=options.steps, config={"width": options.width, "ranks": ranks}) as training:
        if training.resume_from:
            step = learner.read(training.resume_from)
        while True:
            if (step and step % options.evaluate_every == 0) or step == options.steps:
                held_out_loss = evaluate(training, learner, step, held_out, ranks)
                if held_out_loss is None:
                    break
                if rank == 0:
                    print(f"step {step}  held-out loss {held_out_loss:.4f}", flush=True)
            if step == options.steps:
                training.finish({"loss": held_out_loss, "weights_sha256": digest(learner.model)})
                break
            loss = loss_of(learner.shared, learner.sampler.next())
            learner.optimizer.zero_grad()
            loss.backward()
            learner.optimizer.step()
            learner.scheduler.step()
            step += 1
            training.step(step, loss=loss.detach())
            if stopped(training, learner, step):
                break


if __name__ == "__main__":
    main()
