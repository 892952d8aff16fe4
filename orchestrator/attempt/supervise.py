"""An attempt from its spec to its exit code."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from orchestrator.attempt import commands, memory, processes, setup, witness
from orchestrator.attempt.ending import end_record, last_line
from orchestrator.attempt.fence import fence
from orchestrator.attempt.launch import NoticeStep, start_job
from orchestrator.attempt.listen import Listener
from orchestrator.attempt.papers import Papers, say
from orchestrator.attempt.resume import of_this_history, remove_strangers
from orchestrator.attempt.setup import SetupError
from orchestrator.attempt.steady import SteadyClock
from orchestrator.attempt.take import Identity, NotTaken, Overtaken, settle_number, starts, take
from orchestrator.attempt.watch import Watch
from orchestrator.core.gate import Leave
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.model import EXIT_FINISHED, EXIT_SETUP, EXIT_STOOD_DOWN
from orchestrator.records import AttemptSpec, EndRecord, StartRecord, StoodDown
from orchestrator.units import format_duration, format_size

clock = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The run is ours."""

    spec: AttemptSpec
    start: StartRecord
    papers: Papers


def main(spec_path: str) -> int:
    began, steady = clock(), SteadyClock(clock)
    listener = Listener()
    processes.become_subreaper()
    try:
        spec = AttemptSpec.from_json(Path(spec_path).read_text())
    except (OSError, ValueError) as error:
        say(f"FAILED: orch: {spec_path}: {error}")
        return EXIT_SETUP
    listener.stop_signals |= {processes.signal_number(spec.signal)}
    gpu = memory.GpuQuery()
    if "gpu" in spec.gres:
        gpu.begin(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    me = Identity(job_id=os.environ.get("SLURM_JOB_ID") or f"pid{os.getpid()}",
                  restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0), host=os.uname().nodename)
    try:
        taken = _take(spec, me, began, listener)
        return taken if isinstance(taken, int) else _attempt(taken, listener, gpu, steady)
    finally:
        gpu.end()


def _take(spec: AttemptSpec, me: Identity, began: float, listener: Listener) -> Taken | int:
    """The run, or the exit code of a submission that has no leave to take it."""
    try:
        spec = settle_number(spec, me)
        closes = _reservation_end()
        if closes is not None and closes - spec.lead_s <= began:
            return _stand_down(spec, me, f"reservation {os.environ['SLURM_JOB_RESERVATION']} ends in "
                               f"{format_duration(max(0.0, closes - began))}, within the lead", EXIT_STOOD_DOWN)
        deadline = min((at for at in (_limit(spec, began), closes) if at is not None), default=None)
        while True:
            leaving = witness.leave(spec, me, clock=clock, monotonic=time.monotonic, wait=listener.pause)
            if leaving.answer.leave is not Leave.GO:
                done = leaving.answer.leave is Leave.DONE
                return _stand_down(spec, me, leaving.answer.reason, EXIT_FINISHED if done else EXIT_STOOD_DOWN)
            with contextlib.suppress(Overtaken):
                start = take(spec, me, leaving.asked_about, leaving.journal_length, deadline=deadline, started_at=began)
                papers = Papers(attempt_dir(Path(spec.run_dir), spec.number), clock)
                papers.event("took", epoch=start.epoch, job=me.job_id, restart=me.restart_count, host=me.host,
                             leave=leaving.answer.reason)
                return Taken(spec=spec, start=start, papers=papers)
    except NotTaken as error:
        return _stand_down(spec, me, str(error), EXIT_STOOD_DOWN)
    except OSError as error:
        return _stand_down(spec, me, f"{error.filename or spec.run_dir}: {error.strerror}", EXIT_STOOD_DOWN)


def _limit(spec: AttemptSpec, began: float) -> float | None:
    told = os.environ.get("SLURM_JOB_END_TIME", "")
    if told.isdigit() and int(told) > 0:
        return float(told)
    return began + spec.time_limit_s if spec.time_limit_s > 0 else None


def _reservation_end() -> float | None:
    """Slurm starts jobs whose limit is behind it, and kills them there without a warning."""
    name = os.environ.get("SLURM_JOB_RESERVATION")
    return commands.reservation_end(name) if name else None


def _stand_down(spec: AttemptSpec, me: Identity, reason: str, code: int) -> int:
    say(f"STOOD DOWN {spec.tag} submission={spec.submission_id} job={me.job_id}: {reason}")
    folder = attempt_dir(Path(spec.run_dir), spec.number)
    record = StoodDown(submission_id=spec.submission_id, job_id=me.job_id, at=clock(), reason=reason)
    Papers(folder, clock).record(f"stood-down-{spec.submission_id}.json", record)
    return code


def _attempt(taken: Taken, listener: Listener, gpu: memory.GpuQuery, steady: SteadyClock) -> int:
    spec, start, papers = taken.spec, taken.start, taken.papers
    run_dir = Path(spec.run_dir)
    papers.heartbeat()
    ended, stuck = fence(run_dir, start.epoch)
    if ended:
        papers.event("fenced", ended=ended, stuck=stuck)
        say(f"orch: ended what an older start had left here: {'; '.join(ended)}")
    try:
        environment, device = _prepare(spec, start, papers)
        say(_start_line(spec, start, device, gpu))
        step = NoticeStep(papers.folder, start.epoch, start.host, spec.signal)
        job = start_job(run_dir, spec.repository, environment)
    except SetupError as error:
        return _setup_failed(taken, str(error))
    except OSError as error:
        return _setup_failed(taken, f"{error.filename or run_dir}: {error.strerror}")
    papers.event("started", pid=job.pid)
    if step.process is None:
        papers.event("notice_step", error=step.detail)
        say(f"orch: no notice step ({step.detail}): a preemption will be heard of only when its grace is over")
    watch = Watch(spec, start, papers, listener, job=job, step=step, gpu=gpu, clock=clock, steady=steady)
    outcome = watch.run()
    watch.log.read()
    record = end_record(spec, start, outcome, watch.log, now=clock(), provisional=False)
    return _end(papers, record)


def _prepare(spec: AttemptSpec, start: StartRecord, papers: Papers) -> tuple[dict[str, str], str]:
    device = setup.check_device(spec.gres, os.environ)
    secrets: dict[str, str] = {}
    if spec.env_file:
        secrets = setup.read_env_file(Path(spec.repository, os.path.expanduser(spec.env_file)))
    checkpoint_dir(Path(spec.run_dir)).mkdir(parents=True, exist_ok=True)
    if spec.local_dir:
        remove_strangers(spec.local_dir, of_this_history(Path(spec.run_dir), starts(Path(spec.run_dir))))
    (papers.folder / "trainers").mkdir(exist_ok=True)
    papers.memory(memory.HEADER)
    package = setup.trainer_package()
    library = setup.library_folder(Path(spec.run_dir).parent, package) if package else None
    if library is not None:
        setup.write_bash_env(papers.folder, library)
    return setup.job_environment(os.environ, spec, start, papers.folder, secrets, library), device


def _start_line(spec: AttemptSpec, start: StartRecord, device: str, gpu: memory.GpuQuery) -> str:
    gpus = gpu.answer()
    if device and gpus:
        device = f"{device} ({gpus[0][0]})"
        free: int | None = min(entry[2] for entry in gpus)
    else:
        free = memory.free_memory_bytes()
    resume = "none" if start.resume_step is None else str(start.resume_step)
    return (f"START {spec.tag} attempt={start.number} epoch={start.epoch} job={start.job_id} host={start.host} "
            f"device={device or 'cpu'} free={format_size(free) if free is not None else 'unknown'} resume={resume}")


def _setup_failed(taken: Taken, reason: str) -> int:
    start = taken.start
    record = EndRecord(number=start.number, job_id=start.job_id, restart_count=start.restart_count, epoch=start.epoch,
                       ended_at=clock(), exit_code=EXIT_SETUP, setup_error=reason)
    return _end(taken.papers, record)


def _end(papers: Papers, record: EndRecord) -> int:
    line, code = last_line(record)
    papers.event("end", exit_code=record.exit_code, signal=record.signal, trainer=record.trainer, code=code)
    papers.record("end.json", record)
    say(line)
    return code
