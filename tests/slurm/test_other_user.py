"""An ordinary user's run on a cluster that root runs: an administrator is another user, whose scancel is nobody's mistake."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH_YAML, TINY, Repository
from seen import events, first_start, successor_of, trained

from orchestrator import cluster
from orchestrator.cluster.spec import layout_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
USER = "nobody"


@dataclass
class UsersRepository(Repository):
    """Spoken to by that user, with a Python that may be read by all."""

    python: str = ""

    @property
    def command(self) -> list[str]:
        return [*as_user(), self.python, "-c", "from orchestrator.cli.main import main; main()"]

    @property
    def environment(self) -> dict[str, str]:
        return {**self.slurm.environment, "HOME": str(self.folder), **python_environment()}

    def orch(self, *arguments: str, code: int | None = 0) -> str:
        result = subprocess.run([*self.command, *arguments], cwd=self.folder, env=self.environment, capture_output=True,
                                text=True, check=False, timeout=120)
        said = result.stdout + result.stderr
        assert code is None or result.returncode == code, f"orch {arguments}: {result.returncode}\n{said}"
        return said

    def daemon(self) -> subprocess.Popen[bytes]:
        with (self.folder / "daemon.log").open("ab") as log:
            return subprocess.Popen([*self.command, "daemon"], cwd=self.folder, env=self.environment, stdout=log, stderr=log)


def as_user() -> list[str]:
    """A shell between: what setpriv itself starts, it starts with root's leave still."""
    about = pwd.getpwnam(USER)
    return ["setpriv", f"--reuid={about.pw_uid}", f"--regid={about.pw_gid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]


def python_environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def python_for_all() -> str:
    """One that the user may run, with what orch needs in its reach; skips the test where there is none."""
    if os.getuid() != 0:
        pytest.skip("only root can be an administrator beside another user")
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            tried = subprocess.run([*as_user(), python, "-c", "import orchestrator.cli.main, orchestrator.config"], cwd="/",
                                   env=python_environment(), capture_output=True, text=True, check=False, timeout=60)
        except (OSError, KeyError) as error:
            pytest.skip(f"cannot become {USER}: {error}")
        if tried.returncode == 0:
            return python
    pytest.skip(f"{USER} can run no Python that finds orch: {tried.stderr.strip()[-200:]}")


@pytest.fixture
def repository(make_slurm_cluster: Callable[..., Any]) -> Iterator[UsersRepository]:
    """Its folder and the cluster's are open to others, as on a site."""
    python = python_for_all()
    with tempfile.TemporaryDirectory(prefix="orch-other-user-") as name:
        base = Path(name)
        base.chmod(0o755)
        slurm = make_slurm_cluster(folder=base / "slurm", nodes=1, cpus=4, gpus=0, memory_mib=1000, preemption=False,
                                   kill_wait_s=3)
        layout = layout_of(slurm.folder)
        spool = layout.spool("n1")
        for folder in (layout.folder, layout.slurm_conf.parent, layout.munge_socket.parent, spool.parent, spool):
            folder.chmod(0o711)        # the key itself stays 0600
        made = UsersRepository(folder=base / "repository", slurm=slurm, python=python)
        made.folder.mkdir()
        (made.folder / "orch.yaml").write_text(ORCH_YAML)
        for tag in ("live", "waits"):
            made.job(tag, script=f"#!/bin/bash\nexec {python} {TINY}\n", STEPS=100000)
        for path in (made.folder, *made.folder.rglob("*")):
            os.chown(path, pwd.getpwnam(USER).pw_uid, -1)
        process = made.daemon()
        try:
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            cluster.kill(slurm.folder)     # while its folder is there


def test_an_administrators_scancel_ends_the_attempt_as_cancelled_and_holds_the_run(repository: UsersRepository) -> None:
    for tag in ("live", "waits"):
        repository.orch("submit", tag)
        repository.until(lambda tag=tag: trained(repository, tag), f"{tag} to train")
    job_id = first_start(repository, "live")["job_id"]
    assert repository.slurm.job(int(job_id))["UserId"].startswith(f"{USER}(")
    repository.slurm.run("scancel", job_id)
    repository.slurm.run("scancel", successor_of(repository, "waits"))
    for tag in ("live", "waits"):
        repository.until(lambda tag=tag: repository.status(tag)["state"] == "held", f"{tag} to be held")
    assert repository.endings("live") == ["cancelled"]
    assert "cancelled outside orch" in repository.status("live")["reason"]
    [attempt] = repository.status("live")["attempts"]
    assert attempt["checkpoint_step"] == attempt["last_step"], "it saved before it went"
    assert "cancelled outside orch" in events(repository, "waits", "held")[0]["reason"]
    assert repository.endings("waits") == [None], "the live attempt goes on"
    repository.orch("cancel", "waits", "--now")
    repository.until(lambda: not repository.slurm.run("squeue", "--noheader").strip(), "the queue to be empty")


def test_what_the_site_lets_no_user_do_is_said_in_its_words(repository: UsersRepository) -> None:
    repository.orch("submit", "waits")
    repository.until(lambda: trained(repository, "waits"), "waits to train")
    job_id = successor_of(repository, "waits")
    refused = repository.orch("top", "waits", code=6)
    assert "permission denied" in refused and "enable_user_top" in refused
    assert "permission denied" in repository.orch("update", "waits", "--nice", "-5", "--time", "8m", code=6)
    assert repository.slurm.job(int(job_id))["TimeLimit"] == "00:10:00"
    spec = (repository.folder / "runs" / "waits" / "attempts" / "0002" / "spec.json").read_text()
    assert '"time_limit_s": 600.0' in spec, "its supervisor is told what holds"
    assert [event["event"] for event in repository.journal("waits")][-1] == "unchanged"
    assert "not changed" in repository.orch("status", "waits")
    repository.orch("update", "waits", "--nice", "5", "--time", "8m")
    assert repository.slurm.job(int(job_id))["TimeLimit"] == "00:08:00"
    repository.slurm.run("scontrol", "hold", job_id)
    repository.until(lambda: "held in Slurm by an administrator" in repository.orch("explain", "waits"), "an explanation")
    repository.orch("cancel", "waits", "--now")
    repository.until(lambda: not repository.slurm.run("squeue", "--noheader").strip(), "the queue to be empty")
