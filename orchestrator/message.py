"""What is told to people, as values: a message, and what has been told already. Knows no channel and no file.

Text in a message is plain. What stands in `backticks` is something to copy, a command or a name; foreign text (a reason, a
metric) has its backticks taken out before it gets here, so that a pair of them is always ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a message is about; the value is what a `command:` reads."""

    FINISHED = "finished"
    HELD = "held"
    CANCELLED = "cancelled"
    NODE_OUT = "node-out"
    SAVES_FAIL = "saves-fail"
    SAVES_AGAIN = "saves-again"
    LINGERS = "lingers"                # a job that does not come to its end
    ONE_LEFT = "one-left"
    DRAINED = "drained"
    SLURM_SILENT = "slurm-silent"
    SLURM_ANSWERS = "slurm-answers"
    GROUP = "group"                    # several messages as one
    PROGRESS = "progress"              # the living message of a run: edited, never sent anew
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One thing to tell. ``key`` names the fact, the same however often it is looked at."""

    key: str
    kind: Kind
    at: float                          # when it happened, which may be long before it can be delivered
    headline: str                      # one line that says it all
    lines: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()  # names and values, for a small table
    tag: str = ""
    again: bool = False                # it may have been delivered already; nobody knows

    @property
    def title(self) -> str:
        """The headline, marked where it may be a repetition."""
        return f"(again) {self.headline}" if self.again else self.headline

    def text(self) -> str:
        """All of it as plain text."""
        table = tuple(f"{name}: {value}" for name, value in self.facts)
        return "\n".join((self.title, *self.lines, *table))


# --- what has been told ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a run's journal has been told. ``born`` tells it from an earlier run of the same tag."""

    born: float
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTold:
    """How full the queue is, as people know it: 0 drained, 1 one left, 2 more. It falls only when it has been seen lower for
    a while, and rises at once, so that a queue that is refilled in time tells nothing."""

    level: int = 0
    seen: int = 0                      # as last looked at ...
    seen_since: float = 0.0            # ... and since when
    drained_at: float = 0.0            # when people last heard that it is empty: what has ended since is told with the next


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmTold:
    """Slurm's silence, as people know it. Trouble ends only when Slurm has answered steadily for a while."""

    troubled_since: float | None = None
    silent_at: float = 0.0             # the latest pass without an answer
    on_and_off: bool = False           # some pass was answered in between
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Everything that has been told of a repository; with the same journals and the same answers nothing is told twice."""

    runs: dict[str, Cursor] = field(default_factory=dict)
    queue: QueueTold = QueueTold()
    slurm: SlurmTold = SlurmTold()
