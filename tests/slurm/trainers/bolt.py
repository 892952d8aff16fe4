"""lightning.Trainer as docs/frameworks.md shows it: a tiny network with dropout on the text of jobs/chars.

The weights' digest goes to $ORCH_RUN_DIR/digest (outside orch into the current folder).
"""

import gzip
import hashlib
import os
import re
import sys
from pathlib import Path

import lightning
import torch
import unhurried
from torch import nn

steps, step_s = int(sys.argv[1]), float(sys.argv[2])
root = Path(__file__).resolve().parents[3]
folder = Path(os.environ.get("ORCH_RUN_DIR", "."))
torch.set_num_threads(1)
lightning.seed_everything(1)

text = gzip.decompress((root / "jobs/chars/alice.txt.gz").read_bytes())
windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, 9, 8)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 128))

    def training_step(self, batch, batch_idx):
        unhurried.wait(step_s)
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(batch[:, :8]), batch[:, 8])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5), "interval": "step"}]


class Batches:
    """Batches in a new order each epoch, whose place is saved: what Lightning calls a stateful loader."""

    def __init__(self, windows):
        self.windows, self.epoch, self.taken = windows, -1, 0
        self.resumed = False

    def __len__(self):
        return len(self.windows) // 8

    def __iter__(self):
        if not self.resumed:
            self.epoch, self.taken = self.epoch + 1, 0
        self.resumed = False
        order = torch.randperm(len(self.windows), generator=torch.Generator().manual_seed(self.epoch))
        while self.taken < len(self):
            self.taken += 1
            yield self.windows[order[8 * (self.taken - 1):8 * self.taken]]

    def state_dict(self):
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state):
        self.epoch, self.taken, self.resumed = state["epoch"], state["taken"], True


model, data = Model(), Batches(windows[:800])
held_out = torch.utils.data.DataLoader(windows[-64:], batch_size=32)
options = {"max_steps": steps, "max_epochs": -1, "val_check_interval": 25, "accelerator": "cpu",
           "devices": int(os.environ.get("RANKS", "1")),
           "default_root_dir": str(folder / "lightning"), "logger": False, "enable_checkpointing": False,
           "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
page = (root / "docs/frameworks.md").read_text()
example = re.search(r"```python lightning\n(.*?)```", page, re.DOTALL).group(1)
if os.environ.get("STAGE"):                             # memory of this node
    example = example.replace("OrchCallback()", "OrchCallback(in_background=os.environ['STAGE'])")
names = {"os": os, "model": model, "data": data, "held_out": held_out, "options": options}
exec(example.replace("callbacks=[orch]", "callbacks=[orch], **options").replace("data,", "data, held_out,"), names)
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
(folder / "digest").write_text(hashlib.sha256(weights).hexdigest())
environment = names["trainer"]._accelerator_connector.cluster_environment
print(f"{type(environment).__name__} requeues: {getattr(environment, 'auto_requeue', None)}", flush=True)
