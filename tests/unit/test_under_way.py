"""Submitting a run that is under way: an option that it would not get is refused, never dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import SPEC, queued, run_of

from orchestrator.control.submit import Request, refuse_otherwise
from orchestrator.errors import Refused

PROVING = replace(SPEC, prove_resume=True)


def test_a_proof_that_would_not_come_is_refused() -> None:
    with pytest.raises(Refused, match="not submitted to prove that it resumes") as caught:
        refuse_otherwise(run_of(queued(1)), PROVING, Request(tag="a", prove_resume=True))
    assert "`orch cancel a`" in caught.value.hint


def test_what_it_has_already_is_no_contradiction() -> None:
    refuse_otherwise(run_of(queued(1), spec=PROVING), PROVING, Request(tag="a", prove_resume=True))
    refuse_otherwise(run_of(queued(1), spec=PROVING), SPEC, Request(tag="a"))
