"""Which checkpoint an attempt resumes from: the newest complete one whose content is as it was written.

Beside what the checkpoint folder lists, the names count that the attempts before wrote down when they saved: a successor
starts within a second, and a network file system's listing may be half a minute old.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.checkpoints import Checkpoint, complete_checkpoints, damage
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.records import StartRecord
from orchestrator.trainer_lines import last_lines

ATTEMPTS_READ = 3


def choose(run_dir: Path, before: Iterable[StartRecord]) -> tuple[Checkpoint | None, list[str]]:
    """None if there is none; and what is wrong with newer ones, each in a sentence. Reads at most about 1 GiB of each."""
    numbers = sorted({start.number for start in before})[-ATTEMPTS_READ:]
    told = {Path(str(line["path"])) for number in numbers for line in last_lines(attempt_dir(run_dir, number))
            if line["event"] == "saved" and line.get("path")}
    wrong: list[str] = []
    for checkpoint in reversed(complete_checkpoints(checkpoint_dir(run_dir), told)):
        why = damage(checkpoint.path)
        if not why:
            return checkpoint, wrong
        wrong.append(f"not resumed from step {checkpoint.step}, which is damaged ({checkpoint.path}): {why}")
    return None, wrong
