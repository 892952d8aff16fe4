"""What a run waits for before its first attempt (``after:``): one meaning for the gate, the daemon and the views. Pure.

``finished`` is met by the other run's real end, whatever number of attempts that takes; ``ended`` by any end, also a cancel
and a failure. A condition is *lost* when it cannot be met by itself any more: the run that waits is then held ``by`` its
upstream, taken out of the queue, and goes on by itself if a person makes the other one go on. So is whatever waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model import After, Phase, Run

HELD_BY_UPSTREAM = "upstream"
_VERBS = {After.FINISHED: "finish", After.ENDED: "end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A run that another one waits for."""

    tag: str
    condition: After
    run: Run | None                    # None: its journal cannot be read

    @property
    def met(self) -> bool:
        return self.run is not None and met(self.condition, self.run)

    @property
    def lost(self) -> bool:
        return self.run is not None and self.condition == After.FINISHED and (
            self.run.phase == Phase.CANCELLED or self.run.failed)


def met(condition: After, run: Run) -> bool:
    """Whether a run is where another one waits for it to be."""
    return run.phase == Phase.FINISHED or (condition == After.ENDED and (run.over or run.failed))


def unmet(run: Run, upstream: Sequence[Upstream]) -> tuple[Upstream, ...]:
    """Those that it still waits for: none once it has begun, as with Slurm's own dependencies."""
    return () if run.begun else tuple(other for other in upstream if not other.met)


def why_lost(run: Run, upstream: Sequence[Upstream]) -> str:
    """Why it cannot begin by itself any more, down to the run where that came from; '' if it still may."""
    for other in unmet(run, upstream):
        if other.lost and other.run is not None:
            above = other.run
            reason = f": {above.phase_reason}" if above.phase_reason else ""
            state = f"{other.tag} {above.phase_reason}" if above.held_by == HELD_BY_UPSTREAM else \
                f"{other.tag} is {above.phase}{reason}"
            return f"{waits_for({other.tag: other.condition})}; {state}"
    return ""


def why_again(run: Run, upstream: Sequence[Upstream]) -> str:
    """Why a run that is held by its upstream may come to its turn again; '' while it may not."""
    if run.phase != Phase.HELD or run.held_by != HELD_BY_UPSTREAM or why_lost(run, upstream):
        return ""
    if any(other.run is None for other in upstream):
        return ""
    waiting = unmet(run, upstream)
    return f"{', '.join(other.tag for other in waiting)} goes on" if waiting else "what it waited for has come"


def waits_for(after: Mapping[str, After], jobs: Sequence[str] = ()) -> str:
    """``waits for train-a to finish, train-b to end``."""
    parts = [f"{tag} to {_VERBS[condition]}" for tag, condition in after.items()]
    return f"waits for {', '.join([*parts, *(f'job {job} to end' for job in jobs)])}"


def as_written(after: Mapping[str, After]) -> list[str]:
    """As ``--after`` takes them: ``train-a``, ``train-b:ended``."""
    return [tag if condition == After.FINISHED else f"{tag}:{condition}" for tag, condition in after.items()]
