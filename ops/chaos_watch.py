"""What must hold while ``ops/chaos`` does its worst, read from the trainings' folders alone, and what the faults cost."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import journal
from orchestrator.attempt.take import starts
from orchestrator.checkpoints import complete_checkpoints
from orchestrator.core.fold import fold
from orchestrator.folders import attempt_dir, checkpoint_dir, run_dir
from orchestrator.model import Ending, Phase, Run
from orchestrator.records import StartRecord
from orchestrator.trainer_lines import last_of, read_lines

ANNOUNCED = {"scancel": "cancelled", "preemption": "preempted"}      # faults of which the trainer hears, and their endings


@dataclass
class Struck:
    """A fault that was done, and what it cost."""

    kind: str
    at: float
    tags: tuple[str, ...]
    lost_s: list[float] = field(default_factory=list)
    lost_runs: int = 0
    double_publishers: int = 0


class Watcher:
    """What must hold at every moment, read from the folders alone."""

    def __init__(self, repository: Path, tags: tuple[str, ...]) -> None:
        self.repository, self.tags = repository, tags
        self.struck: list[Struck] = []
        self.trouble: list[str] = []
        self.runs: dict[str, Run] = {}
        self.scancelled: set[str] = set()                    # by the campaign; their runs are held, and to be released
        self._known: set[tuple[str, int, int]] = set()       # checkpoints that were found double, each told once

    def look(self) -> list[str]:
        """Look at all runs; those that are held, and to be released."""
        held = []
        for tag in self.tags:
            folder = run_dir(self.repository, tag)
            run = fold(journal.read(folder)[0])
            if run is None:
                continue
            self.runs[tag] = run
            self._publishers(tag, folder)
            if run.phase == Phase.HELD:
                self._held(tag, run)
                held.append(tag)
        return held

    def _publishers(self, tag: str, folder: Path) -> None:
        """Publishing and taking hold the same lock, so that the files' times are in the order of what happened."""
        taken = [(s.epoch, (attempt_dir(folder, s.number) / "start.json").stat().st_mtime_ns) for s in starts(folder)]
        for checkpoint in complete_checkpoints(checkpoint_dir(folder)):
            with contextlib.suppress(FileNotFoundError):     # retired meanwhile
                published = (checkpoint.path / "COMPLETE").stat().st_mtime_ns
                newer = [epoch for epoch, at in taken if epoch > checkpoint.epoch and at < published]
                key = (tag, checkpoint.epoch, checkpoint.step)
                if newer and key not in self._known:
                    self._known.add(key)
                    self.trouble.append(f"{tag}: epoch {checkpoint.epoch} published step {checkpoint.step} after epoch "
                                        f"{max(newer)} had taken the run")
                    self._blame(tag).double_publishers += 1

    def _held(self, tag: str, run: Run) -> None:
        """After a scancel of the campaign's that is right; every other hold is a run lost."""
        if tag in self.scancelled and "cancelled" in run.phase_reason:
            self.scancelled.discard(tag)
        else:
            self.trouble.append(f"{tag} is held: {run.phase_reason}")
            self._blame(tag).lost_runs += 1

    def _blame(self, tag: str, before: float = float("inf"), after: float = 0.0) -> Struck:
        """The latest fault that struck this run."""
        hits = [struck for struck in self.struck if tag in struck.tags and after <= struck.at <= before]
        return hits[-1] if hits else Struck(kind="(none)", at=0.0, tags=())

    def live(self, chance: float) -> tuple[str, StartRecord] | None:
        """A run, chosen by chance, whose live attempt has saved already; and that attempt's start."""
        ripe = []
        for tag, run in self.runs.items():
            start = next((s for s in starts(run_dir(self.repository, tag)) if run.live and s.epoch == run.live.epoch), None)
            if run.phase == Phase.ACTIVE and start is not None and self.unsaved_s(tag) is not None:
                ripe.append((tag, start))
        return ripe[int(chance * len(ripe))] if ripe else None

    def unsaved_s(self, tag: str) -> float | None:
        """How much training the live attempt would lose now; None before its first save and after its last word."""
        live = self.runs[tag].live
        if live is None:
            return None
        lines = read_lines(attempt_dir(run_dir(self.repository, tag), live.number))
        saved = last_of(lines, "saved")
        if saved is None or last_of(lines, "stopped", "finished", "failed") is not None:
            return None
        return max(0.0, time.time() - float(saved["t"]) + float(saved.get("durable_s", 0.0)))

    def durable_s(self) -> float:
        """The median t of all saves whose lines are there."""
        found = []
        for path in (self.repository / "runs").glob("*/attempts/*/trainer.jsonl"):
            with contextlib.suppress(ValueError):
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                found += [line["durable_s"] for line in lines if line.get("event") == "saved"]
        return statistics.median(found) if found else 0.0

    def judge(self, weights: str) -> None:
        """When all is over: every run finished, once, with the right weights; every start known to the journal."""
        for tag in self.tags:
            run = self.runs[tag]
            wrong = []
            if run.phase != Phase.FINISHED:
                wrong.append(f"is {run.phase} in the end, not finished")
            elif run.metrics.get("weights_sha256") != weights:
                wrong.append(f"has other weights: {run.metrics.get('weights_sha256')}")
            epochs = [attempt.epoch for attempt in run.attempts]
            if epochs != sorted(set(epochs)) or epochs != [s.epoch for s in starts(run_dir(self.repository, tag))]:
                wrong.append(f"has starts that its journal does not know, or doubles: {epochs}")
            if sum(attempt.ending == Ending.FINISHED for attempt in run.attempts) > 1:
                wrong.append("finished more than once")
            if wrong:
                self._blame(tag).lost_runs += 1
                self.trouble += [f"{tag} {words}" for words in wrong]
            for attempt in run.attempts:       # what was announced: by the journal
                hit = self._blame(tag, attempt.ended_at or 0.0, attempt.started_at)
                if str(attempt.ending).partition("-")[0] == ANNOUNCED.get(hit.kind) and attempt.lost_s is not None:
                    hit.lost_s.append(attempt.lost_s)

    def endings(self) -> dict[str, int]:
        found = [str(attempt.ending) for run in self.runs.values() for attempt in run.attempts]
        return {ending: found.count(ending) for ending in sorted(set(found))}
