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

import json
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, ContextManager, Iterator, Mapping, NoReturn

from orch_trainer.alive import SAVING, Alive, Pulse, write_every_s
from orch_trainer.checkpoint import Checkpoints, complete_checkpoints, read_checkpoint
from orch_trainer.device import Memory, find_device
from orch_trainer.fence import Fence, Fenced
from orch_trainer.files import Files
from orch_trainer.lines import Lines, plain
from orch_trainer.pace import Pace
from orch_trainer.process import Signals, register
from orch_trainer.ranks import Agree, Rounds, Team, find_team
from orch_trainer.save import FAILED, FENCED, FINE, Save
from orch_trainer.settings import Settings, read_settings
from orch_trainer.stacks import dump_on_signal
from orch_trainer.telling import Teller, in_words
from orch_trainer.watch import Watch

EXIT_STOPPED = 75
EXIT_FENCED = 76


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
        self._checkpoints = Checkpoints(self._settings.checkpoint_dir, self._fence, attempt=self._settings.attempt,
                                        keep=self._settings.keep, files=self._files)
        self.resume_from, self._resume_step = _resume(self._settings)
        self._pace = Pace(interval_s=self._settings.interval_s, now=self._monotonic(),
                          deadline=self._settings.deadline, saved_step=self._resume_step)
        self._team = Team(0, 1, None)
        self._pulse = Pulse()
        self._memory = Memory(None if self._settings.attempt_dir is None else self._settings.attempt_dir / "memory.csv")
        self._lines = Lines(None, silent=True)
        self._tell = self._new_teller()
        self._watch = self._new_watch()
        self._removal: threading.Thread | None = None
        self._is_finished = self._is_left = False
        self._rounds: Rounds | None = None              # several ranks only

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
        self._tell = self._new_teller()
        self._watch = self._new_watch()
        if self._background and not self._signals.install(settings.signals):
            self._lines.say("orch: Training was entered outside the main thread: signals are not handled")
        if settings.attempt_dir is not None:
            stacks = dump_on_signal(settings.attempt_dir, settings.signals) if self._background else None
            register(settings.attempt_dir, rank=self._team.rank, epoch=settings.epoch, stacks_signal=stacks,
                     files=self._files)
        if leads:
            self._sweep()
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
        self._watch.close()
        if isinstance(error, SystemExit) and self._is_finished and not error.code:
            error = None
        if self._is_left:
            return
        if error is not None:
            self._tell.write("failed", "FAILED  step {}  {}".format(self._pace.step, in_words(error)),
                             step=self._pace.step, error=in_words(error))
        elif not self._is_finished:
            self._leave_early()
        if self._removal is not None:
            self._removal.join(timeout=60)
        if self._background and self._settings.attempt_dir is None:
            self._signals.restore()                     # under orch a late notice must not kill what follows the block

    # The loop.

    def step(self, step: int, loss: Any = None, **numbers: Any) -> None:
        """A step is done. A heartbeat; a line every 30 s. Never raises (but where ranks fail to agree)."""
        self._pace.step = step
        self._pulse.signs += 1
        if self._monotonic() >= self._tell.due:
            self._tell.report(step, loss, numbers)
        if self._rounds is not None and self._rounds.is_due():
            self._hold_round(self._rounds)

    def should_save(self) -> bool:
        """True when the checkpoint interval is over, a save was asked for, or a notice came and nothing newer is saved."""
        self._pulse.signs += 1
        if self._rounds is not None:
            return self._rounds.save
        self._heed_signal()
        return self._pace.save_due(self._monotonic(), self._clock.time())

    def should_stop(self) -> bool:
        """True after a notice or stop request, once a save is complete or cannot be made in time."""
        self._pulse.signs += 1
        if self._rounds is not None:
            return self._rounds.stop
        self._heed_signal()
        return self._pace.stop_due(self._clock.time())

    @contextmanager
    def saving(self, step: int) -> Iterator[Path]:
        """Write the state into the folder; on leaving the block it becomes the complete checkpoint of this step.

        A full or failing disk is reported and training goes on; the earlier checkpoints are untouched.
        """
        with self._doing(SAVING):
            yield from self._save(step)

    def phase(self, name: str, *, at_most_s: float) -> ContextManager[None]:
        """Announce that the block may take so long without a step: evaluation, compilation. Beyond it the trainer counts
        as hung."""
        if not at_most_s > 0:
            raise ValueError("phase({!r}, at_most_s={}): seconds, more than none".format(name, at_most_s))
        return self._doing(str(name), float(at_most_s))

    def finish(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Training is complete: result.json, and FINISHED as the last line."""
        result = dict(plain(metrics or {}))
        step = plain(self._pace.step)
        if self._team.leads:
            try:
                self._publish_result(step, result)
            except Fenced as fenced:
                self._leave_fenced(fenced.epoch)
        self._team.agree([0])                           # no rank leaves before the result is there
        self._watch.close()
        self._is_finished = True
        self._tell.write("finished", "FINISHED  step {}  {}".format(step, json.dumps(result)), step=step, metrics=result)

    # Saving.

    def _save(self, step: int) -> Iterator[Path]:
        save = Save(int(step), self._checkpoints, self._fence, self._team, self._monotonic)
        self._pace.save_begun(save.began)
        if self._pace.stopping:
            self._watch.poll()                          # the notice's line before this save's
        self._tell.put("saving", step=save.step)
        if save.begin() == FENCED:
            self._leave_fenced(save.newer_epoch)
        try:
            yield save.folder
        except BaseException as error:
            if self._end_save(save, error) == FAILED:
                raise
        else:
            if self._end_save(save, None) == FAILED:
                raise save.error or RuntimeError("saving({}) failed on another rank".format(save.step))

    def _end_save(self, save: Save, error: BaseException | None) -> int:
        grade = save.end(error, self._clock.time())
        if grade == FENCED:
            self._leave_fenced(save.newer_epoch)
        stall_s = self._monotonic() - save.began
        if grade == FINE:
            self._pace.save_done(save.step, stall_s)
            self._say_saved(save, stall_s)
            if self._team.leads:
                self._retire(save.step)
        else:
            why = "failed on another rank" if save.error is None else in_words(save.error)
            self._tell.write("save_failed", "WARNING: no checkpoint of step {}: {}".format(save.step, why),
                             step=save.step, error=why)
        if self._rounds is not None:
            self._rounds.saved(stop=self._pace.stop_due(self._clock.time()))
        return grade

    def _say_saved(self, save: Save, stall_s: float) -> None:
        checkpoint = save.checkpoint
        if checkpoint is not None:
            self._tell.write(
                "saved",
                "saved step {}  {:.1f} MB  {:.2f} s".format(save.step, checkpoint.size_bytes / 1e6, stall_s),
                step=save.step, path=str(checkpoint.path), stall_s=stall_s, write_s=save.written - save.began,
                durable_s=save.durable - save.began, size_bytes=checkpoint.size_bytes, first=self._pace.saves == 1)

    def _retire(self, just_saved: int) -> None:
        try:
            self._checkpoints.retire(just_saved)
            self._empty()
        except Fenced as fenced:
            self._leave_fenced(fenced.epoch)
        except OSError as error:
            self._lines.say("WARNING: old checkpoints were not removed: {}".format(error))

    def _sweep(self) -> None:
        """What dead starts left behind."""
        try:
            self._checkpoints.sweep()
            self._empty()
        except Fenced as fenced:
            self._leave_fenced(fenced.epoch)
        except OSError as error:
            self._lines.say("WARNING: left-over folders were not removed: {}".format(error))

    def _empty(self) -> None:
        """Emptying what was set aside may take long; nobody waits for it. What is left, the next start empties."""
        folders = self._checkpoints.set_aside()
        if not folders or (self._removal is not None and self._removal.is_alive()):
            return
        if not self._background:
            self._checkpoints.empty(folders)
            return
        self._removal = threading.Thread(target=self._checkpoints.empty, args=(folders,), name="orch-remove",
                                         daemon=True)
        self._removal.start()

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
        self._watch.wake()                              # it must be known before it lasts
        try:
            yield
        finally:
            self._pulse.end(before)

    def _heed_signal(self) -> None:
        if self._signals.seen and not self._pace.stopping:
            self._pace.stop("signal")
            self._watch.wake()                          # which reads why, and until when

    def _hold_round(self, rounds: Rounds) -> None:
        """A notice may reach any rank; what follows from it, rank 0 decides."""
        self._heed_signal()
        wall = self._clock.time()
        if rounds.hold(save=self._pace.save_due(self._monotonic(), wall), stop=self._pace.stop_due(wall),
                       noticed=self._pace.stopping):
            self._pace.stop("signal")

    def _new_teller(self) -> Teller:
        return Teller(self._lines, self._clock, self._memory, self._total_steps)

    def _new_watch(self) -> Watch:
        settings, alive = self._settings, None
        if settings.attempt_dir is not None and self._team.leads:
            alive = Alive(settings.attempt_dir / "alive.json", self._pulse, epoch=settings.epoch,
                          every_s=write_every_s(self._environ))
        return Watch(settings, self._signals, self._pace, self._lines, self._clock, alive, self._memory)


def _resume(settings: Settings) -> tuple[Path | None, int | None]:
    """Orch's choice, unless this very start has saved since (torchrun restarts workers inside an attempt)."""
    complete = complete_checkpoints(settings.checkpoint_dir)
    if not settings.resume_newest:
        complete = [one for one in complete if (one.epoch, one.attempt) == (settings.epoch, settings.attempt)]
    if complete:
        return complete[-1].path, complete[-1].step
    if settings.resume_from is None:
        return None, None
    chosen = read_checkpoint(settings.resume_from)
    if chosen is None:
        raise RuntimeError("ORCH_RESUME_FROM={}: not a complete checkpoint".format(settings.resume_from))
    return chosen.path, chosen.step


def _or_none(step: int | None) -> str:
    return "none" if step is None else "step {}".format(step)
