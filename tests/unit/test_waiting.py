"""Why a job waits: every reason of three releases, slurmctld's own sentences, and what more evidence adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import SPEC, job, queued, run_of

from orchestrator.core.line import ahead_of
from orchestrator.core.waiting import TABLE, Evidence, Kind, Why, evidence_of, look_up, why
from orchestrator.model import After
from orchestrator.sightings import QueuedJob

REASONS = [line.split()[:2] for line in (Path(__file__).parent / "job_reasons.txt").read_text().splitlines()[1:]]

# as squeue printed them, on 22.05 and later; scontrol writes _ for each blank
SENTENCES = [
    ("ReqNodeNotAvail, Reserved for maintenance", Kind.LATER, "does not fit in before a maintenance of the nodes"),
    ("ReqNodeNotAvail, May be reserved for other job", Kind.LATER, "nodes that it needs may be reserved for another job"),
    ("ReqNodeNotAvail, UnavailableNodes:d[001-032]", Kind.SITE, "nodes that it needs are down, drained or do not answer"),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", Kind.SITE,
     "nodes that it needs are down, drained or reserved for jobs of partitions that come first"),
    ("Nodes required for job are DOWN, DRAINED (n1) or reserved for jobs in higher priority partitions", Kind.SITE,
     "nodes that it needs are down, drained or reserved for jobs of partitions that come first"),
    ("Reservation maint_1 was deleted", Kind.HELD, "its reservation was deleted; Slurm holds it for that"),
    ("Reservation x is invalid", Kind.HELD, "its reservation is not valid any more; Slurm holds it for that"),
    ("launch failed requeued held", Kind.HELD,
     "its node could not start it (a prolog failed?), and Slurm holds it for that"),
    ("launch failure limit exceeded requeued held", Kind.HELD,
     "nodes could not start it several times, and Slurm holds it for that"),
    ("user env retrieval failed requeued held", Kind.HELD,
     "its user's environment could not be had on the node, and Slurm holds it for that"),
    ("job requeued in held state", Kind.HELD, "was put back into the queue and held"),
    ("job requeued in special exit state", Kind.HELD, "was put back into the queue and held"),
    ("uid 1000 not in group permitted to use this partition (gpu). groups allowed: a,b", Kind.NEVER,
     "its user's groups may not use this partition"),
    ("JobArrayTaskLimit,BeginTime", Kind.LIMIT, "as many of its array run as may"),
]


@pytest.mark.parametrize(("reason", "kind"), REASONS)
def test_every_reason_of_three_releases_has_a_kind_and_a_sentence(reason: str, kind: str) -> None:
    found = look_up(reason)
    assert found is not None and found[0].kind == kind
    told = why(Evidence(reason=reason, tag="a", job_id="7"))
    assert told.sentence and "{" not in told.sentence + told.helps
    assert look_up(f"({reason})") == look_up(f"{reason}, more of it") == look_up(f"{reason}:detail") == found


@pytest.mark.parametrize(("reason", "kind", "sentence"), SENTENCES)
def test_slurmctlds_own_sentences(reason: str, kind: Kind, sentence: str) -> None:
    for form in (reason, reason.replace(" ", "_"), f"({reason})"):
        told = why(Evidence(reason=form))
        assert (told.kind, told.sentence) == (kind, sentence)


def test_every_row_is_reached() -> None:
    """None is hidden by one before it: what a later release adds shows here."""
    more = ["ReqNodeNotAvail", "Job is at or exceeds QOS x's group wall limit of 5 with 7",
            "Reservation x, which this job was running under, has ended", "Reservation", "WaitingForScheduling"]
    reached = {found[0].begins for reason in [*(r for r, _ in REASONS), *(s for s, _, _ in SENTENCES), *more]
               if (found := look_up(reason)) is not None}
    assert [row.begins for row in TABLE if row.begins not in reached] == []


@pytest.mark.parametrize("reason", ["NewInSlurm30", "Resourceful", "QOSGrp", "ünbekannt", "", "two\nlines"])
def test_what_is_not_known_is_unknown(reason: str) -> None:
    assert why(Evidence(reason=reason)) == Why(kind=Kind.UNKNOWN, sentence="")


@pytest.mark.parametrize(("reason", "sentence"), [
    ("AssocGrpCPURunMinutesLimit", "the running jobs of its account have all the CPU minutes that they may have at a time"),
    ("QOSGrpGRESMinutes", "its QOS has used up its GPU minutes"),
    ("QOSMaxGRESPerUser", "its user's jobs have all the GPUs (GRES) that its QOS gives to a user"),
    ("MaxMemoryPerAccount", "the jobs of its account have all the memory that its QOS gives to one"),
    ("AssocMaxNodePerJobLimit", "asks for more nodes than a job of its account may have"),
    ("QOSMaxMemoryPerNode", "asks for more memory than a job of its QOS may have"),
    ("QOSMinCpuNotSatisfied", "asks for less than its QOS wants at least (CPUs)"),
    ("QOSMaxWallDurationPerJobLimit", "asks for more time than a job of its QOS may have"),
    ("MaxGRESRunMinsPerUser", "the running jobs of its user have all the GPU minutes that its QOS gives at a time")])
def test_limits_are_read_from_their_parts(reason: str, sentence: str) -> None:
    assert why(Evidence(reason=reason)).sentence == sentence


# --- more evidence --------------------------------------------------------------------------------------------------------


def told(reason: str, **more: Any) -> tuple[Kind, str, str]:
    found = why(Evidence(reason=reason, tag="a", job_id="7", **more))
    return found.kind, found.sentence, found.helps


def test_priority_says_how_many_are_ahead() -> None:
    assert told("Priority")[1] == "other jobs come first"
    assert told("Priority", ahead=0)[1] == "other jobs come first"
    assert told("Priority", ahead=1)[1] == "1 job of its partition comes first"
    assert told("Priority", ahead=3)[1] == "3 jobs of its partition come first"
    assert told("Resources", ahead=0)[1] == "is the first in line and waits for free resources"
    assert "`orch update a --time" in told("Priority")[2]


@pytest.mark.parametrize("reason", ["Resources", "Priority", "BadConstraints", "PartitionNodeLimit", "None",
                                    "Nodes required for job are DOWN, DRAINED or reserved", "ReqNodeNotAvail"])
def test_what_no_node_can_hold_can_never_start(reason: str) -> None:
    kind, sentence, helps = told(reason, cannot="gpu:4 asked for, n1 has 1")
    assert (kind, sentence) == (Kind.NEVER, "can never start: gpu:4 asked for, n1 has 1")
    assert "orch submit a --again" in helps


@pytest.mark.parametrize("reason", ["JobHeldUser", "Dependency", "QOSGrpJobsLimit"])
def test_what_else_stands_in_its_way_comes_first(reason: str) -> None:
    assert told(reason, cannot="gpu:4 asked for, n1 has 1") == told(reason)


def test_a_limit_above_the_partitions_says_what_would_do() -> None:
    assert told("PartitionTimeLimit")[:2] == (Kind.NEVER, "asks for more time than its partition allows")
    assert told("PartitionTimeLimit", time_s=7200.0, time_at_most_s=600.0) == (
        Kind.NEVER, "asks for 2:00:00, and its partition allows 0:10:00",
        "`orch update a --time 0:10:00`; orch continues across limits by itself")
    assert told("PartitionTimeLimit", time_s=60.0, time_at_most_s=600.0) == told("PartitionTimeLimit")


def test_a_limit_on_jobs_under_which_none_runs_lets_none_start() -> None:
    assert told("AssocMaxJobsLimit", own_running=2)[0] is Kind.LIMIT
    for reason in ("AssocMaxJobsLimit", "QOSMaxJobsPerUserLimit"):
        kind, sentence, _ = told(reason, own_running=0)
        assert kind is Kind.NEVER and sentence.endswith("none of them runs: the limit lets none start")


def test_who_holds_it() -> None:
    assert told("JobHeldUser") == (Kind.HELD, "held in Slurm by its user", "`scontrol release 7`")
    assert told("JobHeldUser", held_by_orch=True) == (Kind.HELD, "orch holds it, since its run is held", "`orch release a`")
    assert "administrators" in told("JobHeldAdmin")[2]
    assert told("job requeued in held state")[2] == "`scontrol release 7`"


def test_nodes_that_are_out_are_named_with_what_was_said_of_them() -> None:
    for reason in ("Nodes required for job are DOWN, DRAINED or reserved", "ReqNodeNotAvail, UnavailableNodes:n1"):
        assert "sinfo -R" in told(reason)[2]
        assert told(reason, out="n1 (drained: bad disk)")[2] == "these nodes back in service: n1 (drained: bad disk)"
    assert told("ReqNodeNotAvail, May be reserved for other job", out="n1 (down)")[2].endswith("; out of service: n1 (down)")
    assert told("Resources", out="n1 (down)") == told("Resources")


def test_a_time_to_begin() -> None:
    assert told("BeginTime", not_before=1090.0, now=1000.0)[1] == "its time to begin comes in 1m30s"
    assert told("BeginTime", not_before=990.0, now=1000.0)[1] == "its time to begin has not come"


def test_what_it_waits_behind() -> None:
    assert told("Dependency", behind=(("5", "RUNNING", None),))[1] == "waits for the end of job 5"
    ending = told("Dependency", behind=(("5", "COMPLETING", 1000.0),), now=1010.0)
    assert ending[1:] == ("job 5 before it is still ending: Slurm waits until nothing of it is left", "")
    kind, sentence, helps = told("Dependency", behind=(("4", "RUNNING", None), ("5", "COMPLETING", 1000.0)), now=1600.0)
    assert sentence.startswith("job 5 before it is still ending for 10m") and "scontrol show job 5" in helps
    assert kind is Kind.BEHIND
    awaited = {"train": After.FINISHED, "test": After.ENDED}
    assert told("Dependency", behind=(("5", "RUNNING", None),), awaited=awaited)[1:] == (
        "waits for train to finish, test to end", "`orch explain train`, `orch explain test` say how far that is")
    both = told("Dependency", behind=(("5", "RUNNING", None), ("9", "", None)), awaited=awaited, awaited_jobs=("9",))
    assert both[1] == "waits for train to finish, test to end, job 9 to end"
    assert "still ending" in told("Dependency", behind=(("5", "COMPLETING", 1.0),), awaited=awaited)[1]


@pytest.mark.parametrize(("reason", "state", "code", "sentence"), [
    ("JobLaunchFailure", "FAILED", "0:9", "ended: killed by signal 9"),
    ("JobLaunchFailure", "FAILED", "0:53", "ended: Slurm could not open its files (is the folder of its output there?)"),
    ("RaisedSignal:53(Real-time_signal_19)", "FAILED", "0:53",
     "ended: Slurm could not open its files (is the folder of its output there?)"),
    ("RaisedSignal:9(Killed)", "FAILED", "0:9", "ended: killed by signal 9"),
    ("JobLaunchFailure", "FAILED", "0:0", "could not be started on its node"),
    ("JobLaunchFailure", "FAILED", "1:0", "could not be started on its node (exit 1)"),
    ("NonZeroExitCode", "FAILED", "3:0", "ended with an error of its own (exit 3)"),
    ("TimeLimit", "TIMEOUT", "0:0", "reached its time limit"), ("None", "COMPLETED", "0:0", "ended"),
    ("Resources", "CANCELLED", "", "ended")])
def test_how_one_ended(reason: str, state: str, code: str, sentence: str) -> None:
    """A script that was killed by a signal is no launch failure, whatever 22.05 calls it."""
    found = why(Evidence(reason=reason, state=state, exit_code=code))
    assert (found.kind, found.sentence) == (Kind.ENDED, sentence)


@pytest.mark.parametrize(("state", "sentence"), [
    ("RUNNING", "has its nodes; its supervisor has not reported yet"), ("CONFIGURING", "its nodes boot"),
    ("COMPLETING", "is ending: Slurm waits until nothing of it is left")])
def test_one_that_does_not_wait_any_more(state: str, sentence: str) -> None:
    assert why(Evidence(reason="Resources", state=state)) == Why(kind=Kind.PASSING, sentence=sentence)


def test_a_job_put_back_into_the_queue_says_how_it_ended_before() -> None:
    assert told("JobLaunchFailure", exit_code="0:9")[1] == "waits again, after it ended: killed by signal 9"


def test_the_evidence_of_one_squeue() -> None:
    run = run_of(queued(1), queued(2))
    first, second = run.waiting
    jobs = {"s1": job(1, "COMPLETING", end_at=50.0), "s2": job(2, "PENDING", reason="Dependency",
                                                              dependency="afterany:101(unfulfilled),singleton")}
    found = evidence_of(run, second, jobs)
    assert found is not None and found.behind == (("101", "COMPLETING", 50.0),)
    assert (found.tag, found.job_id, found.time_s) == ("a", "102", SPEC.profile.time_s)
    assert evidence_of(run, first, {}) is None


# --- who is ahead ---------------------------------------------------------------------------------------------------------


def waiting(
        job_id: str, priority: int, reason: str = "Priority", partition: str = "gpu", state: str = "PENDING") -> QueuedJob:
    return QueuedJob(job_id=job_id, user="anna", partition=partition, state=state, priority=priority, reason=reason)


def test_ahead_are_those_that_may_start_and_come_first_in_its_partitions() -> None:
    jobs = [waiting("1", 9, "Resources"), waiting("2", 8, "QOSGrpGRES"), waiting("3", 7, "Dependency"),
            waiting("4", 6, partition="cpu"), waiting("5", 0, "JobHeldUser"), waiting("6", 5, "NewInSlurm30"),
            waiting("7", 4), waiting("8", 3, partition="cpu,gpu"), waiting("9", 10, "", state="RUNNING"),
            waiting("10", 4, "PartitionTimeLimit")]
    assert [ahead_of(job_id, jobs) for job_id in ("1", "6", "7")] == [0, 1, 2]
    assert ahead_of("8", jobs) == 4, "those of both partitions"
    assert [ahead_of(job_id, jobs) for job_id in ("2", "9", "77", "10")] == [None] * 4
