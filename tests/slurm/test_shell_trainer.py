"""A trainer that is a shell script, on a real Slurm: it asks, is stopped at the notice, and goes on in the next attempt."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import make_run

from orchestrator.checkpoints import complete_checkpoints, damage

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ORCH = Path(sys.executable).with_name("orch")
# Its steps are a program of their own, which dies of a signal; `asks` is run in a subshell, as scripts do.
JOB = f"""
set -u
step=0
if [ -n "$ORCH_RESUME_FROM" ]; then step=$(cat "$ORCH_RESUME_FROM/state"); fi
echo "begins at $step"
while [ $step -lt 60 ]; do
  PY -c 'import time; time.sleep(0.6)' || echo "the step was killed: $?"
  step=$((step + 1)); echo $step > "$ORCH_ATTEMPT_DIR/state"
  if [ $((step % 10)) = 0 ]; then {ORCH} notify-save $step "$ORCH_ATTEMPT_DIR/state" --stall 0.25; fi
  if answer=$(PY -m orch_trainer should-stop); then
    echo "asked: $answer"
    {ORCH} notify-save $step "$ORCH_ATTEMPT_DIR/state"
    exit 0
  fi
done
echo '{{}}' > "$ORCH_RUN_DIR/result.json"
"""


def test_a_shell_script_is_stopped_at_its_notice_and_resumes(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    run = make_run(tmp_path, "shell", JOB, finished_when="result.json")
    first, second = run, run.next()
    second.spec = replace(second.spec, time_limit_s=180.0)     # a busy machine's steps take longer
    for attempt in (first, second):
        attempt.submit(slurm_cluster.environment, "--mem=100", "--cpus-per-task=1")
        slurm_cluster.wait_for(int(attempt.job_id), "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", timeout_s=150)
    assert "the step was killed" not in first.out()
    assert "asked: notice: limit" in first.out()
    assert [event["how"] for event in first.events("signalled")] == []
    end = first.end()
    assert end is not None
    assert (end.notice, end.saved_after_notice, end.knows_orch) == ("limit", True, True)
    assert first.out().splitlines()[-1].startswith("STOPPED attempt=1")
    assert f"begins at {end.checkpoint_step}" in second.out()
    assert second.out().splitlines()[-1].startswith("FINISHED attempt=2")
    kept = complete_checkpoints(run.run_dir / "checkpoints")
    assert kept[-1].step == 60
    assert [damage(one.path) for one in kept] == [""] * len(kept)
    saved = [line for line in first.lines("trainer.jsonl") if line["event"] == "saved"]
    assert [line["first"] for line in saved] == [True] + [False] * (len(saved) - 1)
    assert saved[0]["stall_s"] == 0.25
    assert saved[-1]["stall_s"] is None
