"""An actor's line to Slurm: it can be silent, answer from a minute ago, or lose what it carries."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.schedule import AT_SQUEUE
from simulation.slurm import read_options

from orchestrator.errors import SlurmUnreachable, SubmissionRejected
from orchestrator.sightings import JobSeen

if TYPE_CHECKING:
    from simulation.world import Actor, World

NO_REPLY = "gave no answer within 30 s"


class Line:
    """Obeys ``slurm.protocol.Slurm``."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor
        self._mute = False

    def jobs(self, commented: tuple[str, ...] = ("",)) -> list[JobSeen]:
        world, actor = self._world, self._actor
        actor.answered, actor.asked_at = "silent", world.now
        if self._silent() or self._strikes("reads", "silent", "squeue: no answer"):
            raise SlurmUnreachable(f"squeue {NO_REPLY}")
        answer, actor.answered = world.slurm.jobs(commented), "honest"
        actor.known = frozenset(job.job_id for job in world.slurm.jobs_by_id.values() if not job.ended)
        if self._strikes("reads", "stale", "squeue: an answer from a minute ago"):
            older = [jobs for at, jobs in world.history if at <= world.now - 60]
            answer, actor.answered = (older[-1] if older else []), "stale"
        if actor.faults.at == AT_SQUEUE:
            world.meanwhile(actor)
        self._mute = self._strikes("reads", "then-silent", "Slurm silent from squeue's answer on")
        return answer

    def job(self, job_id: str) -> JobSeen | None:
        if self._silent():
            raise SlurmUnreachable(f"squeue {NO_REPLY}")
        return self._world.slurm.job(job_id)

    def offers(self) -> Any:
        if self._silent():
            raise SlurmUnreachable(f"sinfo {NO_REPLY}")
        return self._world.slurm.offers()

    def nodes(self, names: str) -> Any:
        if self._silent():
            raise SlurmUnreachable(f"scontrol {NO_REPLY}")
        return self._world.slurm.nodes(names)

    def executions(self, job_ids: Collection[str]) -> Any:
        """Accounting is another daemon, and away now and then."""
        if self._silent() or self._world.seed % 3 == 0:
            raise SlurmUnreachable("sacct: error: Problem talking to the database: Connection refused")
        self._world.struck["accounting asked"] += 1
        return self._world.slurm.executions(job_ids)

    def submit(self, script: Path, environment: Any) -> str:
        world = self._world
        world.instant()
        text = script.read_text()
        _, _, tag, _, submission_id = read_options(text)["comment"].split(":")
        world.truths.intended(tag, submission_id)
        if self._silent() or self._strikes("submits", "lost", "sbatch lost"):
            raise SlurmUnreachable(f"sbatch {NO_REPLY}")
        if self._strikes("submits", "rejected", "sbatch refused"):
            self._actor.answers.append((tag, submission_id))
            raise SubmissionRejected("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        if self._strikes("submits", "delayed", "sbatch delayed"):
            world.late.append((world.now + 5.0 + world.seed % 120, text, dict(environment)))
            world.late.sort(key=lambda item: item[0])
            raise SlurmUnreachable(f"sbatch {NO_REPLY}")
        job_id = world.slurm.accept(text, environment)
        if self._strikes("submits", "doubled", "sbatch doubled"):
            world.slurm.jobs_by_id[int(job_id)].doubled = True
            job_id = world.slurm.accept(text, environment, doubled=True)
        if self._strikes("submits", "reply-lost", "sbatch done, its reply lost"):
            raise SlurmUnreachable(f"sbatch {NO_REPLY}")
        self._actor.answers.append((tag, submission_id))
        return job_id

    def cancel(self, job_id: str) -> None:
        self._change("cancel", job_id)

    def stop(self, job_id: str) -> None:
        self._change("stop", job_id)

    def set_dependency(self, job_id: str, dependency: str) -> None:
        self._change("repoint", job_id, dependency)

    def hold(self, job_id: str) -> None:
        self._change("hold", job_id)

    def release(self, job_id: str) -> None:
        self._change("release", job_id)

    def change(self, job_id: str, **wanted: Any) -> None:
        self._change("change", job_id, **wanted)

    def top(self, job_id: str) -> None:
        self._change("top", job_id)

    def _change(self, what: str, *given: str, **wanted: Any) -> None:
        """Of a Slurm that fell silent after its squeue, every second one did what it was told all the same."""
        world, slurm = self._world, self._world.slurm
        world.instant()
        world.truths.requested(what, given[0])
        if world.refused and not self._silent():
            world.refused -= 1
            raise SubmissionRejected(f"{what}: error: Access/permission denied")
        if not self._silent() or (self._mute and not world.outage and world.seed % 2):
            (slurm.set_dependency if what == "repoint" else getattr(slurm, what))(*given, **wanted)
        if self._silent():
            raise SlurmUnreachable(f"{what} {NO_REPLY}")

    def _silent(self) -> bool:
        return self._mute or self._world.outage

    def _strikes(self, field: str, fault: str, words: str) -> bool:
        """Whether this fault is the actor's now. One of sbatch strikes once."""
        actor = self._actor
        if getattr(actor.faults, field) != fault or (field == "submits" and actor.submitted):
            return False
        actor.submitted = actor.submitted or field == "submits"
        self._world.struck[words] += 1
        return True
