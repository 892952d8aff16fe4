"""The short form of ``ops/chaos``: faults strike six trainings for a minute, and all end with the right weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import _require_slurm  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

CHAOS = Path(__file__).parents[2] / "ops" / "chaos.py"


def test_a_minute_of_faults_loses_no_run_and_no_weight() -> None:
    _require_slurm()
    answer = subprocess.run([sys.executable, CHAOS, "--minutes", "1.1", "--finish-within", "75", "--seed", "3"],
                            capture_output=True, text=True, timeout=240, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
