"""What ``ops/try-on-your-cluster`` found, as values, and the lines and the table made of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    WRONG = "not as needed"
    UNTRIED = "could not be tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One check. ``needed``: without it orch does not work as it promises; it copes with the rest, less well."""

    check: str
    state: State
    found: str
    means: str = ""
    needed: bool = True


def fine(check: str, found: str, means: str = "") -> Result:
    return Result(check=check, state=State.OK, found=found, means=means)


def wrong(check: str, found: str, means: str, *, needed: bool = True) -> Result:
    return Result(check=check, state=State.WRONG, found=found, means=means, needed=needed)


def untried(check: str, why: str, means: str = "", *, needed: bool = True) -> Result:
    return Result(check=check, state=State.UNTRIED, found=why, means=means, needed=needed)


def judged(check: str, good: bool, found: str, means: str, *, needed: bool = True) -> Result:
    """``means`` is said only where it is not good."""
    return fine(check, found) if good else wrong(check, found, means, needed=needed)


def failed(results: Sequence[Result]) -> list[Result]:
    """The needed ones that are not fine; one that could not be tried is not proven."""
    return [result for result in results if result.needed and result.state is not State.OK]


def line(result: Result) -> str:
    means = f" -> {result.means}" if result.means else ""
    return f"{_state(result):<28} {result.check}: {result.found}{means}"


def _state(result: Result) -> str:
    return result.state + (" (orch copes)" if result.state is State.WRONG and not result.needed else "")


def summary(results: Sequence[Result]) -> str:
    """One sentence for the end."""
    count = {state: sum(result.state is state for result in results) for state in State}
    copes = sum(not result.needed and result.state is State.WRONG for result in results)
    words = f"{count[State.OK]} ok, {count[State.WRONG]} not as needed"
    words += f" ({copes} of which orch copes with)" if copes else ""
    return f"{words}, {count[State.UNTRIED]} could not be tried"


def table(results: Sequence[Result], versions: Mapping[str, str], private: Mapping[str, str]) -> str:
    """Markdown for an issue; what ``private`` names (a path, a user) is replaced by its word."""
    rows = ["| what | version |", "|---|---|"]
    rows += [f"| {_cell(name)} | {_cell(value)} |" for name, value in versions.items()]
    rows += ["", "| check | result | found | what it means for orch |", "|---|---|---|---|"]
    for result in results:
        rows.append(f"| {_cell(result.check)} | {_state(result)} | {_cell(result.found)} | {_cell(result.means)} |")
    rows += ["", summary(results)]
    text = "\n".join(rows)
    for secret in sorted(private, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", private[secret], text)
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
