"""What a pass costs against the bare ``squeue``, with 1, 1,000 and 10,000 pending jobs of orch's shape in a real controller.

A private Slurm holds them: held, with the comments, names and dependencies of another repository's; two of each of ``--runs``
runs are this repository's. In turn: plain ``squeue``, a read of every job, and a whole pass. Medians, the ratio of a pass to
plain squeue, the Slurm commands of a pass, and the peak memory of the process that makes the passes.

    .venv/bin/python benchmarks/pass_cost.py --jobs 1 1000 10000 --turns 15
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator import cluster
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports
from orchestrator.slurm.commands import SlurmCommands

ORCH = Path(sys.executable).with_name("orch")
GOAL, MEMORY_GOAL_MB = 2.0, 150

# One job of somebody's long queue: held, named and commented as orch does, behind the one before it.
FILL = """\
cat >script.sh <<'END'
#!/bin/bash
#SBATCH --hold --no-requeue --kill-on-invalid-dep=no --output=/dev/null --mem=100M --time=480 --signal=B:TERM@300 --nice=100
exec sleep 60
END
last=
for n in $(seq "$1" "$2"); do
    last=$(sbatch --parsable --job-name="run-$n@other-0123abcd" --dependency="${last:+afterany:$last,}singleton" \
        --comment="orch/1:other-0123abcd:run-$n:0001:$(printf %012x "$n")" script.sh)
done
"""


class CountedSlurm(SlurmCommands):
    """Counts the commands that it starts."""

    commands = 0

    def _run(self, *command: str, **options: object) -> str:
        CountedSlurm.commands += 1
        return super()._run(*command, **options)  # type: ignore[arg-type]


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(repository: Path, conf: Path, turns: int) -> dict[str, float]:
    """In a process of its own, whose peak memory is the passes'."""
    ports = Ports(repository=repository, slurm=CountedSlurm(conf=conf), slurm_name=str(conf), clock=time.time,
                  new_id=lambda: os.urandom(6).hex())
    report = pass_over_all(ports)
    assert report.snapshot is not None and report.snapshot.silent is None, report
    assert not any(run.error for run in report.runs), report
    environment = {**os.environ, "SLURM_CONF": str(conf)}

    def plain() -> None:
        subprocess.run(["squeue"], env=environment, stdout=subprocess.PIPE, check=True)

    CountedSlurm.commands = 0
    rows = [(timed(plain), timed(ports.slurm.jobs), timed(lambda: pass_over_all(ports))) for _ in range(turns)]
    commands = CountedSlurm.commands / turns - 1       # one of them was the read beside it
    squeue, read, whole = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
    return {"jobs": len(ports.slurm.jobs()), "squeue_ms": squeue, "read_ms": read, "pass_ms": whole,
            "ratio": statistics.median(row[2] / row[0] for row in rows), "commands": commands,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def prepare(folder: Path, runs: int) -> tuple[Path, dict[str, str]]:
    """A private Slurm that starts nothing, and a repository with runs that wait in it."""
    private = folder / ".orch" / "cluster"
    cluster.up(cluster.ClusterSpec(folder=private, gpus=0, extra_conf="MaxJobCount=20000\n"))
    cluster.set_node(private, "n1", "drain", "only the queue is measured")
    environment = {**os.environ, **cluster.environment(private)}
    (folder / "orch.yaml").write_text("profiles: {p: {cpus: 1, memory: 100M, time: 10m, lead: 10s}}\n")
    for n in range(runs):
        script = folder / "jobs" / f"run-{n}" / "job.sh"
        script.parent.mkdir(parents=True)
        script.write_text("#!/bin/bash\nexec sleep 1\n")
        script.chmod(0o755)
        subprocess.run([ORCH, "submit", f"run-{n}"], cwd=folder, env=environment, check=True, capture_output=True)
    return private, environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 1000, 10000])
    parser.add_argument("--runs", type=int, default=1, help="runs of this repository, each with two jobs")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure, options.turns)))
        return
    with tempfile.TemporaryDirectory(prefix="orch-pass-") as name:
        folder = Path(name)
        private = folder / ".orch" / "cluster"
        try:
            private, environment = prepare(folder, options.runs)
            held = 0
            for jobs in sorted(options.jobs):
                fill = ["bash", "-c", FILL, "fill", str(held + 1), str(jobs)]
                subprocess.run(fill, cwd=folder, env=environment, check=True)
                held = jobs
                conf = cluster.slurm_conf(private)
                answer = subprocess.run([sys.executable, __file__, "--turns", str(options.turns), "--measure", folder, conf],
                                        check=True, stdout=subprocess.PIPE)
                show(json.loads(answer.stdout))
        finally:
            cluster.down(private, grace_s=2)


def show(found: dict[str, float]) -> None:
    good = found["ratio"] <= GOAL and found["memory_mb"] < MEMORY_GOAL_MB
    print(f"{found['jobs']:6.0f} jobs   squeue {found['squeue_ms']:6.0f} ms   read {found['read_ms']:6.0f} ms   "
          f"pass {found['pass_ms']:6.0f} ms   ratio {found['ratio']:.2f}   {found['commands']:g} command(s)   "
          f"{found['memory_mb']:.0f} MB{'' if good else '   above the goal'}", flush=True)


if __name__ == "__main__":
    main()
