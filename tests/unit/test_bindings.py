"""When pyslurm reads the jobs and when it does not, and what its jobs are taken for. The real reads are the contract's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import SlurmUnreachable
from orchestrator.sightings import JobSeen
from orchestrator.slurm import reader
from orchestrator.slurm.bindings import SlurmBindings, choose
from orchestrator.slurm.commands import SlurmCommands

OTHERWISE = ": jobs are read with squeue"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A Slurm of this version (None: it does not answer) by a scontrol in PATH, and beside orch a pyslurm of that one."""
    def make(running: str | None, installed: str | None, module: str = "") -> None:
        scontrol = tmp_path / "bin" / "scontrol"
        scontrol.parent.mkdir()
        config = f"MinJobAge               = 300 sec\nClusterName             = c\nSLURM_VERSION           = {running}\n"
        away = "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
        scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{config}END\n" if running else f"#!/bin/sh\n{away}\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(scontrol.parent), prepend=os.pathsep)
        site = tmp_path / "site"
        if installed is not None:
            about = site / f"pyslurm-{installed}.dist-info" / "METADATA"
            about.parent.mkdir(parents=True)
            about.write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {installed}\n")
        if module:
            (site / "pyslurm.py").write_text(module)
        kept = [path for path in sys.path if not (Path(path) / "pyslurm").is_dir()]
        monkeypatch.setattr(sys, "path", [str(site), *kept])
        monkeypatch.setenv("PYTHONPATH", str(site))
    return make


@pytest.mark.parametrize(("running", "installed", "words"), [
    ("25.11.7", None, "pyslurm is not installed beside orch (pip install 'orch-slurm[pyslurm]')"),
    ("22.05.8", "25.11.2", "pyslurm 25.11.2 is not for the Slurm that runs here, 22.05.8"),
    ("25.11.7", "25.5.0", "pyslurm 25.5.0 is not for the Slurm that runs here, 25.11.7"),
    ("26.05.0-0rc1", "25.11.2", "pyslurm 25.11.2 is not for the Slurm that runs here, 26.05.0-0rc1")])
def test_where_it_does_not_fit_the_commands_go_on_and_one_line_says_so(
        here: Callable[..., None], running: str, installed: str | None, words: str) -> None:
    here(running, installed)
    commands = SlurmCommands()
    assert choose(commands) == (commands, words + OTHERWISE)


def test_one_that_cannot_be_imported_is_not_used(here: Callable[..., None]) -> None:
    here("25.11.7", "25.11.2", "raise ImportError('libslurmfull.so: cannot open shared object file')")
    commands = SlurmCommands()
    chosen, words = choose(commands)
    assert chosen is commands and "\n" not in words
    assert words.startswith("pyslurm 25.11.2 cannot be used here") and "libslurmfull.so: cannot open" in words


def test_while_slurm_is_silent_nobody_can_say(here: Callable[..., None]) -> None:
    here(None, "25.11.2")
    with pytest.raises(SlurmUnreachable, match="Unable to contact"):
        choose(SlurmCommands())


STANDS_IN = """
import time
__version__ = "25.11.2"
class RPCError(Exception): pass
class Job:
    @staticmethod
    def load(number): raise RPCError({7: "Invalid job id specified", 8: "Socket timed out on send/recv operation"}[number])
class Jobs:
    @staticmethod
    def load(): %s
"""


def test_a_reader_in_trouble_is_a_command_in_trouble(here: Callable[..., None]) -> None:
    """A libslurm that hangs is ended with its process; one that dies on the way, or a printing site, is no answer either."""
    here("25.11.7", "25.11.2", STANDS_IN % "print('half a'); raise SystemExit(0)")
    chosen, words = choose(SlurmCommands(timeout_s=20.0))
    assert isinstance(chosen, SlurmBindings) and words == ""
    assert chosen.job("7") is None
    with pytest.raises(SlurmUnreachable, match="Socket timed out"):
        chosen.job("8")
    with pytest.raises(SlurmUnreachable, match="printed something else"):
        chosen.jobs()


def test_a_read_that_hangs_is_ended(here: Callable[..., None]) -> None:
    here("25.11.7", "25.11.2", STANDS_IN % "time.sleep(60)")
    with pytest.raises(SlurmUnreachable, match=r"no answer within 1\.5 s"):
        SlurmBindings(timeout_s=1.5).jobs()


def job(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "id": 7, "state": "RUNNING", "state_reason": "None", "name": "a@repo", "comment": "orch/1:x", "allocated_nodes": "n1",
        "dependencies": None, "gres_per_node": {"gres/gpu": 1}, "start_time": 5, "end_time": None, "requeue_count": 1,
        "exit_code": 0, "exit_code_signal": 9}
    return SimpleNamespace(**{**values, **changes})


def test_what_a_job_is_taken_for() -> None:
    assert reader.fields(job()) == {
        "job_id": "7", "state": "RUNNING", "reason": "None", "name": "a@repo", "comment": "orch/1:x", "nodes": "n1",
        "dependency": "", "gres": "gres/gpu:1", "start_at": 5, "end_at": None, "restart_count": 1, "exit_code": "0:9"}
    assert set(reader.fields(job())) == set(JobSeen.__dataclass_fields__)


@pytest.mark.parametrize(("conditions", "text"), [
    ({"afterany": ["7(unfulfilled)", 8], "afterok": [], "singleton": False, "satisfy": "all"}, "afterany:7(unfulfilled):8"),
    ({"afterany": [7], "afterok": [9], "singleton": True, "satisfy": "all"}, "afterany:7,afterok:9,singleton"),
    ({"afterany": [7], "afterok": [9], "singleton": False, "satisfy": "any"}, "afterany:7?afterok:9"), (None, "")])
def test_dependencies_as_slurm_shows_them(conditions: Any, text: str) -> None:
    assert reader.dependency(conditions) == text


@pytest.mark.parametrize(("code", "signal", "text"), [(0, 0, "0:0"), (0, 125, "0:125"), (9, 0, ""), (75, 0, "")])
def test_an_exit_code_that_may_be_another_is_unknown(code: int, signal: int, text: str) -> None:
    assert reader.exit_code(job(exit_code=code, exit_code_signal=signal)) == text


def test_a_text_in_no_encoding_is_nobodys_we_know() -> None:
    class Strange:
        @property
        def comment(self) -> str:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    assert reader.text(Strange(), "comment") == ""
