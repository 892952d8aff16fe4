"""The one squeue of a pass: which jobs are asked for, and that silence is a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders import job

from orchestrator.control.ports import Ports, ask_slurm
from orchestrator.core.script import repository_key
from orchestrator.errors import SlurmUnreachable


class Slurm:
    def __init__(self, silent: str = "") -> None:
        self.silent, self.asked = silent, list[tuple[str, ...]]()

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[Any]:
        self.asked.append(commented)
        if self.silent:
            raise SlurmUnreachable(self.silent)
        return [seen for seen in [job(1, "RUNNING")] if seen.comment.startswith(commented)]


def ports(slurm: Slurm, repository: str = "/repo") -> Ports:
    return Ports(repository=Path(repository), slurm=slurm, clock=lambda: 5.0, new_id=str)  # type: ignore[arg-type]


def test_a_pass_asks_for_the_jobs_of_its_repository_wherever_that_once_lay() -> None:
    slurm = Slurm()
    snapshot = ask_slurm(ports(slurm, "/new/repo"), frozenset({"/repo"}))
    assert set(slurm.asked[0]) == {f"orch/1:{repository_key('/repo')}:", f"orch/1:{repository_key('/new/repo')}:"}
    assert [seen.job_id for seen in snapshot.jobs] == ["101"]
    assert ask_slurm(ports(slurm, "/new/repo"), frozenset({"/other"})).jobs == ()


def test_a_look_asks_for_all_of_orchs_jobs() -> None:
    slurm = Slurm()
    assert [seen.job_id for seen in ask_slurm(ports(slurm, "/elsewhere")).jobs] == ["101"]
    assert slurm.asked == [("orch/1:",)]


def test_silence_is_a_value() -> None:
    snapshot = ask_slurm(ports(Slurm(silent="Socket timed out")), frozenset({"/repo"}))
    assert (snapshot.silent, snapshot.jobs, snapshot.asked_at) == ("Socket timed out", (), 5.0)
