"""Writing the views that people and agents read: ``ops/STATE.md`` and ``ops/state.json``. Never read back."""

from __future__ import annotations

from pathlib import Path

from orchestrator import folders
from orchestrator.control.look import progress_of
from orchestrator.control.observe import jobs_of
from orchestrator.control.passes import PassReport
from orchestrator.control.ports import Ports, Snapshot, ask_slurm, runs_now
from orchestrator.views.facts import Progress, Shown, met_of
from orchestrator.views.state import page_of, state_json, state_text


def publish_state(ports: Ports, report: PassReport | None = None, silent_since: float | None = None) -> None:
    """Replace both files where their content changed, with what a pass has just seen. Without its report Slurm is asked,
    where something waits in it. ``silent_since``: since when Slurm does not answer, where the caller has seen it begin."""
    runs, errors = runs_now(ports.repository)
    snapshot = report.snapshot if report is not None else None
    if report is None and any(run.waiting for run in runs):
        snapshot = ask_slurm(ports)
    snapshot = snapshot or Snapshot(asked_at=ports.clock())
    by_tag = {run.spec.tag: run for run in runs}
    shown = [
        Shown(run=run, jobs=jobs_of(run, snapshot.jobs) if run.waiting else {}, met=met_of(run, by_tag),
              progress=progress_of(ports, run) if run.live is not None else Progress())
        for run in runs]
    failed = [run.error for run in report.runs if run.error is not None] if report is not None else []
    troubles = list(dict.fromkeys(str(error) + (f" ({error.hint})" if error.hint else "") for error in [*errors, *failed]))
    page = page_of(shown, troubles, snapshot.silent, ports.clock(), silent_since)
    folder = ports.repository / "ops"
    folder.mkdir(exist_ok=True)
    _replace_if_changed(folder / "STATE.md", state_text(page))
    _replace_if_changed(folder / "state.json", state_json(page))


def _replace_if_changed(path: Path, text: str) -> None:
    try:
        if path.read_text() == text:
            return
    except (OSError, ValueError):
        pass
    folders.replace_file(path, text)
