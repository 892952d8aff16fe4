"""The text of slurm.conf, gres.conf and cgroup.conf: pure functions of what was asked for and what there is.

Why the lines are as they are:
  * SlurmctldHost and NodeAddr are loopback and NoInAddrAny binds there, so that nothing listens on a network.
  * munge with a socket and a key of this cluster's own: auth/none would let any local user run code as its owner.
  * config_overrides: nodes may claim more CPUs and memory than there are; tests do.
  * PriorityType: what is the default from 23.11 on ignores --nice (slurm/versions.py).
  * batch_sched_delay and the intervals: a queued job starts within a second.
  * UnkillableStepTimeout: a step that ends while slurmctld is away retries its message for over a minute; by default Slurm
    drains its node after 60 s ("Kill task failed"), and nobody would bring it back.
  * NodeHostname is this host for all nodes; jobs tell them apart by SLURMD_NODENAME.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.cluster.spec import ClusterSpec, Layout, Machine, Tracking, gpus_by_node, node_names
from orchestrator.slurm.versions import has

CONTROLLER = "slurmctld"


def slurm_conf_text(spec: ClusterSpec, machine: Machine, layout: Layout, ports: Mapping[str, int]) -> str:
    """slurm.conf; ``ports`` has one for slurmctld and one for every node."""
    base = layout.base
    lines = [
        "# written by orch cluster up; edits are lost",
        f"ClusterName={layout.tag}",
        f"SlurmctldHost={machine.hostname}(127.0.0.1)",
        f"SlurmctldPort={ports[CONTROLLER]}",
        f"SlurmUser={machine.user}",
        f"SlurmdUser={machine.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        f"StateSaveLocation={base}/state",
        f"SlurmdSpoolDir={base}/spool/%n",
        f"SlurmctldPidFile={base}/run/slurmctld.pid",
        f"SlurmdPidFile={base}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={layout.logs}/slurmctld.log",
        f"SlurmdLogFile={layout.logs}/slurmd-%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "MailProg=/bin/true",
        "MpiDefault=none",
        *_tracking_lines(machine),
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory,CR_LLN",
        "PriorityType=priority/basic",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "InactiveLimit=0",
        f"MinJobAge={spec.min_job_age_s}",
        f"SlurmdTimeout={spec.slurmd_timeout_s}",
        f"KillWait={spec.kill_wait_s}",
        "UnkillableStepTimeout=300",
        *_preemption_lines(spec),
        *_node_lines(spec, machine, layout, ports),
        *_partition_lines(spec),
    ]
    return "\n".join(lines) + "\n" + _appended(spec.extra_conf)


def _tracking_lines(machine: Machine) -> list[str]:
    if machine.tracking is Tracking.LINUXPROC:
        return ["ProctrackType=proctrack/linuxproc"]
    return ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"]


def _preemption_lines(spec: ClusterSpec) -> list[str]:
    return ["PreemptType=preempt/partition_prio", "PreemptMode=CANCEL"] if spec.preemption else []


def _node_lines(spec: ClusterSpec, machine: Machine, layout: Layout, ports: Mapping[str, int]) -> list[str]:
    gpus = gpus_by_node(spec, machine, layout)
    lines = ["GresTypes=gpu"] if any(gpus.values()) else []
    for name in node_names(spec):
        line = (
            f"NodeName={name} NodeHostname={machine.hostname} NodeAddr=127.0.0.1 Port={ports[name]}"
            f" CPUs={spec.cpus or machine.cpus} RealMemory={spec.memory_mib or machine.memory_mib}"
        )
        lines.append(f"{line} Gres=gpu:{len(gpus[name])}" if gpus[name] else line)
    return lines


def _partition_lines(spec: ClusterSpec) -> list[str]:
    common = "Nodes=ALL MaxTime=UNLIMITED OverSubscribe=NO State=UP"
    if not spec.preemption:
        return [f"PartitionName=main Default=YES {common}"]
    return [
        f"PartitionName=main Default=YES PreemptMode=OFF {common}",
        f"PartitionName=low PriorityTier=1 PreemptMode=CANCEL GraceTime=20 {common}",
        f"PartitionName=high PriorityTier=10 PreemptMode=OFF {common}",
    ]


def partition_names(spec: ClusterSpec) -> list[str]:
    return ["main", "low", "high"] if spec.preemption else ["main"]


def _appended(extra: str) -> str:
    return extra if not extra or extra.endswith("\n") else extra + "\n"


def gres_conf_text(spec: ClusterSpec, machine: Machine, layout: Layout) -> str:
    """One line a device: several lines may differ in their files, one line with a count and one file is refused."""
    return "".join(
        f"NodeName={name} Name=gpu File={device}\n"
        for name, devices in gpus_by_node(spec, machine, layout).items()
        for device in devices
    )


def cgroup_conf_text(machine: Machine, layout: Layout) -> str:
    """The mount point is a folder of links into this cluster's own subtree.

    Slurm's paths there are slurm_NODE/uid_U/job_J: in the common tree, job 1 on n1 of two clusters would be one cgroup,
    and the end of one would kill the other.
    """
    if machine.tracking is Tracking.LINUXPROC:
        return "CgroupPlugin=disabled\n" if has(machine.slurm_version, "cgroup-disabled") else ""
    lines = [f"CgroupMountpoint={layout.cgroup_mount}", "CgroupPlugin=cgroup/v1", "ConstrainRAMSpace=yes"]
    if machine.swap_limit:
        lines += ["ConstrainSwapSpace=yes", "AllowedSwapSpace=0"]
    return "\n".join(lines) + "\n"
