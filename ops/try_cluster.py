"""What ``ops/try-on-your-cluster`` runs: whether this Slurm and its shared file system are what orch needs, in a few minutes.

A few small jobs of a minute or two: one that is held, released and cancelled; one that meets this host over locks and files;
two attempts of a run, the second queued behind the first, with orch's own supervisor in them. Nothing else is touched, and
what was submitted is cancelled by its id, also when this is interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import try_across as across
import try_here as here
import try_notice as notice
from try_files import Lock, prepare_marks
from try_jobs import INTERRUPTS, Jobs, Queued, Trial, begin_run, queue_attempt, script_of, uninterrupted
from try_report import Result, failed, fine, line, table, untried, wrong

import orchestrator
from orchestrator.cli.context import slurm_conf
from orchestrator.config import Job, default_config
from orchestrator.control.submit import recorded_environment
from orchestrator.errors import OrchError, Refused, StorageError, UserError, storage_error
from orchestrator.folders import replace_file, run_dir
from orchestrator.model import Profile
from orchestrator.slurm.commands import SlurmCommands
from orchestrator.slurm.protocol import NodeOffer
from orchestrator.units import parse_duration_s, parse_size_bytes

HERE = Path(__file__).resolve().parent
PROBE_S, LEAD_S = 120.0, 20.0
TAG = "trial"
NOT_TAKING = ("down", "drain", "fail", "unk", "maint", "boot", "power", "resv", "inval", "no_resp")


def options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ops/try-on-your-cluster", description="Tries in a few minutes what orch needs of this Slurm and of its shared "
        "file system. Exit code 0: all that is needed is there; 4: it is not, or was not proven.",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog="examples:\n  ops/try-on-your-cluster\n"
        "  ops/try-on-your-cluster --folder /shared/me/try --partition gpu --account lab --gres gpu:1 --yes")
    parser.add_argument("--folder", type=Path, default=Path(".orch/try"), metavar="DIR",
                        help="on the shared file system; %(default)s")
    parser.add_argument("--partition", metavar="P")
    parser.add_argument("--account", metavar="A")
    parser.add_argument("--qos", metavar="Q")
    parser.add_argument("--gres", metavar="GRES", help="as gpu:1; without it no GPU is asked for")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes of a job; 2 where the partition has them, else 1")
    parser.add_argument("--memory", default="500M", metavar="SIZE", help="on each node (%(default)s); '' for Slurm's own")
    parser.add_argument("--time", type=int, default=1, metavar="MIN",
                        help="limit of an attempt, which is waited for; %(default)s")
    parser.add_argument("--wait", default="10m", metavar="DURATION", help="how long jobs may wait in the queue; %(default)s")
    parser.add_argument("--yes", action="store_true", help="submit without asking")
    return parser.parse_args(words)


@dataclass
class Report:
    """Results, printed as they come."""

    results: list[Result] = field(default_factory=list)

    def add(self, *results: Result | None) -> None:
        for result in results:
            if result is not None:
                self.results.append(result)
                say(line(result))


def say(text: str) -> None:
    print(text, flush=True)


# --- what is tried, and where -------------------------------------------------------------------------------------------

def environ() -> dict[str, str]:
    """This shell without the settings that would change what Slurm's commands do; only where its configuration is stays."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_")) and name != "SLURM_CONF":
            del os.environ[name]
    conf = slurm_conf(Path.cwd(), None)
    if conf is not None:
        os.environ["SLURM_CONF"] = str(conf)
    os.environ["ORCH_TRY_NOT_RECORDED"] = "1"
    return recorded_environment(os.environ, default_config(Path.cwd()), Job(environment={"ORCH_TRY_RECORDED": "a b"}))


def usable_nodes(offers: list[NodeOffer], partition: str | None) -> int:
    wanted = set(partition.split(",")) if partition else set()
    return len({offer.node for offer in offers if (offer.partition in wanted or (not wanted and offer.default))
                and not any(word in offer.state for word in NOT_TAKING)})


def profile_of(args: argparse.Namespace, offers: list[NodeOffer]) -> Profile:
    try:
        memory = parse_size_bytes(args.memory) if args.memory else None
    except ValueError as error:
        raise UserError(f"--memory: {error}") from None
    if args.time < 1 or (args.nodes is not None and args.nodes < 1):
        raise UserError("--time and --nodes are at least 1")
    nodes = args.nodes or max(1, min(2, usable_nodes(offers, args.partition)))
    return Profile(name="trial", partition=args.partition, account=args.account, qos=args.qos, gres=args.gres, nodes=nodes,
                   memory_bytes=memory, time_s=args.time * 60.0, lead_s=LEAD_S)


def make_trial(args: argparse.Namespace, profile: Profile, recorded: Mapping[str, str]) -> Trial:
    folder = args.folder.absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True)
    for name in ("try_probe.py", "try_files.py", "try_listener.py"):
        shutil.copy(HERE / name, folder / name)
    return Trial(folder=folder, profile=profile, environment=recorded, package=str(Path(orchestrator.__file__).parents[1]))


def agreed(args: argparse.Namespace, profile: Profile, cluster: str) -> None:
    """Raises Refused unless it was said to go on."""
    where = f"partition {profile.partition}" if profile.partition else "the default partition"
    what = ", ".join(filter(None, [f"{profile.nodes} node(s)", "1 CPU", args.memory, profile.gres]))
    say(f"cluster {cluster}, {where}: 4 jobs of at most {max(2, args.time)} minutes, each with {what}; "
        f"what is left of them is cancelled in the end. Files: {args.folder}")
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UserError("nobody can be asked here", hint="--yes submits without asking")
    if input("submit them? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was submitted")


# --- the jobs -----------------------------------------------------------------------------------------------------------

@dataclass
class Patience:
    """Until when jobs may wait in the queue; says every quarter of a minute what is waited for."""

    jobs: Jobs
    until: float
    run_s: float               # for what has started: its limit, and the time until its files are seen
    began: float = field(default_factory=time.monotonic)
    said_at: float = field(default_factory=time.monotonic)

    def at_least(self, wait_s: float) -> None:
        self.until = max(self.until, time.monotonic() + wait_s)

    def left(self, word: str) -> bool:
        now = time.monotonic()
        if now - self.said_at >= 15:
            self.said_at = now
            seen = {word: job for word, job in self.jobs.seen.items() if job is not None and not self.jobs.over(word)}
            states = [f"{word} {job.state.lower()}" for word, job in seen.items()]
            say(f"{'...':<28} {', '.join(states) or 'waiting for files to come into sight'}")
        return now < self.until or (not self.jobs.waits(word) and now < self.until + self.run_s)

    def why(self, word: str) -> str:
        """Why it has not run, in words; '' if it has."""
        reason = self.jobs.waits(word)
        waited_s = time.monotonic() - self.began
        return f"still in the queue after {waited_s:.0f} s ({reason}): --wait waits longer" if reason else ""


def waiting_job(report: Report, jobs: Jobs, trial: Trial) -> bool:
    """A job that is to start in an hour: submitted, held, given a new dependency, released, cancelled. False: no sbatch."""
    script = script_of(trial, "waiting", trial.profile, str(trial.folder / "try_probe.py"), delay_s=3600)
    check, took = "a waiting job", {}
    try:
        began = time.monotonic()
        jobs.submit("waiting", script, trial.environment)
    except OrchError as error:
        report.add(wrong(check, f"sbatch: {error.message}", "nothing can be submitted like this: see --partition, --account, "
                         "--qos, --gres, --memory, and put what works into orch.yaml's profile"))
        return False
    took["submitted"] = time.monotonic() - began
    job_id = jobs.ids["waiting"]
    steps: list[tuple[str, Callable[[], None]]] = [
        ("held", lambda: jobs.slurm.hold(job_id)), ("re-pointed", lambda: jobs.slurm.set_dependency(job_id, "singleton")),
        ("released", lambda: jobs.slurm.release(job_id)), ("cancelled", lambda: jobs.slurm.cancel(job_id))]
    for done, step in steps:
        began = time.monotonic()
        try:
            step()
        except OrchError as error:
            report.add(wrong(check, f"could not be {done}: {error.message}", "`orch hold`, `release` and `cancel` need this"))
            return True
        took[done] = time.monotonic() - began
    report.add(fine(check, ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items())))
    return True


def try_probe(jobs: Jobs, trial: Trial) -> tuple[Path, Lock]:
    """Submit the job that meets this host; its folder, and the lock that it must be refused."""
    entry = str(trial.folder / "try_probe.py")
    script = script_of(trial, "probe", replace(trial.profile, time_s=max(PROBE_S, trial.profile.time_s)), entry)
    folder = script.parent
    prepare_marks(folder / "login")
    other, lock = Lock.open(folder / "lock-node"), Lock.open(folder / "lock-login")
    other.unstamped()
    other.close()
    lock.take(0.0)
    lock.unstamped()
    replace_file(folder / "spec.json", json.dumps({
        "package": trial.package, "folder": str(folder), "nodes": trial.profile.nodes, "gres": trial.profile.gres or ""}))
    jobs.submit("probe", script, trial.environment)
    return folder, lock


def try_run(report: Report, jobs: Jobs, trial: Trial, config: Mapping[str, str]) -> Queued:
    """Two attempts of a run, one behind the other, and what Slurm made of them; the first one."""
    listener = shlex.join([sys.executable, "-I", str(trial.folder / "try_listener.py"), trial.package])
    spec = begin_run(trial, TAG, notice.LISTENER.format(nodes=trial.profile.nodes, listener=listener))
    replace_file(run_dir(trial.folder, TAG) / "recorded.json", json.dumps(dict(trial.environment)), mode=0o600)
    first = queue_attempt(jobs, spec, 1, ())
    second = Queued(2, "", ())
    if not first.refused:
        second = queue_attempt(jobs, spec, 2, (jobs.ids["attempt 1"],))
        report.add(notice.queued_ahead(second))
    report.add(*notice.kept(spec, first, second, config.get("JobSubmitPlugins", "")))
    return first


def results_of_probe(
    report: Report, jobs: Jobs, trial: Trial, folder: Path, lock: Lock, patience: Patience,
) -> dict[str, object]:
    def waiting() -> bool:
        return patience.left("probe")
    met = across.meet(folder, lock, jobs, waiting)
    facts = across.facts_of(folder, jobs, waiting)
    report.add(across.place_on_node(facts, "" if facts else jobs.exit_code("probe"), patience.why("probe")))
    if not facts:
        report.add(untried("what needs a node", "the line above says why: locks, caches, notices, the successor"))
        return facts
    report.add(across.locks(facts, met), across.clocks(facts, met), *across.caches(facts, met),
               across.commands_on_node(facts), across.step_in_job(facts, trial.profile.nodes),
               across.memory_count(facts), across.gpu(facts, trial.profile.gres or ""))
    return facts


def until_over(jobs: Jobs, run_folder: Path, number: int, patience: Patience, settle_s: float) -> notice.Attempt:
    """What the attempt left, once it has an end record or its job is over and its files had time to come into sight."""
    word, over_at = f"attempt {number}", None
    while True:
        attempt = notice.read_attempt(run_folder, number)
        if jobs.over(word):
            over_at = over_at or time.monotonic()
        settled = over_at is not None and time.monotonic() - over_at > settle_s
        if attempt.end is not None or settled or not patience.left(word):
            return attempt
        jobs.look()
        time.sleep(0.2)


def results_of_run(
    report: Report, jobs: Jobs, trial: Trial, config: Mapping[str, str], patience: Patience, settle_s: float,
) -> None:
    run_folder, nodes = run_dir(trial.folder, TAG), trial.profile.nodes
    first = until_over(jobs, run_folder, 1, patience, settle_s)
    why = patience.why("attempt 1")
    report.add(notice.slurms_notice(first, why), notice.notice_on_nodes(first, nodes, why))
    patience.at_least(120.0)
    second = until_over(jobs, run_folder, 2, patience, settle_s) if "attempt 2" in jobs.ids else None
    why = patience.why("attempt 2")
    report.add(notice.gap(first, second, run_folder, config, why),
               notice.environment([first, second] if second is not None else [first], why))


def try_jobs(report: Report, jobs: Jobs, trial: Trial, config: Mapping[str, str], wait_s: float) -> None:
    if not waiting_job(report, jobs, trial):
        return
    patience = Patience(jobs, time.monotonic() + wait_s, max(PROBE_S, trial.profile.time_s) + 300.0)
    folder, lock = try_probe(jobs, trial)
    try:
        first = try_run(report, jobs, trial, config)
        facts = results_of_probe(report, jobs, trial, folder, lock, patience)
    finally:
        lock.close()
    if first.refused or not facts:
        return
    settle_s = 10.0 if across.one_machine(facts) else across.CACHES_S
    results_of_run(report, jobs, trial, config, patience, settle_s)
    report.add(across.left_over(folder, facts))


# --- from the first line to the table -----------------------------------------------------------------------------------

def interrupt(*_: object) -> None:
    """Once: from then on nothing keeps the jobs from being cancelled."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def cancel(jobs: Jobs, *, grace_s: float) -> None:
    """``grace_s``: for what is about to end by itself."""
    if not jobs.begun:
        return
    try:
        with uninterrupted():
            lines = jobs.cancel_all(grace_s=grace_s)
    except KeyboardInterrupt:          # it came just before they were held back
        lines = jobs.cancel_all(grace_s=0.0)
    for words in lines:
        say(f"{'...':<28} {words}")


def try_all(args: argparse.Namespace) -> int:
    try:
        wait_s = parse_duration_s(args.wait)
    except ValueError as error:
        raise UserError(f"--wait: {error}") from None
    recorded = environ()
    slurm = SlurmCommands()
    config = here.ask_config()
    offers = slurm.offers()
    profile = profile_of(args, offers)
    agreed(args, profile, config.get("ClusterName", "?"))
    trial = make_trial(args, profile, recorded)
    report, jobs = Report(), Jobs(slurm, trial.folder)
    for number in INTERRUPTS:
        signal.signal(number, interrupt)
    interrupted = False
    try:
        partition = here.ask_partition(profile.partition or next((o.partition for o in offers if o.default), ""))
        report.add(here.commands_answer(slurm), here.slurm_version(config), here.local_lock(trial.folder),
                   here.local_writes(trial.folder), *here.settings(config, partition))
        try_jobs(report, jobs, trial, config, wait_s)
    except OrchError as error:
        report.add(wrong("the trial itself", error.message, error.hint or "it could not go on; run it again"))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        cancel(jobs, grace_s=0.0 if interrupted else 5.0)
    say(f"files are left in {trial.folder}")
    if interrupted:
        say("interrupted")
        return 130
    text = table(report.results, here.versions(trial.folder, config, profile.nodes), private(trial.folder))
    replace_file(trial.folder / "table.md", text + "\n")
    say(f"\n{text}")
    return Refused.exit_code if failed(report.results) else 0


def private(folder: Path) -> dict[str, str]:
    """What a public table must not hold, and what stands in its place."""
    user = os.environ.get("USER", "")
    hidden = {str(folder): "FOLDER", str(Path.home()): "~", os.uname().nodename: "HOST"}
    return hidden | ({user: "USER"} if len(user) > 2 and user != "root" else {})


def main(words: list[str]) -> int:
    try:
        return try_all(options(words))
    except OrchError as error:
        print(f"try-on-your-cluster: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"try-on-your-cluster: {storage_error(error).message}", file=sys.stderr)
        return StorageError.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
