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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="windows a step, over all ranks")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=100, metavar="STEPS")
    parser.add_argument("--evaluate-every", type=int, default=500, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    rank, ranks = join()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    train, held_out, characters = read_windows()
    model = Writer(characters, options.width, options.layers)
    torch.manual_seed(options.seed + rank)              # each rank drops out for itself
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / options.warm_up, 0.55 + 0.45 * math.cos(math.pi * step / options.steps)))
    sampler = Sampler(train, options.batch, options.seed, rank, ranks)
    shared = DistributedDataParallel(model) if ranks > 1 else model
    step = 0

    def write(folder):
        torch.save(torch.get_rng_state(), folder / f"random-{rank}.pt")
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(), "place": sampler.place}, folder / "state.pt")

    def read(folder):
        saved = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        sampler.place = saved["place"]
        torch.set_rng_state(torch.load(folder / f"random-{rank}.pt", weights_only=True))
        return saved["step"]

    def stopped():
        """Save where that is due; whether to stop. All ranks come to the same answer at the same call."""
        if training.should_save():
            with training.saving(step) as folder:
                write(folder)
        return training.should_stop()

    def evaluate():
        """The held-out loss, None if stopped in the middle: the next attempt evaluates this step again."""
        model.eval()
        losses = []
        with torch.no_grad():
            for windows in held_out[rank:len(held_out) // ranks * ranks:ranks].split(8):
                losses.append(loss_of(model, windows))
                training.step(step)                     # a sign of life, and the moment at which the ranks agree
                if stopped():
                    return None
        model.train()
        mean = torch.stack(losses).mean() / ranks
        if ranks > 1:
            dist.all_reduce(mean)
        return mean.item()

    with Training(total_steps=options.steps, config={"width": options.width, "ranks": ranks}) as training:
        if training.resume_from:
            step = read(training.resume_from)
        while True:
            if (step and step % options.evaluate_every == 0) or step == options.steps:
                held_out_loss = evaluate()
                if held_out_loss is None:
                    break
                if rank == 0:
                    print(f"step {step}  held-out loss {held_out_loss:.4f}", flush=True)
            if step == options.steps:
                training.finish({"loss": held_out_loss, "weights_sha256": digest(model)})
                break
            loss = loss_of(shared, sampler.next())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            training.step(step, loss=loss.detach())
            if stopped():
                break


if __name__ == "__main__":
    main()
