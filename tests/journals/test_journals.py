"""Golden journals, each written by the simulated campaign or by a defect that was mended: replayed, the result compared.

What they must come to stands in ``RESULTS``. A journal that shows a defect not mended yet is marked ``xfail(strict=True)``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import journal
from orchestrator.core.fold import apply, fold
from orchestrator.model import Run

HERE = Path(__file__).parent
RESULTS: dict[str, list[str]] = json.loads((HERE / "results.json").read_text())


def told(run: Run) -> list[str]:
    """What a run came to, in words that do not change with its fields."""
    return [f"{run.phase} {run.phase_reason}".strip(),
            *(f"submission {s.id} of attempt {s.number}: {s.state}" for s in run.submissions),
            *(f"attempt {a.number}, job {a.job_id}, restart {a.restart_count}: {a.ending}, from {a.resume_step}, "
              f"to {a.checkpoint_step}" for a in run.attempts)]


def read(name: str, folder: Path) -> list[journal.Event]:
    (folder / "journal.jsonl").write_bytes((HERE / f"{name}.jsonl").read_bytes())
    return journal.read(folder)[0]


def test_every_journal_has_its_result() -> None:
    assert {path.stem for path in HERE.glob("*.jsonl")} == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_a_journal_replays_to_what_it_told_then(name: str, tmp_path: Path) -> None:
    run = fold(read(name, tmp_path))
    assert run is not None
    assert told(run) == RESULTS[name]


@pytest.mark.parametrize("name", RESULTS)
def test_a_fact_told_twice_is_told_once(name: str, tmp_path: Path) -> None:
    """What another daemon, or a copy of the tail, tells again about submissions and attempts changes nothing."""
    events = read(name, tmp_path)
    once = twice = None
    for event in events:
        once = apply(once, event)
        for _ in range(2 if event["event"] in ("queueing", "queued", "started", "ended", "dropped", "lost") else 1):
            twice = apply(twice, event)
    assert once is not None and twice is not None
    assert told(once) == told(twice)
