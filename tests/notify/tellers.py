"""A repository with journals written by hand, a moved clock, and passes that tell what is in them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builders import SPEC, ended, event, queued, started, submit
from loopback import Loopback

from orchestrator import folders
from orchestrator.config.notify import Notify
from orchestrator.control.passes import PassReport
from orchestrator.control.ports import Ports, Snapshot
from orchestrator.control.tell import Telling, tell
from orchestrator.notify.outbox import Outbox, outbox_path, read_outbox
from orchestrator.notify.post import Patience

BEGAN = 1_700_000_000.0                # 22:13:20 UTC
SHORT = Patience(connect_s=1.0, read_s=0.3, whole_s=1.5)


@dataclass
class Teller:
    """``teller.pass_()`` is a daemon's pass as far as telling goes; ``now`` moves only when a test moves it."""

    repository: Path
    notify: Notify
    now: float = BEGAN
    said: list[str] = field(default_factory=list)

    @property
    def ports(self) -> Ports:
        return Ports(repository=self.repository, slurm=None, clock=lambda: self.now, new_id=str,  # type: ignore[arg-type]
                     notify=self.notify)

    def pass_(self, *, silent: str | None = None, asked: bool = True, patience: Patience = SHORT) -> Telling:
        snapshot = Snapshot(asked_at=self.now, silent=silent) if asked else None
        told = tell(self.ports, PassReport(runs=(), snapshot=snapshot), patience)
        self.said += [*told.lines, *([told.trouble] if told.trouble else [])]
        return told

    def passes(
        self, seconds: float, *, every_s: float = 30.0, silent: Callable[[float], str | None] = lambda now: None,
    ) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += every_s
            self.pass_(silent=silent(self.now))

    def outbox(self) -> Outbox:
        found = read_outbox(outbox_path(self.repository))
        assert found is not None
        return found

    def waiting(self, channel: str = "discord") -> list[str]:
        return [waiting.message.headline for waiting in self.outbox().channels[channel].waiting]

    # runs

    def journal(self, tag: str, *events: Any) -> None:
        """Append; the first events of a tag get a ``submit`` before them."""
        path = folders.run_dir(self.repository, tag) / "journal.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        flat: list[dict[str, Any]] = []
        if not path.exists():
            flat.append(submit(replace(SPEC, tag=tag), self.now))
        for item in events:
            flat.extend(item if isinstance(item, list) else [item])
        with path.open("a") as file:
            file.writelines(json.dumps(one) + "\n" for one in flat)

    def starts(self, tag: str) -> None:
        self.journal(tag, queued(1, self.now), started(1, self.now))

    def finishes(self, tag: str, **metrics: Any) -> None:
        self.journal(tag, ended(1, "finished", self.now), event("finished", self.now, metrics=metrics))

    def holds(self, tag: str, reason: str = "no GPU") -> None:
        self.journal(tag, event("held", self.now, by="orch", reason=reason))

    def progress(self, tag: str, step: int) -> None:
        folder = folders.attempt_dir(folders.run_dir(self.repository, tag), 1)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "trainer.jsonl").open("a") as file:
            file.write(json.dumps({"t": self.now, "event": "progress", "step": step, "loss": 0.5, "steps_per_s": 2.0}) + "\n")


def make_teller(folder: Path, discord: Loopback | None, *, command: tuple[str, ...] = ()) -> Teller:
    """With the webhook's file beside the repository."""
    repository, hook = folder / "vision", folder / "hook"
    repository.mkdir(parents=True)
    if discord is not None:
        hook.touch(mode=0o600)
        hook.write_text(discord.url + "\n")
    notify = Notify(discord=discord is not None, webhook_file=hook if discord is not None else None, where="orch.yaml:3",
                    command=command)
    teller = Teller(repository=repository, notify=notify)
    if discord is not None:
        discord.clock = lambda: teller.now
    return teller


def files_with(folder: Path, text: str) -> list[Path]:
    """Files below a folder that have this text in them, by name or by content."""
    found = subprocess.run(["grep", "-rlF", text, str(folder)], capture_output=True, text=True, check=False).stdout
    return [Path(line) for line in found.splitlines()]
