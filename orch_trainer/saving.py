"""Saves as the training loop meets them: what `training.saving()` gives, and the one who carries them out.

    with training.saving(step) as folder:              # in the foreground: C is the whole save
        write_state(folder)

    saving = training.saving(step, background=True)    # C is the block, t ends when the checkpoint is usable
    with saving as folder:
        snapshot = copy_of(state)
        saving.rest(lambda: write(snapshot, folder))   # a function, called in a thread; or a future that is waited for

One write at a time: a save that begins while another is being written waits for that first; `should_save()` avoids it. A save
after the notice is waited for within its block, however it was asked for. Whatever is being written when the training block
is left, by whichever way, is waited for: nothing is lost at exit.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, ContextManager, Iterator, NamedTuple, NoReturn, Tuple

from orch_trainer.checkpoint import Checkpoints
from orch_trainer.fence import Fence, Fenced
from orch_trainer.lines import Lines
from orch_trainer.pace import LOCAL, SHARED, Pace
from orch_trainer.ranks import Rounds, Team
from orch_trainer.save import FAILED, FENCED, FINE, TROUBLE, Save
from orch_trainer.slowdown import Gauge
from orch_trainer.telling import Teller, in_words

WORTH_SAYING = 0.01                 # of the steps' time; below it is noise


class Saving:
    """One save: a context manager whose value is the folder to write into."""

    def __init__(self, saver: Saver, step: int, background: bool) -> None:
        self.step = step
        self.background = background
        self.work: Any = None
        self.save: Save | None = None
        self._saver = saver

    def rest(self, work: Any) -> None:
        """What remains to be written when the block is left: a future (`torch.distributed.checkpoint.async_save` gives one;
        anything with `.result()`), or a function without arguments, which is called in a thread."""
        if not self.background:
            raise RuntimeError("rest() is for saving({}, background=True): without it the block writes everything".format(
                self.step))
        if not (callable(work) or hasattr(work, "result") or hasattr(work, "upload_completion")):
            raise TypeError("rest({!r}): a future or a function without arguments".format(work))
        self.work = work

    @property
    def usable(self) -> bool:
        """Whether it is a complete checkpoint now, as rank 0 knows it."""
        return self.save is not None and self.save.checkpoint is not None

    def __enter__(self) -> Path:
        return self._saver.begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return self._saver.left(self, error)


class Surroundings(NamedTuple):
    """What a saver works with; all of it the training block's."""

    levels: Tuple[Checkpoints, ...]                     # SHARED, and LOCAL where there is one
    fence: Fence
    team: Team
    rounds: Rounds | None
    pace: Pace
    gauge: Gauge
    tell: Teller
    lines: Lines
    clock: Any
    doing: Callable[[], ContextManager[None]]           # the sign of life says "saving" inside
    before_last: Callable[[], None]                     # the notice's line before its save's
    leave_fenced: Callable[[int], NoReturn]
    threads: bool
    lead_s: float | None                                # between notice and time limit


class Saver:
    """Carries out saves, one at a time, and keeps no more checkpoints than it should."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._doing: ContextManager[None] | None = None
        self._waited_s = 0.0                            # for the write before it, by the save under way
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None      # the program's own, in the background
        self._removal: threading.Thread | None = None

    # In the loop's thread.

    def begin(self, saving: Saving) -> Path:
        around, began = self._around, self._around.clock.monotonic()
        self._doing = around.doing()
        self._doing.__enter__()
        try:
            self.wait()
            now = around.clock.monotonic()
            self._waited_s = now - began
            level = around.pace.level(now, around.clock.time())
            saving.save = save = Save(saving.step, around.levels, level, around.fence, around.team, around.clock.monotonic)
            if around.pace.stopping:
                around.before_last()
            grade = save.begin(is_last=around.pace.stopping)
            around.pace.save_begun(save.began, save.level, wall=around.clock.time())
            around.tell.put("saving", step=save.step, request=around.pace.answered)
            if grade == FENCED:
                around.leave_fenced(save.newer_epoch)
        except BaseException:
            self._done()
            raise
        return save.folder

    def left(self, saving: Saving, error: BaseException | None) -> bool:
        """Whether the block's exception is dealt with. Raises what went wrong after the block, or on another rank."""
        save, around = saving.save, self._around
        assert save is not None
        work, saving.work = saving.work, None           # with it goes the snapshot, once it is written
        try:
            grade = save.left(error)
            stall_s = save.written - save.began
            if grade == FINE and saving.background and not save.is_last and around.threads:
                self._go_on(save, work, stall_s)
            else:
                if grade == FINE:
                    grade = save.complete(work, around.clock.time)
                    if not saving.background:
                        stall_s = around.clock.monotonic() - save.began
                self._over(save, grade, stall_s, background=saving.background)
            if around.rounds is not None:
                around.rounds.saved(stop=around.pace.stop_due(around.clock.time()))
        finally:
            self._done()
        if grade == FAILED:
            if error is None:
                raise save.error or RuntimeError("saving({}) failed on another rank".format(save.step))
            return False
        return True

    def wait(self) -> None:
        """Until nothing is being written. Raises the program's own error from its background write, once."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> BaseException | None:
        """Nothing is lost at exit: the write under way ends, and a removal has its time. The program's own error in it."""
        if self._writer is not None:
            with self._around.doing():
                self._writer.join()
        if self._removal is not None:
            self._removal.join(timeout=60)
        return self._failure

    def _done(self) -> None:
        doing, self._doing = self._doing, None
        if doing is not None:
            doing.__exit__(None, None, None)

    def _go_on(self, save: Save, rest: Any, stall_s: float) -> None:
        around = self._around
        around.gauge.write_begun()
        around.pace.write_begun(around.clock.monotonic(), around.clock.time(), save.step, save.level)
        # no daemon: the interpreter waits for it, should the training block not have done so
        self._writer = threading.Thread(target=self._write, args=(save, rest, stall_s), name="orch-save", daemon=False)
        self._writer.start()

    # In the writer's thread, or in the loop's.

    def _write(self, save: Save, rest: Any, stall_s: float) -> None:
        around = self._around
        try:
            grade = save.complete_alone(rest, around.clock.time)
            slowdown = around.gauge.write_ended(around.pace.step, around.pace.step_at)
            self._over(save, grade, stall_s, background=True, slowdown=slowdown)
            if grade == FAILED:
                self._failure = save.error
        except BaseException as error:                  # a mistake of ours must not end in a silent thread
            self._failure = error
        finally:
            around.pace.writing = False

    def _over(self, save: Save, grade: int, stall_s: float, *, background: bool, slowdown: float | None = None) -> None:
        """The save has come to its end: say so, and remove what is not needed any more."""
        around = self._around
        if grade == FENCED:
            around.leave_fenced(save.newer_epoch)
        if grade != FINE:
            if around.team.leads:
                save.discard()
            why = "failed on another rank" if save.error is None else in_words(save.error)
            if grade == TROUBLE and not isinstance(save.error, OSError):    # torch: "unexpected pos 576 vs 534"
                why += " (the disk is full or fails)"
            where, more = ("local ", {"level": "local"}) if save.level == LOCAL else ("", {})
            around.tell.write("save_failed", "WARNING: no {}checkpoint of step {}: {}".format(where, save.step, why),
                              step=save.step, error=why, **more)
            if grade == TROUBLE:
                save.error = None                       # its traceback keeps half-written files open, and so their space
            return
        around.pace.save_done(save.step, save.durable - save.began if background else stall_s, save.level)
        self._say_saved(save, stall_s, background, slowdown)
        needed_s = around.pace.lead_short_of_s(around.lead_s)
        if needed_s is not None:
            text = "WARNING: the last save before the time limit needs {:.0f} s and `lead` is {:g} s: raise it".format(
                needed_s, around.lead_s or 0.0)
            around.tell.put("lead_short", text, needed_s=needed_s, lead_s=around.lead_s)
        if around.team.leads:
            self._tidy(around.levels[save.level], save.step)

    def _say_saved(self, save: Save, stall_s: float, background: bool, slowdown: float | None) -> None:
        checkpoint, around = save.checkpoint, self._around
        if checkpoint is None:                          # another rank than 0
            return
        durable_s = save.durable - save.began
        times = "{:.2f} s".format(stall_s) + ("" if not background else ", usable after {:.2f} s".format(durable_s)) + (
            "" if slowdown is None or slowdown < WORTH_SAYING else ", steps {:.0f}% slower meanwhile".format(100 * slowdown))
        more = {"level": "local"} if save.level == LOCAL else {}
        around.tell.write(
            "saved", "saved step {}  {:.1f} MB  {}{}".format(save.step, checkpoint.size_bytes / 1e6, times,
                                                          "  local" if more else ""),
            step=save.step, path=str(checkpoint.path), stall_s=stall_s, write_s=save.written - save.began,
            durable_s=durable_s, size_bytes=checkpoint.size_bytes, first=around.pace.saves == 1, background=background,
            waited_s=self._waited_s, slowdown=slowdown, **more)

    # What is not needed any more.

    def sweep(self) -> None:
        """What dead starts left behind."""
        for checkpoints in self._around.levels:
            with self._forgiving("left-over folders"):
                checkpoints.sweep()
                self._empty(checkpoints)

    def clear_local(self) -> None:
        """The run goes on from the shared folder, or not at all: what lies on this node only takes its room."""
        for checkpoints in self._around.levels[LOCAL:]:
            with self._forgiving("local checkpoints"):
                checkpoints.clear()

    def _tidy(self, checkpoints: Checkpoints, just_saved: int) -> None:
        with self._forgiving("old checkpoints"):
            checkpoints.retire(just_saved)
            self._empty(checkpoints)

    @contextmanager
    def _forgiving(self, what: str) -> Iterator[None]:
        try:
            yield
        except Fenced as fenced:
            self._around.leave_fenced(fenced.epoch)
        except OSError as error:
            self._around.lines.say("WARNING: {} were not removed: {}".format(what, error))

    def _empty(self, checkpoints: Checkpoints) -> None:
        """Emptying what was set aside may take long; nobody waits for it. What is left, the next start empties."""
        folders = checkpoints.set_aside()
        if not folders or (self._removal is not None and self._removal.is_alive()):
            return
        if not self._around.threads:
            checkpoints.empty(folders)
            return
        self._removal = threading.Thread(target=checkpoints.empty, args=(folders,), name="orch-remove", daemon=True)
        self._removal.start()


__all__ = ["LOCAL", "SHARED", "Saver", "Saving", "Surroundings"]
