"""What Slurm's commands print: every version's form, and whatever names and comments hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.script import parse_comment
from orchestrator.model import JobSeen
from orchestrator.slurm.fields import (
    RECORD,
    UNIT,
    epoch_s,
    gres_counts,
    parse_job_id,
    parse_sinfo,
    parse_squeue,
    time_limit_s,
)

OURS = "orch/1:repo:a:0003:ab12"


def row(
    job_id: str = "7", state: str = "RUNNING", reason: str = "None", start: str = "1700000000", end: str = "1700003600",
    nodes: str = "n1", dependency: str = "(null)", gres: str = "N/A", name: str = "a@repo", comment: str = OURS,
) -> str:
    return RECORD + UNIT.join([job_id, state, reason, start, end, nodes, dependency, gres, name, comment]) + "\n"


SEEN = JobSeen(job_id="7", state="RUNNING", start_at=1700000000.0, end_at=1700003600.0, nodes="n1", name="a@repo",
comment=OURS)


def test_a_running_and_a_pending_job() -> None:
    pending = row("8", "PENDING", "Dependency", "N/A", "N/A", "", "afterany:7(unfulfilled),singleton(unfulfilled)",
    "gres:gpu:1")
    assert parse_squeue(row() + pending) == [
        SEEN,
        JobSeen(job_id="8", state="PENDING", reason="Dependency", dependency="afterany:7(unfulfilled),singleton(unfulfilled)",
                gres="gres:gpu:1", name="a@repo", comment=OURS)]


def test_nothing_and_banners() -> None:
    banner = "*** Maintenance on Monday ***\nslurm: module loaded\n"
    assert parse_squeue("") == []
    assert parse_squeue(banner) == []
    assert parse_squeue(banner + row()) == [SEEN]
    assert parse_squeue(RECORD + "12" + UNIT + "RUNNING\n" + row()) == [SEEN]   # a row cut short
    assert parse_squeue(RECORD + UNIT.join(["JOBID"] * 10) + "\n" + row()) == [SEEN]   # a heading


@pytest.mark.parametrize("name", [
    "a b", "a|b;c,d", "modèle-état-训练", "x" * 4096, "", "%j", "\\x1f", "a\tb", "$(reboot)", "\ufffd\ufffd", "(null)"])
def test_names_are_anybodys(name: str) -> None:
    jobs = parse_squeue(row(name=name) + row("8"))
    assert [j.job_id for j in jobs] == ["7", "8"]
    assert jobs[0].name == name.strip() and jobs[0].comment == OURS


@pytest.mark.parametrize("comment", [
    f"{UNIT}{UNIT}", "a\nb\nc", "x" * 4096, f"orch/1:{UNIT}:a:1:s", "训练\u2028\x85", "\ufffd", "orch/1:", "orch/1:a:b:c:d"])
def test_comments_are_anybodys(comment: str) -> None:
    jobs = parse_squeue(row(comment=comment) + row("8"))
    assert [(j.job_id, j.state, j.name) for j in jobs] == [("7", "RUNNING", "a@repo"), ("8", "RUNNING", "a@repo")]
    assert jobs[0].comment == comment.strip()
    assert jobs[1].comment == OURS


@pytest.mark.parametrize("hostile", [row(name=f"a{UNIT}b"), row(comment=f"a{RECORD}b"), row(name=f"{RECORD}9{UNIT}FAILED")])
def test_our_separators_in_a_strangers_words_cost_no_other_row(hostile: str) -> None:
    jobs = {j.job_id: j for j in parse_squeue(row("5") + hostile + row("8"))}
    assert jobs["5"].comment == OURS and jobs["8"].comment == OURS
    assert "9" not in jobs
    assert "7" not in jobs or parse_comment(jobs["7"].comment) is None or jobs["7"].comment == OURS


@given(st.text(st.characters(exclude_characters=RECORD + UNIT, exclude_categories=["Cs"]), max_size=40),
       st.text(st.characters(exclude_characters=RECORD, exclude_categories=["Cs"]), max_size=40))
def test_any_name_and_comment(name: str, comment: str) -> None:
    jobs = parse_squeue(row(name=name, comment=comment) + row("8"))
    assert [j.job_id for j in jobs] == ["7", "8"]
    assert jobs[0].state == "RUNNING" and jobs[0].name == name.strip()


def test_arrays_and_heterogeneous_jobs_have_ids_of_their_own() -> None:
    """``%A`` is a task's own id, also of a component of a heterogeneous job."""
    jobs = parse_squeue(row("24", name="arr") + row("25", name="arr") + row("20", "PENDING", name="het") + row("21",
    name="het"))
    assert [j.job_id for j in jobs] == ["24", "25", "20", "21"]


@pytest.mark.parametrize("word", ["Completed", "COMPLETED", "completed"])
def test_states_are_upper_case(word: str) -> None:
    assert parse_squeue(row(state=word))[0].state == "COMPLETED"


@pytest.mark.parametrize("text", ["N/A", "NONE", "Unknown", "", "0", "2026-11-29T18:01:57", "(null)", "²"])
def test_no_time(text: str) -> None:
    assert epoch_s(text) is None
    assert parse_squeue(row(start=text, end=text))[0].start_at is None


@pytest.mark.parametrize(("text", "counts"), [
    ("", {}), ("(null)", {}), ("N/A", {}), ("gpu", {"gpu": 1}), ("gpu:2", {"gpu": 2}), ("gpu:a100:2", {"gpu": 2}),
    ("gres:gpu:1", {"gpu": 1}), ("gres/gpu:1", {"gpu": 1}), ("gres/gpu=4", {"gpu": 4}), ("gres:gpu", {"gpu": 1}),
    ("gres/gpu:a100:4", {"gpu": 4}), ("gpu:a100:2(S:0-1)", {"gpu": 2}),
    ("gpu:2(IDX:0-1),shard:4(IDX:0-3)", {"gpu": 2, "shard": 4}),
    ("gpu:a100:2,gpu:h100:1", {"gpu": 3}), ("gpu:nvidia_h200:0", {"gpu": 0}), ("gpu:4g.40gb:3(S:0,1)", {"gpu": 3}),
    ("gpu:2(S:0-1),tmp:10", {"gpu": 2, "tmp": 10}), ("cpu=4,mem=2G,gres/gpu=2", {"cpu": 4, "mem": 1, "gpu": 2}),
    ("craynetwork:4,gpu:1", {"craynetwork": 4, "gpu": 1})])
def test_gres_of_every_version(text: str, counts: dict[str, int]) -> None:
    assert gres_counts(text) == counts


@pytest.mark.parametrize(("text", "job_id"), [
    ("3\n", "3"), ("12345;alpha\n", "12345"),
    ("sbatch: no partition specified, using default partition gpu\n7787232\n", "7787232"),
    ("12\nsite epilogue: have a nice day\n", "12"), ("  44  \n", "44"),
    ("Submitted batch job 3969755 on cluster alpha\n", None),
    ("Submitted batch job 12\n", None), ("", None), ("no id\n", None), ("12 13\n", None), ("-5\n", None)])
def test_what_sbatch_prints(text: str, job_id: str | None) -> None:
    """A sentence comes only without --parsable: never guessed from. ``submit`` then searches for its own id."""
    assert parse_job_id(text) == job_id


@pytest.mark.parametrize(("text", "seconds"), [
    ("infinite", None), ("UNLIMITED", None), ("n/a", None), ("", None), ("30:00", 1800.0), ("8:00:00", 28800.0),
    ("1-12:00:00", 129600.0), ("7-00:00:00", 604800.0), ("0:30", 30.0), ("365-00:00:00", 31536000.0)])
def test_time_limits(text: str, seconds: float | None) -> None:
    assert time_limit_s(text) == seconds


def test_nodes_and_partitions() -> None:
    def line(*values: str) -> str:
        return UNIT.join(values) + "\n"

    text = "welcome\n" + line("n1", "main*", "8", "4000", "gpu:2", "idle", "infinite") + line(
        "n1", "low", "8+", "4000+", "(null)", "DOWN*", "1-00:00:00") + line("n2", "main*", "x", "1", "", "idle", "1:00")
    first, second = parse_sinfo(text)
    assert (first.node, first.partition, first.default, first.cpus, first.memory_bytes, first.gres, first.time_limit_s) == (
        "n1", "main", True, 8, 4000 * 2**20, "gpu:2", None)
    assert (second.partition, second.default, second.cpus, second.gres, second.state, second.time_limit_s) == (
        "low", False, 8, "", "down*", 86400.0)
