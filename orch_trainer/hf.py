"""transformers.Trainer under orch: `from orch_trainer.hf import OrchCallback` (docs/frameworks.md has the ten lines).

It saves when a save is due instead of every N steps, stops after a notice once that save is complete, and tells where to
resume from. The Trainer writes its `checkpoint-N` as ever; that folder's content becomes the complete checkpoint
`step-N`, with all that `Training.saving` promises. Outside orch it does nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from orch_trainer.complete import MARKER
from orch_trainer.saving import Saving
from orch_trainer.training import Training


class OrchCallback(TrainerCallback):  # type: ignore[misc]  # a class of theirs
    """For `Trainer(callbacks=[...])`. Options are those of `Training`.

    resume_from     for `Trainer.train(resume_from_checkpoint=...)`: a folder, or None on the first attempt and outside orch
    in_background   training goes on once the Trainer has written into its `output_dir`, which may be this node's memory;
                    from there it comes into the checkpoint folder, and to the disk, meanwhile
    """

    def __init__(self, *, in_background: bool = False, **options: Any) -> None:
        self._options = options
        self._in_background = in_background
        self._is_idle = "ORCH_RUN_DIR" not in os.environ
        self.resume_from: str | None = None
        if not self._is_idle:
            self._find_resume()
        self._training: Training | None = None          # while the Trainer trains
        self._save: Saving | None = None                # begun here, ended once the Trainer has written
        self._folder = Path()
        self._took_bytes = 0                            # by the latest save
        self._loss: Any = None
        self._metrics: dict[str, Any] = {}

    def _find_resume(self) -> None:
        """Orch may have chosen a `checkpoint-N` that the Trainer saved before this callback came; the library knows none."""
        chosen = os.environ.get("ORCH_RESUME_FROM", "")
        if chosen and Path(chosen, "trainer_state.json").exists() and not Path(chosen, MARKER).exists():
            self._options = dict({"environ": dict(os.environ, ORCH_RESUME_FROM="")}, **self._options)
            self.resume_from = chosen
            return
        found = Training(**self._options).resume_from
        self.resume_from = None if found is None else str(found)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._is_idle:
            return
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end=True: under OrchCallback checkpoints are saved when they are due, not "
                             "where the model is best; load the best model after the training, from evaluations of your own")
        if self._in_background and int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size)) < args.world_size:
            raise ValueError("in_background=True on several nodes: the random numbers of their ranks would stay in memory "
                             "of each; leave it out, or save to two levels (`checkpoint: {local: FOLDER}`)")
        self._training = Training(**dict({"total_steps": state.max_steps}, **self._options))
        self._training.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self._training is None:
            return None
        self._training.step(state.global_step, loss=self._loss)
        return self._decide(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return None if self._training is None else self._decide(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training is not None:
            self._training.step(state.global_step)      # a sign of life, and a moment at which ranks hear of a notice

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        self._metrics.update(metrics or {})
        if self._training is None:
            return None
        control.should_evaluate = False
        return self._decide(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        if "train_loss" in logs:
            self._metrics["train_loss"] = logs["train_loss"]

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training is None or self._save is None:
            return
        _all_ranks_are_here()                           # each writes random numbers of its own
        save, self._save = self._save, None
        if state.is_world_process_zero:
            written = _written(args, state)
            self._took_bytes = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
            move = partial(_move_content, written, self._folder)
            if self._in_background:
                save.rest(move)
            else:
                move()
        save.__exit__(None, None, None)
        self._leave_if_told(self._training)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training is not None:
            training, self._training = self._training, None
            training.finish(self._metrics)
            training.__exit__(None, None, None)

    def _decide(self, args: Any, state: Any, control: Any) -> Any:
        """Whether the Trainer saves now. Where it evaluates first, that is asked again behind the evaluation."""
        assert self._training is not None
        self._leave_if_told(self._training)             # no time for a save
        control.should_save = not control.should_evaluate and self._training.should_save()
        if control.should_save and self._save is None:
            if self._training.lacks_room(args.output_dir, self._took_bytes):    # which the Trainer would not outlive
                with self._training.saving(state.global_step):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args.output_dir)     # told, and forgiven
                control.should_save = False
                return control
            if state.is_world_process_zero:
                shutil.rmtree(str(_written(args, state)), ignore_errors=True)   # what an earlier attempt left half-written
            self._save = self._training.saving(state.global_step, background=self._in_background)
            self._folder = self._save.__enter__()
        return control

    def _leave_if_told(self, training: Training) -> None:
        if training.should_stop():
            training.__exit__(None, None, None)         # STOPPED; raises SystemExit


def _written(args: Any, state: Any) -> Path:
    return Path(args.output_dir, "checkpoint-{}".format(state.global_step))


def _move_content(source: Path, target: Path) -> None:
    try:
        for path in source.iterdir():
            shutil.move(str(path), str(target / path.name))
    finally:
        shutil.rmtree(str(source), ignore_errors=True)  # also of a full disk: it may lie in memory


def _all_ranks_are_here() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
