"""Run folders for tests of the supervisor, made by hand, and their submission with a minimal script."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.model import Profile, RunSpec
from orchestrator.records import AttemptSpec, EndRecord

TRAINERS = Path(__file__).parent / "trainers"
REPOSITORY = Path(__file__).parents[2]
ENTRY = REPOSITORY / "orchestrator" / "attempt" / "__main__.py"


@dataclass
class MadeRun:
    """One run in a folder of its own."""

    repository: Path
    spec: AttemptSpec
    job_id: str = ""

    @property
    def run_dir(self) -> Path:
        return Path(self.spec.run_dir)

    @property
    def folder(self) -> Path:
        return self.run_dir / "attempts" / f"{self.spec.number:04d}"

    def journal(self, event: str, **context: Any) -> None:
        with open(self.run_dir / "journal.jsonl", "a") as file:
            file.write(json.dumps({"event": event, "t": time.time(), **context}) + "\n")

    def prepare(self) -> Path:
        """The attempt's folder, its spec, and the intent in the journal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "spec.json").write_text(self.spec.to_json())
        self.journal("queueing", submission_id=self.spec.submission_id, number=self.spec.number, dependency="singleton")
        return self.folder / "spec.json"

    def submit(self, environment: Mapping[str, str], *options: str) -> str:
        spec_json = self.prepare()
        script = self.folder / "script.sh"
        script.write_text(f"#!/bin/bash\nexec {shlex.quote(sys.executable)} -I {ENTRY} {shlex.quote(str(spec_json))}\n")
        words = ["sbatch", "--parsable", "--no-requeue", f"--signal=B:{self.spec.signal}@{self.spec.lead_s:.0f}",
                 f"--output={self.folder / 'out.log'}", "--open-mode=append", f"--chdir={self.repository}",
                 f"--time={max(1, round(self.spec.time_limit_s / 60))}", *options, str(script)]
        answer = subprocess.run(words, env=dict(environment), capture_output=True, text=True, check=False, timeout=30)
        assert answer.returncode == 0, answer.stderr
        self.job_id = answer.stdout.strip()
        self.journal("queued", submission_id=self.spec.submission_id, job_id=self.job_id)
        return self.job_id

    def here(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """The supervisor run without Slurm, to its end."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "ORCH_"))}
        return subprocess.run([sys.executable, "-I", str(ENTRY), str(self.folder / "spec.json")], cwd=self.repository,
                              env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=60)

    def next(self) -> MadeRun:
        """The same run's next attempt."""
        number = self.spec.number + 1
        return MadeRun(self.repository, replace(self.spec, number=number, submission_id=f"s{number}"))

    # what was left

    def end(self) -> EndRecord | None:
        try:
            record = EndRecord.from_json((self.folder / "end.json").read_text())
        except FileNotFoundError:
            return None
        return None if record.provisional else record

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def signals(self, role: str = "main") -> list[dict[str, Any]]:
        return [line for line in self.lines("signals.jsonl") if line["role"] == role and "sender" in line]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines("supervisor.jsonl") if line["event"] == name]

    def out(self) -> str:
        return (self.folder / "out.log").read_text()


def make_run(base: Path, tag: str, job: str, **changes: Any) -> MadeRun:
    """A run whose job.sh is this text; ``PY`` in it stands for the Python, ``TRAINERS`` for the trainers' folder."""
    run_dir = base / "runs" / tag
    run_dir.mkdir(parents=True)
    values: dict[str, Any] = {"lead_s": 25.0, "signal": "TERM", "time_limit_s": 60.0, "interval_s": 3600.0, **changes}
    spec = AttemptSpec(tag=tag, repository=str(base), run_dir=str(run_dir), number=1, submission_id="s1", **values)
    asked = RunSpec(tag=tag, repository=str(base), python=sys.executable,
                    profile=Profile(name="p"), script_sha256="0")
    run = MadeRun(base, spec)
    run.journal("submit", schema=1, spec=asdict(asked))
    text = "#!/bin/bash\n" + re.sub(r"\bPY\b", sys.executable, job).replace("TRAINERS", str(TRAINERS)) + "\n"
    (run_dir / "job.sh").write_text(text)
    (run_dir / "job.sh").chmod(0o755)
    return run
