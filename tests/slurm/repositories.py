"""A user's repository in a temporary folder, and orch spoken to through its command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import PrivateSlurm

ORCH = Path(sys.executable).with_name("orch")
TINY = Path(__file__).parent / "trainers" / "tiny.py"

ORCH_YAML = """\
profiles:
  default: {cpus: 1, memory: 100M, time: 10m, lead: 20s}
  gpu: {cpus: 1, memory: 100M, time: 10m, lead: 20s, gres: "gpu:1"}
checkpoint: {interval: 1s}
recovery: {backoff: 1s}
daemon: {every: 1s}
"""


@dataclass
class Repository:
    folder: Path
    slurm: PrivateSlurm

    @property
    def environment(self) -> dict[str, str]:
        environment = dict(self.slurm.environment)
        environment["PATH"] = f"{ORCH.parent}:{environment['PATH']}"
        return environment

    def orch(self, *arguments: str, code: int | None = 0) -> str:
        result = subprocess.run([ORCH, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                                check=False, timeout=120)
        said = result.stdout + result.stderr
        assert code is None or result.returncode == code, f"orch {arguments}: {result.returncode}\n{said}"
        return said

    def status(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.orch("status", tag, "--json").splitlines()[0])
        return found

    def job(self, tag: str, *, script: str | None = None, yaml: str = "", **env: object) -> None:
        """jobs/TAG with the tiny trainer, or another command."""
        folder = self.folder / "jobs" / tag
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(script or f"#!/usr/bin/env bash\nexec {sys.executable} {TINY}\n")
        (folder / "job.sh").chmod(0o755)
        values = "".join(f"  {key}: '{value}'\n" for key, value in env.items())
        (folder / "job.yaml").write_text(yaml + (f"env:\n{values}" if env else ""))

    def daemon(self) -> subprocess.Popen[bytes]:
        with (self.folder / "daemon.log").open("ab") as log:
            return subprocess.Popen([ORCH, "daemon"], cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            found = condition()
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError("\n".join([f"not within {timeout_s:g} s: {what}", self.orch("status", code=None), self.log(),
                                        self.outputs()]))

    def log(self) -> str:
        path = self.folder / "daemon.log"
        return path.read_text() if path.exists() else ""

    def outputs(self) -> str:
        """The end of what each attempt printed."""
        return "".join(f"--- {path.relative_to(self.folder)}\n{path.read_text(errors='replace')[-2000:]}\n"
                       for path in sorted(self.folder.glob("runs/*/attempts/*/out.log")))

    def endings(self, tag: str) -> list[str]:
        return [attempt["ending"] for attempt in self.status(tag)["attempts"]]

    def journal(self, tag: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "runs" / tag / "journal.jsonl").read_text().splitlines()]


def make_repository(folder: Path, slurm: PrivateSlurm, config: str = ORCH_YAML) -> Repository:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yaml").write_text(config)
    return Repository(folder=folder, slurm=slurm)
