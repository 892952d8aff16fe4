"""What a pass needs from outside, as one value: the repository, a Slurm, a clock and a source of ids."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator import folders, journal
from orchestrator.config.campaign import campaign_path
from orchestrator.config.notify import NOBODY, Notify
from orchestrator.core.fold import fold
from orchestrator.core.observation import NodeSeen
from orchestrator.core.script import COMMENT_PREFIX, repository_key
from orchestrator.errors import (
    JournalError,
    NoAccounting,
    OrchError,
    SlurmError,
    SlurmUnreachable,
    StorageError,
    UnknownTag,
    storage_error,
)
from orchestrator.model import Policy, Run
from orchestrator.planner import exposure
from orchestrator.planner.pooled import NOTHING_COUNTED, Counted
from orchestrator.sightings import Execution, JobSeen
from orchestrator.slurm.protocol import NodeOffer, Slurm

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything below gets its world from here, never from a global."""

    repository: Path
    slurm: Slurm
    slurm_name: str = ""               # the slurm.conf in use; "": the system's. A run is of the Slurm it was submitted to
    policy: Policy = field(default_factory=Policy)  # orch.yaml's, as it is now
    notify: Notify = NOBODY            # likewise: who is to be told
    accounting: bool = True            # False: this Slurm is known to keep no accounts
    clock: Callable[[], float]
    new_id: Callable[[], str]


@dataclass(slots=True)
class Answers:
    """What Slurm said of nodes, asked where somebody needs it and once for all runs; of a Slurm that did not answer nothing
    more is asked: with every run's question timing out a pass would take an hour. Likewise what its accounting, another
    daemon, said of jobs that it has forgotten: ``forgotten`` are those of all runs of the pass."""

    silent: bool = False
    forgotten: Set[str] = frozenset()
    accounting_silent: str = ""        # why accounting did not answer
    _offers: list[NodeOffer] | None = None
    _nodes: dict[str, list[NodeSeen]] = field(default_factory=dict)
    _executions: dict[str, list[Execution]] = field(default_factory=dict)   # by job id
    _no_accounting: bool = False

    def executions(self, slurm: Slurm, job_ids: Set[str]) -> list[Execution]:
        """Of these jobs; none where there is no accounting, or where it does not answer: an ending waits for nobody."""
        unasked = (job_ids | self.forgotten) - self._executions.keys() if not job_ids <= self._executions.keys() else set()
        if unasked and not self._no_accounting and not self.accounting_silent:
            try:
                found = slurm.executions(sorted(unasked, key=int))
                self._executions |= {job_id: [one for one in found if one.job_id == job_id] for job_id in unasked}
            except NoAccounting:
                self._no_accounting = True
            except SlurmError as error:
                self.accounting_silent = error.message
        return [one for job_id in job_ids for one in self._executions.get(job_id, ())]

    def offers(self, slurm: Slurm) -> list[NodeOffer]:
        """Raises SlurmError."""
        if self._offers is None:
            self._offers = self._ask(slurm.offers)
        return self._offers

    def nodes(self, slurm: Slurm, names: str) -> list[NodeSeen]:
        """Raises SlurmError."""
        if names not in self._nodes:
            self._nodes[names] = self._ask(lambda: slurm.nodes(names))
        return self._nodes[names]

    def _ask(self, question: Callable[[], list[_Told]]) -> list[_Told]:
        if self.silent:
            raise SlurmUnreachable("it did not answer just now")
        try:
            return question()
        except SlurmError:
            self.silent = True
            raise


@dataclass(slots=True)
class Platform:
    """What each run showed of the platform, by the journals as they were when somebody first asked: counted once for all
    runs of a pass."""

    _of: dict[str, Counted] | None = None
    _all: Counted = NOTHING_COUNTED

    def others(self, repository: Path, tag: str, now: float) -> Counted:
        """Of all runs but this one. A damaged journal is left out; the pass complains of it."""
        if self._of is None:
            self._of = {run.spec.tag: exposure.platform(exposure.exposed(run, now)) for run in runs_now(repository)[0]}
            self._all = sum(self._of.values(), NOTHING_COUNTED)
        return self._all - self._of.get(tag, NOTHING_COUNTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What Slurm said in one squeue: all our jobs, or why it said nothing. And what was found since that all runs share."""

    asked_at: float
    jobs: tuple[JobSeen, ...] = ()
    silent: str | None = None
    hint: str = ""
    answers: Answers = field(default_factory=Answers)
    platform: Platform = field(default_factory=Platform)


def ask_slurm(ports: Ports, repositories: frozenset[str] | None = None) -> Snapshot:
    """The one squeue of a pass. Slurm's silence is a value here, since a pass goes on with what it can. ``repositories`` are
    the runs' own, which a repository that was moved keeps beside its new path; None: whatever orch has in Slurm."""
    asked_at = ports.clock()
    keys = [""] if repositories is None else sorted(
        f"{repository_key(path)}:" for path in {*repositories, str(ports.repository)})
    try:
        return Snapshot(asked_at=asked_at, jobs=tuple(ports.slurm.jobs(tuple(COMMENT_PREFIX + key for key in keys))))
    except SlurmError as error:
        return Snapshot(asked_at=asked_at, silent=error.message, hint=error.hint)


def tags_with_runs(repository: Path) -> list[str]:
    """Tags that have a journal, by name."""
    try:
        names = os.listdir(folders.runs_dir(repository))
    except FileNotFoundError:
        return []
    return sorted(name for name in names if journal.journal_path(folders.run_dir(repository, name)).exists())


def read_run(repository: Path, tag: str) -> Run | None:
    """The run as its journal tells it; None if there is none. Raises JournalError for a damaged one."""
    events, _ = journal.read(folders.run_dir(repository, tag))
    return fold(events)


def job_tags(repository: Path) -> list[str]:
    """Tags that have a job folder, by name."""
    jobs = repository / "jobs"
    return sorted(path.name for path in jobs.iterdir() if path.is_dir()) if jobs.is_dir() else []


def require_run(repository: Path, tag: str) -> Run:
    """The run. Raises UnknownTag with the nearest one suggested, JournalError for a journal that lost all it held."""
    run = read_run(repository, tag)
    if run is None and (path := journal.journal_path(folders.run_dir(repository, tag))).exists():
        raise JournalError(f"{path}: has no whole event in it",
                           hint=f"restore it from a copy; or `orch submit {tag}` begins it anew, with its checkpoints and "
                                "with the jobs that Slurm still has of it")
    if run is None and campaign_path(repository, tag).is_file():
        raise UnknownTag(f"{tag} is a campaign", hint=f"name one of its runs; `orch status {tag}` shows them")
    if run is None and folders.job_dir(repository, tag).is_dir():
        raise UnknownTag(f"jobs/{tag} has never been submitted", hint=f"`orch submit {tag}`")
    if run is None:
        raise unknown_tag(tag, tags_with_runs(repository), "run")
    return run


# Of each journal the newest state that this process read: of hundreds of runs most are over.
_known: dict[tuple[Path, str], tuple[tuple[int, int, int], Run]] = {}


def known_run(repository: Path, tag: str) -> tuple[Run, int]:
    """The run and the length of the journal that tells of it, which is not read again while it has not changed. As
    ``require_run``; StorageError too."""
    try:
        found = journal.journal_path(folders.run_dir(repository, tag)).stat()
    except OSError as error:
        raise storage_error(error) from error
    version, known = (found.st_ino, found.st_size, found.st_mtime_ns), _known.get((repository, tag))
    if known is None or known[0] != version:
        known = _known[repository, tag] = version, require_run(repository, tag)
    return known[1], found.st_size


def unknown_tag(tag: str, known: list[str], kind: str) -> UnknownTag:
    near = difflib.get_close_matches(tag, known, 1, cutoff=0.5)
    if near:
        hint = f'did you mean "{near[0]}"?'
    elif known:
        hint = f"there are: {', '.join(known[:10])}" + (", ..." if len(known) > 10 else "")
    else:
        hint = "there is none yet: `orch new TAG` makes one, `orch submit TAG` queues it"
    return UnknownTag(f'no {kind} "{tag}"', hint=hint)


def runs_now(repository: Path) -> tuple[list[Run], list[OrchError]]:
    """All runs, and what could not be read; one damaged journal never hides the others."""
    runs: list[Run] = []
    errors: list[OrchError] = []
    for tag in tags_with_runs(repository):
        try:
            runs.append(known_run(repository, tag)[0])
        except (JournalError, StorageError) as error:
            errors.append(error)
    return runs, errors
