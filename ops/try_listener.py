"""The "training" of ``ops/try-on-your-cluster``: ``python -I try_listener.py PACKAGE``, one on each node of the job.

It knows nothing of orch, waits for the notice, notes when it came, and leaves as a trainer does that is to be continued. The
run's second attempt notes that it is there and finishes the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SAVE_S = 5.0        # as if it saved: time in which Slurm's own signal may still come, if orch's timer was first


def main(package: str) -> int:
    sys.path.insert(0, package)
    from orchestrator.folders import replace_file

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    folder, run_dir = Path(os.environ["ORCH_ATTEMPT_DIR"]), Path(os.environ["ORCH_RUN_DIR"])
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    recorded = json.loads((run_dir / "recorded.json").read_text())
    note: dict[str, object] = {
        "began_at": time.time(), "heard_at": None, "left_s": None,
        "as_recorded": all(os.environ.get(name) == recorded[name] for name in ("PATH", "ORCH_TRY_RECORDED")),
        "leaked": "ORCH_TRY_NOT_RECORDED" in os.environ}
    path = folder / f"listener-{node}.json"
    replace_file(path, json.dumps(note))
    if int(os.environ["ORCH_ATTEMPT"]) > 1:
        (run_dir / "finished").write_text("finished\n")
        return 0
    print("listening", flush=True)
    signal.sigwait([signal.SIGTERM])
    now, deadline = time.time(), os.environ.get("ORCH_DEADLINE")
    note |= {"heard_at": now, "left_s": float(deadline) - now if deadline else None}
    replace_file(path, json.dumps(note))
    time.sleep(SAVE_S)
    return 75


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
