"""How long the GPU stands idle between two attempts: orch's successor against ``scontrol requeue``, on one private Slurm.

Idle is from the last word of one trainer to the first word of the next, so both sides pay for Slurm, their start-up and a
Python interpreter. orch: one run of N + 1 attempts, each killed with SIGKILL after a checkpoint. requeue: N jobs, each
of which requeues itself once (in parallel, because each takes two minutes). Prints median, p95 and extremes of both.

    .venv/bin/python benchmarks/idle_gap.py --gaps 20
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator import cluster

ORCH = Path(sys.executable).with_name("orch")

TRAINER = """\
import os, signal, time
from pathlib import Path
from orch_trainer import Training
last = int(os.environ["LAST"])
with Training() as training:
    done = int((training.resume_from / "n").read_text()) if training.resume_from else 0
    training.step(done + 1)
    time.sleep(2)
    with training.saving(done + 1) as folder:
        (folder / "n").write_text(str(done + 1))
    if done < last:
        with open("said.txt", "a") as said:
            said.write(f"end {time.time()}\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    training.finish({"attempts": done + 1})
"""

REQUEUED = """\
#!/bin/bash
#SBATCH --requeue --mem=50M --cpus-per-task=1 --output=/dev/null --open-mode=append
exec {python} -c '
import os, subprocess, time
said = "requeue-%s.txt" % os.environ["SLURM_JOB_ID"]
with open(said, "a") as file: file.write("start %f\\n" % time.time())
if not int(os.environ.get("SLURM_RESTART_COUNT", 0)):
    time.sleep(2)
    with open(said, "a") as file: file.write("end %f\\n" % time.time())
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
    time.sleep(60)
'
"""

ORCH_YAML = """\
profiles: {p: {cpus: 1, memory: 100M, time: 10m, lead: 10s}}
checkpoint: {interval: 1h}
daemon: {every: 1s}
"""


def successor_gaps(folder: Path, count: int) -> list[float]:
    (folder / "orch.yaml").write_text(ORCH_YAML)
    job = folder / "jobs" / "gaps"
    job.mkdir(parents=True)
    (folder / "train.py").write_text(TRAINER)
    (job / "job.sh").write_text(f"#!/usr/bin/env bash\nexport LAST={count}\nexec {sys.executable} train.py\n")
    (job / "job.sh").chmod(0o755)
    subprocess.run([ORCH, "submit", "gaps"], cwd=folder, check=True)
    daemon = subprocess.Popen([ORCH, "daemon"], cwd=folder, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([ORCH, "wait", "gaps", "--for", "finished,held", "--timeout", "20m"], cwd=folder, check=True)
    finally:
        daemon.terminate()
        daemon.wait()
    ends = [float(line.split()[1]) for line in (folder / "said.txt").read_text().splitlines()]
    starts = []
    for lines in sorted((folder / "runs" / "gaps" / "attempts").glob("*/trainer.jsonl")):
        starts += [json.loads(line)["t"] for line in lines.read_text().splitlines() if '"start"' in line]
    return [start - end for end, start in zip(ends, starts[1:], strict=True)]


def requeue_gaps(folder: Path, count: int, environment: dict[str, str]) -> list[float]:
    script = folder / "requeue.sh"
    script.write_text(REQUEUED.format(python=sys.executable))
    for _ in range(count):
        subprocess.run(["sbatch", "--parsable", script], cwd=folder, env=environment, check=True, capture_output=True)
    give_up = time.monotonic() + 900
    while time.monotonic() < give_up:
        files = sorted(folder.glob("requeue-*.txt"))
        said = [[line.split() for line in file.read_text().splitlines()] for file in files]
        if len(files) == count and all([word for word, _ in words] == ["start", "end", "start"] for words in said):
            return [float(words[2][1]) - float(words[1][1]) for words in said]
        time.sleep(1)
    raise SystemExit(f"the requeued jobs did not all start again within 15 minutes: {said}")


def show(name: str, gaps: list[float]) -> None:
    ordered = sorted(gaps)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    print(f"{name:10} n={len(gaps)}  median {statistics.median(gaps):7.2f} s  p95 {p95:7.2f} s  "
          f"min {ordered[0]:7.2f} s  max {ordered[-1]:7.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gaps", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch-gaps-") as name:
        folder = Path(name)
        private = folder / ".orch" / "cluster"
        cluster.up(cluster.ClusterSpec(folder=private, nodes=2, gpus=0, cpus=2 * options.gaps, memory_mib=8000))
        environment = {**os.environ, **cluster.environment(private)}
        try:
            ours = successor_gaps(folder, options.gaps)
            show("successor", ours)
            theirs = requeue_gaps(folder, options.gaps, environment)
            show("requeue", theirs)
            print(f"requeue / successor, medians: {statistics.median(theirs) / statistics.median(ours):.0f}")
        finally:
            cluster.down(private, grace_s=2)


if __name__ == "__main__":
    main()
