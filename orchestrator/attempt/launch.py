"""Starting job.sh and the notice step, side by side: neither waits for the other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.attempt import setup
from orchestrator.attempt.commands import there
from orchestrator.attempt.setup import SetupError

REPORTS_WITHIN_S = 10.0
_WISHES = ("SLURM_MEM_PER_", "SLURM_CPUS_PER_", "SLURM_GPU", "SLURM_GRES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TRES_PER_",
           "SLURM_CPU_BIND", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_THREADS_PER_CORE", "SLURM_HINT", "SLURM_DISTRIBUTION")


def start_job(run_dir: Path, repository: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """job.sh as a child in a process group of its own (``kill 0`` in a trap must not reach the supervisor)."""
    words = setup.command(run_dir / "job.sh")
    try:
        return subprocess.Popen(words, cwd=repository, env=dict(environment), stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        if words[0].startswith("/bin/"):
            raise SetupError(f"{words[-1]} cannot be started: {error.strerror}") from error
        hint = "is what its first line names here?"
        raise SetupError(f"{words[0]} cannot be started: {error.strerror} ({hint})") from error


class NoticeStep:
    """The client of the notice step, and what its tasks have reported."""

    def __init__(self, folder: Path, epoch: int, host: str, signal_name: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.descriptor: int | None = None
        self.ready_at: float | None = None
        self.detail = ""
        self._rest = b""
        nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
        if "SLURM_JOB_ID" not in os.environ or not there("srun"):
            self.detail = "no srun here"
            return
        # the job's own wishes reach srun through the environment too, and contradict the step's
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_WISHES)}
        entry = str(Path(__file__).with_name("__main__.py"))
        words = ["srun", "--overlap", f"-N{nodes}", f"-n{nodes}", "--ntasks-per-node=1", "--mem=0", "--gres=none",
                 "--mpi=none", "--input=none", "--cpu-bind=none", "--job-name=orch-notice", "--quiet",
                 sys.executable, "-I", entry, "--notice-step", str(folder), str(epoch), host, signal_name]
        try:
            self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, process_group=0)
        except OSError as error:
            self.detail = f"srun: {error.strerror}"
            return
        assert self.process.stdout is not None
        self.descriptor = self.process.stdout.fileno()
        os.set_blocking(self.descriptor, False)

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def read(self) -> list[list[str]]:
        """The reports that have come, as words; what srun itself says is kept as ``detail``."""
        if self.descriptor is None:
            return []
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.descriptor = None
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        words = [line.decode(errors="replace").split() for line in lines]
        for other in (w for w in words if w and w[0] != "orch-notice"):
            self.detail = " ".join(other)[:200]
        return [w[1:] for w in words if w and w[0] == "orch-notice"]

    def end(self) -> None:
        """End the step: TERM to its client ends its tasks; after a scancel the client is stuck, and Slurm ends them."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
