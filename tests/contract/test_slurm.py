"""What ``slurm.protocol.Slurm`` promises, asked of the simulated Slurm and of a real one alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.script import dependency_jobs
from orchestrator.errors import SubmissionRejected
from orchestrator.slurm.fields import gres_counts

Sbatch = Callable[..., str]
Look = Callable[[str], Any]


def test_a_job_is_seen_with_what_it_was_submitted_with(bench: Any, sbatch: Sbatch, look: Look) -> None:
    job_id = sbatch("exec sleep 60", comment="orch/1:repo:a:0001:s1", job_name="a@repo")
    bench.wait(lambda: look(job_id).state == "RUNNING")
    job = look(job_id)
    assert (job.name, job.comment, gres_counts(job.gres)) == ("a@repo", "orch/1:repo:a:0001:s1", {"gpu": 1})
    assert job.nodes and job.start_at
    assert job in bench.slurm.jobs()


def test_jobs_are_chosen_by_what_their_comment_begins_with(bench: Any, sbatch: Sbatch) -> None:
    ours, other, plain = (sbatch("exec sleep 60", dependency="singleton", **({"comment": text} if text else {}))
                          for text in ("orch/1:repo:a:0001:s1", "orch/1:other:a:0001:s1", ""))
    mine = {ours, other, plain}
    for begins, chosen in ((("",), mine), (("orch/1:repo:", "orch/1:moved:"), {ours}), (("orch/1:",), {ours, other})):
        assert {job.job_id for job in bench.slurm.jobs(begins)} & mine == chosen


@pytest.mark.parametrize("command, state", [("exit 0", "COMPLETED"), ("exit 75", "FAILED")])
def test_an_ended_job_is_still_seen(bench: Any, sbatch: Sbatch, look: Look, command: str, state: str) -> None:
    job_id = sbatch(command)
    bench.wait(lambda: look(job_id).state == state)
    assert look(job_id).end_at


def test_a_job_that_nobody_submitted_is_none(bench: Any) -> None:
    assert bench.slurm.job("999999") is None


def test_what_waits_says_why(bench: Any, sbatch: Sbatch, look: Look) -> None:
    """One GPU a node, two nodes: a third job waits for resources, a fourth behind it for its end."""
    running = [sbatch("exec sleep 60", job_name=f"r{n}") for n in range(2)]
    bench.wait(lambda: all(look(job).state == "RUNNING" for job in running))
    third = sbatch("exec sleep 60", job_name="third")
    fourth = sbatch("exec sleep 60", job_name="fourth", dependency=f"afterany:{third}")
    bench.wait(lambda: look(third).reason in ("Resources", "Priority") and look(fourth).reason == "Dependency")
    assert look(third).state == look(fourth).state == "PENDING"
    assert dependency_jobs(look(fourth).dependency) == {third}


@pytest.mark.parametrize("how", ["ends", "fails", "is cancelled"])
def test_afterany_is_released_however_its_predecessor_ends(
        bench: Any, sbatch: Sbatch, look: Look, how: str) -> None:
    first = sbatch({"ends": "exec sleep 2", "fails": "sleep 1; exit 1", "is cancelled": "exec sleep 60"}[how])
    second = sbatch("exec sleep 60", job_name="second", dependency=f"afterany:{first}")
    bench.wait(lambda: look(first).state == "RUNNING")
    if how == "is cancelled":
        assert look(second).state == "PENDING"
        bench.slurm.cancel(first)
    bench.wait(lambda: look(second).state == "RUNNING")
    assert look(first).state in ("COMPLETED", "FAILED", "CANCELLED")


def test_singleton_lets_one_job_of_a_name_run(bench: Any, sbatch: Sbatch, look: Look) -> None:
    first = sbatch("exec sleep 60", dependency="singleton")
    bench.wait(lambda: look(first).state == "RUNNING")
    second = sbatch("exec sleep 60", dependency="singleton")
    other = sbatch("exec sleep 60", job_name="other", dependency="singleton")
    bench.wait(lambda: look(other).state == "RUNNING" and look(second).reason == "Dependency")
    bench.slurm.cancel(first)
    bench.wait(lambda: look(second).state == "RUNNING")


def test_cancel_of_a_waiting_and_of_a_running_job(bench: Any, sbatch: Sbatch, look: Look) -> None:
    running = sbatch("exec sleep 60")
    waiting = sbatch("exec sleep 60", dependency=f"afterany:{running}")
    bench.wait(lambda: look(running).state == "RUNNING")
    bench.slurm.cancel(waiting)
    bench.wait(lambda: look(waiting).state == "CANCELLED")
    bench.slurm.cancel(running)
    bench.wait(lambda: look(running).state == "CANCELLED")


def test_cancel_of_an_ended_or_unknown_job_is_no_error(bench: Any, sbatch: Sbatch, look: Look) -> None:
    job_id = sbatch("exit 0")
    bench.wait(lambda: look(job_id).state == "COMPLETED")
    bench.slurm.cancel(job_id)
    bench.slurm.cancel("999999")
    assert look(job_id).state == "COMPLETED"


def test_a_job_that_is_stopped_ends_as_it_likes(bench: Any, sbatch: Sbatch, look: Look) -> None:
    """SIGTERM for its batch process, and no cancellation: what waits behind it starts."""
    running, beside = sbatch("exec sleep 60"), sbatch("exec sleep 3", job_name="beside")
    behind = sbatch("exec sleep 60", dependency=f"afterany:{running}")
    bench.wait(lambda: look(running).state == "RUNNING" and look(beside).state == "COMPLETED")
    bench.slurm.stop(running)          # its batch process is there by now; before, nobody would hear it
    bench.wait(lambda: look(behind).state == "RUNNING")
    assert look(running).state == "FAILED"
    bench.slurm.stop(running)
    bench.slurm.stop("999999")


def test_a_held_job_waits_until_it_is_released(bench: Any, sbatch: Sbatch, look: Look) -> None:
    first = sbatch("exec sleep 2")
    job_id = sbatch("exec sleep 60", job_name="second", dependency=f"afterany:{first}")
    bench.slurm.hold(job_id)
    bench.wait(lambda: look(first).state == "COMPLETED")
    bench.wait(lambda: look(job_id).reason == "JobHeldUser")
    assert look(job_id).state == "PENDING"
    bench.slurm.release(job_id)
    bench.wait(lambda: look(job_id).state == "RUNNING")


def test_a_dependency_can_be_changed_while_a_job_waits(bench: Any, sbatch: Sbatch, look: Look) -> None:
    first, second = (sbatch("exec sleep 60", job_name=name) for name in ("first", "second"))
    job_id = sbatch("exec sleep 60", job_name="third", dependency=f"afterany:{first}")
    bench.wait(lambda: look(second).state == "RUNNING")
    bench.slurm.set_dependency(job_id, f"afterany:{second}")
    bench.wait(lambda: dependency_jobs(look(job_id).dependency) == {second})
    bench.slurm.cancel(second)
    bench.wait(lambda: look(job_id).state == "RUNNING")


def test_changing_what_has_started_or_ended_changes_nothing(bench: Any, sbatch: Sbatch, look: Look) -> None:
    running, ended = sbatch("exec sleep 60", mem="100M", time=5), sbatch("exit 0", job_name="ended")
    bench.wait(lambda: look(running).state == "RUNNING" and look(ended).state == "COMPLETED")
    for job_id, state in ((running, "RUNNING"), (ended, "COMPLETED")):
        bench.slurm.hold(job_id)
        bench.slurm.release(job_id)
        bench.slurm.set_dependency(job_id, "singleton")
        bench.slurm.change(job_id, memory_bytes=50 << 20)
        assert look(job_id).state == state
    assert bench.asks_for(running)[0] == 100


def test_what_a_waiting_job_asks_for_can_be_changed(bench: Any, sbatch: Sbatch, look: Look) -> None:
    """It keeps its id and what it waits for; memory is rounded up to MB, time to minutes."""
    first = sbatch("exec sleep 60", time=5)
    job_id = sbatch("exec sleep 60", job_name="second", dependency=f"afterany:{first}", mem="100M", time=5)
    assert bench.asks_for(job_id) == (100, 300.0, 0)
    bench.slurm.change(job_id, memory_bytes=(64 << 20) - 1, time_s=130.0, nice=7)
    assert bench.asks_for(job_id) == (64, 180.0, 7)
    assert dependency_jobs(look(job_id).dependency) == {first}
    bench.slurm.change(job_id, memory_bytes=80 << 20)
    assert bench.asks_for(job_id) == (80, 180.0, 7)
    bench.slurm.change(job_id)
    assert bench.asks_for(job_id) == (80, 180.0, 7)
    bench.slurm.change("999999", nice=1)


def test_a_nice_value_lets_a_held_job_go(bench: Any, sbatch: Sbatch, look: Look) -> None:
    """Why orch gives one that it holds its nice value only when it is released."""
    job_id = sbatch("exec sleep 60", begin="now+30", time=5)
    bench.slurm.hold(job_id)
    bench.slurm.change(job_id, time_s=120.0)
    assert look(job_id).reason == "JobHeldUser"
    bench.slurm.change(job_id, nice=5)
    bench.wait(lambda: look(job_id).reason == "BeginTime")


def test_the_top_of_what_waits(bench: Any, sbatch: Sbatch, look: Look) -> None:
    running = [sbatch("exec sleep 60", job_name=f"r{n}") for n in range(2)]
    bench.wait(lambda: all(look(job).state == "RUNNING" for job in running))
    first, second = (sbatch("exec sleep 60", job_name=name) for name in ("first", "second"))
    bench.slurm.top(second)
    bench.slurm.cancel(running[0])
    bench.wait(lambda: look(second).state == "RUNNING")
    assert look(first).state == "PENDING"


def test_an_estimate_submits_nothing(bench: Any, sbatch: Sbatch, look: Look) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=1\n#SBATCH --dependency=singleton\nexec sleep 1\n"
    running = [sbatch("exec sleep 60", job_name=f"r{n}", time=10) for n in range(2)]
    bench.wait(lambda: all(look(job).state == "RUNNING" for job in running))
    began = min(look(job).start_at for job in running)
    assert began + 590 <= bench.slurm.estimate(script) <= began + 1300, "about when the limit of one of them strikes"
    assert {job.job_id for job in bench.slurm.queue()} == set(running)
    with pytest.raises(SubmissionRejected, match="partition"):
        bench.slurm.estimate(script.replace("--time=1", "--time=1 --partition=nosuch"))


def test_begin_delays_a_job(bench: Any, sbatch: Sbatch, look: Look) -> None:
    job_id = sbatch("exec sleep 60", begin="now+5")
    bench.wait(lambda: look(job_id).reason == "BeginTime")
    bench.wait(lambda: look(job_id).state == "RUNNING", at_most_s=90.0)


def test_a_partition_that_does_not_exist_is_refused_in_slurms_words(sbatch: Sbatch) -> None:
    with pytest.raises(SubmissionRejected, match="invalid partition"):
        sbatch("exec sleep 60", partition="nosuch")


def test_a_node_tells_its_state_and_an_unknown_one_nothing(bench: Any, sbatch: Sbatch, look: Look) -> None:
    job_id = sbatch("exec sleep 60")
    bench.wait(lambda: look(job_id).state == "RUNNING")
    [node] = bench.slurm.nodes(look(job_id).nodes)
    assert node.name == look(job_id).nodes
    assert "DOWN" not in node.state and "NOT_RESPONDING" not in node.state
    assert bench.slurm.nodes("nosuchnode") == []


def test_the_queue_has_what_runs_and_what_waits_and_nothing_that_ended(bench: Any, sbatch: Sbatch, look: Look) -> None:
    ended = sbatch("exit 0", job_name="ended")
    running = [sbatch("exec sleep 60", job_name=f"r{n}") for n in range(2)]
    bench.wait(lambda: look(ended).state == "COMPLETED" and all(look(job).state == "RUNNING" for job in running))
    first, second = (sbatch("exec sleep 60", job_name=name, comment="orch/1:repo:a:0001:s1") for name in ("w1", "w2"))
    bench.wait(lambda: look(first).reason in ("Resources", "Priority"))
    jobs = {job.job_id: job for job in bench.slurm.queue()}
    assert set(jobs) == {*running, first, second}
    assert all(jobs[job].state == "RUNNING" and jobs[job].nodes and jobs[job].start_at for job in running)
    waiting = jobs[first]
    assert (waiting.state, waiting.name, waiting.comment) == ("PENDING", "w1", "orch/1:repo:a:0001:s1")
    assert waiting.user and waiting.partition and waiting.priority > jobs[second].priority


def test_a_nice_job_lets_a_later_one_pass(bench: Any, sbatch: Sbatch, look: Look) -> None:
    """What `queue: finish_first` rests on; Slurm's defaults from 23.11 on would ignore it."""
    running = [sbatch("exec sleep 60", job_name=f"r{n}") for n in range(2)]
    bench.wait(lambda: all(look(job).state == "RUNNING" for job in running))
    first, second = sbatch("exec sleep 60", job_name="first", nice=100), sbatch("exec sleep 60", job_name="second")
    bench.slurm.cancel(running[0])
    bench.wait(lambda: look(second).state == "RUNNING")
    assert look(first).state == "PENDING"


def test_nodes_are_offered(bench: Any) -> None:
    offers = [offer for offer in bench.slurm.offers() if offer.default]
    assert len(offers) == 2
    assert all(gres_counts(offer.gres) == {"gpu": 1} for offer in offers)
