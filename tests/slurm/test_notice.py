"""The notice on a real Slurm: who gets it, how often, and what is left when the attempt has ended.

The attempts of ``JOBS`` are all submitted at once and run beside each other to their time limit of a minute.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import MadeRun, make_run

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

KNOWS_NOTHING = {
    "python": "PY TRAINERS/plain.py workers\nexit $?",
    "exec": "exec PY TRAINERS/plain.py workers",
    "pipe": 'PY TRAINERS/plain.py workers | tee "$ORCH_ATTEMPT_DIR/tee.log"',
    "srun": "srun --overlap --mem=0 PY TRAINERS/plain.py workers\nexit $?",
    "nested": "bash -c 'bash -c \"PY TRAINERS/plain.py workers; exit \\$?\"; exit $?'\nexit $?",
    "session": "PY TRAINERS/plain.py workers session\nexit $?",
    "two": "PY TRAINERS/plain.py workers\nexit $?",
}
KNOWS = {
    "knows": "PY TRAINERS/knows.py\nexit $?",
    "knows-exec": "exec PY TRAINERS/knows.py",
    "knows-pipe": "export PYTHONPATH=$PWD\nPY TRAINERS/knows.py | tee /dev/null",
    "knows-srun": "srun --overlap --mem=0 PY TRAINERS/knows.py\nexit $?",
    "knows-after": "PY TRAINERS/knows.py; sleep 100; touch cv.json",
}
IGNORES = {"ignore": "PY TRAINERS/plain.py ignore\nexit $?"}
JOBS = KNOWS_NOTHING | KNOWS | IGNORES
SLURM = ("--mem=100", "--cpus-per-task=1")


def processes_of(run: MadeRun) -> list[int]:
    """What runs on this machine with the run's folder in its environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"ORCH_RUN_DIR={run.run_dir}\0".encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def second_signal(run: MadeRun) -> None:
    """Send the SIGTERM that Slurm would send besides ours."""
    pid = run.signals()[0]["pid"]
    os.kill(pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def attempts(slurm_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MadeRun]:
    made = {}
    for name, job in JOBS.items():
        made[name] = make_run(tmp_path_factory.mktemp(name), name, job,
                              finished_when="cv.json" if name == "knows-after" else None)
        made[name].submit(slurm_cluster.environment, *SLURM)
    slurm_cluster.wait_until(lambda: bool(made["two"].signals()), 90, "the notice of the attempt that gets two signals")
    second_signal(made["two"])
    for run in made.values():
        slurm_cluster.wait_for(int(run.job_id), "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", timeout_s=150)
    return made


@pytest.mark.parametrize("name", KNOWS_NOTHING)
def test_a_program_that_knows_nothing_of_orch_gets_one_signal_and_saves(attempts: dict[str, MadeRun], name: str) -> None:
    run = attempts[name]
    assert len(run.signals()) == (2 if name == "two" else 1), run.signals()
    assert run.signals("worker") == []
    assert len(run.events("signalled")) == 1, run.events("signalled")
    assert (run.folder / "saved").exists()
    end = run.end()
    assert end is not None
    assert (end.notice, end.trainer, end.knows_orch) == ("limit", None, False)
    assert end.exit_code == (0 if name == "pipe" else 75)
    assert list(end.left_behind) == []
    assert run.out().splitlines()[-1].startswith("STOPPED")


@pytest.mark.parametrize("name", KNOWS)
def test_a_trainer_of_the_library_gets_one_signal_saves_and_stops(attempts: dict[str, MadeRun], name: str) -> None:
    run = attempts[name]
    assert len(run.signals()) == 1, run.signals()
    assert [event["how"] for event in run.events("signalled")] == ["registered"]
    end = run.end()
    assert end is not None
    assert (end.notice, end.trainer, end.saved_after_notice) == ("limit", "stopped", True)
    assert end.checkpoint_step is not None and end.last_step is not None and end.checkpoint_step <= end.last_step
    assert not end.finished_file


def test_what_follows_a_stopped_trainer_is_ended_and_pretends_nothing(attempts: dict[str, MadeRun]) -> None:
    run = attempts["knows-after"]
    end = run.end()
    assert end is not None and end.exit_code == 75 and end.detail
    assert not (run.repository / "cv.json").exists()


def test_a_trainer_that_ignores_the_signal_leaves_a_provisional_record(attempts: dict[str, MadeRun]) -> None:
    run = attempts["ignore"]
    assert run.end() is None
    assert '"notice": "limit"' in (run.folder / "end.json").read_text()
    assert len(run.events("signalled")) == 1


@pytest.mark.parametrize("name", JOBS)
def test_nothing_is_left_running(attempts: dict[str, MadeRun], name: str) -> None:
    assert processes_of(attempts[name]) == []


@pytest.mark.parametrize("name", JOBS)
def test_the_notice_step_reported(attempts: dict[str, MadeRun], name: str) -> None:
    assert [event.get("error") for event in attempts[name].events("notice_step")] == [None]


def test_a_step_on_two_nodes_gets_one_signal_for_each_task(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    run = make_run(tmp_path, "nodes", "srun --overlap --mem=0 PY TRAINERS/plain.py quick workers\nexit $?",
                   time_limit_s=3600.0)
    run.submit(slurm_cluster.environment, "--nodes=2", "--ntasks-per-node=1", "--mem=100")
    slurm_cluster.wait_until(lambda: len(run.lines("signals.jsonl")) == len(run.events("notice_step")) == 2, 30, "it trains")
    slurm_cluster.run("scancel", "--batch", "--signal=TERM", run.job_id)
    slurm_cluster.wait_until(lambda: run.end() is not None, 20, "the attempt ends")
    assert len({line["pid"] for line in run.signals()}) == len(run.signals()) == 2
    assert run.signals("worker") == []
    assert processes_of(run) == []


CONTAINER = ("unshare --user --map-root-user --pid --uts --fork --kill-child --mount-proc "
             "bash -c 'hostname box; exec \"$@\"' box")
IN_CONTAINERS = {
    "step": f"srun --overlap --mem=0 {CONTAINER} PY TRAINERS/plain.py quick workers",
    "step-knows": f"srun --overlap --mem=0 {CONTAINER} PY TRAINERS/knows.py",
    "bare": f"{CONTAINER} PY TRAINERS/plain.py quick workers",
    "bare-knows": f"{CONTAINER} PY TRAINERS/knows.py",
}


@pytest.mark.parametrize("name", IN_CONTAINERS)
def test_a_container_has_process_ids_and_a_host_name_of_its_own(
        slurm_cluster: PrivateSlurm, tmp_path: Path, name: str) -> None:
    """What its trainer registers means nothing outside: it is found as the step's program, or as what runs in job.sh."""
    run = make_run(tmp_path, name, f"{IN_CONTAINERS[name]}\nexit $?", time_limit_s=3600.0)
    run.submit(slurm_cluster.environment, *SLURM)
    slurm_cluster.wait_until(lambda: bool((run.lines("signals.jsonl") or run.lines("trainer.jsonl"))
                                          and run.events("notice_step")), 30, "it trains")
    slurm_cluster.run("scancel", "--batch", "--signal=TERM", run.job_id)
    slurm_cluster.wait_until(lambda: run.end() is not None, 30, "the attempt ends")
    assert len(run.signals()) == 1 and run.signals("worker") == []
    python = Path(sys.executable).resolve().name
    assert [event["how"] for event in run.events("signalled")] == ["step" if name.startswith("step") else python]
    end = run.end()
    assert end is not None and (end.exit_code, end.trainer) == (75, "stopped" if "knows" in name else None)
    assert processes_of(run) == []


@pytest.mark.parametrize("trainer", ["plain.py quick", "knows.py"])
def test_a_preemption_reaches_the_trainer_within_two_seconds(
        slurm_cluster: PrivateSlurm, tmp_path: Path, trainer: str) -> None:
    run = make_run(tmp_path, "low", f"PY TRAINERS/{trainer}\nexit $?", time_limit_s=600.0)
    run.submit(slurm_cluster.environment, "--partition=low", "--nodelist=n1", "--exclusive", "--mem=100")
    began = "signals.jsonl" if trainer.startswith("plain") else "trainer.jsonl"
    slurm_cluster.wait_until(lambda: bool(run.lines(began)) and bool(run.events("notice_step")), 30, "the attempt trains")
    asked = time.time()
    higher = slurm_cluster.submit("sleep 1", "--partition=high", "--nodelist=n1", "--exclusive", "--mem=100")
    slurm_cluster.wait_until(lambda: run.end() is not None, 40, "the preempted attempt ends")
    end = run.end()
    assert end is not None and end.notice == "preempt"
    heard = next(event["t"] for event in run.events("heard"))
    assert run.signals()[0]["t"] - heard < 2.0, "the signal to the trainer, after Slurm's to the notice step"
    assert run.signals()[0]["t"] - asked < 10.0
    assert len(run.signals()) == 1
    assert end.exit_code == 75
    assert end.saved_after_notice == trainer.startswith("knows")
    slurm_cluster.wait_for(higher, "COMPLETED", timeout_s=60)
    assert processes_of(run) == []


def test_scancel_reaches_the_trainer_though_its_shell_dies(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    run = make_run(tmp_path, "cancelled", "PY TRAINERS/plain.py quick workers\nexit $?", time_limit_s=3600.0)
    run.submit(slurm_cluster.environment, *SLURM)
    slurm_cluster.wait_until(lambda: bool(run.lines("signals.jsonl")) and bool(run.events("notice_step")), 30, "it trains")
    slurm_cluster.run("scancel", run.job_id)
    slurm_cluster.wait_until(lambda: run.end() is not None, 20, "the cancelled attempt ends")
    end = run.end()
    assert end is not None
    assert (end.notice, end.exit_code, (run.folder / "saved").exists()) == ("signal", 75, True)
    assert processes_of(run) == []
