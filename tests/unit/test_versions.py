"""The table of what differs between Slurm's releases, and that the documentation is that table."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.slurm.versions import DIFFERENCES, NEWEST, OLDEST, Difference, has, version_of
from orchestrator.states import STATES

DOCS = Path(__file__).parents[2] / "docs" / "slurm-versions.md"


def row(difference: Difference) -> str:
    since = "{}.{:02}".format(*difference.since)
    probed = difference.probed or "not at all"
    return f"| {since} | {difference.is_so} | {difference.was} | {difference.ours} | {probed} |"


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_a_difference_is_documented(difference: Difference) -> None:
    assert row(difference) in DOCS.read_text().splitlines()
    assert OLDEST < difference.since <= NEWEST
    before = (difference.since[0], difference.since[1] - 1)
    assert has(difference.since, difference.name) and has(NEWEST, difference.name)
    assert not has(before, difference.name) and not has(OLDEST, difference.name)


def test_nothing_is_there_twice_and_newest_comes_last() -> None:
    assert len({difference.name for difference in DIFFERENCES}) == len(DIFFERENCES)
    assert [d.since for d in DIFFERENCES] == sorted(d.since for d in DIFFERENCES)


def test_every_state_is_documented() -> None:
    text = DOCS.read_text()
    for state in STATES:
        assert f"| {state.word} | {state.code or '-'} | {state.stage} |" in text


@pytest.mark.parametrize(("text", "version"), [
    ("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm 26.05.0-0rc1\n", (26, 5)),
    ("slurm-wlm 23.11.4-1.2ubuntu5", (23, 11)), ("banner of 2026\nslurm 25.05.7\n", (25, 5)), ("25.11.2", (25, 11)),
    ("25.5.0", (25, 5)), ("", None), ("command not found", None)])
def test_what_version_option_prints(text: str, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version
