"""The real entry point, called in this process with a Slurm that cannot be reached, so that nothing is ever submitted."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from orchestrator.cli.main import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Orch(Protocol):
    def __call__(self, *arguments: str) -> Answer: ...


@pytest.fixture
def orch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Orch:
    """``orch("status", "--json")`` in tmp_path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "no-slurm.conf"))

    def call(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["orch", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        code = caught.value.code
        return Answer(code if isinstance(code, int) else 1, printed.out, printed.err)

    return call


@pytest.fixture
def repository(orch: Orch, tmp_path: Path) -> Path:
    """``orch init`` and a job folder ``resnet-a`` with a command in it."""
    assert orch("init").code == 0
    assert orch("new", "resnet-a").code == 0
    with (tmp_path / "orch.yaml").open("a") as file:
        file.write("slurm: {timeout: 300ms}\n")
    (tmp_path / "jobs/resnet-a/job.sh").write_text("#!/usr/bin/env bash\nexec sleep 600\n")
    return tmp_path
