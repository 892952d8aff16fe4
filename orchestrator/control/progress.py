"""What a trainer said of its progress last, for `orch logs --progress`. Files of the run alone; Slurm is not asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator import folders
from orchestrator.trainer_lines import last_of, read_lines

KEYS = ("step", "of", "loss", "steps_per_s", "left_s", "memory_bytes", "gpu_memory_bytes")
_STEPS = ("progress", "saved", "stopped", "finished", "failed", "first_step")


def latest_progress(repository: Path, tag: str, attempt: int | None = None) -> dict[str, Any]:
    """Of the newest attempt that has said a step, or of this one; every value is None where nothing was said.

    ``at`` is when the step was said (epoch seconds), by which ``event`` of trainer.jsonl; ``left_s`` counts from there;
    ``numbers`` is what else the trainer gave to ``step()``; ``attempt`` is whose words these are.
    """
    run_dir = folders.run_dir(repository, tag)
    for number in [attempt] if attempt is not None else attempt_numbers(run_dir):
        events = read_lines(folders.attempt_dir(run_dir, number))
        latest = last_of(events, *_STEPS)
        if latest is not None:
            return _object(tag, number, latest, last_of(events, "progress") or {})
    return _object(tag, attempt, {}, {})


def _object(tag: str, attempt: int | None, latest: dict[str, Any], progress: dict[str, Any]) -> dict[str, Any]:
    numbers = {key: value for key, value in progress.items() if key not in (*KEYS, "t", "event", "dropped")}
    left_s = progress.get("left_s")
    if left_s is not None:
        left_s = 0.0 if latest["event"] == "finished" else max(0.0, left_s - (latest["t"] - progress["t"]))
    return {"tag": tag, "attempt": attempt, "at": latest.get("t"), "event": latest.get("event"),
            **{key: progress.get(key) for key in KEYS}, "step": latest.get("step"), "left_s": left_s, "numbers": numbers}


def attempt_numbers(run_dir: Path) -> list[int]:
    """Attempts that have a folder, the newest first."""
    folder = run_dir / "attempts"
    names = [path.name for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return sorted(map(int, names), reverse=True)
