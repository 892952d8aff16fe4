"""``ops/STATE.md`` and ``ops/state.json``: the repository's state for people and agents, as text. Pure."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.errors import OrchError
from orchestrator.model import Phase, Run
from orchestrator.views.facts import how_to_go_on, run_as_json, state_word
from orchestrator.views.status import note


def state_text(runs: list[Run], errors: list[OrchError]) -> str:
    """The page: what a reader must know first, then a line a run, grouped. Equal states give equal pages."""
    held = [r for r in runs if r.phase == Phase.HELD]
    running = [r for r in runs if r.live is not None]
    waiting = [r for r in runs if r.live is None and not r.over and r.phase != Phase.HELD]
    over = [r for r in runs if r.over]
    first = f"{len(running)} running, {len(waiting)} waiting, {len(held)} held, {len(over)} over."
    if not running and not waiting:
        first = "**The queue is empty.** Queue the next one with `orch new TAG` and `orch submit TAG`. " + first
    lines = ["# State", "", first, ""]
    lines += [f"- **damaged**: {error}" for error in errors]
    for title, group in (("Held", held), ("Running", running), ("Waiting", waiting), ("Over", over)):
        if group:
            lines += [f"## {title}", ""]
            lines += [_line(run) for run in sorted(group, key=lambda r: r.spec.tag)]
            lines.append("")
    return "\n".join(lines)


def _line(run: Run) -> str:
    words = note(run, {})
    helps = f" — {how_to_go_on(run)}" if run.phase == Phase.HELD else ""
    return f"- `{run.spec.tag}`: {state_word(run)}" + (f", {words}" if words else "") + helps


def state_json(runs: list[Run], errors: list[OrchError]) -> str:
    """The same for programs."""
    data: dict[str, Any] = {"runs": [run_as_json(run) for run in runs], "errors": [str(error) for error in errors]}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
