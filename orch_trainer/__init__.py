"""The trainer library: `from orch_trainer import Training`. Standard library only, Python 3.8 and newer.

It shares a file format with orch (docs/protocol.md) and no code, and works without orch too.
"""

from orch_trainer.training import Training

__all__ = ["Training"]
