"""What a trainer is told comes to it by its watch's own thread, every two seconds."""

from __future__ import annotations

from orch_trainer import Training


def hear(training: Training) -> None:
    """A round of the watch that begins now, to its end. Its thread may be in the middle of one that began too early, and may
    begin the next before we do."""
    watch = training._watch
    with watch._round:
        pass
    watch.poll()
    with watch._round:
        pass
