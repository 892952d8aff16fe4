"""The loop of an attempt: beat, measure, listen; give the notice once; and know when the attempt is over.

After ``stopped`` whatever is left of job.sh is ended: what runs after a trainer that has not finished can only pretend a
result. After ``finished`` the commands that follow in job.sh may run to their end (the result is written, nothing can change
it); only a trainer that does not leave after its last word is ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.attempt import cause, commands, memory, target
from orchestrator.attempt.deliver import Delivery, family_of, notice_json, roots
from orchestrator.attempt.ending import Outcome, end_record
from orchestrator.attempt.hung import HungTrainer
from orchestrator.attempt.launch import REPORTS_WITHIN_S, NoticeStep
from orchestrator.attempt.life import Learnt, Life, hung_after_s, life_json, read_learnt, read_sign
from orchestrator.attempt.listen import Listener
from orchestrator.attempt.papers import Papers, say
from orchestrator.attempt.processes import Process, describe, label, send_all
from orchestrator.attempt.steady import SteadyClock
from orchestrator.attempt.take import starts
from orchestrator.attempt.trainer import TrainerLog, here, registered, stop_asked
from orchestrator.folders import attempt_dir
from orchestrator.host import is_alive
from orchestrator.model import CANCEL_MARGIN_S
from orchestrator.records import AttemptSpec, StartRecord

BEAT_S = 30.0
TICK_S = 1.0
LIVELY_S = 12.0
STOPPED_MOMENT_S = 2.0     # after `stopped`, for job.sh to end by itself
FINISHED_MOMENT_S = 60.0   # after `finished`, for the trainer's own process to end by itself
STRANGERS_S = 10.0
TERM_TO_KILL_S = 5.0
RECORD_S = 7.0             # before the deadline: TERM, KILL and the record still find room


class Watch:
    """One attempt from the start of job.sh to the end of its last process."""

    def __init__(self, spec: AttemptSpec, start: StartRecord, papers: Papers, listener: Listener, *,
                 job: subprocess.Popen[bytes], step: NoticeStep, gpu: memory.GpuQuery, clock: Callable[[], float],
                 steady: SteadyClock) -> None:
        self._spec, self._start, self._papers, self._listener = spec, start, papers, listener
        self._job, self._step, self._gpu, self._clock = job, step, gpu, clock
        self._steady = steady                          # deadlines and what was heard; records have the wall's time
        self._run_dir = Path(spec.run_dir)
        self.log = TrainerLog(papers.folder / "trainer.jsonl")
        self.outcome = Outcome()
        self._heard = cause.Heard()
        self._delivery = Delivery(papers.folder, start.epoch, start.host, start.job_id, spec.signal, papers.event)
        self._deadline = self._limit = start.deadline  # by the steady clock
        self._told_at = 0.0                            # when the notice was given, by the steady clock
        self._settled = False
        self._known: dict[int, Process] = {}           # trainers: registered, or signalled as such
        self._mains: list[Process] = []                # what outlived job.sh and is waited for as a trainer
        self._strangers_since: float | None = None
        self._ended_since: float | None = None         # monotonic time of our TERM to what is left
        self._word_since: float | None = None
        self._cgroup = memory.own_cgroup()
        self._oom = memory.OomKills(self._cgroup)
        before = [s for s in starts(self._run_dir) if s.epoch < start.epoch]
        self._life = Life(start.host, hung_after_s(spec, os.environ),
                          read_learnt(attempt_dir(self._run_dir, before[-1].number) if before else None))
        self._life_kept = Learnt()                     # as it stands in life.json
        self._writes = True                            # whether the last heartbeat could be written
        self._hung: HungTrainer | None = None
        self._next_beat = self._next_tick = time.monotonic()
        self._row: tuple[float, int] | None = None     # a row of memory.csv that waits for nvidia-smi
        self._began = time.monotonic()
        self._step_settled = step.process is None
        self._job_program = "bash"
        self._lively_until = 0.0                       # look ten times a second: something is about to end

    def run(self) -> Outcome:
        over = False
        while not over:
            lively = time.monotonic() < self._lively_until
            pause_s = 0.1 if lively else max(0.02, min(TICK_S, self._next_tick - time.monotonic()))
            others = [self._step.descriptor] if self._step.descriptor is not None else []
            self._listener.wait(pause_s, *others)
            self._hear()
            if time.monotonic() >= self._next_tick or lively:
                self._tick()
            self._consider_notice()
            over = self._over()
        self._settle_at_the_end()
        self.outcome.oom_kills = self._oom.count()
        self._keep_life()
        self._gpu.end()
        self._step.end()
        return self.outcome

    # --- listening ----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        now = self._steady()
        for number in self._listener.taken():
            if number in self._listener.stop_signals:
                self._papers.event("heard", signal=signal.Signals(number).name)
                if self._heard.own_at is None:
                    self._heard.own_at = now
        for words in self._step.read():
            self._step_said(words, now)
        self._reap(now)

    def _step_said(self, words: list[str], now: float) -> None:
        if words[0] == "ready":
            self._step.ready_at = self._step.ready_at or now
            self._step_settled = True
            self._delivery.step_hosts.add(words[1])
            self._papers.event("notice_step", host=words[1], step=words[2])
        elif words[0] == "term":
            self._papers.event("heard", signal="SIGTERM", by="notice step", host=words[1])
            if self._heard.step_at is None:
                self._heard.step_at = now
        elif words[0] == "signalled":
            self._papers.event("signalled", host=words[1], pid=int(words[2]), how="registered, by its node's notice task")

    def _reap(self, now: float) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._job.pid:
                self._job.returncode = self.outcome.job_status = code
                self._lively_until = time.monotonic() + LIVELY_S
                self._papers.event("exit", pid=pid, status=code)
                self._remember_mains()
            elif pid == self._step.pid and self._step.process is not None:
                self._step.process.returncode = code
                self._heard.step_died_at = now
            elif pid in self._known:
                self.outcome.trainer_status = code
                self._papers.event("exit", pid=pid, status=code, of="trainer")

    # --- every second, every thirty seconds ---------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        self._next_tick = now + TICK_S
        self.log.read()
        self._job_program = describe(Process(self._job.pid, 0, 0, "")).program or self._job_program
        for process in here(registered(self._papers.folder / "trainers", self._start.epoch), self._start.host):
            self._known[process.pid] = process
        if not self._heard.control:
            self._heard.control = stop_asked(self._run_dir)
        if not self._step_settled and (now - self._began > REPORTS_WITHIN_S or self._step.process is None
                                       or self._step.process.returncode is not None):
            self._step_settled = True
            why = self._step.detail or "it has not reported"
            self._papers.event("notice_step", error=why)
            say(f"orch: no notice step ({why}): a preemption will be heard of only when its grace is over")
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self._writes = self._papers.heartbeat()
            self._keep_life()
            self._finish_row()
            self._row = (self._clock(), memory.used_bytes(self._cgroup, os.getpid()))
            self._gpu.begin(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        if self._row is not None and (self._gpu.pid is None or self._gpu.ended):
            self._finish_row()
        self._oom.count()
        self._look_for_life(now)

    def _finish_row(self) -> None:
        if self._row is None:
            return
        gpus = self._gpu.answer()
        self._gpu.end()
        used = str(sum(gpu[1] for gpu in gpus)) if gpus else ""
        self._papers.memory(f"{self._row[0]:.3f},{self._row[1]},{used}\n")
        self._row = None

    # --- a trainer that hangs -----------------------------------------------------------------------------------------

    def _look_for_life(self, now: float) -> None:
        """After a notice the deadline ends what hangs; after its work a trainer owes no sign."""
        if self._hung is not None:
            return
        due = self.outcome.notice is None and self.log.last_word not in ("stopped", "finished")
        sign = read_sign(self._papers.folder, self._start.epoch)
        if sign is not None and sign.step is not None:
            self.log.reached(sign.step)                # of later steps than the last line, where that is all there is
        if not self._life.tick(sign, now, countable=due and self._writes) or self._ended_since is not None:
            return
        assert self._life.sign is not None
        sign, life = self._life.sign, self._life
        self.outcome.hung = True
        self.outcome.hung_detail = (f"no sign of life for {life.silent_s:.0f} s (limit {life.limit_s:.0f} s), "
                                    f"{sign.doing}, last step {'none' if sign.step is None else sign.step}")
        self._papers.event("hung", pid=sign.pid, host=sign.host, silent_s=round(life.silent_s, 1),
                           limit_s=round(life.limit_s, 1), doing=sign.doing, step=sign.step)
        say(f"orch: the trainer hangs: {self.outcome.hung_detail}")
        self._lively_until = now + LIVELY_S
        self._hung = HungTrainer(self._papers.folder, self._start.epoch, self._start.host, self._start.job_id,
                                 self._papers.event)
        self._known.update((process.pid, process) for process in self._hung.trainers)

    def _end_hung(self) -> None:
        """TERM to all that runs, once the stacks are written."""
        assert self._hung is not None
        if self._hung.dumped():
            self.outcome.hung_detail += f"; {self._hung.words()}" if self._hung.words() else ""
            self._end(self._hung.to_term(self._delivery.family(self._helpers())))

    def _keep_life(self) -> None:
        hung = self.outcome.hung
        if hung or self._life.learnt != self._life_kept:
            self._life_kept = self._life.learnt
            self._papers.life(life_json(self._life_kept, hung=hung))

    # --- the notice ---------------------------------------------------------------------------------------------------

    def _consider_notice(self) -> None:
        now = self._steady()
        outcome = self.outcome
        if outcome.notice is None:
            limit_near = self._deadline is not None and now >= self._deadline - self._spec.lead_s
            if limit_near and self._job.returncode is None:
                self._heard.timer_at = now
            if self._heard.first_at() is None and not self._heard.control:
                return
            self._delivery.deliver(self._job.pid, self._helpers())
            outcome.notice_at, self._told_at = self._clock(), now
            outcome.notice = cause.first_reason(self._heard, self._deadline, self._spec.lead_s)
            if outcome.notice in ("preempt", "signal"):
                self._deadline = None  # sooner than the limit, and not known yet
            elif outcome.notice == "cancel":
                self._deadline = self._cancelled_by()
            self._after_delivery()
            self._write_notice("notice")
            return
        if not self._settled and now >= self._told_at + cause.TOGETHER_S:
            self._settle()
        if self._job.returncode is None or self._known:
            before = list(self._delivery.hosts)
            self._delivery.deliver(self._job.pid, self._helpers())
            self._after_delivery()
            if self._delivery.hosts != before:
                self._write_notice("notice")

    def _after_delivery(self) -> None:
        self._known.update(self._delivery.told)

    def _settle_at_the_end(self) -> None:
        """A trainer that stopped at once must not leave the cause at a first guess: scancel reaches the steps first and looks
        like a preemption until the batch process hears it too."""
        self.log.read()
        if self.outcome.notice is None and self.log.last_word == "stopped" and (control := stop_asked(self._run_dir)):
            self._heard.control = control  # its trainer read that before we did
            self.outcome.notice, self.outcome.notice_at, self._told_at = "cancel", self._clock(), self._steady()
        if self.outcome.notice is None or self._settled:
            return
        while (self.outcome.notice in ("preempt", "signal") and not self._heard.both
               and self._steady() < self._told_at + cause.TOGETHER_S):
            self._listener.wait(0.1)
            self._hear()
        self._settle()

    def _settle(self) -> None:
        self._settled = True
        job = commands.look_at_job(self._start.job_id) if self._heard.both and not self._heard.control else None
        reason = cause.settled_reason(self._heard, self._limit, self._spec.lead_s, job)
        deadline = self._limit
        if reason == "preempt":
            grace_over_at = commands.job_end_at(self._start.job_id)
            deadline = self._steady.of_wall(grace_over_at) if grace_over_at else deadline
        elif reason == "cancel":
            deadline = self._cancelled_by()
        elif reason == "signal":
            deadline = None            # cancelled by somebody: KillWait is all there is, and nobody here knows it
        changed = reason != self.outcome.notice or deadline != self._deadline
        self.outcome.notice, self._deadline = reason, deadline
        if changed:
            self._write_notice("notice_settled")

    def _cancelled_by(self) -> float:
        """`orch cancel` ends the job then, by the steady clock."""
        ended = self._told_at + self._spec.lead_s + CANCEL_MARGIN_S
        return ended if self._limit is None else min(ended, self._limit)

    def _write_notice(self, event: str) -> None:
        assert self.outcome.notice is not None and self.outcome.notice_at is not None
        deadline = None if self._deadline is None else round(self._steady.to_wall(self._deadline), 3)
        self._papers.notice(notice_json(self.outcome.notice_at, self.outcome.notice, deadline, self._delivery.hosts))
        self._papers.event(event, reason=self.outcome.notice, deadline=deadline)
        self.log.read()
        self._papers.record("end.json", end_record(self._spec, self._start, self.outcome, self.log,
                                                   now=self._clock(), provisional=True))

    def _helpers(self) -> set[int]:
        return {pid for pid in (self._step.pid, self._gpu.pid) if pid is not None}

    # --- the end ------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Whether nothing of the attempt is left, or nothing more can be done about it."""
        if self._hung is not None and self._ended_since is None:
            self._end_hung()
            return False
        if self._job.returncode is None and self._ended_since is None:
            self._end_after_last_word()
            return False
        trainers = [p for p in self._known.values() if is_alive(p.pid, p.start)]
        if self._ended_since is None and (trainers or any(is_alive(p.pid, p.start) for p in self._mains)):
            return False
        rest = family_of(os.getpid(), self._helpers())
        if self._hung is not None:
            pids = {process.pid for process in rest}
            rest += [process for process in self._hung.left() if process.pid not in pids]
        if not rest:
            return self._job.returncode is not None
        if self._ended_since is not None:
            return self._kill_rest(rest)
        now = time.monotonic()
        if self._strangers_since is None:
            self._strangers_since = now
        if now - self._strangers_since >= STRANGERS_S and not self._may_wait_longer():
            self._name_left_behind(rest)
            self._end(rest)
        return False

    def _may_wait_longer(self) -> bool:
        """After a notice an unknown program may still be saving; one whose trainer has spoken its last word is not."""
        if self.outcome.notice is None or self.log.last_word in ("stopped", "finished") or self._deadline is None:
            return False
        return self._steady() < self._deadline - RECORD_S

    def _end_after_last_word(self) -> None:
        word = self.log.last_word
        if word not in ("stopped", "finished"):
            self._word_since = None
            return
        if any(is_alive(p.pid, p.start) for p in here(registered(
                self._papers.folder / "trainers", self._start.epoch), self._start.host)):
            return
        now = time.monotonic()
        if self._word_since is None:
            self._word_since = now
            self._lively_until = now + LIVELY_S
        if word == "stopped" and now - self._word_since >= STOPPED_MOMENT_S:
            self.outcome.ended_by_us = "what was left of job.sh was ended after the trainer had stopped"
            self._end(family_of(os.getpid(), self._helpers()))
        lingering = [p for p in self._known.values() if is_alive(p.pid, p.start)]
        if word == "finished" and lingering and now - self._word_since >= FINISHED_MOMENT_S:
            self.outcome.ended_by_us = "the trainer did not leave after it had finished"
            self._end(family_of(os.getpid(), self._helpers()))

    def _end(self, processes: list[Process]) -> None:
        self._ended_since = time.monotonic()
        self._lively_until = self._ended_since + LIVELY_S
        send_all(processes, signal.SIGTERM)

    def _kill_rest(self, rest: list[Process]) -> bool:
        """KILL after five seconds; one stuck in the kernel is named and left to Slurm after five more."""
        assert self._ended_since is not None
        waited_s = time.monotonic() - self._ended_since
        if waited_s < TERM_TO_KILL_S:
            return False
        if self.outcome.ended_by_us or self.outcome.hung:
            self._name_left_behind(rest)
        if self._hung is not None:
            self._hung.kill_steps(rest)
        send_all(rest, signal.SIGKILL)
        return waited_s > 2 * TERM_TO_KILL_S

    def _name_left_behind(self, rest: list[Process]) -> None:
        for name in (label(describe(process)) for process in rest):
            if name not in self.outcome.left_behind:
                self.outcome.left_behind.append(name)
                self._papers.event("left_behind", process=name)

    def _remember_mains(self) -> None:
        """job.sh is gone. If a signal took the shell, what it ran is waited for as the trainer it is.

        A trainer that had taken job.sh's place (``exec``) leaves only workers behind: those are strangers.
        """
        died = self.outcome.job_status is not None and self.outcome.job_status < 0
        if died and self._job_program in target.SHELLS:
            family = self._delivery.family(self._helpers())
            self._mains = target.choose(family, roots(family, self._job.pid))
            self._known.update((process.pid, process) for process in self._mains)
