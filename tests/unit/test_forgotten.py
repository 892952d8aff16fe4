"""Endings that slurmctld has forgotten: what accounting is asked, when, and what its rows are taken for."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import SPEC, end_record, queued, start_record, started, submit

from orchestrator import folders
from orchestrator.control.checks import remembers
from orchestrator.control.look import look_at_all
from orchestrator.control.loop import Daemon
from orchestrator.control.passes import PassReport, pass_over_all
from orchestrator.control.ports import Ports, require_run
from orchestrator.core.script import comment
from orchestrator.errors import NoAccounting, SlurmUnreachable
from orchestrator.model import Attempt, Ending, Policy, Run
from orchestrator.records import StoodDown
from orchestrator.sd_notify import Manager
from orchestrator.sightings import Execution, JobSeen
from orchestrator.slurm.protocol import Site

NOW = 1_800_000_000.0
BEGAN = NOW - 5000.0
RAN = {"knows_orch": True, "first_step_at": BEGAN + 5.0, "last_step": 50, "ended_at": BEGAN + 900.0}


class Forgetful:
    """A Slurm that knows these jobs alone, has these accounts, and counts what it is asked."""

    def __init__(self) -> None:
        self.known: list[JobSeen] = []
        self.accounts: list[Execution] | Exception = []
        self.asked: list[list[str]] = []
        self.age_s = 300.0
        self.sites = 0

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        return self.known

    def executions(self, job_ids: Collection[str]) -> list[Execution]:
        self.asked.append(sorted(job_ids))
        if isinstance(self.accounts, Exception):
            raise self.accounts
        return [one for one in self.accounts if one.job_id in job_ids]

    def site(self) -> Site:
        self.sites += 1
        return Site(version="22.05.8", cluster="c", accounting=not isinstance(self.accounts, NoAccounting),
                    min_job_age_s=self.age_s)

    def offers(self) -> Any:
        raise SlurmUnreachable("not asked here")

    def submit(self, script: Path, environment: Any) -> str:
        raise SlurmUnreachable("nothing starts here")


class World:
    """Runs in a folder, each with an attempt that began long ago and whose heart stopped soon after."""

    def __init__(self, repository: Path) -> None:
        self.slurm = Forgetful()
        self.ports = Ports(repository=repository, slurm=self.slurm,  # type: ignore[arg-type]
                           clock=lambda: NOW, new_id=lambda: "x", policy=Policy())

    def run(self, tag: str = "a", job_id: str = "101", start: bool = True, end: dict[str, Any] | None = None, *,
            journal: list[dict[str, Any]] | None = None, **record: Any) -> Path:
        spec = replace(SPEC, tag=tag, repository=str(self.ports.repository))
        lines = [submit(spec, BEGAN - 60.0), *(journal if journal is not None else queued(1, BEGAN - 50.0))]
        folder = folders.run_dir(self.ports.repository, tag)
        attempt = folders.attempt_dir(folder, 1)
        attempt.mkdir(parents=True)
        (folder / "journal.jsonl").write_text("".join(
            json.dumps({**line, "job_id": job_id} if "job_id" in line else line) + "\n" for line in lines))
        if start:
            values = {"job_id": job_id, "started_at": BEGAN, "host": "elsewhere"} | record
            (attempt / "start.json").write_text(start_record(1, **values).to_json())
        if end is not None:
            (attempt / "end.json").write_text(end_record(1, job_id=job_id, **end).to_json())
        return folder

    def accounts(self, *states: str, job_id: str = "101", began: float = BEGAN - 1.0, **context: Any) -> None:
        """A row for each of these states: of an execution that lasted 900 s."""
        assert isinstance(self.slurm.accounts, list)
        self.slurm.accounts += [Execution(**{
            "job_id": job_id, "state": state, "submitted_at": began - 40.0, "start_at": began, "end_at": began + 900.0,
            "nodes": "n7", **context}) for state in states]

    def attempt(self, tag: str = "a") -> Attempt:
        pass_over_all(self.ports)
        return require_run(self.ports.repository, tag).attempts[0]

    def ran(self, tag: str = "a") -> Run:
        pass_over_all(self.ports)
        return require_run(self.ports.repository, tag)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(("state", "ending"), [
    ("OUT_OF_MEMORY", Ending.OUT_OF_MEMORY), ("NODE_FAIL", Ending.NODE_FAILURE), ("BOOT_FAIL", Ending.NODE_FAILURE),
    ("TIMEOUT", Ending.LIMIT_UNSAVED), ("DEADLINE", Ending.LIMIT_UNSAVED), ("PREEMPTED", Ending.PREEMPTED_UNSAVED),
    ("CANCELLED", Ending.CANCELLED), ("FAILED", Ending.CRASH), ("COMPLETED", Ending.CRASH)])
def test_an_attempt_without_a_record_ended_as_accounting_says(world: World, state: str, ending: Ending) -> None:
    world.run()
    world.accounts(state)
    attempt = world.attempt()
    assert (attempt.ending, attempt.nodes, world.slurm.asked) == (ending, "n7", [["101"]])
    assert attempt.ended_at == BEGAN + 30.0, "a beat after its last sign of life, which was its start"


@pytest.mark.parametrize("accounts", [
    [], NoAccounting("Slurm accounting storage is disabled"), SlurmUnreachable("Problem talking to the database")])
def test_without_an_answer_it_vanished_at_once(world: World, accounts: Any) -> None:
    world.run()
    world.slurm.accounts = accounts
    assert (world.attempt().ending, world.slurm.asked) == (Ending.VANISHED, [["101"]])


@pytest.mark.parametrize("row", [
    {"state": "RUNNING", "end_at": None}, {"state": "REQUEUED"}, {"state": "SOMETHING_NEW"},
    {"submitted_at": BEGAN - 90000.0, "start_at": BEGAN - 80000.0, "end_at": BEGAN - 70000.0},
    {"submitted_at": BEGAN - 90000.0, "start_at": BEGAN - 90000.0}, {"start_at": BEGAN + 3600.0, "end_at": BEGAN + 3700.0},
    {"start_at": None}, {"end_at": None}, {"job_id": "1010"}])
def test_rows_that_say_nothing_of_its_end(world: World, row: dict[str, Any]) -> None:
    """It runs, for all that the database heard; it was requeued; another job had this id before slurmctld lost its state."""
    world.run()
    world.accounts("OUT_OF_MEMORY", **row)
    assert world.attempt().ending == Ending.VANISHED


@pytest.mark.parametrize("end", [
    {**RAN, "exit_code": 0, "trainer": "finished"}, {**RAN, "exit_code": 137, "hung": True}, {"setup_error": "no GPU"},
    {**RAN, "exit_code": 1, "oom_kills": 1}])
def test_where_the_record_decides_nothing_is_asked(world: World, end: dict[str, Any]) -> None:
    world.run(end=end)
    world.accounts("CANCELLED")
    assert world.attempt().ending not in (None, Ending.CANCELLED) and world.slurm.asked == []


def test_nothing_is_asked_while_a_heart_beats(world: World) -> None:
    """slurmctld has lost its state: the attempt trains on for hours."""
    folder = world.run()
    (folders.attempt_dir(folder, 1) / "heartbeat").write_text(f"{NOW - 20.0}\n")
    world.accounts("NODE_FAIL")
    assert world.attempt().ending is None and world.slurm.asked == []


@pytest.mark.parametrize(("state", "ending"), [
    ("CANCELLED", Ending.CANCELLED), ("TIMEOUT", Ending.LIMIT_SAVED), ("PREEMPTED", Ending.PREEMPTED_SAVED)])
def test_who_sent_a_stop_signal(world: World, state: str, ending: Ending) -> None:
    world.run(end={**RAN, "exit_code": 75, "notice": "signal", "saved_after_notice": True})
    world.accounts(state)
    assert world.attempt().ending == ending


def test_each_execution_of_a_requeued_job_has_its_own_row(world: World) -> None:
    """Preempted and requeued by the site; the second execution is the live one, and squeue tells of that alone."""
    folder = world.run(job_id="101")
    second = folders.attempt_dir(folder, 2)
    second.mkdir()
    values = {"job_id": "101", "submission_id": "s1", "restart_count": 1, "started_at": NOW - 60.0}
    (second / "start.json").write_text(start_record(2, **values).to_json())
    spec = replace(SPEC, repository=str(world.ports.repository))
    world.slurm.known = [JobSeen(job_id="101", state="RUNNING", restart_count=1, comment=comment(spec, 1, "s1"))]
    world.accounts("PREEMPTED")
    world.accounts("RUNNING", began=NOW - 61.0, end_at=None)
    first, second_attempt = world.ran().attempts
    assert (first.ending, first.nodes, second_attempt.ending) == (Ending.PREEMPTED_UNSAVED, "n7", None)
    assert len(world.slurm.asked) == 1


def test_a_job_that_was_put_back_tells_how_its_execution_ended(world: World) -> None:
    """It waits for the next one: squeue tells of that."""
    world.run()
    spec = replace(SPEC, repository=str(world.ports.repository))
    world.slurm.known = [JobSeen(job_id="101", state="PENDING", restart_count=1, comment=comment(spec, 1, "s1"))]
    world.accounts("NODE_FAIL")
    world.accounts("PENDING", began=BEGAN + 900.0, start_at=None, end_at=None)
    run = world.ran()
    assert [(a.ending, a.nodes) for a in run.attempts] == [(Ending.NODE_FAILURE, "n7")]
    assert run.waiting[0].job_id == "101", "and it is what comes next"


def test_a_job_that_was_run_again_and_stood_down_tells_of_that_alone(world: World) -> None:
    """slurmctld had lost what it knew of the first time, and the database had not."""
    folder = world.run()
    stood_down = StoodDown(submission_id="s1", job_id="101", at=BEGAN + 1000.0, reason="attempt 1 was taken")
    (folders.attempt_dir(folder, 1) / "stood-down-101-0.json").write_text(stood_down.to_json())
    spec = replace(SPEC, repository=str(world.ports.repository))
    world.slurm.known = [JobSeen(job_id="101", state="FAILED", end_at=BEGAN + 1001.0, comment=comment(spec, 1, "s1"))]
    world.accounts("OUT_OF_MEMORY")
    world.accounts("FAILED", began=BEGAN + 999.0, end_at=BEGAN + 1001.0)
    assert world.attempt().ending == Ending.OUT_OF_MEMORY


def test_a_requeued_job_that_was_cancelled_while_it_waited(world: World) -> None:
    """Its last row began, by Slurm's word, when it was cancelled: nobody ran in it."""
    world.run()
    world.accounts("NODE_FAIL", end_at=BEGAN + 3.0)
    world.accounts("CANCELLED", began=BEGAN + 5.0, end_at=BEGAN + 5.0, nodes="")
    assert world.attempt().ending == Ending.NODE_FAILURE


def test_one_question_for_all_runs_and_none_more_when_it_is_not_answered(world: World) -> None:
    for number in range(4):
        world.run(f"r{number}", str(200 + number))
    ids = [str(200 + number) for number in range(4)]
    for trouble in (SlurmUnreachable("away"), NoAccounting("disabled"), []):
        world.slurm.accounts, world.slurm.asked = trouble, []
        look_at_all(world.ports)
        assert world.slurm.asked == [ids]
    world.slurm.asked = []
    world.accounts("NODE_FAIL", job_id="202")
    report = pass_over_all(world.ports)
    assert world.slurm.asked == [ids] and report.snapshot is not None and not report.snapshot.answers.accounting_silent
    endings = [require_run(world.ports.repository, f"r{number}").attempts[0].ending for number in range(4)]
    assert endings == [Ending.VANISHED, Ending.VANISHED, Ending.NODE_FAILURE, Ending.VANISHED]


def test_what_is_known_not_to_be_there_is_not_asked(world: World) -> None:
    world.run()
    world.ports = replace(world.ports, accounting=False)
    assert world.attempt().ending == Ending.VANISHED and world.slurm.asked == []


# --- jobs that never got to a supervisor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "phase", "words"), [
    ("CANCELLED", "held", "its waiting job 101 was cancelled outside orch"),
    ("FAILED", "held", "setup-failure: job 101 ended (FAILED: "),
    ("NODE_FAIL", "active", ""), (None, "active", "")])
def test_how_a_waiting_job_came_to_its_end(world: World, state: str | None, phase: str, words: str) -> None:
    """The daemon was away for longer than MinJobAge. Without accounting nobody knows, and the next one is queued."""
    world.run(start=False)
    if state is not None:
        world.accounts(state, start_at=None, submitted_at=BEGAN - 50.0, exit_code="0:53", nodes="")
    run = world.ran()
    assert (run.phase, run.phase_reason[:len(words)]) == (phase, words)
    assert run.submissions[0].state == "dropped" and world.slurm.asked == [["101"]]


def test_a_waiting_jobs_row_is_one_of_its_own_sbatch(world: World) -> None:
    world.run(start=False)
    for submitted_at in (BEGAN - 5000.0, BEGAN + 4000.0):
        world.accounts("CANCELLED", start_at=None, submitted_at=submitted_at)
    assert world.ran().phase == "active"


# --- what the daemon says of it ---------------------------------------------------------------------------------------------


def daemon_of(world: World) -> tuple[Daemon, list[str]]:
    said: list[str] = []
    return Daemon(ports=world.ports, every_s=30.0, reload=lambda: (world.ports, 30.0), monotonic=lambda: 0.0,
                  jitter=lambda: 0.0, say=lambda tag, line: said.append(f"{tag}: {line}"), manager=Manager({})), said


def passes(daemon: Daemon, count: int) -> None:
    left = iter([False] * count + [True])
    daemon.run(lambda seconds: None, lambda: next(left, True), lambda: True)


def test_no_accounts_are_found_out_once_and_said_once(world: World) -> None:
    world.slurm.accounts = NoAccounting("Slurm accounting storage is disabled")
    world.run(journal=[*queued(1, BEGAN - 50.0), started(1, BEGAN)])
    world.slurm.known = [JobSeen(job_id="101", state="PENDING", comment=comment(
        replace(SPEC, repository=str(world.ports.repository)), 1, "s1"))]
    daemon, said = daemon_of(world)
    for _ in range(3):
        passes(daemon, 3)
    assert [line for line in said if "accounts" in line] == [
        ": this Slurm keeps no accounts: how an attempt ended is read from its own record"]
    assert (world.slurm.sites, world.slurm.asked) == (1, [])
    world.slurm.known = []
    passes(daemon, 3)
    assert (world.slurm.sites, world.slurm.asked) == (1, []), "nobody asks what is known not to be there"
    assert require_run(world.ports.repository, "a").attempts[0].ending == Ending.VANISHED


def test_a_database_that_is_away_is_said_in_one_line(world: World) -> None:
    world.slurm.accounts = SlurmUnreachable("Problem talking to the database: Connection refused")
    for number in range(3):
        world.run(f"r{number}", str(200 + number))
    daemon, said = daemon_of(world)
    report: PassReport = daemon.one_pass()
    assert len(report.runs) == 3 and [line for line in said if "accounting" in line] == [
        "accounting: it does not answer, and how an attempt ended is read from its own record: Problem talking to the "
        "database: Connection refused"]


@pytest.mark.parametrize(("age_s", "accounting", "every_s", "words"), [
    (300.0, False, 30.0, "this Slurm keeps no accounts: how an attempt ended is read from its own record"),
    (60.0, False, 30.0, "this Slurm keeps no accounts: how an attempt ended is read from its own record"),
    (0.0, False, 30.0, "this Slurm keeps no accounts: how an attempt ended is read from its own record"),
    (2.0, True, 30.0, "")])
def test_what_a_slurm_remembers_long_enough(age_s: float, accounting: bool, every_s: float, words: str) -> None:
    """MinJobAge=0: it forgets nothing."""
    assert remembers(Site(version="22.05.8", cluster="c", accounting=accounting, min_job_age_s=age_s), every_s) == words


def test_a_slurm_that_forgets_before_two_passes_is_warned_of() -> None:
    words = remembers(Site(version="22.05.8", cluster="c", accounting=False, min_job_age_s=50.0), 30.0)
    assert "forgets an ended job after 50 s (MinJobAge)" in words
    assert "`daemon: {every: 25s}`" in words and "a MinJobAge of 60 s" in words
