"""Which rank this process is, and how all ranks come to the same answer.

Rank 0 decides on saves and stops; everybody learns it from one small all-reduce (element-wise max of integers).
"""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, List, Mapping

Agree = Callable[[List[int]], List[int]]
SHARE_OF_STEP = 0.001               # what agreeing may cost
ROUND_STEPS_MAX = 1000
ROUND_S_MAX = 5.0                   # a notice waits no longer than this for its round
GROWTH_MAX = 4                      # of the distance, from one round to the next: a single step says little of the next ones


class Team:
    """This process among its ranks."""

    def __init__(self, rank: int, size: int, agree: Agree | None) -> None:
        if size > 1 and agree is None:
            raise RuntimeError(
                "rank {} of {}: several ranks must agree when to save and to stop. Call "
                "torch.distributed.init_process_group() before `with Training()`, or give Training(agree=...), a "
                "function that returns the element-wise maximum of a list of integers over all ranks".format(rank, size))
        self.rank = rank
        self.size = size
        self._agree = agree

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, values: list[int]) -> list[int]:
        """The element-wise maximum over all ranks; also a barrier."""
        if self.size == 1 or self._agree is None:
            return values
        return [int(value) for value in self._agree(values)]


class Rounds:
    """Every few steps all ranks take over what rank 0 decided; in between nobody's answer changes."""

    def __init__(self, team: Team, monotonic: Callable[[], float]) -> None:
        self.save = False
        self.stop = False
        self._team = team
        self._monotonic = monotonic
        self._left = 0                                  # steps until the next round
        self._distance = 0                              # steps from the last round to the next, 0 before the first
        self._steps = 1                                 # rank 0's wish for it, from measurement
        self._ended = 0.0

    def is_due(self) -> bool:
        """Counts one step."""
        self._left -= 1
        return self._left <= 0

    def hold(self, *, save: bool, stop: bool, noticed: bool) -> bool:
        """One round; whether any rank has had notice. Only rank 0's `save` and `stop` count."""
        began = self._monotonic()
        leads = self._team.leads
        step_s = (began - self._ended) / self._distance if self._distance else 0.0
        save_now, stop_now, noticed_now, self._distance = self._team.agree(
            [int(leads and save), int(leads and stop), int(noticed), self._steps if leads else 0])
        self.save, self.stop = bool(save_now), bool(stop_now)
        if noticed_now:
            self._distance = 1                          # the next step saves
        self._left = self._distance
        self._ended = self._monotonic()
        self._steps = min(steps_per_round(self._ended - began, step_s), GROWTH_MAX * self._distance)
        return bool(noticed_now)

    def saved(self, *, stop: bool) -> None:
        """After a save, so that everybody may stop at once."""
        self.save = False
        self.stop = bool(self._team.agree([int(self._team.leads and stop)])[0])


def find_team(environ: Mapping[str, str], agree: Agree | None) -> Team:
    distributed = _torch_distributed()
    if distributed is not None:
        return Team(distributed.get_rank(), distributed.get_world_size(), agree or _torch_agree)
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return Team(int(environ["RANK"]), int(environ["WORLD_SIZE"]), agree)
    tasks = int(environ.get("SLURM_NTASKS") or 1)
    if tasks > 1 and environ.get("SLURM_STEP_ID") and "SLURM_PROCID" in environ:
        return Team(int(environ["SLURM_PROCID"]), tasks, agree)
    return Team(0, 1, agree)


def steps_per_round(agree_s: float, step_s: float) -> int:
    """So many steps between two rounds that agreeing costs less than SHARE_OF_STEP; 1 while nothing is measured."""
    if step_s <= 0:
        return 1
    cheap = math.ceil(agree_s / (SHARE_OF_STEP * step_s))
    return max(1, min(ROUND_STEPS_MAX, cheap, math.ceil(ROUND_S_MAX / step_s)))


def _torch_distributed() -> Any:
    """torch.distributed where the user has imported and initialised it; we never import it."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _torch_agree(values: list[int]) -> list[int]:
    torch: Any = sys.modules["torch"]
    distributed = torch.distributed
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]
