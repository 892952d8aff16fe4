"""The simulated campaign in the ordinary test run; ``ORCH_SCHEDULES=20000`` makes it the full one (also: ops/simulate)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.campaign import draw_schedule

ROOT = Path(__file__).parents[2]
SCHEDULES = int(os.environ.get("ORCH_SCHEDULES", "600"))


@pytest.mark.slow
def test_all_invariants_hold_in_every_schedule() -> None:
    """In a process of its own: the simulation puts itself under os.fsync, locks and clocks."""
    ran = subprocess.run(
        [sys.executable, "-m", "simulation", "--schedules", str(SCHEDULES), "--seed", os.environ.get("ORCH_SEED", "0")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]


def test_a_seed_tells_one_story() -> None:
    assert draw_schedule(7) == draw_schedule(7)
    assert draw_schedule(7) != draw_schedule(8)
