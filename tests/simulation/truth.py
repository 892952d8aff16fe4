"""What really happened, told by nobody's record, and what must hold of it: the invariants of DESIGN section 8.

``check`` is asked after every step, the others at the moment itself: a run is taken, a checkpoint published, a fact noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.supervisor import Supervisor, Trainer

from orchestrator import folders
from orchestrator.checkpoints import newest_complete
from orchestrator.core.fold import fold
from orchestrator.model import After, Phase, Run, SubmissionState
from orchestrator.records import EndRecord, StartRecord

if TYPE_CHECKING:
    from simulation.world import Actor, World

# An actor whose clock is off by more than this may take a beating heart for a silent one; nothing can be asked of it.
CLOCK_OFF_S = 30.0
# sbatch's answer may be lost, and a controller may answer from a minute ago.
PATIENCE_S = 60.0
# After a SIGCONT the heart beats again within this time.
BEATS_AGAIN_S = 35.0
# A successor that was queued ahead must not go on after these: the next attempt is another, or there is none.
GIVES_NO_LEAVE = frozenset({"setup", "early", "out-of-memory", "no-result"})
GIVES_LEAVE_WITH_PROGRESS = frozenset({"crash", "killed", "hung"})
AT_REST = frozenset({"held", "cancel", "cancelled", "finished"})
STARTS_AGAIN = frozenset({"released", "reopened", "rolled_back"})
MAY_TRAIN = frozenset({SubmissionState.INTENDED, SubmissionState.QUEUED, SubmissionState.STARTED})
GATE_WAITS_S = 60.0
CLOCKS_STEP_S = 900.0                  # at most, and a journal has its times by its writer's clock


class Broken(AssertionError):
    """An invariant of DESIGN section 8 does not hold."""


@dataclass(frozen=True, slots=True)
class Moment:
    at: float
    offset_s: float                    # of the clock by which the journal has it


@dataclass(slots=True)
class Truth:
    """What really happened to one run."""

    newest_saved: int = -1
    newest_epoch: int = 0              # whoever has an older one may publish nothing
    newest_start: int = 0              # its epoch; a roll-back raises the epoch without a start
    goes_back: bool = False            # newer checkpoints are being set aside
    undone_epoch: int = 0              # what starts up to this one published counts for nothing
    undone_at: float = -1.0            # when somebody asked to go back last
    result_epoch: int = 0              # of the start that published a result last
    mistaken: set[int] = field(default_factory=set)    # starts noted as ended by one who could not know better
    starts: int = 0
    at_rest: str = ""                  # which event of AT_REST came last, and none of STARTS_AGAIN after it: not by the fold
    no_leave: dict[int, str] = field(default_factory=dict)     # by epoch: how it ended, if nobody may go on because of it
    scripts: set[str] = field(default_factory=set)     # every job.sh with which it was submitted
    asked: dict[str, Moment] = field(default_factory=dict)     # by submission: when the journal last spoke of its sbatch


@dataclass(slots=True)
class Truths:
    """Of all runs of one world."""

    world: World
    _of: dict[str, Truth] = field(default_factory=dict)
    _compared: int = 0                 # submissions that were compared with one another already

    def of(self, tag: str) -> Truth:
        if tag not in self._of:
            self._of[tag] = Truth()
        return self._of[tag]

    def run(self, tag: str) -> Run | None:
        """The run as its journal tells it now."""
        return self.world.memory.events(folders.run_dir(self.world.repository, tag)).run

    def same(self, tag: str, held: Run) -> None:
        """What a daemon holds is what the journal tells, or told then, if somebody else has appended since."""
        events = self.world.memory.events(folders.run_dir(self.world.repository, tag))
        if held != events.run and held != fold(events[:held.events]):
            raise Broken(f"{tag}: the daemon holds another run than the journal tells")

    # --- at the moment itself -------------------------------------------------------------------------------------------

    def taken(self, supervisor: Supervisor, start: StartRecord) -> None:
        """A supervisor has taken the run: had it any right to?"""
        tag, truth, run = supervisor.tag, self.of(supervisor.tag), self.run(supervisor.tag)
        if run is None or run.phase != Phase.ACTIVE:
            raise Broken(f"{tag}: a start was taken while the run is {run.phase if run else 'unknown'}")
        if truth.at_rest:
            raise Broken(f"{tag}: a start was taken after `{truth.at_rest}`")
        submission = run.submission(start.submission_id)
        if submission is None or submission.state not in MAY_TRAIN:
            raise Broken(f"{tag}: {start.submission_id} trains, which was {submission.state if submission else 'never made'}")
        if not run.begun and truth.starts <= len(run.attempts):        # no start that no pass has noted yet
            self._may_begin(run, supervisor.left_at)
        self._behind(supervisor, start, truth, run, submission.sequence)
        if start.epoch <= truth.newest_epoch:
            raise Broken(f"{tag}: epoch {start.epoch} after {truth.newest_epoch}")
        if (start.resume_step if start.resume_step is not None else -1) != truth.newest_saved:
            raise Broken(f"{tag}: resumes from {start.resume_step}, newest complete is {truth.newest_saved}")
        if (supervisor.run_dir / "job.sh").read_text() not in truth.scripts:
            raise Broken(f"{tag}: starts a job.sh with which it was never submitted")
        truth.newest_epoch = truth.newest_start = start.epoch
        truth.starts += 1

    def ended(self, supervisor: Supervisor, record: EndRecord, struck: str) -> None:
        """A supervisor has written its last record. ``struck``: the mishap that ended its trainer by itself. One that lived
        on when its node had failed, or that Slurm forgot, is another story to its successor."""
        start = supervisor.start
        assert start is not None
        if not supervisor.in_allocation:
            return
        before = start.resume_step if start.resume_step is not None else -1
        progressed = record.checkpoint_step is not None and record.checkpoint_step > before
        fruitless = struck in GIVES_LEAVE_WITH_PROGRESS and not progressed
        if fruitless or struck in GIVES_NO_LEAVE or record.trainer == "finished":
            self.of(supervisor.tag).no_leave[start.epoch] = struck or "finished"

    def _behind(self, supervisor: Supervisor, start: StartRecord, truth: Truth, run: Run, sequence: int) -> None:
        """May it take over from the newest start before it? Whoever queued it may have known how that one ended."""
        newest, world = truth.newest_start, self.world
        known = next((a.ended_sequence for a in run.attempts if a.epoch == newest), None)
        counts = newest in truth.no_leave and newest == truth.newest_epoch and newest not in truth.mistaken
        if counts and (known is None or known > sequence):
            raise Broken(f"{supervisor.tag}: job {start.job_id} goes on behind epoch {newest}: {truth.no_leave[newest]}")
        if any(host.offset_s or world.now - host.stepped_at < BEATS_AGAIN_S for host in world.hosts.values()):
            return                     # a heart that beats may look silent, and one that beat before its clock was put right
        for other in world.processes.values():
            if (isinstance(other, Supervisor) and other is not supervisor and other.tag == supervisor.tag
                    and other.start is not None and other.start.epoch == newest and other.job.job_id != supervisor.job.job_id
                    and other.stopped_until < world.now - BEATS_AGAIN_S
                    and (world.outage or world.slurm.jobs_by_id.get(other.job.job_id) is None)):
                raise Broken(f"{supervisor.tag}: job {start.job_id} takes over from job {other.job.job_id}, which is alive")

    def _may_begin(self, run: Run, left_at: float) -> None:
        """``left_at``: when its gate gave leave."""
        for tag, condition in run.spec.after_tags.items():
            other, truth = self.run(tag), self.of(tag)
            finished = other is not None and (other.phase == Phase.FINISHED or truth.result_epoch == truth.newest_epoch > 0
                                                   or left_at <= truth.undone_at)
            ended = other is not None and (other.over or other.failed)
            # one that had ended when the gate looked may have been submitted again by the time its leave is used
            ended |= (other is not None and other.released_sequence >= 0
                      and self.world.now - other.phase_since < GATE_WAITS_S + CLOCKS_STEP_S)
            if not finished and not (ended and condition == After.ENDED):
                raise Broken(f"{run.spec.tag}: trains before {tag} has {condition}")

    def publishes(self, trainer: Trainer, what: str) -> None:
        tag = trainer.run_dir.name
        if what == "result":
            self.of(tag).result_epoch = trainer.start.epoch
        if trainer.start.epoch != self.of(tag).newest_epoch:
            raise Broken(f"{tag}: epoch {trainer.start.epoch} publishes {what} under {self.of(tag).newest_epoch}")

    def saved(self, trainer: Trainer, step: int) -> None:
        truth = self.of(trainer.run_dir.name)
        truth.newest_saved = max(truth.newest_saved, step)

    def check_newest(self, tag: str) -> None:
        """Asked whenever a checkpoint was made or removed, and at the end."""
        if not self.of(tag).goes_back and self._newest(tag) != self.of(tag).newest_saved:
            raise Broken(f"{tag}: newest complete checkpoint is {self._newest(tag)}, {self.of(tag).newest_saved} was saved")

    def _newest(self, tag: str) -> int:
        newest = newest_complete(folders.checkpoint_dir(folders.run_dir(self.world.repository, tag)))
        return newest.step if newest else -1

    def raised(self, tag: str, epoch: int) -> None:
        """By a roll-back: nobody who lives on may publish any more."""
        self.of(tag).newest_epoch = max(self.of(tag).newest_epoch, epoch)

    def _went_back(self, tag: str, event: dict[str, Any]) -> None:
        """Where a run goes on after a roll-back, or after somebody or something has put an end to it."""
        truth, folder = self.of(tag), folders.checkpoint_dir(folders.run_dir(self.world.repository, tag))
        if event["event"] == "rolled_back" and self._newest(tag) != event["to_step"]:
            raise Broken(f"{tag}: went back to step {event['to_step']}, newest complete is {self._newest(tag)}")
        if event["event"] == "held" and (folder / event["reason"].split()[3]).exists():    # cannot go back: NAME is no ...
            raise Broken(f"{tag}: {event['reason']}, and it is there")
        truth.newest_saved = self._newest(tag)

    def noted(self, tag: str, event: dict[str, Any]) -> None:
        """A fact went into a journal: was it so when Slurm was asked?"""
        if event["event"] in AT_REST | STARTS_AGAIN:
            self.of(tag).at_rest = event["event"] if event["event"] in AT_REST else ""
        run, truth = self.run(tag), self.of(tag)
        goes_back = run is not None and run.phase == Phase.ROLLING_BACK
        if run is not None and truth.goes_back and not goes_back:
            self._went_back(tag, event)
        if event["event"] == "canary":
            self.world.struck[f"resume {event['state']}"] += 1
            if event["state"] == "broken" and "saved nothing" not in event["reason"]:
                raise Broken(f"{tag}: {event['reason']}, and it resumes well")
        if event["event"] == "rollback":
            truth.undone_at = self.world.now
        if event["event"] == "rolled_back":
            truth.undone_epoch = event["epoch"]
        if event["event"] == "finished" and truth.result_epoch < truth.undone_epoch:
            raise Broken(f"{tag}: finished by the result of epoch {truth.result_epoch}, and went back since")
        truth.goes_back = goes_back
        actor = self.world.actor
        if actor is None:
            return
        match event["event"]:
            case "queueing" | "queued":
                # by the journal's word: the machine may have slept between the clock and the disk
                self.of(tag).asked[event["submission_id"]] = Moment(event["t"] - actor.offset_s, actor.offset_s)
            case "ended":
                self._ended(tag, event, actor)
            case "dropped" | "lost" if event.get("why") != "stood down":
                self._gone(tag, event, actor)

    def _ended(self, tag: str, event: dict[str, Any], actor: Actor) -> None:
        alive = [p for p in self.world.processes.values()
                 if isinstance(p, Supervisor) and p.tag == tag and p.in_allocation and p.alive
                 and p.start is not None and p.start.epoch == event["epoch"]]
        if alive and actor.answered != "silent" and (actor.answered != "honest" or abs(actor.offset_s) >= CLOCK_OFF_S):
            self.of(tag).mistaken.add(event["epoch"])
        elif alive:
            raise Broken(f"{tag}: attempt {event['number']} noted as ended ({event['ending']}) while it runs")

    def _gone(self, tag: str, event: dict[str, Any], actor: Actor) -> None:
        """Patience is counted to the moment of the question, and so is what was so: a job that arrives, or is requeued by the
        site, between Slurm's answer and this line can be known to nobody."""
        if actor.answered == "silent":
            raise Broken(f"{tag}: {event} was concluded from Slurm's silence")
        submission_id, asked = event["submission_id"], self.of(tag).asked.get(event["submission_id"])
        if asked is not None and asked.offset_s == actor.offset_s and actor.asked_at - asked.at < PATIENCE_S and (
                event["event"] == "lost" or event["why"] == "gone"):
            raise Broken(f"{tag}: {event} was concluded {actor.asked_at - asked.at:.0f} s after its sbatch")
        if actor.answered != "honest" or abs(actor.offset_s) >= CLOCK_OFF_S:
            return
        for job in self.world.slurm.jobs_by_id.values():
            if job.comment.endswith(":" + submission_id) and not job.ended and not job.doubled and job.job_id in actor.known:
                raise Broken(f"{tag}: submission {submission_id} {event['event']}, and job {job.job_id} is {job.state}")

    def intended(self, tag: str, submission_id: str) -> None:
        """sbatch is called: the journal said so before."""
        self._may_act(f"sbatch of {submission_id}")
        run = self.run(tag)
        submission = run.submission(submission_id) if run is not None else None
        if submission is None or submission.state != SubmissionState.INTENDED:
            raise Broken(f"{tag}: sbatch of {submission_id} without an intent in the journal")

    def requested(self, kind: str, job_id: str) -> None:
        """scancel or scontrol is called: the journal said so before."""
        self._may_act(f"{kind} of job {job_id}")
        runs = [run for tag in self._of if (run := self.run(tag)) is not None]
        if not any(f"{kind} {job_id}" in run.requests for run in runs):
            raise Broken(f"{kind} of job {job_id} without an intent in the journal")
        self._is_theirs(kind, job_id, runs)
        for run in runs:
            if kind == "cancel" and run.phase == Phase.CANCELLING and run.live is not None and run.live.job_id == job_id:
                self._in_order(run)

    def _in_order(self, run: Run) -> None:
        """The live job is cancelled: its successors were before it, as far as Slurm's answer showed any."""
        actor = self.world.actor
        live = self.world.slurm.jobs_by_id.get(int(run.live.job_id)) if run.live is not None else None
        if actor is None or actor.answered != "honest" or (
                live is not None and run.live is not None and not live.comment.endswith(":" + run.live.submission_id)):
            return                     # the number of the live job is another's since Slurm has lost its state
        for submission in run.waiting:
            job = self.world.slurm.jobs_by_id.get(int(submission.job_id or 0))
            if (job is not None and job.job_id in actor.known and job.comment.endswith(":" + submission.id) and not job.ended
                    and f"cancel {submission.job_id}" not in run.requests):
                raise Broken(f"{run.spec.tag}: the live job is cancelled before its successor, job {submission.job_id}")

    def _is_theirs(self, kind: str, job_id: str, runs: list[Run]) -> None:
        """Ids come twice when Slurm has lost its state: nobody else's job is touched, as far as Slurm's answer told."""
        actor, job = self.world.actor, self.world.slurm.jobs_by_id.get(int(job_id))
        if job is None or job.ended or actor is None or actor.answered != "honest" or job.submitted_at > actor.asked_at:
            return
        submission_id = job.comment.rpartition(":")[2]
        if not any(run.submission(submission_id) is not None and f"{kind} {job_id}" in run.requests for run in runs):
            raise Broken(f"{kind} of job {job_id}, which is another's: {job.comment}")

    def _may_act(self, what: str) -> None:
        actor = self.world.actor
        if actor is not None and actor.answered == "silent":
            raise Broken(f"{what}, although Slurm did not answer what there is")

    def answered(self, actor: Actor) -> None:
        """It has acted and was not killed: what sbatch answered stands in the journal."""
        for tag, submission_id in actor.answers:
            run = self.run(tag)
            if run is None or run.submission(submission_id) is None or submission_id in {
                    s.id for s in run.submissions if s.state == SubmissionState.INTENDED}:
                raise Broken(f"{tag}: sbatch of {submission_id} was answered, and the journal does not know")

    # --- at every instant -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What must hold at every instant."""
        training: dict[str, list[Trainer]] = {}
        for process in self.world.processes.values():
            if isinstance(process, Trainer) and process.training and process.supervisor.alive and (
                    process.supervisor.in_allocation):
                training.setdefault(process.run_dir.name, []).append(process)
        for tag, inside in training.items():
            if len(inside) > 1:
                raise Broken(f"{tag}: two attempts train, jobs {[t.start.job_id for t in inside]}")
            run = self.run(tag)
            truth, epoch = self.of(tag), inside[0].start.epoch
            if run is not None and run.phase == Phase.FINISHED and epoch > truth.result_epoch > 0:
                continue               # it took over in the moment in which the result was published, and is to be cancelled
            if run is not None and run.over and epoch not in truth.mistaken:
                raise Broken(f"{tag}: job {inside[0].start.job_id} trains, and the run is {run.phase}")
        if len(self.world.slurm.accepted) != self._compared:
            self._compared = len(self.world.slurm.accepted)
            self._compare_submissions()

    def _compare_submissions(self) -> None:
        by_comment: dict[str, int] = {}
        for job_id, comment in self.world.slurm.accepted:
            if comment in by_comment:
                raise Broken(f"jobs {by_comment[comment]} and {job_id} are one submission: {comment}")
            by_comment[comment] = job_id
        numbers = [comment.rpartition(":")[0] for comment in by_comment]
        if len(set(numbers)) < len(numbers):
            raise Broken(f"an attempt number was submitted twice: {sorted(numbers)}")
