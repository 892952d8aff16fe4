"""The inside of an allocation, moved by the simulation's clock: a supervisor and the trainer that it starts.

Both are generators that yield how many seconds they sleep; signals wake them earlier. The supervisor takes the same steps as
``orchestrator.attempt.supervise`` with the same code where there are no real processes in it: ``settle_number``, the witness
(and through it the gate), ``take``, the trainer's log, ``end_record``. The trainer writes what docs/protocol.md says, in few
bytes. What goes wrong with it is drawn beforehand (``schedule.Plan``), so that one seed tells one story.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.schedule import Plan
from simulation.slurm import Job

from orch_trainer.fence import Fence, Fenced
from orchestrator.attempt.ending import Outcome, end_record, last_line
from orchestrator.attempt.papers import Papers
from orchestrator.attempt.take import Identity, NotTaken, Overtaken, settle_number, take
from orchestrator.attempt.trainer import TrainerLog, stop_asked
from orchestrator.attempt.witness import ASK_FOR_S, Leaving, Pulse, ask_once
from orchestrator.checkpoints import MARKER, complete_checkpoints
from orchestrator.core.gate import Leave
from orchestrator.folders import attempt_dir, checkpoint_dir
from orchestrator.model import EXIT_FINISHED, EXIT_SETUP, EXIT_STOOD_DOWN
from orchestrator.records import AttemptSpec, EndRecord, StartRecord, StoodDown
from orchestrator.trainer_control import read_control

if TYPE_CHECKING:
    from simulation.world import Host, World

Life = Generator[float, None, int]
BEAT_S, LOOK_S, WARM_UP_S = 30.0, 10.0, 3.0
TOLD_AFTER_S = (2.0, 6.0, 14.0, 30.0, 60.0)


class Killed(BaseException):
    """Killed between two instructions; nothing of ours may catch it."""


class Process:
    """Something on a host that sleeps, wakes and can be killed."""

    def __init__(self, world: World, host: Host, life: Life) -> None:
        self.world, self.host, self.boot = world, host, host.boot
        self.pid = world.next_pid()
        self.alive, self.code = True, None
        self.stopped_until = 0.0
        self._life = life
        self.turn = 0                  # wake-ups of an older turn are void
        world.processes[self.pid] = self
        world.wake(self, 0.0)

    code: int | None

    def step(self) -> None:
        if not self.alive:
            return
        try:
            sleep_s = next(self._life)
        except StopIteration as end:
            self.alive, self.code = False, end.value
            self.ended()
        else:
            self.world.wake(self, sleep_s)

    def kill(self) -> None:
        """SIGKILL: nothing more is done, not even what stands in a ``finally``."""
        if self.alive:
            self.alive, self.code = False, -9
            self.ended()

    def ended(self) -> None:
        self.world.processes.pop(self.pid, None)


class Trainer(Process):
    """One second a step, saves in between, until ``TARGET`` steps."""

    def __init__(self, supervisor: Supervisor, start: StartRecord, plan: Plan) -> None:
        self.start, self.plan, self.supervisor = start, plan, supervisor
        self.run_dir = supervisor.run_dir
        self.folder = attempt_dir(self.run_dir, start.number)
        self.noticed = False
        self.hung = False
        self.struck = ""               # the mishap that has come true
        self.training = True
        self.tells_loss = supervisor.world.proves(supervisor.tag)
        self.step_at = start.resume_step or 0
        self._fence = Fence(self.run_dir / "epoch", start.epoch)
        super().__init__(supervisor.world, supervisor.host, self._train())

    def notice(self) -> None:
        self.noticed = True
        self.world.wake(self, 0.0)

    def ended(self) -> None:
        self.training = False
        super().ended()
        if self.supervisor.alive:
            self.world.wake(self.supervisor, 0.0)

    def _line(self, event: str, **context: Any) -> None:
        line = json.dumps({"t": self.world.clock_of(self.host), "event": event, **context}) + "\n"
        with open(self.folder / "trainer.jsonl", "ab", buffering=0) as file:
            file.write(line.encode())

    def _train(self) -> Life:
        plan, world = self.plan, self.world
        yield 0.5
        if plan.mishap == "early":
            self.struck = plan.mishap
            return 2
        self._line("start", resume_step=self.start.resume_step)
        yield WARM_UP_S
        self._line("first_step", step=self.step_at + 1)
        began, since = self.step_at, world.now
        struck_at = world.now + plan.after_s if plan.mishap else float("inf")
        saved_at = world.now
        tell_at = iter([world.now + after_s for after_s in TOLD_AFTER_S] if self.tells_loss else ())
        told_at = next(tell_at, float("inf"))
        while True:
            save_at = saved_at + self._interval_s() if plan.saves else float("inf")
            done_at = since + world.target_steps - began
            yield max(0.0, min(save_at, done_at, struck_at, told_at) - world.now)
            self.step_at = max(began, min(world.target_steps, began + int(world.now - since)))
            if world.now >= told_at:
                self._line("progress", step=self.step_at, loss=10.0 / (20 + self.step_at))
                told_at = next(tell_at, float("inf"))
            if world.now >= struck_at:
                return (yield from self._strike())
            if self.noticed and plan.stops_on_notice:
                saved = not plan.saves_on_notice or (yield from self._save())
                self._line("stopped" if saved else "fenced", step=self.step_at)
                return 75 if saved else EXIT_STOOD_DOWN
            if self.step_at >= world.target_steps:
                yield from self._fence_free()
                return self._finish()
            if world.now >= save_at:
                saved_at = world.now
                if not (yield from self._save()):
                    return EXIT_STOOD_DOWN

    def _interval_s(self) -> float:
        control = read_control(self.run_dir)
        return max(5.0, min(control.interval_s, 120.0) if control else 60.0)

    def _strike(self) -> Life:
        self.struck = self.plan.mishap
        match self.plan.mishap:
            case "crash":
                self._line("failed", step=self.step_at, error="injected")
                return 1
            case "no-result":
                return 0
            case "hung":
                self.hung = True
                while True:
                    yield 1e9
            case "out-of-memory":
                self.supervisor.oom_kills = 1
                self.world.slurm.out_of_memory(self.supervisor.job)
                return -9
            case "supervisor-killed":
                self.supervisor.kill()
                while True:            # lives on, and will try to publish
                    yield 20.0
                    self.step_at += 20
                    if not (yield from self._save()):
                        return EXIT_STOOD_DOWN
            case _:
                return -9

    def _save(self) -> Generator[float, None, bool]:
        """False: fenced."""
        parent = checkpoint_dir(self.run_dir)
        temporary = parent / f".tmp-step-{self.step_at:08d}-{self.start.epoch}-{self.pid}"
        with contextlib.suppress(FileExistsError):
            temporary.mkdir()
        (temporary / "state").write_text(str(self.step_at))
        yield self.plan.write_s
        yield from self._fence_free()
        final = parent / f"step-{self.step_at:08d}"
        marker = {"protocol": 1, "step": self.step_at, "epoch": self.start.epoch, "attempt": self.start.number,
                  "saved_at": self.world.clock_of(self.host), "files": {"state": len(str(self.step_at))}}
        try:
            with self._fence.held():
                self.world.truths.publishes(self, f"checkpoint {self.step_at}")
                (temporary / MARKER).write_text(json.dumps(marker))
                if not final.exists():
                    os.rename(temporary, final)
                self.world.truths.saved(self, self.step_at)
        except Fenced:
            return False
        self._line("saved", step=self.step_at, path=str(final))
        self._remove_old(parent)
        return True

    def _fence_free(self) -> Generator[float, None, None]:
        while self.run_dir in self.world.fences_held:
            yield 1.0

    def _remove_old(self, parent: Path) -> None:
        for old in complete_checkpoints(parent)[:-2]:
            with contextlib.suppress(Fenced), self._fence.held():
                self.world.truths.publishes(self, f"deletion of {old.step}")
                os.rename(old.path, parent / f".old-{old.path.name}-{self.pid}")
        self.world.truths.check_newest(self.run_dir.name)

    def _finish(self) -> int:
        try:
            with self._fence.held():
                self.world.truths.publishes(self, "result")
                (self.run_dir / "result.json").write_text(json.dumps({"step": self.step_at, "metrics": {"ok": 1}}))
        except Fenced:
            return EXIT_STOOD_DOWN
        self._line("finished", step=self.step_at, metrics={"ok": 1})
        return 0


@functools.cache
def _places(spec: str) -> tuple[Path, Path]:
    path = Path(spec)
    return path, path.parents[2]


class Supervisor(Process):
    """What the generated script becomes. ``job`` is the job that Slurm gave this execution."""

    def __init__(self, world: World, host: Host, job: Job) -> None:
        self.job, self.restart_count = job, job.restart_count
        self.spec_path, self.run_dir = _places(job.script.rstrip().rpartition(" ")[2])     # no path here needs quotes
        self.tag = self.run_dir.name
        self.start: StartRecord | None = None
        self.trainer: Trainer | None = None
        self.term = ""                 # why Slurm sent TERM: CANCELLED, TIMEOUT, PREEMPTED, STOPPED
        self.oom_kills, self.left_at = 0, 0.0          # when its gate gave leave
        super().__init__(world, host, self._life_of_it())

    @property
    def in_allocation(self) -> bool:
        """Slurm knows of this execution, and has not ended it."""
        job = self.job
        return (self.world.slurm.jobs_by_id.get(job.job_id) is job and job.in_allocation
                and job.restart_count == self.restart_count)

    def terminate(self, why: str) -> None:
        self.term = self.term or why
        self.world.wake(self, 0.0)

    def ended(self) -> None:
        super().ended()
        if self.in_allocation:
            self.world.slurm.exited(self.job, self.code if self.code is not None else -9)

    # --- the life -------------------------------------------------------------------------------------------------------

    def _life_of_it(self) -> Life:
        yield 0.3
        try:
            spec = AttemptSpec.from_json(self.spec_path.read_text())
        except (OSError, ValueError):
            return EXIT_SETUP
        me = Identity(job_id=str(self.job.job_id), restart_count=self.restart_count, host=self.host.name)
        try:
            with self.world.inside(self):
                spec = settle_number(spec, me)
            while self.start is None:
                leaving = yield from self._ask(spec, me)
                if leaving.answer.leave is not Leave.GO:
                    done = leaving.answer.leave is Leave.DONE
                    return self._stand_down(spec, leaving.answer.reason, EXIT_FINISHED if done else EXIT_STOOD_DOWN)
                self.left_at = self.world.now
                stopped_s, kill = self.world.before_taking(self)
                if stopped_s:
                    yield stopped_s
                while self.run_dir in self.world.fences_held:
                    yield 1.0
                began = self.world.clock_of(self.host)
                with contextlib.suppress(Overtaken), self.world.taking(self, kill):
                    self.start = take(spec, me, leaving.asked_about, leaving.journal_length,
                                      deadline=began + spec.time_limit_s, started_at=began)
        except NotTaken as error:
            return self._stand_down(spec, str(error), EXIT_STOOD_DOWN)
        except Killed:
            return -9
        self.world.truths.taken(self, self.start)
        return (yield from self._attempt(spec, self.start))

    def _ask(self, spec: AttemptSpec, me: Identity) -> Generator[float, None, Leaving]:
        """``witness.leave``, in fewer and longer pauses."""
        world, give_up = self.world, self.world.now + ASK_FOR_S
        pulse = Pulse(lambda: world.clock_of(self.host), lambda: world.now)
        pause_s = 1.0
        while True:
            with world.inside(self):
                asked = ask_once(spec, me, pulse)
            if asked.answer.leave is not Leave.ASK_AGAIN:
                return asked
            if world.now >= give_up or self.term:
                return Leaving(type(asked.answer)(Leave.STAND_DOWN, f"{asked.answer.reason}, asked long enough"),
                               asked.asked_about, asked.journal_length)
            yield pause_s
            pause_s = min(15.0, pause_s * 4)

    def _stand_down(self, spec: AttemptSpec, reason: str, code: int) -> int:
        record = StoodDown(submission_id=spec.submission_id, job_id=str(self.job.job_id),
                           at=self.world.clock_of(self.host), reason=reason)
        self._papers(spec).record(f"stood-down-{spec.submission_id}.json", record)
        return code

    def _papers(self, spec: AttemptSpec) -> Papers:
        return Papers(attempt_dir(self.run_dir, spec.number), lambda: self.world.clock_of(self.host))

    def _attempt(self, spec: AttemptSpec, start: StartRecord) -> Life:
        world, papers = self.world, self._papers(spec)
        plan = world.plan_of(self.tag)
        papers.heartbeat()
        world.fence(self)
        yield 0.2
        if plan.mishap == "setup":
            record = EndRecord(number=start.number, job_id=start.job_id, restart_count=start.restart_count, epoch=start.epoch,
                               ended_at=world.clock_of(self.host), exit_code=EXIT_SETUP, setup_error="no GPU")
            papers.record("end.json", record)
            world.truths.ended(self, record, plan.mishap)
            return last_line(record)[1]
        outcome, log = Outcome(), TrainerLog(papers.folder / "trainer.jsonl")
        self.trainer = trainer = Trainer(self, start, plan)
        yield from self._watch(spec, start, papers, outcome, log)
        outcome.job_status, outcome.oom_kills = trainer.code, self.oom_kills
        log.read()
        record = end_record(spec, start, outcome, log, now=world.clock_of(self.host), provisional=False)
        papers.record("end.json", record)
        world.truths.ended(self, record, trainer.struck if outcome.notice is None else "")
        return last_line(record)[1]

    def _watch(self, spec: AttemptSpec, start: StartRecord, papers: Papers, outcome: Outcome,
               log: TrainerLog) -> Generator[float, None, None]:
        world, trainer = self.world, self.trainer
        assert trainer is not None and start.deadline is not None
        beat_at, notice_at = world.now, world.now + spec.time_limit_s - spec.lead_s
        hung_since = 0.0
        while trainer.alive:
            if world.now >= beat_at:
                papers.heartbeat()
                beat_at = world.now + BEAT_S
            reason = self._reason(world.now >= notice_at)
            if outcome.notice is None and reason:
                trainer.notice()
                outcome.notice, outcome.notice_at = reason, world.clock_of(self.host)
                log.read()
                papers.record("end.json", end_record(spec, start, outcome, log, now=world.clock_of(self.host),
                                                     provisional=True))
            if trainer.hung:
                hung_since = hung_since or world.now
                if world.now >= hung_since + 60.0:
                    outcome.hung = True
                    trainer.kill()
                    return
            yield min(LOOK_S, beat_at - world.now) if outcome.notice is None else beat_at - world.now

    def _reason(self, limit_near: bool) -> str:
        if stop_asked(self.run_dir):
            return "cancel"
        if limit_near:
            return "limit"
        return {"CANCELLED": "signal", "TIMEOUT": "limit", "PREEMPTED": "preempt", "STOPPED": "signal", "": ""}[self.term]
