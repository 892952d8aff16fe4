"""What a pass over all runs asks of Slurm and of the disk, and when it stops asking."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import SPEC, ended, event, queued, start_record, started, submit

from orchestrator import folders
from orchestrator.control.look import explain_run, look_at, look_at_all
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, known_run, require_run, runs_now
from orchestrator.control.requests import hold
from orchestrator.core.observation import NodeSeen
from orchestrator.core.script import comment
from orchestrator.errors import SlurmUnreachable, StorageError
from orchestrator.model import ENDED_STATES, Policy
from orchestrator.sightings import JobSeen
from orchestrator.slurm.protocol import NodeOffer

NOW = 1_800_000_000.0


class Asked:
    """A Slurm with these jobs that counts what it is asked; ``deaf`` is what it does not answer to."""

    def __init__(self, *jobs: JobSeen) -> None:
        self.by_id = {job.job_id: job for job in jobs}
        self.deaf: set[str] = set()
        self.calls: list[str] = []

    def _hear(self, call: str) -> None:
        self.calls.append(call)
        if call in self.deaf:
            raise SlurmUnreachable("timed out")

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        self._hear("jobs")
        return list(self.by_id.values())

    def job(self, job_id: str) -> JobSeen | None:
        return self.by_id.get(job_id)

    def offers(self) -> list[NodeOffer]:
        self._hear("offers")
        return [NodeOffer(node=f"n{number}", partition="main", default=True, cpus=8, memory_bytes=1 << 32, gres="gpu:1",
                          state="idle", time_limit_s=None) for number in range(1, 9)]

    def nodes(self, names: str) -> list[NodeSeen]:
        self._hear("nodes")
        return [NodeSeen(name=names, state="MIXED", booted_at=1.0)]

    def cancel(self, job_id: str) -> None:
        self._hear("cancel")
        self.by_id[job_id] = replace(self.by_id[job_id], state="CANCELLED")


class World:
    def __init__(self, repository: Path) -> None:
        self.repository, self.now, self.slurm = repository, NOW, Asked()
        self.ports = Ports(repository=repository, slurm=self.slurm,  # type: ignore[arg-type]
                           clock=lambda: self.now, new_id=lambda: "x", policy=Policy())

    def run(self, tag: str, *events: dict[str, Any] | list[dict[str, Any]]) -> Path:
        spec = replace(SPEC, tag=tag, repository=str(self.repository))
        flat = [submit(spec, NOW - 9000.0)]
        for item in events:
            flat += item if isinstance(item, list) else [item]
        folder = folders.run_dir(self.repository, tag)
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in flat))
        return folder

    def job(self, tag: str, number: int, job_id: str, state: str, **context: Any) -> None:
        spec = replace(SPEC, tag=tag, repository=str(self.repository))
        self.slurm.by_id[job_id] = JobSeen(job_id=job_id, state=state, comment=comment(spec, number, f"s{number}"), **context)

    def started(self, folder: Path, number: int, **context: Any) -> None:
        attempt = folders.attempt_dir(folder, number)
        attempt.mkdir(parents=True)
        (attempt / "start.json").write_text(start_record(number, **context).to_json())

    def one_pass(self) -> list[str]:
        self.slurm.calls.clear()
        pass_over_all(self.ports)
        return self.slurm.calls


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- a ghost of a run that rests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [event("cancel", NOW - 1.0, now=False, reason="by hand"),
                                  event("held", NOW - 1.0, by="orch", reason="by hand")])
def test_a_job_whose_scancel_was_not_answered_is_asked_for_again(world: World, asks: dict[str, Any]) -> None:
    """A power cut: Slurm goes on calling the job running, and the run itself is over or held by the end of the first pass."""
    folder = world.run("a", queued(1, NOW - 9000.0), started(1, NOW - 9000.0), asks)
    world.started(folder, 1, host=os.uname().nodename, boot_id="another", started_at=NOW - 9000.0)
    world.job("a", 1, "101", "RUNNING", nodes="n1", start_at=NOW - 9000.0)
    world.slurm.deaf = {"cancel"}
    assert world.one_pass() == ["jobs", "cancel"]
    assert require_run(world.repository, "a").live is None
    world.slurm.deaf = set()
    world.now += 61.0
    assert world.one_pass() == ["jobs", "cancel"] and world.slurm.by_id["101"].state in ENDED_STATES
    world.now += 599.0
    assert world.one_pass() == ["jobs"]
    world.now += 2.0
    assert world.one_pass() == [], "and then it rests"


# --- what nodes there are -------------------------------------------------------------------------------------------------


def renumbered(events: list[dict[str, Any]], by: int) -> list[dict[str, Any]]:
    """Of another run: ids of jobs are Slurm's."""
    return [{**entry, "job_id": str(by + int(entry["job_id"]))} if "job_id" in entry else entry for entry in events]


def overtaken(world: World, tag: str, by: int) -> None:
    """What waits was submitted before its node failed."""
    world.run(tag, renumbered([*queued(1, NOW - 95.0), *queued(2, NOW - 90.0), started(1, NOW - 80.0)], by),
              ended(1, "node-failure", NOW - 70.0, nodes="n7"))
    world.job(tag, 2, str(by + 102), "PENDING")


def test_one_sinfo_for_all_runs_and_none_more_when_it_is_not_answered(world: World) -> None:
    for number in range(5):
        overtaken(world, f"r{number}", 1000 * (number + 1))
    for deaf in (set(), {"offers"}):
        world.slurm.deaf = deaf
        world.slurm.calls.clear()
        _, errors, silent = look_at_all(world.ports)
        assert (world.slurm.calls, errors, silent) == (["jobs", "offers"], [], None)
        for look in (look_at, explain_run):
            world.slurm.calls.clear()
            look(world.ports, "r0")
            assert world.slurm.calls == ["jobs", "offers"]
    assert world.one_pass().count("offers") == 1


def test_of_a_run_that_merely_trains_no_nodes_are_asked_for(world: World) -> None:
    """Its successor was queued since its node failed."""
    folder = world.run("a", queued(1, NOW - 90.0), queued(2, NOW - 90.0), started(1, NOW - 80.0),
                       ended(1, "node-failure", NOW - 70.0, nodes="n7"), started(2, NOW - 60.0), queued(3, NOW - 50.0))
    world.started(folder, 2, started_at=NOW - 60.0)
    world.job("a", 2, "102", "RUNNING", nodes="n1", start_at=NOW - 60.0)
    world.job("a", 3, "103", "PENDING")
    assert world.one_pass() == ["jobs"]


def test_a_silent_nodes_state_is_asked_for_once(world: World) -> None:
    for number in range(3):
        tag, job_id = f"r{number}", str(1000 * number + 101)
        folder = world.run(tag, renumbered([*queued(1, NOW - 9000.0), started(1, NOW - 9000.0)], 1000 * number))
        world.started(folder, 1, job_id=job_id, host="elsewhere", started_at=NOW - 9000.0)
        world.job(tag, 1, job_id, "RUNNING", nodes="n1", start_at=NOW - 9000.0)
    for deaf in (set(), {"nodes"}):
        world.slurm.deaf, world.slurm.calls = deaf, []
        look_at_all(world.ports)
        assert world.slurm.calls == ["jobs", "nodes"]


# --- journals that have not changed ---------------------------------------------------------------------------------------


def test_a_journal_is_read_once_by_passes_and_views_alike(world: World) -> None:
    folder = world.run("a", event("finished", NOW - 8000.0))
    assert world.one_pass() == []
    path = folder / "journal.jsonl"
    found, text = path.stat(), path.read_text()
    path.write_text("x" * len(text))   # as long and as old: whoever reads it again complains
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert pass_over_all(world.ports).runs == () and [run.phase for run in runs_now(world.repository)[0]] == ["finished"]
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    [damaged] = pass_over_all(world.ports).runs
    assert damaged.error is not None and str(path) in str(damaged.error)


def test_a_run_is_known_with_the_length_of_its_journal(world: World) -> None:
    path = world.run("a") / "journal.jsonl"
    run, length = known_run(world.repository, "a")
    assert (run.over, length) == (False, path.stat().st_size)
    with path.open("a") as file:
        file.write(json.dumps(event("finished", NOW)) + "\n")
    run, longer = known_run(world.repository, "a")
    assert (run.over, longer) == (True, path.stat().st_size) and longer > length
    with pytest.raises(StorageError):
        known_run(world.repository, "b")


def test_whoever_asks_for_a_hold_waits_for_one_silence_and_not_for_two(world: World) -> None:
    world.run("a", queued(1, NOW - 9000.0))
    world.slurm.deaf = {"jobs"}
    with pytest.raises(SlurmUnreachable, match="recorded, and Slurm does not answer"):
        hold(world.ports, "a")
    assert world.slurm.calls == ["jobs"]
