"""The private cluster on a real Slurm: up, down, power cut, strangers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import cluster
from orchestrator.cluster import processes
from orchestrator.cluster.machine import search_path
from orchestrator.cluster.processes import Role
from orchestrator.cluster.spec import Tracking
from orchestrator.errors import Refused, UserError

if TYPE_CHECKING:
    from conftest import PrivateSlurm

REPOSITORY = Path(__file__).parents[2]
# not nobody: from 25.11 on Slurm takes that name for "no user at all"
AS_ANOTHER = ("setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups")
needs_root = pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")

Make = Callable[..., Any]


@pytest.fixture
def own_cluster(make_slurm_cluster: Make) -> Iterator[PrivateSlurm]:
    """A cluster that the test may break; ended with it."""
    slurm = make_slurm_cluster(nodes=2)
    yield slurm
    cluster.kill(slurm.folder)


def test_up_starts_idle_nodes_and_a_job_gets_its_gpu(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    seen = cluster.status(slurm_cluster.folder)
    assert seen.running
    assert [node.name for node in seen.nodes] == ["n1", "n2"]
    out = tmp_path / "out"
    job = slurm_cluster.submit(f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES > {out}", "--gres=gpu:1", "--mem=100")
    slurm_cluster.wait_for(job, "COMPLETED")
    assert out.read_text() in ("n1 0\n", "n2 0\n")


def test_a_second_up_starts_nothing_and_other_settings_are_refused(slurm_cluster: PrivateSlurm) -> None:
    before = cluster.status(slurm_cluster.folder).daemons
    assert cluster.up(slurm_cluster.spec).started == ()
    assert cluster.status(slurm_cluster.folder).daemons == before
    with pytest.raises(Refused, match="cpus 8, not 3"):
        cluster.up(cluster.ClusterSpec(folder=slurm_cluster.folder, nodes=2, gpus=2, cpus=3))


def test_down_leaves_nothing_running(own_cluster: PrivateSlurm) -> None:
    script = "sleep 1000 & setsid env -i sleep 1001 & srun --overlap -N2 -n2 sleep 1002"
    job = own_cluster.submit(script, "-N2", "--mem=100")
    own_cluster.wait_for(job, "RUNNING")
    own_cluster.wait_until(lambda: _nodes_of_jobs(own_cluster) >= {"n1", "n2"}, 10, "processes of the job on both nodes")
    before = own_cluster.processes()
    cluster.down(own_cluster.folder, grace_s=2)
    assert own_cluster.processes() == []
    assert processes.wait_gone([member.process for member in before], 0)
    assert not cluster.status(own_cluster.folder).running


def test_what_waited_behind_a_running_job_goes_on_after_down_and_up(own_cluster: PrivateSlurm) -> None:
    running = own_cluster.submit("sleep 1000", "--no-requeue", "--mem=100")
    successor = own_cluster.submit("true", f"--dependency=afterany:{running}", "--mem=100")
    own_cluster.wait_for(running, "RUNNING")
    own_cluster.wait_until(lambda: bool(_nodes_of_jobs(own_cluster)), 10, "the job's process")
    cluster.down(own_cluster.folder, grace_s=2)
    cluster.up(own_cluster.spec)
    assert own_cluster.job(running)["JobState"] == "FAILED"
    own_cluster.wait_for(successor, "COMPLETED")


def test_a_queued_job_survives_a_power_cut(own_cluster: PrivateSlurm) -> None:
    cluster.set_node(own_cluster.folder, "n1", "drain", "the job must wait")
    cluster.set_node(own_cluster.folder, "n2", "drain", "the job must wait")
    job = own_cluster.submit("true", "--job-name=survivor", "--mem=100")
    state = own_cluster.folder / "state"
    own_cluster.wait_until(lambda: (state / "job_state").exists() and b"survivor" in (state / "job_state").read_bytes()
                           and (state / "node_state").read_bytes().count(b"the job must wait") == 2, 15,
                           "slurmctld saved its queue and its nodes")
    cluster.kill(own_cluster.folder)
    assert own_cluster.processes() == []
    started = cluster.up(own_cluster.spec).started
    assert set(started) == {"munged", "slurmctld", "slurmd-n1", "slurmd-n2"}
    for name in ("n1", "n2"):
        cluster.set_node(own_cluster.folder, name, "resume")     # refused by a node that has not registered
    own_cluster.wait_for(job, "COMPLETED")


def test_up_starts_only_the_daemon_that_died(own_cluster: PrivateSlurm) -> None:
    controller = next(member for member in own_cluster.processes() if member.role is Role.CONTROLLER)
    processes.send(controller.process, signal.SIGKILL)
    assert processes.wait_gone([controller.process], 5)
    assert cluster.up(own_cluster.spec).started == ("slurmctld",)


def test_a_stopped_node_keeps_or_loses_its_jobs(own_cluster: PrivateSlurm) -> None:
    job = own_cluster.submit("sleep 1000", "--nodelist=n2", "--mem=100")
    own_cluster.wait_for(job, "RUNNING")
    own_cluster.wait_until(lambda: "n2" in _nodes_of_jobs(own_cluster), 10, "the job's process")
    cluster.stop_node(own_cluster.folder, "n2", kill_jobs=False)
    assert "n2" in _nodes_of_jobs(own_cluster)
    cluster.stop_node(own_cluster.folder, "n2", kill_jobs=True)
    assert {member.node for member in own_cluster.processes()} == {None, "n1"}
    cluster.start_node(own_cluster.folder, "n2")
    with pytest.raises(UserError, match="no node n7"):
        cluster.start_node(own_cluster.folder, "n7")


def test_the_controller_can_go_and_come_back(own_cluster: PrivateSlurm) -> None:
    cluster.stop_controller(own_cluster.folder)
    assert {node.state for node in cluster.status(own_cluster.folder).nodes} == {"unknown"}
    cluster.start_controller(own_cluster.folder)
    assert cluster.status(own_cluster.folder).running


def test_two_clusters_with_the_same_job_id_on_the_same_node_name_are_apart(make_slurm_cluster: Make) -> None:
    first, second = make_slurm_cluster(nodes=1), make_slurm_cluster(nodes=1)
    jobs = [slurm.submit("sleep 1000", "--mem=100") for slurm in (first, second)]
    assert jobs == [1, 1]
    for slurm in (first, second):
        slurm.wait_until(lambda slurm=slurm: "n1" in _nodes_of_jobs(slurm), 10, "the job's process")
    cluster.kill(first.folder)
    assert first.processes() == []
    assert second.job(1)["JobState"] == "RUNNING"
    assert "n1" in _nodes_of_jobs(second)
    cluster.kill(second.folder)


def test_a_folder_with_blanks_and_a_long_path(make_slurm_cluster: Make, tmp_path: Path) -> None:
    slurm = make_slurm_cluster(nodes=1, folder=tmp_path / "with blanks" / ("long" * 20))
    job = slurm.submit("true", "--mem=100")
    slurm.wait_for(job, "COMPLETED")
    cluster.down(slurm.folder)
    assert slurm.processes() == []


def test_memory_limits_hold_where_there_are_cgroups(slurm_cluster: PrivateSlurm) -> None:
    if cluster.up(slurm_cluster.spec).tracking is Tracking.LINUXPROC:
        pytest.skip("no cgroups of our own on this machine")
    job = slurm_cluster.submit(f"{sys.executable} -c 'print(len(bytearray(300 << 20)))'", "--mem=100")
    slurm_cluster.wait_for(job, "OUT_OF_MEMORY")


@needs_root
def test_another_user_is_refused(slurm_cluster: PrivateSlurm) -> None:
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o755)
        conf = Path(public) / "slurm.conf"
        conf.write_text((slurm_cluster.folder / "etc" / "slurm.conf").read_text())
        conf.chmod(0o644)
        answer = subprocess.run(
            [*AS_ANOTHER, "squeue"], env={"PATH": search_path(), "SLURM_CONF": str(conf)},
            capture_output=True, text=True, timeout=30, check=False,
        )
    assert answer.returncode != 0
    assert "Munge encode failed" in answer.stderr
    assert "Permission denied" in answer.stderr


NON_ROOT = """
import sys
from pathlib import Path
from orchestrator import cluster
folder = Path(sys.argv[1])
spec = cluster.ClusterSpec(folder=folder, nodes=2, gpus=1, cpus=2, memory_mib=1000)
try:
    assert cluster.up(spec).tracking is cluster.Tracking.LINUXPROC
    import subprocess
    env = cluster.environment(folder) | {"PATH": "/usr/bin:/bin"}
    wrap = "--wrap=srun -N2 -n2 true && echo fine $(whoami)"
    subprocess.run(["sbatch", "--wait", "-N2", "--gres=gpu:1", f"--output={folder}/out", wrap], env=env, check=True)
    print((folder / "out").read_text())
finally:
    print("ended", cluster.down(folder), [m for m in cluster.status(folder).daemons if m.alive])
"""


@needs_root
def test_an_ordinary_user_can_have_one(slurm_cluster: PrivateSlurm) -> None:
    folder = Path(tempfile.mkdtemp(prefix="orch-daemon-"))
    try:
        shutil.chown(folder, "daemon", "daemon")
        environment = {"PATH": search_path(), "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
        answer = subprocess.run(
            [*AS_ANOTHER, _python_for_another(environment), "-c", NON_ROOT, str(folder / "c")], env=environment, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "fine daemon" in answer.stdout
        assert answer.stdout.endswith("[]\n")
    finally:
        shutil.rmtree(folder)


def _python_for_another(environment: dict[str, str]) -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        probe = subprocess.run(
            [*AS_ANOTHER, python, "-c", "import sys, orchestrator; sys.exit(sys.version_info < (3, 11))"],
            env=environment, cwd="/", capture_output=True, check=False,
        )
        if probe.returncode == 0:
            return python
    pytest.skip("no Python 3.11 that another user may run together with this checkout")


def _nodes_of_jobs(slurm: PrivateSlurm) -> set[str | None]:
    return {member.node for member in slurm.processes() if member.role is Role.JOB}
