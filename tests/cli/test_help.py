"""Help is there, quick, and costs no import that it does not need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Orch

from orchestrator.cli.main import COMMANDS


def test_help_and_version(orch: Orch) -> None:
    for flag in ("--help", "-h"):
        answer = orch(flag)
        assert answer.code == 0 and all(name in answer.out for name in COMMANDS)
    assert orch("--version").out.startswith("orch, version ")
    assert "submit" in orch().out + orch().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(orch: Orch, name: str) -> None:
    answer = orch(name, "--help")
    assert answer.code == 0 and answer.out.startswith(f"Usage: orch {name}") and f"orch {name}" in answer.out[20:]


def test_help_loads_neither_config_nor_anything_heavy() -> None:
    code = ("import sys; sys.argv = ['orch', '--help']\nfrom orchestrator.cli.main import main\n"
            "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)")
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())
    assert not loaded & {"yaml", "msgspec", "requests", "rich", "watchdog", "numpy", "subprocess", "orchestrator.control"}


@pytest.mark.skipif(shutil.which("orch", path=str(Path(sys.executable).parent)) is None, reason="orch is not installed")
def test_the_installed_program(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "orch"
    ran = subprocess.run([program, "status"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith("orch: no orch.yaml in ")
