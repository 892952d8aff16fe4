"""``slurm: {backend: pyslurm}`` where pyslurm is for another Slurm: the program says so once, and works."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH, ORCH_YAML, make_repository

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize(("installed", "module", "words"), [
    ("99.11.2", "", "pyslurm 99.11.2 is not for the Slurm that runs here, {running}: jobs are read with squeue"),
    ("{running}", "raise ImportError('libslurmfull.so')", "pyslurm {running} cannot be used here (")])
def test_one_line_says_that_it_cannot_be_used(
        contract_cluster: Any, tmp_path: Path, installed: str, module: str, words: str) -> None:
    made = make_repository(tmp_path / "repository", contract_cluster, f"{ORCH_YAML}slurm: {{backend: pyslurm}}\n")
    running = contract_cluster.run("sinfo", "--version").split()[-1].partition("-")[0]
    about = tmp_path / "site" / f"pyslurm-{installed.format(running=running)}.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {installed.format(running=running)}\n")
    (tmp_path / "site" / "pyslurm.py").write_text(module)
    environment = {**made.environment, "PYTHONPATH": str(tmp_path / "site")}
    made.job("a", STEPS=1)

    def orch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ORCH, *words], cwd=made.folder, env=environment, capture_output=True, text=True, timeout=60,
                              check=True)

    [said] = [line for line in orch("submit", "a").stderr.splitlines() if "pyslurm" in line]
    assert said.startswith(
        f"orch: {words.format(running=running)}")
    log = made.folder / "daemon.log"
    with log.open("wb") as file, subprocess.Popen(
            [ORCH, "daemon"], cwd=made.folder, env=environment, stdout=file, stderr=file) as daemon:
        try:
            made.until(lambda: '"finished"' in orch("status", "a", "--json").stdout, "a to finish")
            made.until(lambda: not contract_cluster.run("squeue", "--noheader").strip(), "its successor to be cancelled")
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=30)
    assert log.read_text().count("orch: pyslurm") == log.read_text().count("read with squeue") == 1
    assert "does not answer" not in log.read_text()
