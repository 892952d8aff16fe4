"""What happens in one schedule, drawn from its seed: steps with everything that chance decided already in them, so that a
failing schedule can be shortened by leaving steps out and told in a few lines.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, fields
from typing import Any

Step = tuple[Any, ...]

MISHAPS = ("crash", "crash", "early", "no-result", "hung", "killed", "supervisor-killed", "out-of-memory", "setup")
READS = ("silent", "stale", "then-silent")
SUBMITS = ("lost", "reply-lost", "delayed", "doubled", "rejected")
RECOVERY = (
    ("successors_ahead", 2), ("successors_ahead", 3), ("endings_without_progress", 1), ("endings_without_progress", 2),
    ("retries", ("crash", 0)), ("retries", ("hung", 0)), ("retries", ("setup-failure", 2)), ("backoff_s", 1.0),
    ("backoff_s", 300.0), ("exclude_share", 1.0), ("exclude_node_s", 60.0), ("checkpoint_interval_s", None),
    ("lead_factor", 1.0), ("memory_factor", 2.0), ("finish_first", False))
PROFILES = (("lead_s", 20.0), ("lead_s", 150.0), ("time_s", 300.0), ("time_s", 600.0), ("memory_bytes", 1 << 30),
            ("memory_bytes", 4 << 30))
AT_SQUEUE = -1


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong while a daemon or a person acts."""

    kill: int | None = None            # killed at the instant after so many
    torn: bool = False                 # ... in the middle of what is written then
    reads: str = ""                    # what its squeue meets: one of READS
    submits: str = ""                  # what its next sbatch meets: one of SUBMITS
    meanwhile: Step | None = None      # what else happens while it acts, and at which instant (AT_SQUEUE: before the answer)
    at: int = AT_SQUEUE

    def __repr__(self) -> str:
        given = [f"{f.name}={value!r}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"Faults({', '.join(given)})"


NONE = Faults()


def asks_the_past(step: Step) -> bool:
    """Whether somebody's squeue will answer from a minute ago, in this step or in what happens meanwhile."""
    return any(given.reads == "stale" or asks_the_past(given.meanwhile or ()) for given in step if isinstance(given, Faults))


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    runs: tuple[tuple[str, tuple[str, ...]], ...]      # tag, what it waits for
    steps: tuple[Step, ...]


def draw_schedule(seed: int) -> Schedule:
    chance = random.Random(seed)
    runs: list[tuple[str, tuple[str, ...]]] = [("a", ())]
    if chance.random() < 0.4:
        runs.append(("b", ("a",) if chance.random() < 0.6 else ()))
    if len(runs) == 2 and chance.random() < 0.2:
        runs.append(("c", ("a", "b") if chance.random() < 0.5 else ("b",)))
    tags = [tag for tag, _ in runs]
    steps: list[Step] = [("cli", "submit", tag, _faults(chance, 0.25)) for tag in tags]
    for _ in range(chance.randint(6, 13)):
        steps.append(_draw_step(chance, tags))
        if chance.random() < 0.6:
            steps.append(("pass", chance.choice("AAB"), _faults(chance, 0.5, tags)))
    _think_again(random.Random(seed * 4001 + 7), steps, tags)
    _do_otherwise(random.Random(seed * 5003 + 11), steps, tags)
    return Schedule(seed, tuple(runs), tuple(steps))


def _think_again(chance: random.Random, steps: list[Step], tags: list[str]) -> None:
    """Roll-backs and new job.sh files, in every fifth schedule: by a chance of their own, so that all else of a seed is as
    it was without."""
    for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2))):
        at, tag = chance.randint(len(tags) + 2, len(steps)), chance.choice(tags)
        back: Step = ("back", tag, chance.randrange(8), _faults(chance, 0.4, tags))
        new = [("script", tag, chance.randrange(4)), ("cli", "update-script", tag, _faults(chance, 0.4, tags))]
        steps[at:at] = new if chance.random() < 0.3 else [back]
        steps.insert(chance.randint(at + 1, len(steps)), ("pass", chance.choice("AB"), _faults(chance, 0.4, tags)))


def _do_otherwise(chance: random.Random, steps: list[Step], tags: list[str]) -> None:
    """What most schedules do without, in every fifth, by a chance of its own too: other settings, refusals of Slurm, and what
    people ask of all runs at once."""
    for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2))):
        at = chance.randint(len(tags), len(steps))
        steps.insert(at, _draw_other(chance, tags))
        steps.insert(chance.randint(at + 1, len(steps)), ("pass", chance.choice("AB"), _faults(chance, 0.4, tags)))


def _draw_other(chance: random.Random, tags: list[str]) -> Step:
    match chance.choice(("cli", "all", "all", "room", "refuse", "recovery", "recovery", "profile", "epilog")):
        case "cli":
            return "cli", chance.choice(("save", "top")), chance.choice(tags), _faults(chance, 0.4, tags)
        case "all":
            return "all", chance.choice(("submit", "hold", "release", "cancel", "cancel-now")), _faults(chance, 0.4, tags)
        case "room":
            return "room", chance.choice((None, 0, 1, 2, 3))
        case "refuse":
            return "refuse", chance.choice((1, 2, 3))
        case "recovery":
            return "recovery", *chance.choice(RECOVERY)
        case "profile":
            return "profile", *chance.choice(PROFILES)
        case _:
            return "epilog", chance.randrange(4), chance.choice((20.0, 400.0, 1500.0))


def _faults(chance: random.Random, share: float, tags: list[str] | None = None) -> Faults:
    """``tags``: something else may happen meanwhile, which has faults of its own but nothing within it."""
    meanwhile = _draw_step(chance, tags, nested=True) if tags is not None and chance.random() < 0.3 else None
    at = AT_SQUEUE if chance.random() < 0.5 else chance.randint(0, 12)
    if chance.random() >= share:
        return Faults(meanwhile=meanwhile, at=at)
    return Faults(
        kill=int(chance.expovariate(1 / 6)) if chance.random() < 0.6 else None, torn=chance.random() < 0.3,
        reads=chance.choice(READS) if chance.random() < 0.3 else "",
        submits=chance.choice(SUBMITS) if chance.random() < 0.4 else "", meanwhile=meanwhile, at=at)


_KINDS = ("advance", "pass", "cli", "node", "cut", "scancel", "preempt", "requeue", "forget", "vanish", "kill", "stop",
          "torn", "clock", "gate", "outage", "policy", "script", "damage", "again")
_WEIGHTS = list(itertools.accumulate((30, 14, 12, 4, 1, 4, 4, 3, 1, 1, 5, 3, 2, 3, 4, 3, 2, 1, 1, 2)))


def _draw_step(chance: random.Random, tags: list[str], *, nested: bool = False) -> Step:
    kind = chance.choices(_KINDS, cum_weights=_WEIGHTS)[0]
    within = None if nested else tags
    pick = chance.randrange(4)
    match kind:
        case "advance":
            return "advance", chance.choice((0.2, 1.0, 3.0, 20.0, 45.0, 70.0, 130.0, 400.0))
        case "pass":
            return "pass", chance.choice("AB"), _faults(chance, 0.4, within)
        case "cli":
            what = chance.choice(("hold", "release", "release", "cancel", "cancel-now", "submit", "submit",
                                  "update-7m", "update-9m"))
            return "cli", what, chance.choice(tags), _faults(chance, 0.3, within)
        case "node":
            return "node", chance.choice(("n1", "n2")), chance.random() < 0.5
        case "cut":
            return "cut", chance.choice(("n1", "n2"))
        case "preempt":
            return "preempt", pick, chance.choice((0.0, 5.0, 60.0))
        case "forget":
            return "forget", chance.random() < 0.5, chance.random() < 0.3
        case "vanish":
            return "vanish", pick, chance.random() < 0.3
        case "kill":
            return "kill", pick, chance.choice(("trainer", "supervisor", "both"))
        case "stop":
            return "stop", pick, chance.choice((60.0, 200.0))
        case "clock":
            return "clock", chance.choice("ABCx"), chance.choice((-900.0, -40.0, 0.0, 50.0, 900.0))
        case "policy":
            return "policy", chance.choice((30.0, 90.0)), chance.choice((0, 1, 2)), chance.choice((1, 3))
        case "torn" | "gate" | "damage" | "script":
            return kind, chance.choice(tags), pick
        case _:
            return kind, pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one start will do. ``mishap`` strikes ``after_s`` seconds into training."""

    mishap: str = ""                   # one of MISHAPS
    after_s: float = 0.0
    saves_on_notice: bool = True
    stops_on_notice: bool = True
    saves: bool = True
    write_s: float = 1.0


def draw_plan(seed: int, tag: str, start: int) -> Plan:
    """What befalls the n-th start of a run."""
    chance = random.Random(seed * 1009 + start * 31 + ord(tag[0]))
    mishap = chance.choice(MISHAPS) if chance.random() < 0.3 else ""
    return Plan(mishap=mishap, after_s=chance.choice((0.0, 10.0, 80.0, 140.0)), saves_on_notice=chance.random() < 0.8,
                stops_on_notice=chance.random() < 0.9, saves=chance.random() < 0.9, write_s=chance.choice((0.1, 2.0, 20.0)))


def draw_taking(seed: int, tag: str, ask: int) -> tuple[float, int | None]:
    """How long a supervisor is stopped between its gate and its start, and after how many instants it is killed that is
    taking the run: nearly always 0 and None."""
    chance = random.Random(seed * 2003 + ask * 37 + ord(tag[0]))
    kill = chance.randint(0, 8) if chance.random() < 0.04 else None
    return chance.choice((1.0, 20.0, 100.0)) if chance.random() < 0.08 else 0.0, kill
