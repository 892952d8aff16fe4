"""lightning.Trainer under orch: `from orch_trainer.lightning import OrchCallback` (docs/frameworks.md has the ten lines).

It saves when a save is due, in the middle of an epoch and of a validation too, stops after a notice once that save is
complete, and tells where to resume from. Lightning's own requeue on Slurm is turned off: two masters of one run would
fight. Outside orch it does nothing.
"""

from __future__ import annotations

import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback

from orch_trainer.files import nobody_elses
from orch_trainer.training import Training

STATE = "lightning.ckpt"


class OrchCallback(Callback):  # type: ignore[misc]  # a class of theirs
    """For `Trainer(callbacks=[...])`. Options are those of `Training`.

    resume_from     for `Trainer.fit(ckpt_path=...)`: a file, or None on the first attempt and outside orch
    in_background   a folder of this run's in the node's memory: training goes on once Lightning has written there; from
                    there it comes into the checkpoint folder, and to the disk, meanwhile
    """

    def __init__(self, *, in_background: Path | str | None = None, **options: Any) -> None:
        self._options = options
        self._stage = None if in_background is None else Path(in_background)
        self._is_idle = "ORCH_RUN_DIR" not in os.environ
        self._training: Training | None = None          # while the Trainer trains
        self._has_begun = False
        self._found = None if self._is_idle else Training(**options).resume_from
        self.resume_from = None if self._found is None else str(self._found / STATE)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before Lightning installs its handlers. They ask the connector, the only place where every strategy has it."""
        environment = trainer._accelerator_connector.cluster_environment
        if not self._is_idle and isinstance(environment, SLURMEnvironment):
            environment.auto_requeue = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The block begins here: Lightning has installed its handler of SIGTERM by now, and ours takes its place."""
        if self._is_idle:
            return
        if self._stage is not None:
            self._stage.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not nobody_elses(self._stage):           # what is saved will be loaded, and may run
                raise PermissionError("in_background={}: others may write there or above".format(self._stage))
        self._begin(trainer)
        if self._found is not None:
            self._restore_random(trainer)

    def _begin(self, trainer: Any) -> None:
        of = {} if trainer.max_steps is None or trainer.max_steps < 1 else {"total_steps": trainer.max_steps}
        self._training, self._has_begun = Training(**dict(of, **self._options)), True
        self._training.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._training is not None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._training.step(trainer.global_step, loss=loss)
            self._save_and_stop(self._training, trainer)

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if self._training is not None and not trainer.sanity_checking:
            self._training.step(trainer.global_step)    # a sign of life, and a moment at which ranks hear of a notice
            self._save_and_stop(self._training, trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._training is not None:
            training, self._training = self._training, None
            training.finish({name: value.item() for name, value in trainer.callback_metrics.items()})
            training.__exit__(None, None, None)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Resumed from the last step's checkpoint Lightning trains nothing more, and calls neither begin nor end of it; nor
        does it where there is no data."""
        steps, epochs = trainer.max_steps or 0, trainer.max_epochs or 0
        is_done = 0 < steps <= trainer.global_step or 0 < epochs <= trainer.current_epoch
        if self._found is not None and not self._has_begun and is_done:
            self._begin(trainer)
            assert self._training is not None
            self._training.step(trainer.global_step)
            self.on_train_end(trainer, pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        training, self._training = self._training, None
        if training is not None:
            training.__exit__(type(exception), exception, exception.__traceback__)

    def _save_and_stop(self, training: Training, trainer: Any) -> None:
        if training.should_save():
            saving = training.saving(trainer.global_step, background=self._stage is not None)
            with saving as folder:
                written = (self._stage or folder) / STATE
                trainer.save_checkpoint(written)
                if self._stage is not None and trainer.local_rank == 0 and written.exists():   # DDP: on the first node alone
                    saving.rest(partial(_bring, written, folder / STATE))
                torch.save({"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": _cuda()},
                           str(folder / "random-{}.pt".format(trainer.global_rank)))
        if training.should_stop():
            training.__exit__(None, None, None)         # STOPPED; raises SystemExit

    def _restore_random(self, trainer: Any) -> None:
        """Lightning keeps no random numbers of its own. One written by other ranks than today's is left alone."""
        assert self._found is not None
        path = self._found / "random-{}.pt".format(trainer.global_rank)
        if not path.exists():
            return
        saved = torch.load(str(path), weights_only=True)
        version, words, gauss = saved["python"]
        random.setstate((version, tuple(words), gauss))
        torch.set_rng_state(saved["torch"])
        if saved["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["cuda"])


def _bring(written: Path, to: Path) -> None:
    """A file, or a folder of shards: each node brings its own into the same one."""
    if written.is_dir():
        shutil.copytree(str(written), str(to), dirs_exist_ok=True)
        shutil.rmtree(str(written))
    else:
        shutil.move(str(written), str(to))


def _cuda() -> Any:
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else None
