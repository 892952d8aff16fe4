"""slurmctld stopped and started again while runs train, end and crash: nothing is decided meanwhile, then all goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from repositories import ORCH_YAML, make_repository
from seen import attempt_dir, events, finished, go_on, run_dir, trained

from orchestrator import cluster
from orchestrator.errors import SlurmUnreachable
from orchestrator.slurm.commands import SlurmCommands

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

RUNS = {"goes-on": (1000, ""), "ends": (120, "110:wait"), "crashes": (200, "110:wait,120:crash")}


def test_an_outage_loses_and_doubles_nothing(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    slurm = make_slurm_cluster(nodes=1, cpus=8, gpus=0, memory_mib=2000, preemption=False)
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    for tag, (steps, do) in RUNS.items():
        made.job(tag, STEPS=steps, **({"DO": do} if do else {}))
        made.orch("submit", tag)
    daemon = made.daemon()
    try:
        for tag in RUNS:
            made.until(lambda tag=tag: trained(made, tag), f"{tag} to train")
        cluster.stop_controller(slurm.folder)
        made.until(lambda: "Slurm does not answer" in made.log(), "the daemon to say so")
        for tag in RUNS:
            go_on(made, tag)
        made.until(lambda: (run_dir(made, "crashes") / "did-120").exists(), "the crash")
        made.until(lambda: (attempt_dir(made, "crashes") / "end.json").exists(), "its record")
        made.until(lambda: (run_dir(made, "ends") / "result.json").exists(), "the end of the other")
        assert "Slurm does not answer" in made.orch("status"), "who looks is told"
        assert "recorded, and Slurm does not answer" in made.orch("hold", "goes-on", code=5)
        time.sleep(5.0)                # passes enough to say it again
        before = made.log()
        cluster.start_controller(slurm.folder)
        made.until(lambda: "Slurm answers again after" in made.log(), "the daemon to say so")
        made.orch("release", "goes-on")
        for tag, (steps, _) in RUNS.items():
            assert [a["ending"] for a in finished(made, tag, steps)] == (["crash"] if tag == "crashes" else []) + ["finished"]
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60)
    assert before.count("Slurm does not answer") == 1 and "Unable to contact slurm controller" in before
    assert made.log().count("answers again") == 1
    made.until(lambda: not slurm.run("squeue", "--noheader").strip(), "an empty queue")
    for tag in RUNS:
        queued = [event["submission_id"] for event in events(made, tag, "queued")]
        assert len(queued) == len(set(queued)) == len(events(made, tag, "queueing")), "each sbatch once"
        assert len(events(made, tag, "started")) == len(events(made, tag, "ended")) <= 2


def test_of_a_controller_that_is_away_every_command_says_so(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """Silence, never a refusal; and whoever has a private one is told how to start it."""
    slurm = make_slurm_cluster(nodes=1, cpus=2, gpus=0, memory_mib=1000, preemption=False)
    asked = SlurmCommands(conf=Path(slurm.environment["SLURM_CONF"]))
    job_id = str(slurm.submit("sleep 60", "--hold"))
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    made = make_repository(tmp_path / "repository", slurm, ORCH_YAML)
    made.job("a", STEPS=5)
    cluster.stop_controller(slurm.folder)
    questions: list[Callable[[], object]] = [
        asked.jobs, asked.queue, asked.offers, lambda: asked.job(job_id), lambda: asked.nodes("n1"),
        lambda: asked.submit(script, {"PATH": "/usr/bin:/bin"}), lambda: asked.cancel(job_id), lambda: asked.hold(job_id),
        lambda: asked.release(job_id), lambda: asked.set_dependency(job_id, "singleton")]
    with ThreadPoolExecutor(len(questions)) as pool:   # each tries for ten seconds by itself
        answers = [asked.exception() for asked in [pool.submit(ask) for ask in questions]]
    assert [type(answer) for answer in answers] == [SlurmUnreachable] * len(questions), answers
    assert f"`orch cluster up --folder {slurm.folder}` starts it again" in made.orch("submit", "a", code=5)
    assert not (made.folder / "runs" / "a" / "journal.jsonl").exists()
