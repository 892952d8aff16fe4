"""After a schedule all faults stop: within a bounded number of passes every run comes to rest, and nothing of it is left."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from simulation.campaign import Campaign
from simulation.supervisor import Trainer
from simulation.truth import Broken

from orchestrator import folders
from orchestrator.control.ports import read_run, tags_with_runs
from orchestrator.core.fold import fold
from orchestrator.core.pending import met
from orchestrator.journal import read as read_journal
from orchestrator.model import After, Phase, Run

PASSES_UNTIL_SETTLED = 60


def settle(campaign: Campaign) -> None:
    """Raises Broken where a run does not come to rest, or is another than its journal tells."""
    world = campaign.world
    world.calm, world.outage, world.refused, world.slurm.jobs_at_most = True, False, 0, None
    for actor in campaign.actors.values():
        actor.offset_s = 0.0
    for host in world.hosts.values():
        host.step_clock(0.0, world.now)
        if not world.slurm.up[host.name]:
            world.slurm.node_up(host.name)
    for process in world.processes.values():
        if isinstance(process, Trainer):
            process.plan = replace(process.plan, stops_on_notice=True)
    for _ in range(PASSES_UNTIL_SETTLED):
        campaign.say("settling")
        campaign.do(("pass", "A"))
        world.truths.check()
        if _at_rest(campaign):
            break
        world.advance(120.0)
        world.truths.check()
    else:
        raise Broken("not at rest after faults have stopped: " + "; ".join(_where(campaign)))
    _compare(campaign)
    _ask_as_wanted(campaign)


def _runs(campaign: Campaign) -> dict[str, Run]:
    """Those whose first event was ever written whole; a submit killed before that has done nothing."""
    return {tag: run for tag in tags_with_runs(campaign.world.repository)
            if (run := campaign.world.truths.run(tag)) is not None}


def _at_rest(campaign: Campaign) -> bool:
    world, runs = campaign.world, _runs(campaign)
    if world.late:
        return False
    resting = {tag for tag, run in runs.items() if run.live is None and (run.over or run.phase == Phase.HELD)}
    for tag, run in runs.items():
        behind = [other for other, condition in run.spec.after_tags.items()
                  if other in runs and not met(condition, runs[other])]
        lost = any(run.spec.after_tags[other] == After.FINISHED
                   and (runs[other].failed or runs[other].phase == Phase.CANCELLED) for other in behind)  # it is held itself
        if run.live is None and run.phase == Phase.ACTIVE and behind and not lost and resting.issuperset(behind):
            resting.add(tag)           # waits for a run that somebody holds
    jobs = [job for job in world.slurm.jobs_by_id.values() if not job.ended and not (
        job.state == "PENDING" and (job.held or job.dependency))]
    over = [job for job in world.slurm.jobs_by_id.values() if not job.ended and any(
        job.name.startswith(f"{tag}@") and run.over for tag, run in runs.items())]
    return len(resting) == len(runs) and not jobs and not over


def _ask_as_wanted(campaign: Campaign) -> None:
    """What a person changed has come to every job that waits for it, but to one that was taken back from Slurm, of which
    nobody knows what was wanted then. A wish stands while a job is not seen."""
    jobs = campaign.world.slurm.jobs_by_id
    for tag, run in _runs(campaign).items():
        if run.change is not None and not run.waiting:
            raise Broken(f"{tag}: what was asked for is neither done nor refused: {run.change}")
        run_dir = folders.run_dir(campaign.world.repository, tag)
        copy = hashlib.sha256((run_dir / "job.sh").read_bytes()).hexdigest()
        if run.change is None and not run.over and copy != run.spec.script_sha256:
            raise Broken(f"{tag}: its copy of job.sh is another than the journal tells")
        events = campaign.world.memory.events(run_dir)
        adopted = {event["submission_id"] for event in events if event["event"] == "queueing" and event.get("adopted")}
        for submission in run.waiting:
            job = jobs.get(int(submission.job_id or 0))
            if job is None or job.state != "PENDING" or submission.id in adopted or run.change:
                continue
            if job.time_s != run.spec.profile.time_s:
                raise Broken(f"{tag}: job {job.job_id} asks for {job.time_s:g} s, its run for {run.spec.profile.time_s:g} s")


def _where(campaign: Campaign) -> list[str]:
    lines = [f"{tag} {run.phase} {run.phase_reason!r} live={run.live is not None} "
             f"waiting={[(s.id, str(s.state), s.job_id) for s in run.waiting]}" for tag, run in _runs(campaign).items()]
    return lines + [f"job {job.job_id} {job.state} {job.comment} {job.dependency}"
                    for job in campaign.world.slurm.jobs_by_id.values() if not job.ended]


def _compare(campaign: Campaign) -> None:
    """A fold from the first line to the last, by the very code, gives the run that was held all along."""
    repository, most = campaign.world.repository, 8 + 3 * len(campaign.schedule.steps)
    for tag, held in _runs(campaign).items():
        events, _ = read_journal(folders.run_dir(repository, tag))
        if not fold(events) == read_run(repository, tag) == held:
            raise Broken(f"{tag}: the fold of its journal is another run than the one that was held")
        campaign.world.truths.check_newest(tag)
        folder = folders.checkpoint_dir(folders.run_dir(repository, tag))
        aside = {path.name for path in folder.iterdir() if path.name.startswith("set-aside-")} if folder.is_dir() else set()
        if lost := [name for name in aside - held.set_aside.keys() if list((folder / name).iterdir())]:
            raise Broken(f"{tag}: nobody is shown what was set aside in {lost}")
        if len(held.attempts) > most or len(held.submissions) > 2 * most:
            raise Broken(f"{tag}: {len(held.attempts)} attempts, {len(held.submissions)} submissions")
