"""The training block: what a training loop talks to.

The loop's thread owns steps, saves and the ending; the watch's thread reads what orch wants and writes the queued lines.
`step`, `should_save` and `should_stop` touch no file. Endings of the block:

    finish() was called                      FINISHED   exit 0
    left after a notice or a stop request    STOPPED    exit 75 (under torchrun 0, after a barrier)
    left early with neither                  FAILED     exit 1: somebody forgot finish()
    an exception                             FAILED     the exception goes on
    a newer start of the run publishes       fenced     exit 76, nothing written
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, ContextManager, Iterator, Mapping, NoReturn

from orch_trainer.alive import SAVING, Alive, Pulse, write_every_s
from orch_trainer.checkpoint import Checkpoints
from orch_trainer.complete import complete_checkpoints, newest_undamaged, read_checkpoint
from orch_trainer.device import Memory, find_device
from orch_trainer.fence import Fence, Fenced
from orch_trainer.files import Files, nobody_elses
from orch_trainer.lines import Lines, plain
from orch_trainer.pace import LOCAL, SHARED, Pace
from orch_trainer.process import Signals, register
from orch_trainer.ranks import Agree, Rounds, Team, find_team
from orch_trainer.saving import Saver, Saving, Surroundings
from orch_trainer.settings import Settings, next_time, read_settings
from orch_trainer.slowdown import Gauge
from orch_trainer.stacks import dump_on_signal
from orch_trainer.telling import Teller, in_words
from orch_trainer.watch import Watch

EXIT_STOPPED = 75
EXIT_FENCED = 76
LOCAL_KEPT = 2                      # the newest may turn out damaged; memory is dear


class Training:
    """`with Training() as training:` around the training loop; see docs/protocol.md for what it writes.

    checkpoint_dir  where checkpoints belong (default: orch's, else ./checkpoints)
    keep            complete checkpoints to keep (default: orch's, else 3)
    interval_s      seconds from the start of a save to the start of the next (default: orch's, else 600)
    total_steps     the step after which training is complete: lines then say what is left and how long it takes
    config          what the START line shows
    agree           for several ranks without torch.distributed: element-wise maximum over all ranks
    clock, environ, files, background: for tests; background=False neither starts a thread nor handles signals
    """

    def __init__(self, *, checkpoint_dir: Path | str | None = None, keep: int | None = None,
                 interval_s: float | None = None, total_steps: int | None = None,
                 config: Mapping[str, Any] | None = None, agree: Agree | None = None, clock: Any = time,
                 environ: Mapping[str, str] | None = None, files: Files | None = None, background: bool = True) -> None:
        if keep is not None and keep < 1:
            raise ValueError("Training(keep={}): at least 1".format(keep))
        if total_steps is not None and total_steps < 1:
            raise ValueError("Training(total_steps={}): at least 1".format(total_steps))
        self._environ = os.environ if environ is None else environ
        self._settings = read_settings(self._environ, checkpoint_dir, interval_s, keep)
        self._config = dict(config or {})
        self._total_steps = None if total_steps is None else int(total_steps)
        self._agree = agree
        self._clock = clock
        self._monotonic: Callable[[], float] = clock.monotonic
        self._files = files or Files()
        self._background = background
        self._signals = Signals()
        self._fence = Fence(self._settings.epoch_file, self._settings.epoch)
        self.resume_from, self._resume_step, self._damaged = _resume(self._settings)
        self._pace = Pace(interval_s=self._settings.interval_s, now=self._monotonic(),
                          deadline=self._settings.deadline, saved_step=self._resume_step,
                          local_interval_s=self._settings.local_interval_s if self._settings.local_dir else None,
                          lead_s=self._settings.lead_s or 0.0, save_steps=self._settings.save_steps, wall=self._clock.time(),
                          next_time=lambda wall: next_time(self._settings.save_times, wall))
        self._team = Team(0, 1, None)
        self._rounds: Rounds | None = None              # several ranks only
        self._pulse = Pulse()
        self._gauge = Gauge()
        self._memory = Memory(None if self._settings.attempt_dir is None else self._settings.attempt_dir / "memory.csv")
        self._lines = Lines(None, silent=True)
        self._tell = self._new_teller()
        self._watch = self._new_watch()
        self._saver = self._new_saver()
        self._is_finished = self._is_left = False

    # What a training loop reads.

    @property
    def attempt(self) -> int:
        return self._settings.attempt

    @property
    def interval_s(self) -> float:
        return self._pace.interval_s

    @property
    def deadline(self) -> float | None:
        """Epoch seconds at which this attempt will be killed, as far as anybody knows."""
        return self._pace.deadline

    # The block.

    def __enter__(self) -> Training:
        settings = self._settings
        self._team = find_team(self._environ, self._agree)
        leads = self._team.leads
        self._rounds = Rounds(self._team, self._monotonic) if self._team.size > 1 else None
        settings.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        if settings.attempt_dir is not None:
            settings.attempt_dir.mkdir(parents=True, exist_ok=True)
        self._lines = Lines(settings.attempt_dir / "trainer.jsonl" if settings.attempt_dir else None, silent=not leads)
        self._make_local_folder()
        self._tell = self._new_teller()
        self._watch = self._new_watch()
        if self._background and not self._signals.install(settings.signals):
            self._lines.say("orch: Training was entered outside the main thread: signals are not handled")
        if settings.attempt_dir is not None:
            stacks = dump_on_signal(settings.attempt_dir, settings.signals) if self._background else None
            register(settings.attempt_dir, rank=self._team.rank, epoch=settings.epoch, stacks_signal=stacks,
                     files=self._files)
        self._saver = self._new_saver()
        if leads:
            for words in self._damaged:
                self._lines.say("WARNING: not resumed from {}".format(words))
            self._saver.sweep()
        self._watch.begin()
        if leads:
            self._tell.start(find_device(self._environ), attempt=settings.attempt, resume_from=self.resume_from,
                             resume_step=self._resume_step, rank=self._team.rank, ranks=self._team.size,
                             interval_s=self._pace.interval_s, config=self._config)
        if self._background:
            self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        failure = self._saver.close()                   # for whatever reason it was left: what is written is worth having
        self._watch.close()
        if isinstance(error, SystemExit) and self._is_finished and not error.code:
            error = None
        if self._is_left:
            return
        if error is None:
            error = failure
        else:
            failure = None
        if error is not None:
            self._tell.write("failed", "FAILED  step {}  {}".format(self._pace.step, in_words(error)),
                             step=self._pace.step, error=in_words(error))
        elif not self._is_finished:
            self._leave_early()
        if self._background and self._settings.attempt_dir is None:
            self._signals.restore()                     # under orch a late notice must not kill what follows the block
        if failure is not None:
            raise failure

    def _make_local_folder(self) -> None:
        """A node without it has one level and says so."""
        folder = self._settings.local_dir
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not nobody_elses(folder):
                    raise OSError(errno.EPERM, "others may write there or above", str(folder))
        except OSError as error:
            self._lines.say("WARNING: no local checkpoints: {}".format(error))
            self._settings = self._settings._replace(local_dir=None)
            self._pace.local_interval_s = None

    # The loop.

    def step(self, step: int, loss: Any = None, **numbers: Any) -> None:
        """A step is done. A heartbeat; a line every 30 s. Never raises (but where ranks fail to agree)."""
        pace, now = self._pace, self._monotonic()
        pace.step = step
        pace.step_at = now
        self._pulse.signs += 1
        if self._gauge.attends:
            self._gauge.attend(step, now)
        if now >= self._tell.due:
            self._tell.report(step, loss, numbers)
        if self._rounds is not None and (self._rounds.is_due() or pace.is_milestone(step)):
            self._hold_round(self._rounds)

    def should_save(self) -> bool:
        """True when the checkpoint interval is over, a save was asked for, or a notice came and nothing newer is saved."""
        self._pulse.signs += 1
        if self._rounds is not None:
            return self._rounds.save
        self._heed_signal()
        return self._save_due()

    def should_stop(self) -> bool:
        """True after a notice or stop request, once a save is complete or cannot be made in time."""
        self._pulse.signs += 1
        if self._rounds is not None:
            return self._rounds.stop
        self._heed_signal()
        return self._pace.stop_due(self._clock.time())

    def saving(self, step: int, *, background: bool = False) -> Saving:
        """`with training.saving(step) as folder:` write the state into the folder; on leaving the block it becomes the
        complete checkpoint of this step. With `background=True` the block only takes the snapshot (C), and what is given to
        `rest()` writes it while training goes on:

            saving = training.saving(step, background=True)
            with saving as folder:
                saving.rest(async_save(state, checkpoint_id=folder, process_group=for_saves))   # torch's; docs/trainer.md
            with saving as folder:                                        # or any function, called in a thread
                snapshot = copy_of(state)
                saving.rest(lambda: write(snapshot, folder))

        A full or failing disk is reported and training goes on; the earlier checkpoints are untouched. An error of the
        program's own in a background write is raised by the next `saving()`, by `finish()` or at the end of the block.
        """
        return Saving(self._saver, int(step), background)

    def lacks_room(self, folder: Path | str, size_bytes: int) -> bool:
        """Whether less than that is free where `folder` lies: all ranks ask, and all hear what rank 0 found. A save in the
        background takes room there until it is done, so that is waited for."""
        with self._doing(SAVING):
            self._saver.wait()
            lacks = self._team.leads and size_bytes > 0 and shutil.disk_usage(str(folder)).free < size_bytes
            return self._team.agree([int(lacks)])[0] > 0

    def phase(self, name: str, *, at_most_s: float) -> ContextManager[None]:
        """Announce that the block may take so long without a step: evaluation, compilation. Beyond it the trainer counts
        as hung."""
        if not at_most_s > 0:
            raise ValueError("phase({!r}, at_most_s={}): seconds, more than none".format(name, at_most_s))
        return self._doing(str(name), float(at_most_s))

    def finish(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Training is complete: result.json, and FINISHED as the last line. What is being written is waited for first."""
        with self._doing(SAVING):
            self._saver.wait()
        result = dict(plain(metrics or {}))
        step = plain(self._pace.step)
        if self._team.leads:
            try:
                self._publish_result(step, result)
            except Fenced as fenced:
                self._leave_fenced(fenced.epoch)
            self._saver.clear_local()
        self._team.agree([0])                           # no rank leaves before the result is there
        self._watch.close()
        self._is_finished = True
        self._tell.write("finished", "FINISHED  step {}  {}".format(step, json.dumps(result)), step=step, metrics=result)

    def _publish_result(self, step: int | None, metrics: dict[str, Any]) -> None:
        target = self._settings.run_dir / "result.json"
        temporary = target.with_name(".result-{}-{}".format(self._settings.epoch, os.getpid()))
        result = {"step": step, "metrics": metrics, "epoch": self._settings.epoch,
                  "attempt": self._settings.attempt, "finished_at": self._clock.time()}
        with self._fence.held():
            self._files.write(temporary, json.dumps(result).encode() + b"\n")
            self._files.rename(temporary, target)
            self._files.sync(target.parent)

    # Leaving.

    def _leave_early(self) -> NoReturn:
        self._heed_signal()
        step = plain(self._pace.step)
        if not self._pace.stopping:
            message = ("the training block was left without finish() and nobody had asked to stop; call "
                       "training.finish(metrics) when training is complete")
            self._tell.write("failed", "FAILED  step {}  {}".format(step, message), step=step, error=message)
            raise SystemExit(1)
        self._watch.poll()                              # the notice's line, if its round has not come yet
        if self._team.leads and self._pace.saves and self._pace.saved_level == SHARED:
            self._saver.clear_local()
        self._tell.write("stopped", "STOPPED  step {}  {}  newest checkpoint: {}".format(
            step, self._watch.stop_reason, _or_none(self._pace.saved_step)), step=step)
        self._is_left = True
        self._signals.ignore()
        if "TORCHELASTIC_RUN_ID" in self._environ:      # torchrun would restart what exits with another code
            self._team.agree([0])
            raise SystemExit(0)
        raise SystemExit(EXIT_STOPPED)

    def _leave_fenced(self, epoch: int) -> NoReturn:
        self._is_left = True
        self._signals.ignore()
        self._tell.write("fenced", "FENCED  a newer start ({}) has taken this run; nothing was written".format(epoch),
                         epoch=epoch)
        if threading.current_thread() is not threading.main_thread():
            os._exit(EXIT_FENCED)
        raise SystemExit(EXIT_FENCED)

    # Deciding.

    @contextmanager
    def _doing(self, what: str, at_most_s: float | None = None) -> Iterator[None]:
        before = self._pulse.begin(what, at_most_s)
        self._gauge.pause(self._pace.step, self._pace.step_at)
        self._watch.wake()                              # it must be known before it lasts
        try:
            yield
        finally:
            self._pulse.end(before)
            self._gauge.resume()

    def _heed_signal(self) -> None:
        if self._signals.seen and not self._pace.stopping:
            self._pace.stop("signal")
            self._watch.wake()                          # which reads why, and until when

    def _hold_round(self, rounds: Rounds) -> None:
        """A notice may reach any rank; what follows from it, rank 0 decides."""
        self._heed_signal()
        wall = self._clock.time()
        if rounds.hold(save=self._save_due(), stop=self._pace.stop_due(wall),
                       noticed=self._pace.stopping):
            self._pace.stop("signal")

    def _save_due(self) -> bool:
        """While a save is being written in the background the next one waits (pace.py says why), and that is said."""
        now = self._monotonic()
        late_s = self._pace.overdue_s(now)
        if late_s is not None and self._pace.is_stuck(late_s):
            why = "the one before it has been written for {:.0f} s and is not usable".format(late_s)
            self._tell.put("save_failed", "WARNING: no new checkpoint: " + why, step=plain(self._pace.step), error=why,
                           **({"level": "local"} if self._pace.writing_level == LOCAL else {}))
        elif late_s is not None:
            self._tell.put("save_waits", "WARNING: a checkpoint has been written for {:.0f} s and the next one is due (every "
                           "{:g} s): it waits until that one is usable".format(late_s, self._pace.interval_s),
                           written_s=late_s, interval_s=self._pace.interval_s)
        return self._pace.save_due(now, self._clock.time())

    def _new_saver(self) -> Saver:
        settings = self._settings

        def at(folder: Path, keep: int, resumed_step: int | None) -> Checkpoints:
            return Checkpoints(folder, self._fence, attempt=settings.attempt, keep=keep, files=self._files,
                               resumed_step=resumed_step)

        levels = [at(settings.checkpoint_dir, settings.keep, self._resume_step)]
        if settings.local_dir is not None:
            levels.append(at(settings.local_dir, LOCAL_KEPT, None))     # two newer ones do for it
        return Saver(Surroundings(
            levels=tuple(levels), fence=self._fence, team=self._team, rounds=self._rounds, pace=self._pace, gauge=self._gauge,
            tell=self._tell, lines=self._lines, clock=self._clock, doing=partial(self._doing, SAVING),
            before_last=self._watch.poll, leave_fenced=self._leave_fenced, threads=self._background,
            lead_s=settings.lead_s))

    def _new_teller(self) -> Teller:
        return Teller(self._lines, self._clock, self._memory, self._total_steps)

    def _new_watch(self) -> Watch:
        settings, alive = self._settings, None
        if settings.attempt_dir is not None and self._team.leads:
            alive = Alive(settings.attempt_dir / "alive.json", self._pulse, epoch=settings.epoch,
                          every_s=write_every_s(self._environ))
        return Watch(settings, self._signals, self._pace, self._lines, self._clock, alive, self._memory)


def _resume(settings: Settings) -> tuple[Path | None, int | None, list[str]]:
    """Orch's choice, unless this very start has saved since (torchrun restarts workers inside an attempt). The supervisor has
    held orch's choice against its checksums; outside orch that is done here, and what is damaged is named."""
    complete = complete_checkpoints(settings.checkpoint_dir)
    if settings.local_dir is not None and settings.local_dir.is_dir() and nobody_elses(settings.local_dir):
        complete = sorted(complete + complete_checkpoints(settings.local_dir), key=lambda one: one.step)
    damaged: list[str] = []
    if settings.resume_newest:
        newest, damaged = newest_undamaged(complete)
    else:
        own = [one for one in complete if (one.epoch, one.attempt) == (settings.epoch, settings.attempt)]
        newest = own[-1] if own else None
        if newest is None and settings.resume_from is not None:
            newest = read_checkpoint(settings.resume_from)
            if newest is None:
                raise RuntimeError("ORCH_RESUME_FROM={}: not a complete checkpoint".format(settings.resume_from))
    return (newest.path, newest.step, damaged) if newest is not None else (None, None, damaged)


def _or_none(step: int | None) -> str:
    return "none" if step is None else "step {}".format(step)
