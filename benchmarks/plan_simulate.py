"""How many interruptions a second ``orch plan simulate`` lives through, and how long the other ``orch plan`` commands take.

    .venv/bin/python benchmarks/plan_simulate.py

Each figure is the median of several runs in this process (the simulator alone) or of whole processes (the commands).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from orchestrator.planner.simulate import World, policy_named, simulate

ORCH = Path(sys.executable).with_name("orch")
H = 3600.0
COMMANDS = {
    "interval": "--stall 5s --mtbi 200h --write 5m --limit 24h",
    "size": "--params 124.45e9 --nodes 32",
    "mtbi": "--period 54d --interruptions 466 --nodes 2048 --to-nodes 32",
    "storage": "--params 124.45e9 --nodes 32 --write 5m --mtbi 200h",
    "tradeoff": "--params 124.45e9 --nodes 32 --mtbi 200h --gpu-hourly-usd 142.416",
    "replication": "--nodes 32 --factor 2 --node-mtbi 6400h --rebuild 1h",
    "levels": "--params 124.45e9 --nodes 32 --mtbi 200h",
    "framework": "--interval 45m --step-time 1.2s",
    "simulate": "--mtbi 200h --distribution weibull:0.7",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--trials", type=int, default=2_000_000)
    options = parser.parse_args()
    for shape in (1.0, 0.7):
        for name in ("young", "weibull"):
            world = World(mtbi_s=200 * H, stall_s=5, write_s=300, restart_s=900, shape=shape)
            policy = policy_named(name, world)
            times = []
            for seed in range(options.runs):
                began = time.perf_counter()
                found = simulate(world, policy, trials=options.trials, rng=np.random.default_rng(seed))
                times.append(time.perf_counter() - began)
            rate = options.trials / statistics.median(times) / 1e6
            print(f"shape {shape:<4} {name:8} {rate:6.1f} million interruptions a second   waste {100 * found.waste:.4f} % "
                  f"+- {100 * found.standard_error:.4f}, exact {100 * (found.exact or 0):.4f} %")
    for name, line in COMMANDS.items():
        times = []
        for _ in range(options.runs):
            began = time.perf_counter()
            subprocess.run([ORCH, "plan", name, *line.split()], check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        print(f"orch plan {name:12} {1000 * statistics.median(times):6.0f} ms")


if __name__ == "__main__":
    main()
