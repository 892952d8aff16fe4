"""Two ranks save with torch.distributed.checkpoint: `dcp.py STEPS STEP_S WRITE_S`, with `async_save` where WRITE_S > 0.

A write then takes at least WRITE_S behind its own data, so that an interruption finds one half done. The state is torch's
own form of model and optimiser, every rank's random numbers, and the step.
"""

import hashlib
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import unhurried
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from orch_trainer import Training

STEPS, STEP_S, WRITE_S = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])


class SlowDisk(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        written = super().write_data(plan, planner)
        time.sleep(WRITE_S)
        return written


dist.init_process_group("gloo")
rank = dist.get_rank()
for_saves = dist.new_group(backend="gloo")          # async_save's thread has collectives of its own, beside the training's
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 512), nn.Dropout(0.2), nn.ReLU(), nn.Linear(512, 64))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + rank)                         # each rank draws its data and drops out for itself


def state_at(step):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step), f"random-{rank}": torch.get_rng_state()}


def restore(folder):
    optimizer.zero_grad()
    state = state_at(0)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.set_rng_state(state[f"random-{rank}"])
    return int(state["step"])


with Training(total_steps=STEPS) as training:
    step = restore(training.resume_from) if training.resume_from else 0
    while step < STEPS:
        unhurried.wait(STEP_S)
        seen = torch.randn(16, 64)
        loss = (model(seen) - seen.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        training.step(step, loss=loss.detach())
        if training.should_save():
            saving = training.saving(step, background=WRITE_S > 0)
            with saving as folder:
                if WRITE_S > 0:
                    saving.rest(dcp.async_save(state_at(step), storage_writer=SlowDisk(folder), process_group=for_saves))
                else:
                    dcp.save(state_at(step), checkpoint_id=folder)
        if training.should_stop():
            break
    else:
        weights = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
        training.finish({"weights_sha256": hashlib.sha256(weights).hexdigest()})
