"""What ``ops/chaos`` runs: six trainings under seeded faults, then calm, then every one finished with the right weights.

Faults strike for the minutes asked for: processes killed and stopped, nodes and slurmctld gone and back, scancel, preemption.
All the while the trainings' folders are watched: a checkpoint that was published after a newer start had taken its run, or a
run that is held though nobody cancelled it, is a failure, and everything is left for looking at.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos_watch import Struck, Watcher

from orchestrator import cluster
from orchestrator.attempt.processes import send
from orchestrator.checkpoints import complete_checkpoints
from orchestrator.errors import OrchError, SlurmUnreachable
from orchestrator.folders import attempt_dir, checkpoint_dir, run_dir
from orchestrator.model import Phase

SOURCE = Path(__file__).resolve().parents[1]
ORCH = Path(sys.executable).with_name("orch")
TAGS = tuple(f"digits-{letter}" for letter in "abcdef")
INTERVAL_S = 3
SLURMD_TIMEOUT_S = 8
SAME_SUMS = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")   # what jobs get too; OPENBLAS_CORETYPE they do not
WORK_S, WORK_SHARE = 8.0, 0.15     # CPU seconds of a training, and more for each second of faults: two cores have six
FAULTS = ("trainer-kill", "trainer-stop", "supervisor-kill", "supervisor-stop", "daemon-kill", "daemon-stop",
          "node-power", "node-orphans", "controller-away", "scancel", "preemption")
UNANNOUNCED = frozenset({"trainer-kill", "supervisor-kill", "node-power"})

ORCH_YAML = f"""\
profiles:
  default: {{partition: low, cpus: 1, memory: 300M, time: 1h, lead: 15s}}
checkpoint: {{interval: {INTERVAL_S}s, keep: 3}}
recovery: {{backoff: 1s, endings_without_progress: 10}}
daemon: {{every: 2s}}
"""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@dataclass(frozen=True)
class Planned:
    """A fault to come. ``chance`` chooses its victim, ``length_s`` is how long what it stops stays stopped."""

    at_s: float
    kind: str
    chance: float
    length_s: float


def schedule(seed: int, seconds: float, *, begin_s: float = 8.0) -> list[Planned]:
    """Rounds of all faults, each round in an order of its own, about 5 s apart; the same for the same seed."""
    dice = random.Random(seed)
    every_s = max(3.0, min(5.0, (seconds - begin_s) / (len(FAULTS) + 2)))    # a short campaign has a whole round too
    planned: list[Planned] = []
    at_s = begin_s
    while at_s < seconds:
        for kind in dice.sample(FAULTS, len(FAULTS)):
            if at_s < seconds:
                planned.append(Planned(at_s, kind, dice.random(), dice.uniform(4, 10)))
            at_s += every_s * dice.uniform(0.6, 1.4)
    return planned


class Site:
    """One repository, one private Slurm, one daemon, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = folder / ".orch" / "cluster"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.reference: subprocess.Popen[bytes] | None = None
        self.controller_away = False
        self.nodes_down: set[str] = set()

    def run(self, *command: str | Path, may_end_with: int = 0) -> str:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                       **cluster.environment(self.cluster)}
        answer = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if answer.returncode not in (0, may_end_with):
            raise OrchError(f"{' '.join(map(str, command))}: {answer.returncode}\n{answer.stdout}{answer.stderr}")
        return answer.stdout

    def prepare(self, work_s: float) -> int:
        (self.folder / "orch.yaml").write_text(ORCH_YAML)
        spec = cluster.ClusterSpec(folder=self.cluster, nodes=4, gpus=0, cpus=2, memory_mib=1000, kill_wait_s=5,
                                   slurmd_timeout_s=SLURMD_TIMEOUT_S, preemption=True)
        cluster.up(spec)
        shutil.copytree(SOURCE / "jobs" / "digits", self.folder / "jobs" / "digits",
                        ignore=shutil.ignore_patterns("__pycache__"))
        steps = max(300, round(work_s / ((self.cpu_s("speed", 300) - self.cpu_s("speed", 1)) / 299)))
        for tag in TAGS:
            script = self.folder / "jobs" / tag / "job.sh"
            shutil.copytree(self.folder / "jobs" / "digits", script.parent)
            script.write_text(script.read_text().replace('"$@"', f"--steps {steps}"))
        self.start_daemon()
        for tag in TAGS:
            self.run(ORCH, "submit", tag)
        self.reference = self._training("reference", steps)
        return steps

    def cpu_s(self, name: str, steps: int) -> float:
        """What so many steps take of a processor, be it shared with others or not."""
        before = os.times()
        if self._training(name, steps).wait():
            raise OrchError(f"a training outside Slurm failed; see {self.folder / name / 'out'}")
        shutil.rmtree(self.folder / name)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    def _training(self, name: str, steps: int) -> subprocess.Popen[bytes]:
        """The undisturbed run, with neither Slurm nor orch."""
        (self.folder / name).mkdir()
        environment = {name: os.environ[name] for name in SAME_SUMS if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (self.folder / name / "out").open("wb") as log:
            return subprocess.Popen([sys.executable, self.folder / "jobs" / "digits" / "train.py", "--steps", str(steps)],
                                    cwd=self.folder / name, env=environment, stdout=log, stderr=log)

    def right_weights(self) -> str:
        assert self.reference is not None
        if self.reference.wait():
            raise OrchError(f"the undisturbed training failed; see {self.folder / 'reference' / 'out'}")
        result = json.loads((self.folder / "reference" / "result.json").read_text())
        return str(result["metrics"]["weights_sha256"])

    def start_daemon(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen([ORCH, "daemon"], cwd=self.folder, stdout=log, stderr=log)

    def stop(self) -> None:
        for process in (self.daemon, self.reference):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if self.cluster.exists():
            cluster.kill(self.cluster)


class Fate:
    """Does the planned faults, and undoes those that are to pass."""

    def __init__(self, site: Site, watcher: Watcher) -> None:
        self.site, self.watcher = site, watcher
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def strike(self, planned: Planned) -> bool:
        """False where it cannot be done at this moment."""
        kind = planned.kind
        if kind.startswith("daemon"):
            self._daemon(planned)
            return self._note(kind, (), "the daemon")
        if kind == "controller-away":
            return self._controller(planned)
        victim = self.watcher.live(planned.chance)
        if victim is None or (self.site.controller_away and kind in ("node-power", "node-orphans", "scancel", "preemption")):
            return False
        tag, start = victim
        if kind.startswith("trainer"):
            folder = attempt_dir(run_dir(self.site.folder, tag), start.number) / "trainers"
            found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
            return bool(found) and self._signal(planned, tag, found[0]["pid"], found[0]["pid_start"])
        if kind.startswith("supervisor"):
            return self._signal(planned, tag, start.pid, start.pid_start)
        return self._by_slurm(planned, tag, start.job_id)

    def _note(self, kind: str, tags: tuple[str, ...], words: str) -> bool:
        struck = Struck(kind=kind, at=time.time(), tags=tags)
        if kind in UNANNOUNCED:
            struck.lost_s += [lost for tag in tags if (lost := self.watcher.unsaved_s(tag)) is not None]
        self.watcher.struck.append(struck)
        say(f"FATE: {kind}: {words}")
        return True

    def _signal(self, planned: Planned, tag: str, pid: int, pid_start: int) -> bool:
        number = signal.SIGKILL if planned.kind.endswith("kill") else signal.SIGSTOP
        if not send(pid, pid_start, number):
            return False
        if number == signal.SIGSTOP:
            self._in(planned.length_s, lambda: void(send(pid, pid_start, signal.SIGCONT)))
        return self._note(planned.kind, (tag,), f"process {pid} of {tag}")

    def _daemon(self, planned: Planned) -> None:
        daemon = self.site.daemon
        assert daemon is not None
        if planned.kind == "daemon-stop":
            daemon.send_signal(signal.SIGSTOP)
            self._in(planned.length_s, lambda: daemon.send_signal(signal.SIGCONT))
            return
        self.site.daemon = None
        daemon.kill()
        daemon.wait()
        self._in(2.0, self.site.start_daemon)

    def _controller(self, planned: Planned) -> bool:
        if self.site.controller_away or self.site.nodes_down:
            return False
        cluster.stop_controller(self.site.cluster)
        self.site.controller_away = True
        self._in(20.0, self._controller_back)
        return self._note(planned.kind, (), "slurmctld for 20 s")

    def _controller_back(self) -> None:
        cluster.start_controller(self.site.cluster)
        self.site.controller_away = False

    def _by_slurm(self, planned: Planned, tag: str, job_id: str) -> bool:
        answer = self.site.run("squeue", "--noheader", "--states=running", "--format=%i %N %j").splitlines()
        jobs = {words[0]: (words[1], words[2].partition("@")[0]) for words in map(str.split, answer)}
        if job_id not in jobs:
            return False
        node = jobs[job_id][0]
        if node in self.site.nodes_down:
            return False
        there = tuple(other for where, other in jobs.values() if where == node and other in TAGS)
        if planned.kind == "scancel":
            self.watcher.scancelled.add(tag)
            self._note("scancel", (tag,), f"job {job_id} of {tag}")
            self.site.run("scancel", job_id)
        elif planned.kind == "preemption":
            self._note("preemption", there, f"node {node}, of {', '.join(there)}")
            self.site.run("sbatch", "--partition=high", "--exclusive", f"--nodelist={node}", "--job-name=high", "--time=1",
                          "--output=/dev/null", "--wrap=sleep 3")
        elif self.site.nodes_down:
            return False
        else:
            self._note(planned.kind, there, f"node {node}, of {', '.join(there)}")
            self.site.nodes_down.add(node)
            cluster.stop_node(self.site.cluster, node, kill_jobs=planned.kind == "node-power")
            self._in(2 * SLURMD_TIMEOUT_S, lambda: self._node_back(node))
        return True

    def _node_back(self, node: str) -> None:
        cluster.start_node(self.site.cluster, node)
        self.site.nodes_down.discard(node)

    # what passes

    def _in(self, seconds: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, id(undo), undo))

    def undo(self, *, all_of_it: bool = False) -> None:
        while self._later and (all_of_it or self._later[0][0] <= time.monotonic()):
            heapq.heappop(self._later)[2]()


def void(_: object) -> None:
    """For a lambda whose value nobody wants."""


def look(site: Site, watcher: Watcher) -> None:
    """Watch, and do what a person would: release what was cancelled by the campaign."""
    for tag in watcher.look():
        say(f"{tag} is held ({watcher.runs[tag].phase_reason}): orch release {tag}")
        # slurmctld may be away just now: it is recorded, and the daemon does the rest
        site.run(ORCH, "release", tag, may_end_with=SlurmUnreachable.exit_code)
    if site.daemon is not None and site.daemon.poll() is not None:
        watcher.trouble.append(f"the daemon ended by itself with {site.daemon.returncode}")
        site.start_daemon()


def campaign(site: Site, watcher: Watcher, planned: list[Planned], seconds: float) -> None:
    """Faults until the time is over; one that cannot be done now is tried again after the next."""
    fate, began, shown = Fate(site, watcher), time.monotonic(), 0.0
    waiting = list(planned)
    while time.monotonic() - began < seconds:
        fate.undo()
        look(site, watcher)
        now_s = time.monotonic() - began
        due = [fault for fault in waiting if fault.at_s <= now_s]
        done = next((fault for fault in due if fate.strike(fault)), None)
        if done is not None:
            waiting.remove(done)
        if now_s - shown > 15:
            shown = now_s
            progress(watcher)
        time.sleep(0.5)
    say("calm: what was stopped goes on, what was down comes back")
    fate.undo(all_of_it=True)


def progress(watcher: Watcher) -> None:
    parts = []
    for tag, run in watcher.runs.items():
        newest = complete_checkpoints(checkpoint_dir(run_dir(watcher.repository, tag)))
        parts.append(f"{tag[-1]} {run.phase} attempt {len(run.attempts)} saved {newest[-1].step if newest else 0}")
    say("  " + "; ".join(parts))


def finish(site: Site, watcher: Watcher, within_s: float) -> float:
    """Wait until all are finished; the seconds that it took."""
    began, shown = time.monotonic(), 0.0
    while True:
        look(site, watcher)
        took_s = time.monotonic() - began
        if all(run.phase == Phase.FINISHED for run in watcher.runs.values()) or took_s > within_s:
            return took_s
        if took_s - shown > 15:
            shown = took_s
            progress(watcher)
        time.sleep(0.5)


def table(watcher: Watcher) -> None:
    expected_s = INTERVAL_S / 2 + watcher.durable_s()
    print(f"\n{'FAULT':<17} TIMES  LOST RUNS  DOUBLE PUBLISHERS  LOST WORK (mean; T/2 + t = {expected_s:.1f} s)")
    for kind in (*FAULTS, "all"):
        found = [struck for struck in watcher.struck if kind in (struck.kind, "all")]
        lost = [seconds for struck in found for seconds in struck.lost_s]
        words = f"{statistics.mean(lost):.1f} s of {len(lost)}, at most {max(lost):.1f} s" if lost else "-"
        print(f"{kind:<17} {len(found):>5}  {sum(s.lost_runs for s in found):>9}  "
              f"{sum(s.double_publishers for s in found):>17}  {words}")
    print("endings: " + ", ".join(f"{ending} {count}" for ending, count in watcher.endings().items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Six trainings under seeded faults on a private Slurm of four nodes.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults strike")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--finish-within", type=float, default=300.0, metavar="SECONDS", help="after the last fault")
    parser.add_argument("--keep", action="store_true", help="leave the folder for looking around")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="orch-chaos-"))
    site, seconds = Site(folder), 60 * options.minutes
    watcher = Watcher(folder, TAGS)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    good = False
    try:
        steps = site.prepare(WORK_S + WORK_SHARE * seconds)
        say(f"{len(TAGS)} trainings of {steps} steps in {folder}, faults for {seconds:.0f} s, seed {options.seed}")
        campaign(site, watcher, schedule(options.seed, seconds), seconds)
        took_s = finish(site, watcher, options.finish_within)
        weights = site.right_weights()
        watcher.judge(weights)
        table(watcher)
        good = not watcher.trouble
        print(f"{len(watcher.struck)} faults, all trainings over {took_s:.0f} s after the last, weights {weights[:16]}")
    finally:
        site.stop()
        for line in watcher.trouble:
            print(f"WRONG: {line}", file=sys.stderr)
        if good and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        elif not good:
            print(f"THE CAMPAIGN FAILED. Everything is left in {folder}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
