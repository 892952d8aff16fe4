"""``orch queue``: what squeue prints, in the order in which Slurm will start it, whatever people call their jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.line import in_order
from orchestrator.core.script import repository_key
from orchestrator.sightings import QueuedJob
from orchestrator.slurm.fields import UNIT, parse_queue, queue_option
from orchestrator.views.queue import project_of, queue_json, queue_lines
from orchestrator.views.status import View
from orchestrator.views.text import columns, plain

REPOSITORY = "/home/anna/vision"
OURS = repository_key(REPOSITORY)


def queued_job(job_id: str, state: str = "PENDING", **changes: Any) -> QueuedJob:
    values: dict[str, Any] = {"user": "anna", "partition": "gpu", "priority": 1000 - int(job_id), "name": "n",
                              "reason": "Priority" if state == "PENDING" else ""}
    return QueuedJob(job_id=job_id, state=state, **{**values, **changes})


MARK = UNIT + "5eed"
HEADING = [field.partition(":")[0] for field in queue_option(MARK).removeprefix("--Format=").split(",")]


def printed(*rows: Sequence[str]) -> str:
    """As squeue prints with ``queue_option``."""
    return "".join(MARK.join([*values, "\n"]) for values in (["JOBID", *HEADING[1:]], *rows))


def row(job_id: str = "7", name: str = "n", comment: str = "(null)") -> list[str]:
    return [job_id, "anna", "gpu", "PENDING", "4294901757", "Resources", "", "(null)", "1796013354", "N/A", name, comment]


def test_a_row_is_read() -> None:
    assert len(HEADING) == len(row())
    assert parse_queue(printed(row()), MARK) == [QueuedJob(
        job_id="7", user="anna", partition="gpu", state="PENDING", priority=4294901757, reason="Resources",
        start_at=1796013354.0, name="n")]
    assert parse_queue(printed(), MARK) == []


@pytest.mark.parametrize("job_id", ["9_[1-10%2]", "9_3", "8+1"])
def test_ids_that_are_no_numbers(job_id: str) -> None:
    assert parse_queue(printed(row(job_id)), MARK)[0].job_id == job_id


@pytest.mark.parametrize("name", ["a|b", "a\nb\nc", "modèle-训练 🚀", "n" * 4096, f"x{UNIT}y", "a\x1eb", "", "\ufffd\x00",
                                  f"x{UNIT}99{UNIT}root{UNIT}p{UNIT}RUNNING\n{UNIT}"])
def test_hostile_names_neither_hide_nor_make_a_job(name: str) -> None:
    jobs = parse_queue("a site's banner\n" + printed(row("1"), row("2", name=name, comment=name), row("3")), MARK)
    assert [job.job_id for job in jobs] == ["1", "2", "3"] and jobs[1].name == name
    for line in queue_lines(jobs, REPOSITORY, View(now=0, width=80, zone=UTC)):
        assert plain(line).isprintable() and columns(plain(line)) <= 80


@given(st.text(), st.text())
def test_any_name_and_comment(name: str, comment: str) -> None:
    jobs = parse_queue(printed(row("1"), row("2", name=name, comment=comment), row("3")), MARK)
    assert [job.job_id for job in jobs] == ["1", "2", "3"]


def test_the_project_is_repository_and_tag_of_our_jobs_and_the_name_of_others() -> None:
    assert project_of(queued_job("1", comment="orch/1:vision-0a1b2c3d:resnet-a:0003:abc")) == "vision/resnet-a"
    assert project_of(queued_job("1", comment="orch/1:broken", name="jupy\nter")) == "jupy ter"
    assert project_of(queued_job("1", name="")) == "-"


def test_the_order() -> None:
    jobs = [
        queued_job("5"), queued_job("9", priority=5000), queued_job("6", reason="Dependency", dependency="afterany:5"),
        queued_job("4", "RUNNING", start_at=20.0), queued_job("3", "COMPLETING", start_at=10.0),
        queued_job("7", priority=0, reason="JobHeldUser"), queued_job("8", partition="cpu"),
        queued_job("2", priority=9999, reason="BeginTime")]
    assert [(job.job_id, place) for job, place in in_order(jobs)] == [
        ("3", None), ("4", None), ("9", 1), ("5", 2), ("8", 1), ("2", None), ("6", None), ("7", None)]


def test_the_list() -> None:
    jobs = [
        queued_job("4", "RUNNING", start_at=60.0, end_at=3600.0, nodes="n[1-2]", comment=f"orch/1:{OURS}:a:0001:x"),
        queued_job("5", "PENDING", start_at=3600.0),
        queued_job("6", reason="Dependency", dependency="afterany:4(unfulfilled)"),
        queued_job("7", reason="Dependency", dependency="afterany:3_2(unfulfilled),afterok:2_*(unfulfilled)")]
    lines = queue_lines(jobs, REPOSITORY, View(now=0, zone=UTC))
    assert [plain(line) for line in lines] == [
        "PROJECT   #  JOB  USER  STATE    START         WHY",
        "vision/a     4    anna  running  01-01 00:01   on n[1-2] until 01-01 01:00",
        "n         1  5    anna  pending  ~01-01 01:00  other jobs come first (Priority)",
        "n            6    anna  pending                behind 4",
        "n            7    anna  pending                behind 2, 3_2"]
    assert ("vision/a", "title") in lines[1] and ("n", "") in lines[2]


def test_a_year_from_now_is_written_with_its_year() -> None:
    """Slurm calls a job without a limit one of 365 days."""
    jobs = [queued_job("4", "RUNNING", start_at=60.0, end_at=60.0 + 365 * 86400, nodes="n1")]
    [_, line] = queue_lines(jobs, REPOSITORY, View(now=90, zone=UTC))
    assert plain(line).endswith("01-01 00:01  on n1 until 1971-01-01 00:01")


def test_partitions_are_named_where_there_are_several() -> None:
    lines = queue_lines([queued_job("4"), queued_job("5", partition="cpu")], REPOSITORY, View(now=0))
    assert plain(lines[1]).endswith("gpu: other jobs come first (Priority)")


def test_json_for_programs_says_what_is_a_guess() -> None:
    pending, running = json.loads(json.dumps(queue_json([
        queued_job("5", start_at=9.0, end_at=10.0), queued_job("4", "RUNNING", start_at=1.0, end_at=10.0)])))[::-1]
    assert (pending["place"], pending["start_is_a_guess"], pending["limit_at"]) == (1, True, None)
    assert (running["place"], running["start_is_a_guess"], running["limit_at"]) == (None, False, 10.0)
