"""Whole-process times: ``orch submit`` (first attempt and successor, checked and read back) against two plain ``sbatch``, and
``orch --help`` against ``python -c pass``. In turn, in one run, on one private Slurm; the median ratio is what to quote.

    .venv/bin/python benchmarks/commands.py --runs 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator import cluster

ORCH = Path(sys.executable).with_name("orch")


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def compare(name: str, ours: Callable[[int], object], peer: str, theirs: Callable[[int], object], runs: int) -> None:
    pairs = [(timed(lambda n=n: ours(n)), timed(lambda n=n: theirs(n))) for n in range(runs)]  # type: ignore[misc]
    left, right = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:24} {left:6.0f} ms   {peer:24} {right:6.0f} ms   ratio {ratio:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orch-commands-") as name:
        folder = Path(name)
        private = folder / ".orch" / "cluster"
        cluster.up(cluster.ClusterSpec(folder=private, gpus=0))
        cluster.set_node(private, "n1", "drain", "only the submission is timed")
        environment = {**os.environ, **cluster.environment(private)}
        (folder / "orch.yaml").write_text("profiles: {p: {cpus: 1, memory: 100M, time: 10m, lead: 10s}}\n")
        script = folder / "job.sh"
        script.write_text("#!/bin/bash\nexec sleep 1\n")
        for n in range(options.runs):
            (folder / "jobs" / f"t{n}").mkdir(parents=True)
            target = folder / "jobs" / f"t{n}" / "job.sh"
            target.write_text(script.read_text())
            target.chmod(0o755)

        def run(*command: object) -> None:
            subprocess.run([str(part) for part in command], cwd=folder, env=environment, check=True, capture_output=True)

        def two_sbatch(n: int) -> None:
            run("sbatch", "--mem=100M", script)
            run("sbatch", "--mem=100M", script)

        try:
            compare("orch submit", lambda n: run(ORCH, "submit", f"t{n}"), "sbatch, twice", two_sbatch, options.runs)
            compare("orch --help", lambda n: run(ORCH, "--help"), "python -c pass",
                    lambda n: run(sys.executable, "-c", "pass"), options.runs)
        finally:
            cluster.down(private, grace_s=2)


if __name__ == "__main__":
    main()
