"""jobs/digits: learns, and an interrupted run ends with the same weights, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 300


def start(folder, **environment):
    """job.sh itself, as a frozen copy elsewhere, with the repository as current directory."""
    folder.mkdir(exist_ok=True)
    (folder / "epoch").write_text("000000000001\n")
    job = folder / "job.sh"
    job.write_bytes((ROOT / "jobs" / "digits" / "job.sh").read_bytes())
    job.chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        [job, "--steps", str(STEPS), "--hidden", "256", "--evaluate-every", "20"], cwd=ROOT,
        env={"PATH": path, "ORCH_RUN_DIR": str(folder), "ORCH_ATTEMPT_DIR": str(folder / "attempt"), "ORCH_EPOCH": "1",
             **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def result(folder):
    return json.loads((folder / "result.json").read_text())["metrics"]


def newest(folder):
    found = sorted((folder / "checkpoints").glob("step-*"))
    return str(found[-1]) if found else ""


@pytest.mark.slow
def test_interrupted_and_not_end_with_the_same_weights(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    output, _ = start(whole).communicate(timeout=60)
    assert "FINISHED" in output, output
    for attempt, number in enumerate((signal.SIGTERM, signal.SIGKILL, None), start=1):
        process = start(cut, ORCH_ATTEMPT=str(attempt), ORCH_RESUME_FROM=newest(cut), ORCH_CHECKPOINT_INTERVAL_S="0.05")
        if number is not None:
            for line in process.stdout:
                if "held-out" in line:
                    break
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == {signal.SIGTERM: 75, signal.SIGKILL: -9, None: 0}[number], output
        assert number is None or not (cut / "result.json").exists()
    assert result(cut) == result(whole)
    assert result(whole)["accuracy"] > 0.95
    assert (cut / "attempt" / "weights.npz").read_bytes() == (whole / "attempt" / "weights.npz").read_bytes()
