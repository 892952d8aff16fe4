"""A waiting successor taken back and queued anew, with passes over a simulated Slurm: it may start at any instant of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from builders import SPEC, end_record, start_record
from simulation.slurm import Job, SimulatedSlurm, read_options

from orchestrator import folders, journal
from orchestrator.control.act import _look_again
from orchestrator.control.observe import observe
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, ask_slurm, require_run
from orchestrator.control.requests import hold, release
from orchestrator.control.submit import submit
from orchestrator.model import Policy, Run

GIB = 2**30


class Still:
    """Machines on which jobs do nothing until a test ends them."""

    def begin(self, job: Job) -> None: ...

    def terminate(self, job: Job, why: str) -> None: ...

    def kill(self, job: Job) -> None: ...


class FullSlurm(SimulatedSlurm):
    """One node. ``before`` and ``after`` are what happens just before and after this command arrives."""

    def __init__(self) -> None:
        super().__init__(Still(), nodes=("n1",), now=1000.0)
        self.before: dict[str, Callable[[], None]] = {}
        self.after: dict[str, Callable[[], None]] = {}
        self.scripts: list[str] = []

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        self.scripts.append(script.read_text())
        return super().submit(script, environment)

    def hold(self, job_id: str) -> None:
        self.before.pop("hold", lambda: None)()
        super().hold(job_id)
        self.after.pop("hold", lambda: None)()

    def cancel(self, job_id: str) -> None:
        self.before.pop("cancel", lambda: None)()
        super().cancel(job_id)


class Full:
    """Attempt 1 of a run has ended for memory; a stranger took its node; the successor from before waits."""

    def __init__(self, repository: Path) -> None:
        self.slurm, ids = FullSlurm(), iter(f"s{number}" for number in range(1, 99))
        self.ports = Ports(repository=repository, slurm=self.slurm, policy=Policy(), clock=lambda: self.slurm.now,
                           new_id=lambda: next(ids))
        folder = folders.job_dir(repository, "a")
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text("true\n")
        profile = replace(SPEC.profile, gres=None, memory_bytes=2 * GIB)
        submit(self.ports, replace(SPEC, repository=str(repository), profile=profile))
        self.run_dir = folders.run_dir(repository, "a")
        attempt = folders.attempt_dir(self.run_dir, 1)
        (attempt / "start.json").write_text(start_record(1, job_id="1", started_at=1000.0).to_json())
        (attempt / "end.json").write_text(end_record(1, job_id="1", ended_at=1050.0, signal=9, oom_kills=1).to_json())
        self.stranger = self.slurm.accept("#SBATCH --nice=-10\n", {})
        self.slurm.now = 1060.0
        self.slurm.exited(self.slurm.jobs_by_id[1], 137)
        assert self.states() == {1: "FAILED", 2: "PENDING", 3: "RUNNING"}

    def states(self) -> dict[int, str]:
        return {number: job.state for number, job in self.slurm.jobs_by_id.items()}

    def let_the_successor_start(self) -> None:
        self.slurm.exited(self.slurm.jobs_by_id[int(self.stranger)], 0)

    def one_pass(self) -> None:
        [report] = pass_over_all(self.ports).runs
        assert report.error is None, report.lines

    def run(self) -> Run:
        return require_run(self.ports.repository, "a")

    def events(self) -> list[str]:
        return [event["event"] + (f" {event['kind']}" if "kind" in event else "") for event in journal.read(self.run_dir)[0]]


@pytest.fixture
def full(tmp_path: Path) -> Full:
    return Full(tmp_path)


def test_it_is_queued_anew_with_more_memory_within_one_pass(full: Full) -> None:
    full.one_pass()
    assert full.states() == {1: "FAILED", 2: "CANCELLED", 3: "RUNNING", 4: "PENDING", 5: "PENDING"}
    events = full.events()
    at = events.index("asked hold")
    assert events[at:at + 6] == ["asked hold", "paused", "asked cancel", "answered cancel", "dropped", "queueing"]
    assert [read_options(script)["mem"] for script in full.slurm.scripts] == ["2048M", "2048M", "2560M", "2560M"]
    before = len(events)
    full.one_pass()
    assert len(full.events()) == before, "once"


def test_one_that_starts_just_before_is_left_alone(full: Full) -> None:
    full.slurm.before["hold"] = full.let_the_successor_start
    full.one_pass()
    assert full.states()[2] == "RUNNING"
    events = full.events()
    at = events.index("asked hold")
    assert events[at:at + 4] == ["asked hold", "paused", "asked release", "resumed"] and "asked cancel" not in events
    assert not full.slurm.jobs_by_id[2].held, "a site may requeue it"


def test_one_that_is_held_cannot_start_before_it_is_cancelled(full: Full) -> None:
    full.slurm.before["cancel"] = full.let_the_successor_start
    full.one_pass()
    assert full.states()[2] == "CANCELLED" and full.slurm.jobs_by_id[2].start_at is None


class Dies(BaseException):
    """Killed here."""


def die() -> None:
    raise Dies


def test_a_pass_that_dies_with_the_job_held_is_known_to_have_held_it(full: Full) -> None:
    """Nothing would ever release it: the run may be as it was by the next pass, and the job wanted again."""
    full.slurm.after["hold"] = die
    with pytest.raises(Dies):
        full.one_pass()
    assert full.slurm.jobs_by_id[2].held and full.run().waiting[0].held
    full.one_pass()
    assert full.states() == {1: "FAILED", 2: "CANCELLED", 3: "RUNNING", 4: "PENDING", 5: "PENDING"}


def test_a_hold_that_dies_in_between_is_released_with_the_run(full: Full) -> None:
    full.one_pass()
    full.slurm.after["hold"] = die
    with pytest.raises(Dies):
        hold(full.ports, "a")
    [held] = [number for number, job in full.slurm.jobs_by_id.items() if job.held and not job.ended]
    release(full.ports, "a")
    assert not full.slurm.jobs_by_id[held].held


def test_an_id_that_is_another_jobs_by_now_is_not_taken_for_ours(full: Full) -> None:
    """slurmctld lost its state just then, and gave the id again."""
    run = full.run()
    seen = observe(full.ports, run, ask_slurm(full.ports))
    theirs = full.slurm.jobs_by_id[2]
    theirs.state, theirs.node = "RUNNING", "n1"
    assert _look_again(run, seen, "2", full.ports).jobs["s2"].state == "RUNNING"
    theirs.comment, theirs.seen = "somebody's", None
    assert _look_again(run, seen, "2", full.ports).jobs == seen.jobs and seen.jobs["s2"].state == "PENDING"


def test_a_pass_that_dies_in_between_is_carried_on(full: Full) -> None:
    full.slurm.before["cancel"] = die
    with pytest.raises(Dies):
        full.one_pass()
    assert full.slurm.jobs_by_id[2].held and full.events()[-1] == "asked cancel"
    full.slurm.now += 61.0             # one scancel a minute, since the first may have arrived
    full.one_pass()
    assert full.states() == {1: "FAILED", 2: "CANCELLED", 3: "RUNNING", 4: "PENDING", 5: "PENDING"}
