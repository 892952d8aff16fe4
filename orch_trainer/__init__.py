"""The trainer library: `from orch_trainer import Training`. Standard library only, Python 3.8 and newer.

It shares a file format with orch (docs/protocol.md) and no code, and works without orch too. `reading(folder)` holds a
checkpoint for an evaluation beside the training. Names are imported when they are asked for: `python -m orch_trainer
should-stop` runs after every step of a shell's loop and needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orch_trainer.complete import reading
    from orch_trainer.training import Training

__all__ = ["Training", "reading"]


def __getattr__(name: str) -> Any:
    if name == "Training":
        from orch_trainer.training import Training
        return Training
    if name == "reading":
        from orch_trainer.complete import reading
        return reading
    raise AttributeError("module 'orch_trainer' has no attribute {!r}".format(name))
