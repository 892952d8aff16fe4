"""The private cluster's configuration as text, and which processes are its own: pure, no Slurm needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cluster import config
from orchestrator.cluster.daemons import changed
from orchestrator.cluster.processes import Process, Role, members
from orchestrator.cluster.spec import ClusterSpec, Layout, Machine, Tracking, gpus_by_node, layout_of

FOLDER = Path("/data/try")
LAYOUT = Layout(folder=FOLDER, base=FOLDER, tag="orch-1000-abc")
MACHINE = Machine(
    hostname="box", user="ada", cpus=16, memory_mib=64000, gpu_devices=(), tracking=Tracking.CGROUP_V1,
    swap_limit=True, slurm_version=(22, 5),
)
PORTS = {"slurmctld": 20001, "n1": 20002, "n2": 20003, "n3": 20004}


def conf(machine: Machine = MACHINE, **settings: object) -> list[str]:
    spec = ClusterSpec(folder=FOLDER, **settings)  # type: ignore[arg-type]
    return config.slurm_conf_text(spec, machine, LAYOUT, PORTS).splitlines()


def test_a_node_has_this_machines_resources_by_default() -> None:
    node = "NodeName=n1 NodeHostname=box NodeAddr=127.0.0.1 Port=20002 CPUs=16 RealMemory=64000"
    assert [line for line in conf() if line.startswith("NodeName")] == [node]
    assert not [line for line in conf() if line.startswith("GresTypes")]


def test_a_slurmctld_that_is_away_for_a_minute_drains_no_node() -> None:
    assert "UnkillableStepTimeout=300" in conf()


def test_nodes_have_what_was_asked_for() -> None:
    lines = conf(nodes=2, gpus=2, cpus=8, memory_mib=4000)
    assert "GresTypes=gpu" in lines
    assert [line for line in lines if line.startswith("NodeName")] == [
        f"NodeName={name} NodeHostname=box NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000 Gres=gpu:2"
        for name, port in (("n1", 20002), ("n2", 20003))
    ]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "SlurmctldHost=box(127.0.0.1)"),
        ({}, "SlurmUser=ada"),
        ({}, "AuthInfo=socket=/data/try/munge/socket"),
        ({}, "SlurmdSpoolDir=/data/try/spool/%n"),
        ({}, "PartitionName=main Default=YES Nodes=ALL MaxTime=UNLIMITED OverSubscribe=NO State=UP"),
        ({"kill_wait_s": 5}, "KillWait=5"),
        ({"min_job_age_s": 7}, "MinJobAge=7"),
        ({"slurmd_timeout_s": 9}, "SlurmdTimeout=9"),
        ({"preemption": True}, "PreemptType=preempt/partition_prio"),
        ({"extra_conf": "MaxJobCount=20000"}, "MaxJobCount=20000"),
    ],
)
def test_a_line_of_slurm_conf(settings: dict[str, object], line: str) -> None:
    assert line in conf(**settings)


def test_low_is_cancelled_with_grace_and_high_comes_first() -> None:
    low, high = [line for line in conf(preemption=True) if line.startswith(("PartitionName=low", "PartitionName=high"))]
    assert "PriorityTier=1 PreemptMode=CANCEL GraceTime=20" in low
    assert "PriorityTier=10 PreemptMode=OFF" in high


@pytest.mark.parametrize("tracking", list(Tracking))
def test_processes_are_never_tracked_by_process_group(tracking: Tracking) -> None:
    lines = conf(replace(MACHINE, tracking=tracking))
    expected = "proctrack/cgroup" if tracking is Tracking.CGROUP_V1 else "proctrack/linuxproc"
    assert [line for line in lines if line.startswith("ProctrackType")] == [f"ProctrackType={expected}"]
    assert ("TaskPlugin=task/cgroup" in lines) == (tracking is Tracking.CGROUP_V1)


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        (replace(MACHINE, tracking=Tracking.LINUXPROC), ""),
        (replace(MACHINE, tracking=Tracking.LINUXPROC, slurm_version=(24, 11)), "CgroupPlugin=disabled\n"),
        (
            replace(MACHINE, swap_limit=False),
            "CgroupMountpoint=/data/try/etc/cgroup\nCgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n",
        ),
    ],
)
def test_cgroup_conf(machine: Machine, text: str) -> None:
    assert config.cgroup_conf_text(machine, LAYOUT) == text


@pytest.mark.parametrize(
    ("nodes", "gpus", "real", "expected"),
    [
        (1, None, (), {"n1": []}),
        (1, None, ("/dev/nvidia0", "/dev/nvidia1"), {"n1": ["/dev/nvidia0", "/dev/nvidia1"]}),
        (1, 1, ("/dev/nvidia0", "/dev/nvidia1"), {"n1": ["/dev/nvidia0"]}),
        (2, None, ("/dev/nvidia0",), {"n1": ["/dev/nvidia0"], "n2": []}),
        (2, 1, ("/dev/nvidia0",), {"n1": ["/dev/nvidia0"], "n2": ["/data/try/etc/gpus/gpu0"]}),
        (1, 2, (), {"n1": ["/data/try/etc/gpus/gpu0", "/data/try/etc/gpus/gpu1"]}),
    ],
)
def test_real_gpus_are_dealt_out_and_the_rest_declared(
    nodes: int, gpus: int | None, real: tuple[str, ...], expected: dict[str, list[str]],
) -> None:
    spec = ClusterSpec(folder=FOLDER, nodes=nodes, gpus=gpus)
    assert gpus_by_node(spec, replace(MACHINE, gpu_devices=real), LAYOUT) == expected


def test_gres_conf_has_a_line_for_each_device() -> None:
    text = config.gres_conf_text(ClusterSpec(folder=FOLDER, gpus=2), MACHINE, LAYOUT)
    assert text == "".join(f"NodeName=n1 Name=gpu File=/data/try/etc/gpus/gpu{i}\n" for i in (0, 1))


def test_a_spec_survives_json() -> None:
    spec = ClusterSpec(folder=FOLDER, nodes=3, gpus=None, memory_mib=5, preemption=True, extra_conf="A=1\n")
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_a_change_of_settings_is_named() -> None:
    old, new = ClusterSpec(folder=FOLDER), ClusterSpec(folder=Path("/elsewhere"), nodes=2, cpus=8)
    assert changed(old, new) == ["nodes 1, not 2", "cpus as found, not 8"]


@pytest.mark.parametrize("folder", ["/tmp/with blanks", "/tmp/" + "long" * 30, "/tmp/a#b"])
def test_paths_that_slurm_cannot_take_get_a_short_link(folder: str) -> None:
    layout = layout_of(Path(folder))
    assert layout.base != layout.folder == Path(folder)
    assert len(str(layout.base)) < 60


def test_an_ordinary_path_is_used_as_it_is() -> None:
    assert layout_of(Path("/tmp/plain")).base == Path("/tmp/plain")


def process(
    pid: int, name: str, *command: str, parent: int = 1, cgroups: str = "", sockets: tuple[str, ...] = (), **environment: str,
) -> Process:
    return Process(
        pid=pid, parent=parent, started=pid, name=name, command=command or (name,), environment=environment,
        cgroups=cgroups, sockets=sockets,
    )


CONF = "/data/try/etc/slurm.conf"
OTHER = "/data/other/etc/slurm.conf"


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (process(5, "slurmd", "/usr/sbin/slurmd", "-f", CONF, "-N", "n2"), (Role.NODE, "n2")),
        (process(5, "slurmd", "/usr/sbin/slurmd", "-f", OTHER, "-N", "n2"), None),
        (process(5, "slurmctld", "slurmctld", "-f", CONF), (Role.CONTROLLER, None)),
        (process(5, "munged", "munged", "--socket=/data/try/munge/socket"), (Role.MUNGED, None)),
        (process(5, "munged", "munged", "--socket=/run/munge/socket"), None),
        (process(5, "slurmstepd", SLURM_CONF=CONF), (Role.STEP, None)),
        (process(5, "slurmstepd", sockets=("/data/try/spool/n2/n2_1.0",)), (Role.STEP, "n2")),
        (process(5, "slurmstepd", sockets=("/data/other/spool/n2/n2_1.0",)), None),
        (process(5, "slurmstepd", cgroups="6:freezer:/orch-1000-abc/slurm_n2/uid_0/job_1\n"), (Role.STEP, "n2")),
        (process(5, "python", SLURM_CONF=CONF, SLURMD_NODENAME="n1"), (Role.JOB, "n1")),
        (process(5, "python", SLURM_CONF=OTHER, SLURMD_NODENAME="n1"), None),
        (process(5, "bash", SLURM_CONF=CONF), None),
        (process(5, "vim", "vim", CONF), None),
        (process(5, "sleep", cgroups="6:freezer:/orch-1000-abc/slurm_n2/uid_0/job_1\n"), (Role.JOB, "n2")),
        (process(5, "sleep", cgroups="6:freezer:/orch-1000-other/slurm_n2/uid_0/job_1\n"), None),
    ],
)
def test_a_process_is_known_by_what_it_carries(one: Process, expected: tuple[Role, str | None] | None) -> None:
    found = [(member.role, member.node) for member in members([one], LAYOUT)]
    assert found == ([expected] if expected else [])


def test_children_belong_to_their_parents_cluster_however_deep() -> None:
    grandchild = process(3, "sleep", parent=4)             # pids wrap around: a child may have the smaller one
    child = process(4, "bash", parent=5)
    step = process(5, "slurmstepd", SLURM_CONF=CONF, SLURMD_NODENAME="n1")
    stranger = process(6, "sleep", parent=1)
    found = members([grandchild, stranger, child, step], LAYOUT)
    roles = {member.process.pid: (member.role, member.node) for member in found}
    assert roles == {5: (Role.STEP, "n1"), 4: (Role.JOB, "n1"), 3: (Role.JOB, "n1")}
