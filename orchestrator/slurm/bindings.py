"""The jobs of a pass read through pyslurm instead of squeue; everything else by commands. Only where orch.yaml asks for it.

pyslurm is imported in no process of orch's own: ``reader`` is started as a command is, with its time limit, its environment
and its words of trouble. So a libslurm that hangs or gives up costs a pass what a hanging squeue costs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.errors import SlurmUnreachable, SubmissionRejected
from orchestrator.sightings import JobSeen
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.fields import NOTHING
from orchestrator.slurm.versions import version_of
from orchestrator.states import state_word

_READER = Path(__file__).with_name("reader.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmBindings(SlurmCommands):
    """As the commands, but for the jobs."""

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        return [_job(row) for row in self.read("user", *commented)]

    def job(self, job_id: str) -> JobSeen | None:
        try:
            found = _job(self.read("job", job_id))
        except SubmissionRejected as error:
            if "invalid job id" in error.message.lower():
                return None
            raise SlurmUnreachable(error.message) from error
        return found if found.job_id == job_id else None

    def read(self, *words: str) -> Any:
        """What ``reader`` prints last; SlurmUnreachable without an answer, SubmissionRejected with words of trouble."""
        *_, last = ["", *self._run(sys.executable, "-P", str(_READER), *words).splitlines()]
        try:
            return json.loads(last)
        except ValueError:
            raise SlurmUnreachable(f"pyslurm's reader printed something else than it was asked for: {last[:200]!r}") from None


def _job(row: dict[str, Any]) -> JobSeen:
    """What says that there is nothing is as empty as in ``fields.parse_jobs``."""
    free = ("reason", "comment", "nodes", "dependency", "gres")
    empty = dict.fromkeys((name for name in free if row[name] in NOTHING), "")
    return JobSeen(**{**row, **empty, "state": state_word(row["state"])})


def choose(commands: SlurmCommands) -> tuple[SlurmCommands, str]:
    """The bindings where they fit this Slurm, else the commands, and why. Raises SlurmUnreachable while nobody can say."""
    otherwise = "jobs are read with squeue"
    try:
        built_for = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return commands, f"pyslurm is not installed beside orch (pip install 'orch-slurm[pyslurm]'): {otherwise}"
    running = commands.site().version
    if version_of(built_for) != version_of(running):
        return commands, f"pyslurm {built_for} is not for the Slurm that runs here, {running}: {otherwise}"
    bindings = SlurmBindings(conf=commands.conf, timeout_s=commands.timeout_s, hint=commands.hint)
    try:
        bindings.read("version")
    except SubmissionRejected as error:
        return commands, f"pyslurm {built_for} cannot be used here ({error.message[-200:]}): {otherwise}"
    return bindings, ""
