"""README's own words, run: the commands of "In your own repository", with README's training loop in the job."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from repositories import ORCH

from orchestrator import cluster

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("\n## In your own repository\n")[2].partition("\n## ")[0]

BEFORE_THE_LOOP = '''
import json

def restore(folder):
    return json.loads((folder / "state.json").read_text())["step"] if folder is not None else 0

def write_state(folder):
    (folder / "state.json").write_text(json.dumps({"step": step}))

def batches(step):
    return range(step, steps)

steps, loss, accuracy = 40, 0.5, 1.0
'''


def commands() -> list[str]:
    """What README types, without its comments and what installs orch."""
    block = re.search(r"```console\n(.*?)```", SECTION, re.DOTALL)
    assert block is not None
    lines = [re.sub(r"\s+#.*", "", line).removeprefix("$ ") for line in block[1].splitlines()]
    installs = ("mkdir -p ~", "export PATH=~", "cd ~")
    typed = [line for line in lines if "/path/to/this/clone" not in line and not line.startswith(installs)]
    assert len(typed) >= 7 and all(line.startswith("orch ") for line in typed)
    return typed


def training() -> str:
    """README's training loop, with what it says is yours."""
    block = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert block is not None
    loop = block[1].replace("        ...\n", "        pass\n")
    return loop.replace("from orch_trainer import Training\n", "from orch_trainer import Training\n" + BEFORE_THE_LOOP)


@pytest.mark.slow
def test_the_first_five_minutes_as_readme_types_them(tmp_path: Path) -> None:
    if cluster.missing_programs():
        pytest.skip("Slurm is not installed")
    (tmp_path / "train.py").write_text(training())
    job = shlex.quote(f"#!/usr/bin/env bash\nexec {sys.executable} train.py\n")
    lines = []
    for line in commands():
        lines.append(line)
        if line.startswith("orch new"):
            lines.append(f"printf %s {job} > jobs/baseline/job.sh")
        if line.startswith("orch cluster up"):   # whatever goes wrong from here on, nothing is left running
            lines.append("""trap '[ -z "${daemon:-}" ] || { kill $daemon; wait $daemon; }; orch cluster down' EXIT""")
        if line.startswith("orch daemon &"):
            lines.append("daemon=$!")
    lines.append("for i in {1..100}; do grep -q '`baseline` finished' ops/STATE.md && break; sleep 0.2; done")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    ran = subprocess.run(
        ["bash", "-euc", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180,
        env={**environment, "PATH": f"{ORCH.parent}:{os.environ['PATH']}"})
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert "baseline is finished" in said and "FINISHED" in said, said
    assert "`baseline` finished" in (tmp_path / "ops" / "STATE.md").read_text()
