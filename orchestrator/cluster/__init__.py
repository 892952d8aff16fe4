"""A private Slurm in a folder: munged, slurmctld and one slurmd a node, as an ordinary user or as root.

Owns the daemons' configuration, start and end. Submits nothing, reads no run, and touches no process but this cluster's.
"""

from orchestrator.cluster.boot import Boot, at_boot, not_at_boot
from orchestrator.cluster.commands import Node
from orchestrator.cluster.lifecycle import (
    Cluster,
    ClusterStatus,
    Daemon,
    down,
    environment,
    kill,
    recorded_spec,
    set_node,
    slurm_conf,
    start_controller,
    start_node,
    status,
    stop_controller,
    stop_node,
    up,
)
from orchestrator.cluster.machine import missing_programs
from orchestrator.cluster.spec import ClusterSpec, Tracking

__all__ = [
    "Boot",
    "Cluster",
    "ClusterSpec",
    "ClusterStatus",
    "Daemon",
    "Node",
    "Tracking",
    "at_boot",
    "down",
    "environment",
    "kill",
    "missing_programs",
    "not_at_boot",
    "recorded_spec",
    "set_node",
    "slurm_conf",
    "start_controller",
    "start_node",
    "status",
    "stop_controller",
    "stop_node",
    "up",
]
