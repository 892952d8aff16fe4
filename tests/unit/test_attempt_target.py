"""Whom a notice goes to, chosen from tables of processes; and why it came."""

from __future__ import annotations

import pytest

from orchestrator.attempt.cause import Heard, first_reason, settled_reason
from orchestrator.attempt.processes import Process
from orchestrator.attempt.target import choose, has_client
from orchestrator.sightings import JobSeen

JOB = 10


def tree(*rows: tuple[int, int, str]) -> list[Process]:
    """Rows of pid, parent and command; a command that begins with ``|`` reads from a pipe."""
    table = []
    for pid, parent, command in rows:
        words = tuple(command.removeprefix("|").split())
        table.append(Process(pid, parent, pid, words[0], words, command.startswith("|"), words[0]))
    return table


@pytest.mark.parametrize(("rows", "chosen"), [
    ([(10, 1, "bash job.sh"), (11, 10, "python3.11 train.py")], [11]),
    ([(10, 1, "python3 train.py"), (11, 10, "python3 train.py")], [10]),                       # exec; a worker below
    ([(10, 1, "bash job.sh"), (11, 10, "python3 train.py"), (12, 11, "python3 -c worker")], [11]),
    ([(10, 1, "bash job.sh"), (11, 10, "python3 train.py"), (12, 10, "|tee log")], [11]),
    ([(10, 1, "bash job.sh"), (11, 10, "python3 train.py"), (12, 10, "|python3 color.py")], [11]),
    ([(10, 1, "bash job.sh"), (11, 10, "python3 a.py"), (12, 10, "python3 b.py")], [11, 12]),  # two in the background
    ([(10, 1, "bash job.sh"), (11, 10, "bash run"), (12, 11, "bash -c"), (13, 12, "python train.py")], [13]),
    ([(10, 1, "bash job.sh"), (11, 10, "python3 /opt/bin/conda run -n env python t.py"), (12, 11, "bash x"),
      (13, 12, "python t.py")], [13]),
    ([(10, 1, "bash job.sh"), (11, 10, "uv run train.py"), (12, 11, "python3 train.py")], [12]),
    ([(10, 1, "bash job.sh"), (11, 10, "sh x"), (12, 10, "|tee log"), (13, 11, "lmp -in melt")], [13]),
    ([(10, 1, "bash job.sh"), (11, 10, "time ./sim"), (12, 11, "sim --long")], [12]),
    ([(10, 1, "bash job.sh"), (11, 10, "srun python t.py"), (12, 11, "srun python t.py")], []),
    ([(10, 1, "bash job.sh"), (11, 10, "sleep 100")], []),
    ([], []),
])
def test_one_program_is_chosen_and_never_its_workers(rows: list[tuple[int, int, str]], chosen: list[int]) -> None:
    assert [p.pid for p in choose(tree(*rows), {JOB})] == chosen


def test_what_outlived_job_sh_is_found_among_the_supervisors_children() -> None:
    table = tree((11, 1, "python3 train.py"), (12, 11, "python3 worker"), (13, 1, "|tee log"))
    assert [p.pid for p in choose(table, {11, 13})] == [11]


def test_a_client_of_a_step_is_told() -> None:
    assert has_client(tree((10, 1, "bash job.sh"), (11, 10, "srun x")))
    assert not has_client(tree((10, 1, "bash job.sh")))


def seen(state: str) -> JobSeen:
    return JobSeen(job_id="1", state=state)


DEADLINE, LEAD_S = 10_000.0, 300.0


@pytest.mark.parametrize(("heard", "job", "first", "settled"), [
    (Heard(timer_at=9700), None, "limit", "limit"),
    (Heard(own_at=9700), None, "limit", "limit"),
    (Heard(own_at=9640), None, "limit", "limit"),                           # Slurm comes up to a minute early
    (Heard(own_at=5000), None, "signal", "signal"),
    (Heard(own_at=5000, control="cancel"), None, "cancel", "cancel"),
    (Heard(control="cancel"), None, "cancel", "cancel"),
    (Heard(step_at=5000), None, "preempt", "preempt"),
    (Heard(step_at=9900), None, "preempt", "preempt"),
    (Heard(step_at=5000, own_at=5020), None, "signal", "preempt"),           # the end of the grace
    (Heard(step_at=5000, own_at=5000.5), seen("CANCELLED"), "signal", "signal"),
    (Heard(step_at=5000, own_at=5000.5), seen("PREEMPTED"), "signal", "preempt"),
    (Heard(step_at=5000, own_at=5000.5), None, "signal", "signal"),
    (Heard(step_died_at=5000.1, own_at=5000), seen("CANCELLED"), "signal", "signal"),
    (Heard(step_at=10_020, own_at=10_020), None, "limit", "limit"),
    (Heard(step_at=10_020, own_at=10_020), seen("TIMEOUT"), "limit", "limit"),
])
def test_the_reason_follows_from_what_was_heard(heard: Heard, job: JobSeen | None, first: str, settled: str) -> None:
    assert first_reason(heard, DEADLINE, LEAD_S) == first
    assert settled_reason(heard, DEADLINE, LEAD_S, job) == settled


def test_without_a_deadline_a_lone_signal_is_one_whose_sender_nobody_knows() -> None:
    assert settled_reason(Heard(own_at=5.0), None, LEAD_S, None) == "signal"
