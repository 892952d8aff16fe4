"""What Slurm's commands print: every version's form, and whatever names and comments hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import SlurmUnreachable
from orchestrator.sightings import Execution, JobSeen
from orchestrator.slurm.fields import (
    UNIT,
    epoch_s,
    gres_counts,
    jobs_option,
    parse_executions,
    parse_jobs,
    parse_nodes,
    parse_sinfo,
    parse_site,
    parse_submitted,
    time_limit_s,
)

OURS = "orch/1:repo:a:0003:ab12"
MARK = UNIT + "5f0c9a31"
HEADING = "".join(f"{name}{MARK}" for name in (
    "JOBID", "STATE", "REASON", "START_TIME", "END_TIME", "NODELIST", "DEPENDENCY", "TRES_PER_NODE", "RESTART_COUNT",
    "EXIT_CODE", "NAME", "COMMENT")) + "\n"


def row(
    job_id: str = "7", state: str = "RUNNING", reason: str = "None", start: str = "1700000000", end: str = "1700003600",
    nodes: str = "n1", dependency: str = "(null)", gres: str = "N/A", restarts: str = "0", code: str = "0:0",
    name: str = "a@repo", comment: str = OURS,
) -> str:
    values = [job_id, state, reason, start, end, nodes, dependency, gres, restarts, code, name, comment]
    return "".join(value + MARK for value in values) + "\n"


def read(*rows: str) -> list[JobSeen]:
    return parse_jobs(HEADING + "".join(rows), MARK)


SEEN = JobSeen(job_id="7", state="RUNNING", start_at=1700000000.0, end_at=1700003600.0, nodes="n1", name="a@repo",
               comment=OURS, exit_code="0:0")


def test_every_field_is_asked_for_whole_and_marked() -> None:
    option = jobs_option(MARK)
    assert option.startswith("--Format=JobID:")
    assert option.count(MARK) == HEADING.count(MARK)
    assert all(field.partition(":")[2] == MARK for field in option.removeprefix("--Format=").split(","))


def test_a_running_and_a_pending_job() -> None:
    pending = row("8", "PENDING", "Dependency", "N/A", "N/A", "", "afterany:7(unfulfilled),singleton(unfulfilled)",
                  "gres:gpu:1", restarts="2")
    assert read(row(), pending) == [
        SEEN,
        JobSeen(job_id="8", state="PENDING", reason="Dependency", dependency="afterany:7(unfulfilled),singleton(unfulfilled)",
                gres="gres:gpu:1", name="a@repo", comment=OURS, restart_count=2, exit_code="0:0")]


def test_no_jobs_and_banners() -> None:
    banner = "*** Maintenance on Monday ***\nslurm: module loaded\n"
    assert read() == []
    assert parse_jobs(banner + HEADING + row() + "goodbye\n", MARK) == [SEEN]
    assert parse_jobs(HEADING + "a word between\n" + row(), MARK) == [SEEN]


@pytest.mark.parametrize("printed", [
    "", "*** Maintenance on Monday ***\n", "JOBID PARTITION NAME\n7 main a\n", HEADING[:-9], row(), HEADING + row()[:-9],
    HEADING.replace(MARK, UNIT), "\n".join(["JOBID"] * 20)])
def test_what_is_no_answer_is_not_taken_for_no_jobs(printed: str) -> None:
    with pytest.raises(SlurmUnreachable, match="something else than it was asked for"):
        parse_jobs(printed, MARK)


HOSTILE = [
    "a b", "a|b;c,d", "modèle-état-训练", "x" * 4096, "%j", "\\x1f", "a\tb", "$(reboot)", "\ufffd\ufffd", "a\nb\nc", UNIT,
    f"\x1e9{UNIT}FAILED{UNIT}", "JOBID", "\u2028\x85\x1b[31m", "'\"`", f"orch/1:{UNIT}:a:1:s", "\n8\n", " ", "\r\n",
    HEADING[:-1].replace(MARK, UNIT + "00000000")]


@pytest.mark.parametrize("words", HOSTILE)
def test_names_and_comments_are_anybodys(words: str) -> None:
    jobs = read(row("6"), row(name=words, comment=words), row("8"))
    assert [(j.job_id, j.state, j.start_at) for j in jobs] == [(n, "RUNNING", 1700000000.0) for n in "678"]
    assert (jobs[1].name, jobs[1].comment) == (words, words)
    assert jobs[0].comment == jobs[2].comment == OURS


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_name_and_comment(name: str, comment: str) -> None:
    jobs = read(row("6"), row(name=name, comment=comment), row("8"))
    assert [j.job_id for j in jobs] == ["6", "7", "8"]
    assert jobs[1].name == name and jobs[2].comment == OURS


def test_a_comment_that_is_none() -> None:
    """22.05 to 26.05 print (null) for none; a comment of that very text is nobody's of ours."""
    assert [j.comment for j in read(row(comment="(null)"), row(comment=""))] == ["", ""]


def test_arrays_and_heterogeneous_jobs_have_ids_of_their_own() -> None:
    """``JobID`` is a task's own id, also of a component of a heterogeneous job."""
    jobs = read(row("24", name="arr"), row("25", name="arr"), row("20", "PENDING", name="het"), row("21", name="het"))
    assert [j.job_id for j in jobs] == ["24", "25", "20", "21"]


@pytest.mark.parametrize(("printed", "state"), [
    ("Completed", "COMPLETED"), ("OUT_OF_ME+", "OUT_OF_MEMORY"), ("CANCELLED by 1000", "CANCELLED"), ("?", "?"),
    ("REBALANCING", "REBALANCING")])
def test_states_are_slurms_long_words(printed: str, state: str) -> None:
    assert read(row(state=printed))[0].state == state


@pytest.mark.parametrize(("printed", "code"), [("0:9", "0:9"), ("768", "3:0"), ("9", "0:9"), ("N/A", ""), ("", "")])
def test_exit_codes_of_every_version(printed: str, code: str) -> None:
    """22.05 prints the raw wait status, everybody after it CODE:SIGNAL."""
    assert read(row(code=printed))[0].exit_code == code


@pytest.mark.parametrize("text", ["N/A", "NONE", "Unknown", "", "0", "2026-11-29T18:01:57", "(null)", "²"])
def test_no_time(text: str) -> None:
    assert epoch_s(text) is None
    assert read(row(start=text, end=text))[0].start_at is None


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


@pytest.mark.parametrize(("text", "submitted"), [
    ("3\n", ("3", "")), ("12345;alpha\n", ("12345", "alpha")),
    ("sbatch: no partition specified, using default partition gpu\n7787232\n", ("7787232", "")),
    ("12\nsite epilogue: have a nice day\n", ("12", "")), ("  44  \n", ("44", "")),
    ("Submitted batch job 3969755 on cluster alpha\n", ("3969755", "alpha")),
    ("Welcome\nSubmitted batch job 12\n", ("12", "")), ("", None), ("no id\n", None), ("12 13\n", None), ("-5\n", None),
    ("you have submitted batch job 5 today\n", None)])
def test_what_sbatch_prints(text: str, submitted: tuple[str, str] | None) -> None:
    """Nothing else is guessed from: ``submit`` then searches for its own id."""
    assert parse_submitted(text) == submitted


@pytest.mark.parametrize(("text", "seconds"), [
    ("infinite", None), ("UNLIMITED", None), ("n/a", None), ("", None), ("30:00", 1800.0), ("8:00:00", 28800.0),
    ("1-12:00:00", 129600.0), ("7-00:00:00", 604800.0), ("0:30", 30.0), ("365-00:00:00", 31536000.0)])
def test_time_limits(text: str, seconds: float | None) -> None:
    assert time_limit_s(text) == seconds


def test_nodes_and_partitions() -> None:
    def line(*values: str) -> str:
        return UNIT.join(values) + "\n"

    text = "welcome\n" + line("n1", "main*", "8", "4000", "gpu:2", "idle", "infinite", "none") + line(
        "n1", "low", "8+", "4000+", "(null)", "DOWN*", "1-00:00:00", f"Kill task|{UNIT}x\nfailed") + line(
        "n2", "main*", "x", "1", "", "idle", "1:00", "none")
    first, second = parse_sinfo(text)
    assert (first.node, first.partition, first.default, first.cpus, first.memory_bytes, first.gres, first.time_limit_s) == (
        "n1", "main", True, 8, 4000 * 2**20, "gpu:2", None)
    assert (second.partition, second.default, second.cpus, second.gres, second.state, second.time_limit_s) == (
        "low", False, 8, "", "down*", 86400.0)
    assert (first.reason, second.reason) == ("", "Kill task|\x1fx")


def test_nodes_of_scontrol() -> None:
    """22.05's line, shortened; the reason is anybody's, and comes last."""
    line = ("NodeName=n3 Arch=x86_64 CoresPerSocket=1  NodeAddr=127.0.0.1 OS=Linux 6.18 #1 SMP @0  State=DOWN+NOT_RESPONDING "
            "ThreadsPerCore=1 BootTime=1796011866 SlurmdStartTime=1796012806 Reason=State=IDLE BootTime=5 [root@179]\n")
    [down] = parse_nodes(line)
    assert (down.name, down.state, down.booted_at) == ("n3", "DOWN+NOT_RESPONDING", 1796011866.0)
    [never] = parse_nodes("NodeName=n4 State=UNKNOWN BootTime=None SlurmdStartTime=None\n")
    assert (never.state, never.booted_at) == ("UNKNOWN", None)
    assert parse_nodes("Node n9 not found\n") == []


# --- accounting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "execution"), [
    ("7 OUT_OF_MEMORY 1700000000 1700000001 1700000009 0:125 n1", Execution(
        job_id="7", state="OUT_OF_MEMORY", submitted_at=1.7e9, start_at=1.7e9 + 1, end_at=1.7e9 + 9, exit_code="0:125",
        nodes="n1")),
    ("7 CANCELLED_by_1000 1700000000 None 1700000009 0:0 None_assigned", Execution(
        job_id="7", state="CANCELLED", submitted_at=1.7e9, end_at=1.7e9 + 9, exit_code="0:0")),
    ("7 CANCELLED 1700000000 1700000001 1700000009 0:0 n1", Execution(
        job_id="7", state="UNKNOWN", submitted_at=1.7e9, start_at=1.7e9 + 1, end_at=1.7e9 + 9, exit_code="0:0", nodes="n1")),
    ("7 RUNNING 1700000000 1700000001 Unknown 0:0 n[1-2]", Execution(
        job_id="7", state="RUNNING", submitted_at=1.7e9, start_at=1.7e9 + 1, exit_code="0:0", nodes="n[1-2]")),
    ("7 REQUEUED 1700000000 1700000001 1700000004 0:0 n1", Execution(
        job_id="7", state="REQUEUED", submitted_at=1.7e9, start_at=1.7e9 + 1, end_at=1.7e9 + 4, exit_code="0:0", nodes="n1")),
    ("7.batch FAILED 1700000000 1700000001 1700000004 1:0 n1", None),       # a step, in spite of --allocations
    ("7_3 FAILED 1700000000 1700000001 1700000004 1:0 n1", None),
    ("7 FAILED 2026-11-01T09:00:00 2026-11-01T09:05:12 2026-11-01T13:05:20 1:0 n1", None),    # times of nobody's zone
    ("JobIDRaw State Submit Start End ExitCode NodeList", None), ("Maintenance on Monday", None)])
def test_rows_of_accounts(values: str, execution: Execution | None) -> None:
    line = UNIT.join(value.replace("_by_", " by ").replace("None_", "None ") for value in values.split(" "))
    assert parse_executions(f"welcome\n{line}\n\n") == ([execution] if execution is not None else [])


@pytest.mark.parametrize(("age", "kind", "age_s", "accounting"), [
    ("300 sec", "accounting_storage/slurmdbd", 300.0, True), ("2 sec", "accounting_storage/none", 2.0, False),
    ("0 sec", "(null)", 0.0, False)])
def test_how_a_slurm_is_set_up(age: str, kind: str, age_s: float, accounting: bool) -> None:
    site = parse_site(f"Configuration data as of 2026-11-30T14:00:00\nAccountingStorageType   = {kind}\n"
                      f"ClusterName             = alpha\n"
                      f"MinJobAge               = {age}\nSLURM_VERSION           = 24.11.5\n\nSlurmctld(primary) at h\n")
    assert (site.version, site.cluster, site.min_job_age_s, site.accounting) == ("24.11.5", "alpha", age_s, accounting)


def test_what_is_no_configuration_is_no_answer() -> None:
    with pytest.raises(SlurmUnreachable, match="something else than its settings"):
        parse_site("welcome\n")
