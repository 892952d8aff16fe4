"""Writing the views that people and agents read: ``ops/STATE.md`` and ``ops/state.json``. Never read back."""

from __future__ import annotations

from pathlib import Path

from orchestrator import folders
from orchestrator.control.ports import read_all
from orchestrator.views.state import state_json, state_text


def publish_state(repository: Path) -> None:
    """Replace both files where their content changed."""
    runs, errors = read_all(repository)
    folder = repository / "ops"
    folder.mkdir(exist_ok=True)
    _replace_if_changed(folder / "STATE.md", state_text(runs, errors))
    _replace_if_changed(folder / "state.json", state_json(runs, errors))


def _replace_if_changed(path: Path, text: str) -> None:
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    folders.replace_file(path, text)
