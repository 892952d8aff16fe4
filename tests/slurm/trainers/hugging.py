"""transformers.Trainer as docs/frameworks.md shows it: a tiny GPT-2 with dropout on the text of jobs/chars.

The weights' digest goes to $ORCH_RUN_DIR/digest (outside orch into the current folder).
"""

import gzip
import hashlib
import os
import re
import sys
from pathlib import Path

import torch
import unhurried
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

steps, step_s = int(sys.argv[1]), float(sys.argv[2])
root = Path(__file__).resolve().parents[3]
folder = Path(os.environ.get("ORCH_RUN_DIR", "."))
torch.set_num_threads(1)
torch.manual_seed(1)

text = gzip.decompress((root / "jobs/chars/alice.txt.gz").read_bytes())
windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().unfold(0, 16, 16)
data = [{"input_ids": window, "labels": window} for window in windows[:1000]]
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                                   bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    os.environ.get("STAGE") or str(folder / "hf"),
    max_steps=steps, per_device_train_batch_size=4, logging_steps=5, eval_strategy="steps", eval_steps=25,
    per_device_eval_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True, seed=1, warmup_steps=20)


class Slowly(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        unhurried.wait(step_s)


page = (root / "docs/frameworks.md").read_text()
example = re.search(r"```python hf\n(.*?)```", page, re.DOTALL).group(1)
if os.environ.get("STAGE"):                             # memory of this node
    example = example.replace("OrchCallback()", "OrchCallback(in_background=True)")
exec(example.replace("callbacks=[orch]", "eval_dataset=data[:16], callbacks=[orch, Slowly]"))
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
(folder / "digest").write_text(hashlib.sha256(weights).hexdigest())
