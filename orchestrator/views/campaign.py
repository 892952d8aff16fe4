"""Runs that wait for each other, as a tree: ``orch status CAMPAIGN``, and the plan of a dry run. Values in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.core.pending import as_written, waits_for
from orchestrator.model import After, Phase, Profile, Run
from orchestrator.units import format_duration, format_size
from orchestrator.views.facts import Shown, how_to_go_on, run_as_json, state_word, why_waiting
from orchestrator.views.status import View, run_row, time_left
from orchestrator.views.text import Line, Span, table, wrapped

Waits = Mapping[str, After]


def tree(after: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """(lines drawn before it, tag) of each run, upstream first as given. One that waits for several stands under the last of
    them."""
    position = {tag: index for index, tag in enumerate(after)}
    parent = {tag: max((other for other in above if other in position and position[other] < position[tag]),
                       key=lambda other: position[other], default="") for tag, above in after.items()}
    below: dict[str, list[str]] = {}
    for tag in after:
        below.setdefault(parent[tag], []).append(tag)
    drawn: list[tuple[str, str]] = []

    def draw(tags: Sequence[str], indent: str, *, root: bool = False) -> None:
        for tag in tags:
            last = tag == tags[-1]
            drawn.append(("" if root else f"{indent}{'└─ ' if last else '├─ '}", tag))
            draw(below.get(tag, ()), "" if root else f"{indent}{'   ' if last else '│  '}")

    draw(below.get("", ()), "", root=True)
    return drawn


def campaign_lines(name: str, after: Mapping[str, Waits], shown: Mapping[str, Shown], view: View) -> list[Line]:
    """How the runs of a campaign stand; ``shown`` lacks those that have not been submitted."""
    counts = Counter(state_word(one.run, one.jobs) for one in shown.values())
    missing = len(after) - len(shown)
    words = [f"{count} {state}" for state, count in counts.items()] + ([f"{missing} not submitted"] if missing else [])
    rows: list[tuple[Span, ...]] = [tuple((title, "title") for title in ("TAG", "STATE", "FOR", "NOTE"))]
    for lines, tag in tree(after):
        one = shown.get(tag)
        if one is None:
            rows.append(((lines + tag, ""), ("-", "faint"), ("", ""), (f"not submitted: `orch submit {name}`", "faint")))
        else:
            rows.append(((lines + tag, ""), *_row(one, view)))
    return [*wrapped(f"{name}: {', '.join(words)}", view.width), *table(rows, view.width)]


def _row(one: Shown, view: View) -> tuple[Span, ...]:
    """State, for how long, and where it stands."""
    _, state, lasted, *rest = run_row(one, view.now)
    if one.run.live is None or one.run.phase == Phase.HELD:
        return state, lasted, *rest
    left = time_left(one.progress, view.now)
    words = [f"attempt {one.run.live.number}, job {one.run.live.job_id}"]
    words += [f"step {one.progress.steps}"] if one.progress.steps else []
    return state, lasted, (", ".join([*words, *([f"{left} left"] if left else [])]), "")


def explained(name: str, after: Mapping[str, Waits], shown: Mapping[str, Shown]) -> list[str]:
    """One line a run: where it stands, what it waits for, and what helps one that is held."""
    return [_explained(shown[tag]) if tag in shown else f"{tag} is not submitted: `orch submit {name}`" for tag in after]


def _explained(one: Shown) -> str:
    run = one.run
    words = f"{run.spec.tag} is {state_word(run, one.jobs)}"
    if run.phase == Phase.HELD:
        return f"{words}: {run.phase_reason}; {how_to_go_on(run)}"
    if run.live is not None:
        return f"{words}: attempt {run.live.number}, job {run.live.job_id}"
    if run.phase == Phase.ACTIVE:
        return f"{words}: {why_waiting(one)}"
    return words + (f": {run.phase_reason}" if run.phase_reason else "")


def campaign_json(name: str, after: Mapping[str, Waits], shown: Mapping[str, Shown]) -> dict[str, Any]:
    """For programs: the runs upstream first, and what has not been submitted."""
    return {"campaign": name, "not_submitted": [tag for tag in after if tag not in shown],
            "runs": [run_as_json(shown[tag].run, shown[tag].jobs, shown[tag].progress) for tag in after if tag in shown]}


def submitted_words(run: Run, already: bool) -> str:
    """What a submission made of one run."""
    tag = run.spec.tag
    if already:
        return f"{tag} is {state_word(run)} already"
    if run.phase == Phase.HELD:
        return f"{tag} is recorded and not queued: it {run.phase_reason}"
    behind = f", {waits_for(run.spec.after_tags)}" if run.spec.after_tags else ""
    return f"{tag}: job {next((s.job_id for s in run.waiting if s.job_id), '?')} queued{behind}"


def plan_json(
    name: str, after: Mapping[str, Waits], profiles: Mapping[str, Profile], there: Mapping[str, Run],
) -> dict[str, Any]:
    """What a submission would do, for programs."""
    return {"campaign": name, "dry_run": True, "runs": [
        {"tag": tag, "after": as_written(waits), "already": tag in there,
         "profile": (there[tag].spec.profile if tag in there else profiles[tag]).name} for tag, waits in after.items()]}


def plan_lines(
    after: Mapping[str, Waits], profiles: Mapping[str, Profile], there: Mapping[str, Run], view: View,
) -> list[Line]:
    """What a submission would do; ``profiles`` are of the runs that would be new."""
    rows: list[tuple[Span, ...]] = [tuple((title, "title") for title in ("TAG", "PROFILE", "AFTER", "WITH"))]
    for lines, tag in tree(after):
        behind = ", ".join(as_written(after[tag])) or "-"
        if tag in there:
            begin: tuple[Span, ...] = ((lines + tag, "faint"), (there[tag].spec.profile.name, "faint"), (behind, "faint"))
            rows.append((*begin, (f"{state_word(there[tag])} already: left as it is", "faint")))
        else:
            rows.append(((lines + tag, ""), (profiles[tag].name, ""), (behind, ""), (_resources(profiles[tag]), "")))
    return table(rows, view.width)


def _resources(profile: Profile) -> str:
    parts = [f"{profile.nodes} nodes" if profile.nodes > 1 else "", profile.gres or "no GPU",
             f"{profile.cpus} cpu{'s' if profile.cpus != 1 else ''}",
             format_size(profile.memory_bytes) if profile.memory_bytes else "", format_duration(profile.time_s),
             f"partition {profile.partition}" if profile.partition else ""]
    return ", ".join(part for part in parts if part)
