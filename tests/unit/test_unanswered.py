"""A scancel of which nobody knows whether it arrived: the run stays under observation until Slurm has answered."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from builders import POLICY, SPEC, ended, event, job, queued, run_of, seen, started
from test_decide import settle

from orchestrator.control.act import act
from orchestrator.control.passes import settled
from orchestrator.control.ports import Ports
from orchestrator.core import actions as do
from orchestrator.core.fold import fold
from orchestrator.core.news import news
from orchestrator.errors import SlurmUnreachable
from orchestrator.journal import locked, read
from orchestrator.model import Run

DAY_S = 86400.0


def over(*more: dict[str, object]) -> Run:
    return run_of(queued(1), started(1), ended(1, "finished"), event("finished", 5.0, attempt=1), *more)


def test_an_over_run_with_an_unanswered_scancel_is_looked_at_for_ever_and_no_longer() -> None:
    asked = event("asked", 10.0, kind="cancel", job_id="101", awaited=True)
    assert not settled(over(asked), 10.0 + DAY_S)
    assert settled(over(asked, event("answered", 11.0, kind="cancel", job_id="101")), 10.0 + DAY_S)
    assert settled(over(event("asked", 10.0, kind="cancel", job_id="101")), 10.0 + DAY_S), "journals from before"


def test_it_is_answered_when_slurm_no_longer_has_the_job() -> None:
    run = over(event("asked", 10.0, kind="cancel", job_id="101", awaited=True))
    assert not [f for f in news(run, seen(job(1, "RUNNING"), asked_at=DAY_S), POLICY, DAY_S) if f["event"] == "answered"]
    assert news(run, seen(silent="no answer"), POLICY, DAY_S) == []
    for gone in (seen(asked_at=DAY_S), seen(job(1, "CANCELLED"), asked_at=DAY_S)):
        assert settle(run, gone, DAY_S).unanswered == frozenset()


class Away:
    def cancel(self, job_id: str) -> None:
        raise SlurmUnreachable("Unable to contact slurm controller")


def test_a_scancel_that_raised_is_unanswered(tmp_path: Path) -> None:
    ports = Ports(repository=tmp_path, slurm=Away(), clock=lambda: 7.0, new_id=str)  # type: ignore[arg-type]
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    with locked(folder, wait_s=0.0, clock=ports.clock) as journal:
        journal.append("submit", schema=1, spec=asdict(SPEC))
        run = run_of(queued(1))
        with pytest.raises(SlurmUnreachable):
            act(do.CancelJob(job_id="101", why="test"), run, seen(), journal, ports)
    after = fold(read(folder)[0])
    assert after is not None and after.unanswered == {"cancel 101"}
