"""One schedule over the simulated world: each kind of step, carried out; after every step all of DESIGN section 8 holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.line import Line
from simulation.schedule import NONE, Faults, Schedule, Step, asks_the_past
from simulation.supervisor import Killed, Supervisor
from simulation.truth import Broken
from simulation.world import BEGAN_AT, Actor, World

from orchestrator import folders, journal
from orchestrator.attempt.take import Identity
from orchestrator.attempt.witness import Pulse, ask_once
from orchestrator.checkpoints import complete_checkpoints
from orchestrator.control import campaign as together
from orchestrator.control import requests
from orchestrator.control.passes import PassReport, pass_over_all
from orchestrator.control.ports import Ports
from orchestrator.control.submit import submit
from orchestrator.control.update import Wish, top, update
from orchestrator.core.gate import Leave
from orchestrator.errors import OrchError, Refused, RunLocked, SlurmError
from orchestrator.model import After, Ending, Phase, Policy, Profile, RunSpec
from orchestrator.records import AttemptSpec
from orchestrator.rollback import set_aside_checkpoints

POLICY = Policy(checkpoint_interval_s=60.0, exclude_share=0.5)  # of two nodes: one may be left out
PROFILE = Profile(name="p", gres="gpu:1", time_s=420, lead_s=60)
TOGETHER = "all"                       # the campaign of which all runs are


@dataclass(slots=True)
class Campaign:
    """One schedule being run in a fresh repository. ``A`` and ``B`` are daemons, ``C`` is a person."""

    schedule: Schedule
    world: World
    trace: Callable[[str], None] | None = None
    policy: Policy = POLICY
    profile: Profile = PROFILE
    actors: dict[str, Actor] = field(default_factory=lambda: {name: Actor(name) for name in "ABC"})
    _acting: list[str] = field(default_factory=list)
    _ids: int = 0
    _past: bool = True                 # squeue may be asked to answer from a minute ago

    def play(self) -> None:
        self._past = any(map(asks_the_past, self.schedule.steps))
        for tag, _ in self.schedule.runs:
            folders.job_dir(self.world.repository, tag).mkdir(parents=True)
            self._job_script(tag).write_text("true\n")
        for step in self.schedule.steps:
            self.say(step)
            self.do(step)
            self.world.truths.check()
            if self._past:
                self.world.history.append((self.world.now, self.world.slurm.jobs()))

    def say(self, step: object) -> None:
        if self.trace is not None:
            self.trace(f"{self.world.now - BEGAN_AT:9.1f}  {'  ' * len(self._acting)}{step}")

    def do(self, step: Step) -> None:
        getattr(self, f"_{step[0]}")(*step[1:])

    def _struck(self, fault: str) -> None:
        self.world.struck[fault] += 1

    # --- actors ---------------------------------------------------------------------------------------------------------

    def _act(self, name: str, faults: Faults, act: Callable[[Ports], Any]) -> Any:
        """What ``act`` gives; None if the actor was killed on the way, or is in the middle of another act."""
        world, actor = self.world, self.actors[name]
        if name in self._acting:
            return None
        before, world.actor = world.actor, actor
        actor.begin(faults, self._meanwhile)
        self._acting.append(name)
        try:
            done = act(Ports(repository=world.repository, slurm=Line(world, actor), policy=self.policy,
                             clock=lambda: world.now + actor.offset_s, new_id=self._new_id))
            world.truths.answered(actor)
            return done
        except Killed:
            self.say(f"{name} is killed")
            return None
        finally:
            self._acting.pop()
            world.actor = before

    def _new_id(self) -> str:
        self._ids += 1
        return f"s{self._ids}"

    def _meanwhile(self, step: Step) -> None:
        self.say(f"meanwhile {step}")
        self.do(step)

    def _pass(self, name: str, faults: Faults = NONE) -> None:
        report: PassReport | None = self._act(name, faults, pass_over_all)
        for one in report.runs if report is not None else ():
            for line in one.lines:
                self.say(f"  {name} {one.tag}: {line}")
            if one.error is not None and not isinstance(one.error, SlurmError) and (
                    "no whole event" not in one.error.message):    # a submit killed before its first line was whole
                raise Broken(f"a pass over {one.tag} failed: {one.error}; {' '.join(one.lines[-12:])}")
            if one.run is not None:
                self.world.truths.same(one.tag, one.run)

    def _cli(self, what: str, tag: str, faults: Faults = NONE) -> None:
        def act(ports: Ports) -> None:
            match what:
                case "hold":
                    requests.hold(ports, tag)
                case "release":
                    requests.release(ports, tag)
                case "cancel" | "cancel-now":
                    requests.cancel(ports, tag, now=what == "cancel-now")
                case "update-7m" | "update-9m":
                    minutes = what.removeprefix("update-")
                    update(ports, tag, Wish(time=minutes, memory="2G" if minutes == "9m" else "1G", nice=int(minutes[0])))
                case "save":
                    requests.save(ports, tag)
                case "top":
                    top(ports, tag)
                case "update-script":
                    self.world.truths.of(tag).scripts.add(self._job_script(tag).read_text())
                    update(ports, tag, Wish(script=True))
                case _:
                    self.world.truths.of(tag).scripts.add(self._job_script(tag).read_text())
                    self._refused_without_again(ports, tag)
                    submit(ports, self._spec(tag), again=True)
        self._person(what, faults, act)

    def _person(self, what: str, faults: Faults, act: Callable[[Ports], Any]) -> None:
        try:
            self._act("C", faults, act)
        except OrchError as error:
            self.say(f"{type(error).__name__}: {error}")
        self._struck(f"person: {what}")

    def _all(self, what: str, faults: Faults = NONE) -> None:
        """As of a campaign: whatever goes wrong with one run, all of them are asked."""
        def act(ports: Ports) -> None:
            match what:
                case "hold":
                    together.hold_campaign(ports, TOGETHER)
                case "release":
                    together.release_campaign(ports, TOGETHER)
                case "submit":
                    self._submit_all(ports)
                case _:
                    together.cancel_campaign(ports, TOGETHER, now=what == "cancel-now")
            self._all_were_asked(what)
        try:
            self._act("C", faults, act)
        except SlurmError as error:
            self.say(f"{type(error).__name__}: {error}")
            self._all_were_asked(what)
        except OrchError as error:
            self.say(f"{type(error).__name__}: {error}")
        self._struck(f"person: {what} of all")

    def _submit_all(self, ports: Ports) -> None:
        there = {tag: self.world.truths.run(tag) for tag, _ in self.schedule.runs}
        specs = {tag: self._spec(tag) for tag, run in there.items() if run is None}
        for tag in specs:
            self.world.truths.of(tag).scripts.add(self._job_script(tag).read_text())
        together.submit_campaign(ports, together.Checked(name=TOGETHER, specs=specs, members=tuple(
            together.Member(tag=tag, after={}, run=run) for tag, run in there.items())), lambda run, already: None)

    def _all_were_asked(self, what: str) -> None:
        for tag, _ in self.schedule.runs:
            run = self.world.truths.run(tag)
            if run is not None and (
                    run.phase == Phase.ACTIVE if what == "hold" else run.held_by == "user" if what == "release"
                    else what != "submit" and not run.over and run.phase != Phase.CANCELLING):
                raise Broken(f"{tag}: {run.phase} by {run.held_by or 'nobody'} after `{what}` of all")

    def _back(self, tag: str, pick: int, faults: Faults = NONE) -> None:
        """To any of the complete checkpoints, or of those that were set aside."""
        run, folder = self.world.truths.run(tag), folders.checkpoint_dir(folders.run_dir(self.world.repository, tag))
        if run is None or not folder.is_dir():
            return
        there = sorted([*(one.path.name for one in complete_checkpoints(folder)),
                        *set_aside_checkpoints(folder, run.set_aside)])
        if not there:
            return
        self._person("rolls back", faults, lambda ports: requests.rollback(
            ports, tag, step=None, ago_s=None, name=there[pick % len(there)], by="C", why="a spike"))

    def _refused_without_again(self, ports: Ports, tag: str) -> None:
        run = self.world.truths.run(tag)
        if run is not None and run.over:
            try:
                submit(ports, self._spec(tag))
            except Refused:
                return
            raise Broken(f"{tag} is {run.phase}, and was submitted again without --again")

    def _job_script(self, tag: str) -> Any:
        return folders.job_dir(self.world.repository, tag) / "job.sh"

    def _spec(self, tag: str) -> RunSpec:
        truths = self.world.truths
        after = {other: After.ENDED if (self.schedule.seed + ord(other) + ord(tag)) % 2 else After.FINISHED
                 for other in dict(self.schedule.runs)[tag] if truths.run(other) is not None}
        return RunSpec(tag=tag, repository=str(self.world.repository), python="/usr/bin/python3", profile=self.profile,
                       script_sha256=hashlib.sha256(self._job_script(tag).read_bytes()).hexdigest(), after_tags=after,
                       campaign=TOGETHER, prove_resume=self.world.proves(tag))

    def _policy(self, interval_s: float, ahead: int, without_progress: int) -> None:
        self._struck("person: edits orch.yaml")
        self.policy = replace(self.policy, checkpoint_interval_s=interval_s, successors_ahead=ahead,
                              endings_without_progress=without_progress)

    def _recovery(self, key: str, value: Any) -> None:
        self._struck("person: edits recovery")
        self.policy = replace(self.policy, **{key: {Ending(value[0]): value[1]} if key == "retries" else value})

    def _profile(self, key: str, value: float) -> None:
        """For what is submitted from now on."""
        self._struck("person: edits the profile")
        self.profile = replace(self.profile, **{key: value})  # type: ignore[arg-type]

    def _script(self, tag: str, pick: int) -> None:
        self._struck("person: edits job.sh")
        self._job_script(tag).write_text(f"true {self.world.now} {pick}\n")

    # --- what Slurm refuses, and a hanging node -------------------------------------------------------------------------

    def _room(self, most: int | None) -> None:
        if most is not None:
            self._struck("no room for more jobs")
        self.world.slurm.jobs_at_most = most

    def _refuse(self, count: int) -> None:
        self._struck("scancel and scontrol refused")
        self.world.refused = count

    def _epilog(self, pick: int, for_s: float) -> None:
        job = self._job(pick, ("RUNNING",))
        if job is not None:
            self._struck("epilog hangs")
            job.epilog_s = for_s

    # --- the world ------------------------------------------------------------------------------------------------------

    def _advance(self, by_s: float) -> None:
        self.world.advance(by_s)

    def _live(self, pick: int) -> Supervisor | None:
        found = [p for p in self.world.processes.values() if isinstance(p, Supervisor)]
        return found[pick % len(found)] if found else None

    def _job(self, pick: int, states: tuple[str, ...] = ()) -> Any:
        found = [job for job in self.world.slurm.jobs_by_id.values() if not states or job.state in states]
        return found[pick % len(found)] if found else None

    def _node(self, name: str, lives_on: bool) -> None:
        if self.world.slurm.up[name]:
            self._struck("node down, its processes live on" if lives_on else "node down with all its processes")
            self.world.node_down(name, lives_on=lives_on)
        else:
            self.world.slurm.node_up(name)

    def _cut(self, name: str) -> None:
        """Power fails for a moment, too short for Slurm to notice: it goes on calling the jobs there running."""
        self._struck("node restarted, Slurm goes on calling its jobs running")
        self.world.power_off(self.world.hosts[name])

    def _scancel(self, pick: int) -> None:
        job = self._job(pick, ("PENDING", "RUNNING"))
        if job is not None:
            self._struck("scancel by somebody else")
            self.world.slurm.cancel(str(job.job_id))

    def _preempt(self, pick: int, grace_s: float) -> None:
        job = self._job(pick, ("RUNNING",))
        if job is not None:
            self._struck("job preempted")
            self.world.slurm.preempt(job, grace_s)

    def _requeue(self, pick: int) -> None:
        job = self._job(pick)
        if job is not None:
            self._struck("job requeued by the site")
            self.world.slurm.requeue(job)

    def _forget(self, lives_on: bool, ids_again: bool) -> None:
        self._struck("Slurm's state lost" + (", job ids begin anew" if ids_again else ""))
        for job in self.world.slurm.lose_state(ids_again=ids_again):
            if not lives_on:
                self.world.kill(job)

    def _vanish(self, pick: int, lives_on: bool) -> None:
        job = self._job(pick)
        if job is not None:
            self._struck("job vanished" + (", its processes live on" if lives_on else ""))
            self.world.slurm.forget(job)
            if not lives_on:
                self.world.kill(job)

    def _kill(self, pick: int, what: str) -> None:
        supervisor = self._live(pick)
        if supervisor is None:
            return
        self._struck(f"SIGKILL: {what}")
        if what in ("trainer", "both") and supervisor.trainer is not None:
            supervisor.trainer.kill()
        if what in ("supervisor", "both"):
            supervisor.kill()

    def _stop(self, pick: int, for_s: float) -> None:
        """SIGSTOP, and SIGCONT later: its heart does not beat meanwhile."""
        supervisor = self._live(pick)
        if supervisor is not None:
            self._struck("SIGSTOP: supervisor")
            supervisor.stopped_until = self.world.now + for_s
            self.world.wake(supervisor, for_s)

    def _torn(self, tag: str, pick: int) -> None:
        """What a power cut leaves of whoever was writing: only where nobody writes just now."""
        run_dir = folders.run_dir(self.world.repository, tag)
        path = journal.journal_path(run_dir)
        try:
            with journal.locked(run_dir, wait_s=0.0):
                if path.exists() and path.read_bytes().endswith(b"\n"):
                    self._struck("journal line torn")
                    with path.open("ab") as file:
                        file.write(b'{"event": "fini'[:4 + pick * 3])
        except (RunLocked, OrchError):
            return

    def _clock(self, name: str, offset_s: float) -> None:
        self._struck("clock stepped")
        if name in self.actors:
            self.actors[name].offset_s = offset_s
        else:
            self.world.hosts["n1"].step_clock(max(-40.0, min(offset_s, 50.0)), self.world.now)

    def _outage(self, pick: int) -> None:
        self.world.outage = not self.world.outage
        if self.world.outage:
            self._struck("slurmctld down")

    def _damage(self, tag: str, pick: int) -> None:
        """What a power cut leaves: a folder with a checkpoint's name whose files are short."""
        folder = folders.checkpoint_dir(folders.run_dir(self.world.repository, tag)) / "step-99999999"
        if folder.parent.is_dir() and not folder.exists():
            self._struck("incomplete checkpoint left behind")
            folder.mkdir()
            (folder / "COMPLETE").write_text('{"step": 99999999, "saved_at": 1.0, "epoch": 1, "files": {"state": 5}}')

    def _again(self, pick: int) -> None:
        """An old job's script is run once more by somebody, outside Slurm."""
        started = [job for job in self.world.slurm.jobs_by_id.values() if job.ended and job.start_at is not None]
        if started:
            self._struck("old script run again by somebody")
            Supervisor(self.world, self.world.hosts["n2"], started[pick % len(started)])

    def _gate(self, tag: str, pick: int) -> None:
        """The gate asked by any submission at any moment: never leave for a run that is not active."""
        attempts = folders.run_dir(self.world.repository, tag) / "attempts"
        specs = [path for folder in (sorted(attempts.iterdir()) if attempts.is_dir() else ())
                 if (path := folder / "spec.json").exists()]
        run = self.world.truths.run(tag)
        if not specs or run is None:
            return
        self._struck("gate asked at an odd moment")
        spec = AttemptSpec.from_json(specs[pick % len(specs)].read_text())
        asker = Supervisor.__new__(Supervisor)
        asker.world, asker.host, asker.boot, asker.pid = self.world, self.world.hosts["n2"], "elsewhere", 1
        with self.world.inside(asker):
            pulse = Pulse(lambda: self.world.now, lambda: self.world.now)
            asked = ask_once(spec, Identity(job_id="0", restart_count=0, host="n2"), pulse)
        if asked.answer.leave is Leave.GO and run.phase != Phase.ACTIVE:
            raise Broken(f"{tag}: the gate says go while the run is {run.phase}")
