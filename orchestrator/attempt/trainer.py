"""What the trainer tells: its lines in trainer.jsonl, the processes it registered, and what control.json asks of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from orchestrator.attempt.processes import Process
from orchestrator.host import is_alive
from orchestrator.trainer_control import read_control

LAST_WORDS = frozenset({"finished", "stopped", "failed"})


class TrainerLog:
    """trainer.jsonl, read as it grows; whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.speaks = False
        self.pid: int | None = None
        self.host = ""
        self.started_at: float | None = None
        self.first_step_at: float | None = None
        self.last_step: int | None = None
        self.last_word: str | None = None
        self.stopped_step: int | None = None
        self.saved_at: float | None = None
        self.stood_down = False        # fenced: a newer start exists

    def read(self) -> None:
        """Take in what was written since; whole lines only."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue               # a line of a foreign writer tells nothing

    def _take(self, entry: dict[str, Any]) -> None:
        event = entry["event"]
        self.speaks = True
        if event == "start":
            self.pid, self.host, self.last_word = entry.get("pid"), str(entry.get("host", "")), None
            self.started_at = self.started_at or float(entry["t"])
        if event in ("first_step", "saved") and self.first_step_at is None:
            self.first_step_at = float(entry["t"])
        if event == "saved":
            self.saved_at = float(entry["t"])
        if event == "fenced":
            self.stood_down = True
        if event in LAST_WORDS:
            self.last_word = event
        step = entry.get("step")
        if isinstance(step, int) and event != "saving":
            self.reached(step)
            if event == "stopped":
                self.stopped_step = step

    def reached(self, step: int) -> None:
        self.last_step = step if self.last_step is None else max(step, self.last_step)


def registered(folder: Path, epoch: int) -> list[dict[str, Any]]:
    """The registered trainers of this start, on whatever host."""
    found = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        if name.endswith(".json") and not name.startswith("."):
            try:
                with open(folder / name) as file:
                    entry = json.load(file)
                if int(entry["epoch"]) == epoch:
                    found.append({**entry, "pid": int(entry["pid"]), "pid_start": int(entry["pid_start"])})
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda e: (str(e.get("host")), e["pid"]))


def asks(entry: dict[str, Any]) -> bool:
    """Whether it asks by itself (``orch should-stop``) and wants no signal, for itself or for what it runs."""
    return bool(entry.get("asks"))


def here(entries: list[dict[str, Any]], host: str) -> list[Process]:
    """Those of them that run on this host, now."""
    return [Process(e["pid"], 0, e["pid_start"], "trainer") for e in entries
            if e.get("host") == host and is_alive(e["pid"], e["pid_start"])]


def stop_asked(run_dir: Path) -> str | None:
    """control.json's ``stop``, None if it asks for nothing or is being rewritten just now."""
    control = read_control(run_dir)
    return str(control.stop) if control is not None and control.stop else None
