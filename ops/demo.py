"""What ``ops/demo`` runs: one training interrupted three times, the same one uninterrupted, proof that they are equal.

It uses orch as a user would (init, cluster up, submit, daemon, status) and plays the part of fate: SIGKILL to the trainer,
Slurm's time limit, a node taken down while its trainer lives on. It fails loudly when anything is not as promised.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import cluster

SOURCE = Path(__file__).resolve().parents[1]
ORCH = Path(sys.executable).with_name("orch")
PATIENCE_S = 420
INTERVAL_S = 5
WORK_S = 165
HURT, WHOLE = "digits", "digits-uninterrupted"

ORCH_YAML = """\
profiles:
  short:                     # a limit of two minutes, so that the demo can show one
    gres: gpu:1
    cpus: 1
    memory: 512M
    time: 2m
    lead: 15s
  long:
    gres: gpu:1
    cpus: 1
    memory: 512M
    time: 30m
    lead: 1m
default_profile: short
checkpoint: {at_most: 5s, keep: 3}      # below that the interval is computed from what is measured
reliability: {prior_mtbi: 3m}           # told to expect an interruption every three minutes
daemon: {every: 2s}
"""


class Broken(Exception):
    """The demo did not show what it promises."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def calibrated_steps(folder: Path) -> int:
    """So many steps that training takes WORK_S here: the demo is about seconds, and machines differ."""
    def timed_s(steps: int) -> float:
        began = time.monotonic()
        subprocess.run([sys.executable, SOURCE / "jobs" / "digits" / "train.py", "--steps", str(steps)], cwd=folder / "speed",
                       env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}, check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(folder / "speed" / "checkpoints")
        return time.monotonic() - began

    (folder / "speed").mkdir()
    step_s = (timed_s(300) - timed_s(1)) / 299
    return max(1000, round(WORK_S / step_s / 100) * 100)


class Demo:
    """One repository, one private Slurm, one daemon, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = folder / ".orch" / "cluster"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.began = time.monotonic()
        self.shown = 0.0
        self.steps = 0

    def orch(self, *arguments: str) -> str:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment.pop("SLURM_CONF", None)
        result = subprocess.run([ORCH, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True,
                                check=False)
        if result.returncode:
            raise Broken(f"orch {' '.join(arguments)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def prepare(self) -> None:
        self.orch_init()
        say("$ orch cluster up --nodes 2 --gpus 2 --cpus 4 --memory 4G")
        for line in self.orch("cluster", "up", "--nodes", "2", "--gpus", "2", "--cpus", "4", "--memory", "4G").splitlines():
            say(f"  {line}")
        for tag, profile in ((WHOLE, "long"), (HURT, "short")):
            say(f"$ orch submit {tag} --profile {profile}")
            say(f"  {self.orch('submit', tag, '--profile', profile).strip()}")
        say("$ orch daemon &")
        log = (self.folder / "daemon.log").open("wb")
        self.daemon = subprocess.Popen([ORCH, "daemon"], cwd=self.folder, stdout=log, stderr=log)

    def orch_init(self) -> None:
        (self.folder / "orch.yaml").write_text(ORCH_YAML)
        self.orch("init")
        self.steps = calibrated_steps(self.folder)
        say(f"{self.steps} steps are {WORK_S} s of work here")
        for tag in (HURT, WHOLE):
            shutil.copytree(SOURCE / "jobs" / "digits", self.folder / "jobs" / tag,
                            ignore=shutil.ignore_patterns("__pycache__"))
            script = self.folder / "jobs" / tag / "job.sh"
            command = f"jobs/{tag}/train.py --steps {self.steps}"
            script.write_text(script.read_text().replace('jobs/digits/train.py "$@"', command))

    # what is to be seen

    def status(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.orch("status", tag, "--json"))
        return found

    def live(self) -> dict[str, Any] | None:
        attempts = self.status(HURT)["attempts"]
        return attempts[-1] if attempts and attempts[-1]["ending"] is None else None

    def saved_in(self, number: int) -> int | None:
        """The step of this attempt's newest checkpoint."""
        lines = self.folder / "runs" / HURT / "attempts" / f"{number:04d}" / "trainer.jsonl"
        events = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        steps = [event["step"] for event in events if event["event"] == "saved"]
        return steps[-1] if len(steps) >= 2 else None

    def trainer_pid(self, number: int) -> int:
        folder = self.folder / "runs" / HURT / "attempts" / f"{number:04d}" / "trainers"
        return int(json.loads(next(folder.glob("*.json")).read_text())["pid"])

    def until(self, what: str, come: Callable[[], Any]) -> Any:
        """Wait until something is so; show progress; fail loudly when it takes too long."""
        while True:
            found = come()
            if found:
                return found
            if time.monotonic() - self.began > PATIENCE_S:
                raise Broken(f"waited in vain for: {what}")
            if self.daemon is not None and self.daemon.poll() is not None:
                raise Broken(f"the daemon ended with {self.daemon.returncode}:\n{(self.folder / 'daemon.log').read_text()}")
            self.progress()
            time.sleep(0.3)

    def progress(self) -> None:
        if time.monotonic() - self.shown < 5:
            return
        self.shown = time.monotonic()
        parts = []
        for run in json.loads(self.orch("status", "--json"))["runs"]:
            parts.append(f"{run['tag']} {run['state']}, step {run['step'] or 0} of {self.steps}")
        say("  " + "; ".join(parts))

    # what fate does

    def interrupt(self) -> None:
        first = self.ripe()
        pid = self.trainer_pid(first["attempt"])
        say(f"FATE: SIGKILL to the trainer of attempt {first['attempt']} (process {pid})")
        os.kill(pid, signal.SIGKILL)
        second = self.ripe(after=first["attempt"])
        node = self.node_of(second["job_id"])
        say(f"FATE: node {node} dies under attempt {second['attempt']}; its trainer lives on, unseen by Slurm")
        cluster.stop_node(self.cluster, node, kill_jobs=False)
        cluster.set_node(self.cluster, node, "down", "demo")
        third = self.until("an attempt on the other node",
                           lambda: (a := self.live()) and a["attempt"] > second["attempt"] and a)
        say(f"attempt {third['attempt']} has ended the old trainer, which could not have published anything anyway")
        cluster.start_node(self.cluster, node)
        say("now Slurm's time limit of two minutes will come, announced 15 s before it, or up to a minute earlier by Slurm")
        self.until("the time limit", lambda: "limit-saved" in [a["ending"] for a in self.status(HURT)["attempts"]])
        say("the trainer was told, saved and stopped; its successor trains")

    def ripe(self, after: int = 0) -> dict[str, Any]:
        """The next attempt, once it has saved twice and is in the middle of an interval, as fate strikes on average."""
        def come() -> dict[str, Any] | None:
            live = self.live()
            return live if live and live["attempt"] > after and self.saved_in(live["attempt"]) else None
        found: dict[str, Any] = self.until(f"the second checkpoint of the attempt after {after}", come)
        time.sleep(INTERVAL_S / 2)
        return found

    def node_of(self, job_id: str) -> str:
        """The node of a job, from Slurm: all nodes of this cluster are one host."""
        answer = subprocess.run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%N"], capture_output=True, text=True,
                                check=True, env={**os.environ, **cluster.environment(self.cluster)})
        return answer.stdout.strip()

    # what must have come out

    def show(self) -> None:
        print()
        for tag in (HURT, WHOLE):
            print(f"$ orch status {tag}")
            print(self.orch("status", tag))
        hurt, whole = self.status(HURT), self.status(WHOLE)
        endings = [attempt["ending"] for attempt in hurt["attempts"]]
        for needed in ("crash", "limit-saved", "node-failure", "finished"):
            if needed not in endings:
                raise Broken(f"no attempt of {HURT} ended as {needed}: {endings}")
        if set(endings) - {"crash", "limit-saved", "node-failure", "finished"} or endings.count("finished") != 1:
            raise Broken(f"endings that nobody asked for: {endings}")
        if [attempt["ending"] for attempt in whole["attempts"]] != ["finished"]:
            raise Broken(f"{WHOLE} was interrupted: {whole['attempts']}")
        self.show_intervals()
        self.compare(hurt, whole)

    def show_intervals(self) -> None:
        """M and T* as the journal has them, and when the running trainer took each new interval."""
        run = self.folder / "runs" / HURT
        journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
        taken = [json.loads(line) for path in sorted(run.glob("attempts/*/trainer.jsonl"))
                 for line in path.read_text().splitlines() if '"interval"' in line]
        print("M and T*, counted and computed again after every ending and every measured save:")
        cause, delays = "before anything", []
        for event in journal:
            if event["event"] == "ended":
                cause = f"attempt {event['number']} ended: {event['ending']}"
            if event["event"] != "interval":
                continue
            low, high = (bound * 60 for bound in event["mtbi95_h"])
            stall = "C unknown"
            if event["stall_s"]:
                stall = f"C {1000 * event['stall_s']:.0f} ms, T* {event['optimum_s']:.1f} s"
            kept = ", kept" if event.get("kept") else ""
            print(f"  {cause:34} M {event['mtbi_h'] * 60:4.1f} min (95 %: {low:.1f} to {high:.0f}), {stall}, "
                  f"every {event['interval_s']:.1f} s{kept}")
            delays += [line["t"] - event["t"] for line in taken if not kept
                       and abs(line["interval_s"] - event["interval_s"]) < 0.001 and 0 <= line["t"] - event["t"] < 6][:1]
            cause = "a save was measured"
        if not delays:
            raise Broken("no running trainer took a new interval")
        print(f"  taken by the running trainer within {max(delays):.1f} s, {len(delays)} times")

    def compare(self, hurt: dict[str, Any], whole: dict[str, Any]) -> None:
        weights = []
        for run in (hurt, whole):
            last = run["attempts"][-1]["attempt"]
            weights.append((self.folder / "runs" / run["tag"] / "attempts" / f"{last:04d}" / "weights.npz").read_bytes())
        if weights[0] != weights[1] or hurt["metrics"] != whole["metrics"]:
            raise Broken(f"the two trainings differ: {hurt['metrics']} and {whole['metrics']}")
        gaps = [b["started_at"] - a["ended_at"] for a, b in zip(hurt["attempts"], hurt["attempts"][1:], strict=False)]
        print(f"accuracy on held-out digits: {hurt['metrics']['accuracy']:.4f} in both")
        print(f"weights: {len(weights[0])} bytes, identical bit for bit (sha256 {hurt['metrics']['weights_sha256'][:16]}...)")
        print(f"GPU idle between attempts: {', '.join(f'{gap:.2f} s' for gap in gaps)}")
        lost = [attempt["lost_s"] for attempt in hurt["attempts"][:-1]]
        print(f"work lost at each ending: {', '.join(f'{seconds:.1f} s' for seconds in lost)}")
        print(f"interrupted {len(hurt['attempts']) - 1} times, and the same training. "
              f"{time.monotonic() - self.began:.0f} s in all.")

    def picture(self, path: Path) -> None:
        """What `orch status` shows on a terminal, as an SVG."""
        from rich.console import Console
        from rich.text import Text

        shown = subprocess.run(["script", "-qec", f"stty cols 96; {ORCH} status {HURT}", "/dev/null"], cwd=self.folder,
                               capture_output=True, text=True, check=True).stdout
        console = Console(record=True, width=96, file=io.StringIO())
        console.print(Text.from_ansi(shown.replace("\r", "")))
        console.save_svg(str(path), title=f"orch status {HURT}")

    def stop(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(timeout=60)
        if self.cluster.exists():
            cluster.down(self.cluster, grace_s=5)


def main() -> int:
    parser = argparse.ArgumentParser(description="One training interrupted three times, and the same one uninterrupted.")
    parser.add_argument("--keep", action="store_true", help="leave the folder for looking around")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="the timeline that it shows in the end, as an SVG")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="orch-demo-"))
    say(f"a repository in {folder}")
    demo = Demo(folder)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    keep = options.keep
    try:
        demo.prepare()
        demo.interrupt()
        for tag in (WHOLE, HURT):
            demo.until(f"{tag} to finish", lambda tag=tag: demo.status(tag)["state"] == "finished")  # type: ignore[misc]
        demo.show()
        if options.picture is not None:
            demo.picture(options.picture)
    except Broken as error:
        keep = True
        print(f"\nTHE DEMO FAILED: {error}\nEverything is left in {folder}", file=sys.stderr)
        return 1
    finally:
        demo.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
