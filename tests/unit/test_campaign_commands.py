"""Holding, releasing, waiting for and explaining a campaign, with passes over a simulated Slurm."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import POLICY, SPEC
from simulation.slurm import SimulatedSlurm
from test_withdraw import Still

from orchestrator import folders, journal
from orchestrator.cli.campaign import cancel_all
from orchestrator.control import campaign, publish, requests
from orchestrator.control.passes import pass_over_all
from orchestrator.control.ports import Ports, require_run
from orchestrator.errors import ConfigError, Refused, SlurmUnreachable, SubmissionRejected, TimedOut, UnknownTag
from orchestrator.model import After, Run
from orchestrator.views.campaign import explained

AFTER = {"a": {}, "b": {"a": After.FINISHED}, "c": {"a": After.ENDED}}
FILE = "runs:\n  c: {after: {a: ended}}\n  a: {}\n  b: {after: [a]}\n"


class Line:
    """b and c wait for a, to finish and to end; one node."""

    def __init__(self, repository: Path) -> None:
        self.slurm, ids = SimulatedSlurm(Still(), nodes=("n1",), now=1000.0), iter(range(100))
        self.ports = Ports(repository=repository, slurm=self.slurm, policy=POLICY, clock=lambda: self.slurm.now,
                           new_id=lambda: f"id{next(ids)}")
        for tag in AFTER:
            folder = folders.job_dir(repository, tag)
            folder.mkdir(parents=True)
            (folder / "job.sh").write_text("#!/bin/sh\ntrue\n")
        (repository / "jobs" / "line.campaign.yaml").write_text(FILE)

    def submit(self) -> None:
        specs = {tag: replace(SPEC, tag=tag, repository=str(self.ports.repository), after_tags=after, campaign="line")
                 for tag, after in AFTER.items()}
        campaign.submit_campaign(self.ports, campaign.Checked(name="line", specs=specs, members=tuple(
            campaign.Member(tag=tag, after=after, run=None) for tag, after in AFTER.items())), lambda run, already: None)

    def note(self, tag: str, event: str, **context: object) -> None:
        with journal.locked(folders.run_dir(self.ports.repository, tag), wait_s=0.0, clock=self.ports.clock) as locked:
            locked.append(event, **context)

    def cancel_a(self) -> None:
        requests.cancel(self.ports, "a", now=True)
        self.slurm.tick(self.slurm.now + 40.0)

    def states(self) -> dict[str, str]:
        runs = [require_run(self.ports.repository, tag) for tag in AFTER]
        return {run.spec.tag: f"{run.phase} {run.held_by}".strip() for run in runs}

    def held(self) -> set[bool]:
        return {job.held for job in self.slurm.jobs_by_id.values() if job.state == "PENDING"}

    def patience(self, timeout_s: float | None = None) -> requests.Patience:
        def sleep(seconds: float) -> None:
            self.slurm.tick(self.slurm.now + seconds)

        return requests.Patience(timeout_s=timeout_s, every_s=5.0, sleep=sleep, monotonic=lambda: self.slurm.now,
                                 say=lambda sentence: None)

    def wait(self, *states: str, timeout_s: float | None = None) -> list[Run]:
        return campaign.wait_for_campaign(self.ports, "line", frozenset(states or ("finished",)), self.patience(timeout_s))

    def explain(self) -> list[str]:
        after, shown, _ = campaign.look_at_campaign(self.ports, "line")
        return explained("line", after, shown)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def tags(runs: list[Run]) -> list[str]:
    return [run.spec.tag for run in runs]


def test_all_of_it_is_held_what_waits_first_and_let_go_upstream_first(line: Line) -> None:
    line.submit()
    assert tags(campaign.hold_campaign(line.ports, "line"))[-1] == "a"
    assert line.states() == dict.fromkeys(AFTER, "held user") and line.held() == {True}
    assert campaign.hold_campaign(line.ports, "line") == []
    assert tags(campaign.release_campaign(line.ports, "line"))[0] == "a"
    assert line.states() == dict.fromkeys(AFTER, "active") and line.held() == {False}
    with pytest.raises(Refused, match="nothing of line is held"):
        campaign.release_campaign(line.ports, "line")


def test_what_is_over_is_left_out_and_what_is_lost_is_held_again(line: Line) -> None:
    line.submit()
    line.cancel_a()
    pass_over_all(line.ports)
    assert line.states() == {"a": "cancelled", "b": "held upstream", "c": "active"}
    assert set(tags(campaign.hold_campaign(line.ports, "line"))) == {"b", "c"}, "a person's word goes first"
    b, c = sorted(campaign.release_campaign(line.ports, "line"), key=lambda run: run.spec.tag)
    assert (b.held_by, c.phase) == ("upstream", "active")
    campaign.cancel_campaign(line.ports, "line", now=True)
    with pytest.raises(Refused, match="all of it is over"):
        campaign.hold_campaign(line.ports, "line")


def test_one_that_is_rolled_back_is_not_held_in_silence(line: Line) -> None:
    line.submit()
    line.note("c", "rollback", to_step=10, reason="me: a spike")
    with pytest.raises(Refused, match="not held: c, being rolled back"):
        campaign.hold_campaign(line.ports, "line")
    assert line.states() == {"a": "held user", "b": "held user", "c": "rolling-back"}


def test_every_hold_is_recorded_while_slurm_is_silent(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.submit()

    def away(commented: tuple[str, ...] = ("",)) -> list[object]:
        raise SlurmUnreachable("slurmctld is down")

    monkeypatch.setattr(line.slurm, "jobs", away)
    with pytest.raises(SlurmUnreachable):
        campaign.hold_campaign(line.ports, "line")
    assert line.states() == dict.fromkeys(AFTER, "held user")


def test_what_slurm_refuses_of_one_run_keeps_no_other_from_being_asked(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold of c was refused, and `orch hold` left a and b as they were."""
    line.submit()

    def refused(job_id: str) -> None:
        raise SubmissionRejected(f"Access/permission denied for job {job_id}")

    monkeypatch.setattr(line.slurm, "hold", refused)
    with pytest.raises(SubmissionRejected, match="job 3"):
        campaign.hold_campaign(line.ports, "line")
    assert line.states() == dict.fromkeys(AFTER, "held user")


@pytest.mark.parametrize("ask", [campaign.hold_campaign, campaign.release_campaign])
def test_nothing_was_submitted(line: Line, ask: Callable[[Ports, str], object]) -> None:
    with pytest.raises(UnknownTag, match="nothing of line has been submitted"):
        ask(line.ports, "line")
    with pytest.raises(UnknownTag, match="nothing of line has been submitted"):
        line.wait()


def test_the_wait_goes_on_while_anything_of_it_can_train(line: Line) -> None:
    line.submit()
    with pytest.raises(TimedOut, match=r"a is waiting, [bc] is waiting, [bc] is waiting after 20 s, not finished"):
        line.wait(timeout_s=20.0)
    line.note("a", "finished")
    line.note("b", "finished")
    with pytest.raises(TimedOut, match=r"^c is waiting after 20 s"):
        line.wait(timeout_s=20.0)
    line.note("c", "finished")
    assert sorted(tags(line.wait())) == ["a", "b", "c"]


def test_the_wait_ends_when_nothing_can_and_says_what_stands_where(line: Line) -> None:
    line.submit()
    line.cancel_a()
    line.note("c", "finished")
    with pytest.raises(Refused, match=r"a is cancelled: by hand; b is held: waits for a to finish"):
        line.wait()
    assert len(line.wait("finished", "held", "cancelled")) == 3


def test_the_wait_ends_when_all_else_waits_for_a_run_that_is_held_by_hand(line: Line) -> None:
    line.submit()
    line.slurm.jobs_by_id.pop(1)       # nothing of a runs
    requests.hold(line.ports, "a")
    with pytest.raises(Refused, match=r"a is held: by hand; [bc] is waiting; [bc] is waiting"):
        line.wait()


def test_the_wait_names_what_was_never_submitted(line: Line) -> None:
    line.submit()
    for tag in AFTER:
        line.note(tag, "finished")
    folders.job_dir(line.ports.repository, "d").mkdir()
    (line.ports.repository / "jobs" / "line.campaign.yaml").write_text(FILE + "  d: {}\n")
    with pytest.raises(Refused, match=r"^d has not been submitted"):
        line.wait()


def test_one_line_a_run_says_what_it_waits_for(line: Line) -> None:
    line.submit()
    requests.hold(line.ports, "c")
    a, b, c = sorted(line.explain())
    assert a.startswith("a is starting: job 1") and b.startswith("b is waiting: job 3") and "a to finish" in b
    assert c == "c is held: by hand; `orch release c` lets it go on"
    line.cancel_a()
    pass_over_all(line.ports)
    (line.ports.repository / "jobs" / "line.campaign.yaml").write_text(FILE + "  d: {}\n")
    a, b, c, d = sorted(line.explain())
    assert a == "a is cancelled: by hand" and b.startswith("b is held: waits for a to finish; a is cancelled: by hand; ")
    assert d == "d is not submitted: `orch submit line`"


def test_what_failed_is_told_though_the_views_cannot_be_written(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ports: Ports) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(publish, "publish_state", full)
    with pytest.raises(ConfigError, match="No such file"):
        cancel_all(line.ports, "nothing", now=False, as_json=False)
