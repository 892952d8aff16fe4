"""The daemon outlives what goes wrong around it: a missing orch.yaml, a file server that is away, a mistake of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from builders import queued, run_of

from orchestrator.control.loop import Daemon
from orchestrator.control.passes import PassReport, RunPass
from orchestrator.control.ports import Ports
from orchestrator.errors import UserError
from orchestrator.sd_notify import Manager
from orchestrator.slurm.commands import SlurmCommands


@dataclass
class Looped:
    """A daemon over an empty repository whose clock stands still but for its pauses."""

    folder: Path
    said: list[str] = field(default_factory=list)
    now: float = 0.0

    def passes(self, count: int, reload: Callable[[], None] = lambda: None) -> None:
        ports = Ports(repository=self.folder, slurm=SlurmCommands(), clock=lambda: 1.7e9 + self.now, new_id=lambda: "0")

        def again() -> tuple[Ports, float]:
            reload()
            return ports, 30.0

        def sleep(seconds: float) -> None:
            self.now += 60.0

        daemon = Daemon(ports=ports, every_s=30.0, reload=again, monotonic=lambda: self.now, jitter=lambda: 0.0,
                        say=lambda tag, line: self.said.append(f"{tag}: {line}"), manager=Manager({}))
        daemon.run(sleep, lambda: self.now >= 60.0 * count, lambda: False)


def test_orch_yaml_may_be_missing_for_a_moment(tmp_path: Path) -> None:
    looped = Looped(tmp_path)

    def missing() -> None:
        if looped.now < 120.0:
            raise UserError("no orch.yaml in here", hint="run `orch init` there first")

    looped.passes(4, missing)
    assert [line for line in looped.said if "orch.yaml" in line] == [
        "orch.yaml: no orch.yaml in here (run `orch init` there first); going on with what was read before"]


def test_a_folder_that_cannot_be_listed_is_said_once_and_the_daemon_goes_on(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    (tmp_path / "runs").write_text("a file where a folder should be: listing it fails, as on a stale handle")

    def mended() -> None:
        if looped.now >= 120.0:
            (tmp_path / "runs").unlink(missing_ok=True)

    looped.passes(4, mended)
    assert len([line for line in looped.said if "runs" in line]) == 1
    assert (tmp_path / "ops" / "STATE.md").exists(), "the passes after it went well"


def test_a_record_that_appears_while_a_pass_is_at_it_wakes_the_next_one(tmp_path: Path) -> None:
    """Its attempt was looked at before the record was there; waiting out the pause would cost half a minute of a GPU."""
    folder = tmp_path / "runs" / "a" / "attempts" / "0001"
    folder.mkdir(parents=True)
    run = run_of(queued(1))
    ports = Ports(repository=tmp_path, slurm=SlurmCommands(), clock=lambda: 0.0, new_id=str)
    report = PassReport(runs=(RunPass(tag="a", run=run),), snapshot=None)

    class Passing(Daemon):
        during: Callable[[], object] = lambda self: None

        def _pass(self) -> PassReport:
            self.during()
            return report

    daemon = Passing(ports=ports, every_s=30.0, reload=lambda: (ports, 30.0), monotonic=lambda: 0.0, jitter=lambda: 0.0,
                     say=lambda tag, line: None, manager=Manager({}))
    daemon.one_pass()
    assert not daemon._woken(report)
    daemon.during = lambda: (folder / "start.json").write_text("{}")
    daemon.one_pass()
    assert daemon._woken(report)
    daemon.during = lambda: None
    daemon.one_pass()
    assert not daemon._woken(report), "once"
