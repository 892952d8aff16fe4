"""Which Slurm is asked, and that nobody ends another folder's private one by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_look import ENDED, FINISHED, QUEUED, STARTED, make_run

from orchestrator.cli.context import open_ports
from orchestrator.slurm.commands import SlurmCommands

if TYPE_CHECKING:
    from conftest import Orch


@pytest.fixture
def private(repository: Path) -> Path:
    """As `orch cluster up` leaves it, of which nothing runs."""
    folder = repository / ".orch" / "cluster"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "slurm.conf").touch()
    (folder / "cluster.json").touch()
    return folder


def test_a_slurm_conf_left_in_the_shell_is_named(orch: Orch, repository: Path, private: Path) -> None:
    answer = orch("status")
    assert answer.code == 0
    assert f"asking the Slurm of SLURM_CONF={repository}/no-slurm.conf, not this repository's own" in answer.err
    assert orch("status", "--json").json["runs"] == []


def test_its_own_by_whatever_name_is_not(
        orch: Orch, repository: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "link").symlink_to(private)
    for conf in (private / "etc" / "slurm.conf", repository / "link" / "etc" / "slurm.conf"):
        monkeypatch.setenv("SLURM_CONF", str(conf))
        assert orch("status").err == ""
    monkeypatch.delenv("SLURM_CONF")
    assert orch("status").err == ""


def test_how_a_private_one_is_started_again(
        orch: Orch, repository: Path, private: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hint() -> str:
        slurm = open_ports()[0].slurm
        assert isinstance(slurm, SlurmCommands)
        return slurm.hint

    assert hint() == "", "the one of SLURM_CONF is no private one"
    monkeypatch.delenv("SLURM_CONF")
    assert "`orch cluster up` starts it" in hint()
    other = tmp_path / "other"
    private.rename(other)
    monkeypatch.setenv("SLURM_CONF", str(other / "etc" / "slurm.conf"))
    assert f"`orch cluster up --folder {other}` starts it" in hint()


def test_down_in_a_folder_below_ends_nothing(
        orch: Orch, repository: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = repository / "jobs"
    monkeypatch.chdir(below)
    answer = orch("cluster", "down")
    assert answer.code == 2 and f"orch cluster down --folder {private}" in answer.err
    assert orch("cluster", "down", "--folder", str(private)).code == 0
    monkeypatch.chdir(repository)
    assert "nothing was running" in orch("cluster", "down").out


def test_a_finished_run_cannot_be_cancelled(orch: Orch, repository: Path) -> None:
    make_run(repository, "done", *QUEUED, STARTED, ENDED, FINISHED)
    for command in ("cancel", "hold", "release"):
        answer = orch(command, "done")
        assert answer.code == 4 and "done is finished" in answer.err, command
