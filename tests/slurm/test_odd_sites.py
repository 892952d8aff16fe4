"""Sites that are not like the manual: submit plugins, wrappers around Slurm's commands, commands that hang or are killed
after the controller took the job, limits on the number of jobs, nodes without Slurm's commands.

A folder of scripts stands before the real commands in PATH; what they do is written into each test.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from repositories import ORCH_YAML, Repository
from seen import attempt_dir, events, first_start, go_on, successor_of, trained

from orchestrator.cluster.spec import layout_of

if TYPE_CHECKING:
    from conftest import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
# What is done to a job, by its tag.
JOB_SUBMIT_LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
    local tag = string.match(job_desc.name or "", "^(.-)@")
    if tag == "replaced" then
        job_desc.comment = "billed to project 7"
    elseif tag == "refused" then
        slurm.log_user("jobs need a budget code")
        return slurm.ERROR
    elseif tag == "unchained" then
        job_desc.dependency = ""
    elseif tag == "rewritten" then
        job_desc.time_limit = 5
        job_desc.partition = "high"
        job_desc.nice = 50 + 2147483648
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
"""


@dataclass
class Site(Repository):
    """A repository whose shell finds these scripts before Slurm's commands."""

    front: Path = Path()
    exported: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        environment = super().environment
        return {**environment, "PATH": f"{self.front}:{environment['PATH']}", **self.exported}

    def wrap(self, name: str, body: str) -> None:
        """``REAL`` in the script is the real command."""
        path = self.front / name
        path.write_text("#!/bin/bash\n" + body.replace("REAL", str(shutil.which(name))) + "\n")
        path.chmod(0o755)

    def unwrap(self) -> None:
        for path in self.front.iterdir():
            path.unlink()

    def count(self, tag: str, name: str) -> int:
        return len(events(self, tag, name))

    def jobs(self, tag: str) -> list[str]:
        """Ids of its jobs that have not ended, by their name."""
        answer = self.slurm.run("squeue", "--noheader", "--states=PD,R,CF,S,CG", "--format=%i %j")
        return [line.split()[0] for line in answer.splitlines() if line.split()[1].startswith(f"{tag}@")]

    def finished(self, tag: str) -> None:
        self.until(lambda: self.status(tag)["state"] == "finished", f"{tag} to finish", 180)
        queued = [e["job_id"] for e in events(self, tag, "queued")]
        assert len(queued) == len(set(queued)) == len({e["submission_id"] for e in events(self, tag, "queued")})


def made_at(slurm: PrivateSlurm, folder: Path, config: str = ORCH_YAML) -> Site:
    site = Site(folder=folder / "repository", slurm=slurm, front=folder / "front")
    for path in (site.folder, site.front):
        path.mkdir(parents=True)
    (site.folder / "orch.yaml").write_text(config)
    return site


@pytest.fixture(scope="module")
def slurm(make_slurm_cluster: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With a submit plugin, where there is one; requeued jobs wait for 20 s."""
    folder = tmp_path_factory.mktemp("odd-sites")
    conf = f"AuthInfo=socket={layout_of(folder).munge_socket},cred_expire=20\n"
    if all(next(Path("/usr/lib").glob(f"*/{pattern}"), None) for pattern in ("slurm*/job_submit_lua.so", "liblua5*.so*")):
        (folder / "etc").mkdir()
        (folder / "etc" / "job_submit.lua").write_text(JOB_SUBMIT_LUA)
        conf += "JobSubmitPlugins=lua\n"
    return make_slurm_cluster(folder=folder, nodes=2, cpus=16, gpus=0, memory_mib=4000, extra_conf=conf)


@pytest.fixture
def site(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[Site]:
    made = made_at(slurm, tmp_path, f"{ORCH_YAML}slurm: {{timeout: 4s}}\n")
    yield made
    made.unwrap()
    slurm.run("scancel", "--user=root" if os.getuid() == 0 else f"--user={os.getuid()}")


@pytest.fixture
def daemon(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    process = site.daemon()
    yield process
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)


# --- submit plugins ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plugin(site: Site) -> Site:
    if not re.search(r"JobSubmitPlugins\s+= lua", site.slurm.run("scontrol", "show", "config")):
        pytest.skip("this Slurm has no lua plugin")
    return site


def test_a_replaced_comment_holds_the_run_instead_of_submitting_it_for_ever(plugin: Site) -> None:
    plugin.job("replaced", STEPS=20)
    said = plugin.orch("submit", "replaced", code=6)
    assert "has 'billed to project 7' for the comment by which orch knows its jobs" in said
    for _ in range(3):
        plugin.orch("tick")
    assert plugin.count("replaced", "queued") == 1 and plugin.jobs("replaced") == []
    assert plugin.status("replaced")["state"] == "held"


def test_a_refusal_is_told_in_the_sites_words(plugin: Site) -> None:
    plugin.job("refused", STEPS=20)
    assert "jobs need a budget code" in plugin.orch("submit", "refused", code=6)
    assert "jobs need a budget code" in plugin.orch("explain", "refused")


def test_a_dropped_dependency_leaves_no_storm_of_successors(plugin: Site, daemon: object) -> None:
    """They would all start beside the live attempt: the run is held with one sentence, or its successors stand down."""
    plugin.job("unchained", STEPS=150)
    plugin.orch("submit", "unchained", code=None)
    plugin.until(lambda: plugin.status("unchained")["state"] in ("held", "finished"), "it to end", 180)
    assert plugin.count("unchained", "queued") <= 3
    assert plugin.count("unchained", "started") <= 1


def test_a_plugin_may_change_what_it_likes_besides(plugin: Site, daemon: object) -> None:
    plugin.job("rewritten", STEPS=40)
    plugin.orch("submit", "rewritten")
    plugin.finished("rewritten")


# --- wrappers and settings ----------------------------------------------------------------------------------------------


def test_banners_of_every_command_disturb_nobody(site: Site, daemon: object) -> None:
    for name in COMMANDS:
        site.wrap(name, 'echo "*** Maintenance on Monday, 12 o\'clock ***"\necho 7\nREAL "$@"\ncode=$?\necho goodbye\n'
                        'echo "warning: be nice" >&2\nexit $code')
    site.job("banners", STEPS=100, DO="30:crash")
    site.orch("submit", "banners")
    site.finished("banners")
    assert site.endings("banners") == ["crash", "finished"]


def test_what_the_user_has_set_for_slurms_commands_changes_nothing(site: Site, daemon: object) -> None:
    site.exported = {
        "SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "RUNNING", "SQUEUE_SORT": "i", "SLURM_TIME_FORMAT": "relative",
        "SLURM_CLUSTERS": "nowhere", "SBATCH_CLUSTERS": "nowhere", "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "nowhere",
        "SBATCH_JOB_NAME": "x", "SBATCH_ACCOUNT": "nobody", "SBATCH_REQUEUE": "1", "SBATCH_OPEN_MODE": "truncate",
        "SBATCH_EXPORT": "NONE", "SINFO_FORMAT": "%N", "SINFO_PARTITION": "nowhere", "SCONTROL_ALL": "0",
        "LC_ALL": "de_DE.UTF-8", "SCANCEL_STATE": "SUSPENDED"}
    site.job("settings", STEPS=60)
    site.orch("submit", "settings")
    job = site.slurm.job(int(site.jobs("settings")[0]))
    assert (job["TimeLimit"], job["Requeue"], job["Partition"]) == ("00:10:00", "0", "main")
    assert job["JobName"].startswith("settings@")
    site.finished("settings")
    job_log = (attempt_dir(site, "settings") / "out.log").read_text()
    assert "FINISHED" in job_log


def test_an_sbatch_that_is_killed_after_the_controller_took_the_job(site: Site, daemon: object) -> None:
    site.wrap("sbatch", f'id=$(REAL "$@") || exit\n[ -e {site.folder}/once ] && echo "$id" && exit\n'
                        f'touch {site.folder}/once\nkill -KILL $$')
    site.job("killed", STEPS=60)
    assert "sbatch was killed by signal 9" in site.orch("submit", "killed", code=5)
    site.finished("killed")
    assert next(e.get("found") for e in events(site, "killed", "queued")) is True
    assert site.count("killed", "queueing") == site.count("killed", "queued")


def test_an_sbatch_that_hangs_after_the_controller_took_the_job(site: Site, daemon: object) -> None:
    """It is ended with its children, although they ignore TERM, and what it had said is told."""
    site.wrap("sbatch", f'[ -e {site.folder}/once ] && exec REAL "$@"\ntouch {site.folder}/once\nREAL "$@" >/dev/null\n'
                        'echo "sbatch: warning: the controller is slow" >&2\ntrap "" TERM\nsleep 987.5 & wait')
    site.job("slow", STEPS=60)
    said = site.orch("submit", "slow", code=5)
    assert "sbatch gave no answer within 4 s: sbatch: warning: the controller is slow" in said
    assert not processes("sleep 987.5")
    site.finished("slow")
    site.until(lambda: site.count("slow", "ended"), "its end to be noted: its result is shown at once")
    # of the first one the supervisor's own record may have told before squeue did
    assert site.count("slow", "queueing") - site.count("slow", "queued") <= 1
    assert site.count("slow", "started") == 1


def test_a_squeue_that_hangs_is_said_once_and_the_daemon_goes_on_by_itself(site: Site, daemon: object) -> None:
    site.job("hangs", STEPS=400)
    site.orch("submit", "hangs")
    site.until(lambda: trained(site, "hangs"), "it to train")
    site.wrap("squeue", 'trap "" TERM\necho "squeue: warning: waiting for the controller" >&2\nsleep 987.5 & wait')
    site.until(lambda: "Slurm does not answer" in site.log(), "it to say so")
    time.sleep(12.0)                   # two passes and more
    assert site.log().count("Slurm does not answer") == 1
    assert "squeue gave no answer within 4 s: squeue: warning: waiting for the controller" in site.log()
    site.unwrap()
    site.until(lambda: "Slurm answers again after" in site.log(), "it to say so again")
    site.finished("hangs")
    assert site.endings("hangs") == ["finished"] and not processes("sleep 987.5")


def test_a_rate_limit_is_silence(site: Site) -> None:
    """The words of 23.02 and later, when their own patience is over."""
    site.job("limited", STEPS=100000)
    site.orch("submit", "limited")
    site.wrap("squeue", 'echo "slurm_load_jobs error: Rate limit exceeded, please retry momentarily" >&2\nexit 1')
    assert "Slurm does not answer: slurm_load_jobs error: Rate limit" in site.orch("tick", code=5)
    assert site.count("limited", "dropped") == 0


def test_a_job_on_another_cluster_is_taken_back_and_never_submitted_again(site: Site) -> None:
    site.wrap("sbatch", 'id=$(REAL "$@") && echo "$id;alpha"')
    site.wrap("scancel", f'echo "$*" >>{site.folder}/cancelled\nREAL "${{@: -1}}"')
    site.job("elsewhere", STEPS=100000)
    said = site.orch("submit", "elsewhere", code=6)
    assert "to cluster alpha, and orch follows its jobs on" in said and "it was cancelled there" in said
    assert (site.folder / "cancelled").read_text().startswith("--clusters=alpha ")
    site.orch("tick")
    assert site.count("elsewhere", "queueing") == 1 and site.jobs("elsewhere") == []


def test_the_name_of_this_cluster_is_none_of_another(site: Site) -> None:
    [name] = [line.split()[2] for line in site.slurm.run("scontrol", "show", "config").splitlines()
              if line.startswith("ClusterName")]
    site.wrap("sbatch", f'id=$(REAL "$@") && echo "$id;{name}"')
    site.job("here", STEPS=100000)
    site.orch("submit", "here")
    assert len(site.jobs("here")) == 2


# --- limits on the number of jobs ---------------------------------------------------------------------------------------

QOS_LIMIT = """echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user'"'"'s size \
and/or time limits)' >&2
exit 1"""


def test_a_successor_over_a_submit_limit_is_left_out_with_one_line(site: Site, daemon: object) -> None:
    site.wrap("sbatch", f'if grep -q "dependency=.*afterany" "${{@: -1}}"; then\n{QOS_LIMIT}\nfi\nexec REAL "$@"')
    site.job("limited", STEPS=160, DO="70:wait,80:crash")
    assert "no successor ahead, since Slurm refused it: sbatch: error: QOSMaxSubmit" in site.orch("submit", "limited")
    site.until(lambda: trained(site, "limited"), "it to train")
    time.sleep(3.0)                    # passes enough to try again
    assert site.count("limited", "rejected") == 1
    go_on(site, "limited")
    site.finished("limited")
    assert site.endings("limited") == ["crash", "finished"]
    assert site.count("limited", "rejected") == 2, "once an attempt"
    assert "refused it (sbatch: error: QOSMax" in site.orch("explain", "limited") or site.log().count("Slurm refused it") == 1


def test_a_full_controller_is_waited_for(make_slurm_cluster: Callable[..., Any], tmp_path: Path) -> None:
    """MaxJobCount: sbatch itself tries again for two minutes, and is ended before."""
    slurm = make_slurm_cluster(nodes=1, cpus=4, gpus=0, memory_mib=2000, preemption=False, min_job_age_s=2,
                               extra_conf="MaxJobCount=5\n")
    site = made_at(slurm, tmp_path, f"{ORCH_YAML}slurm: {{timeout: 4s}}\n")
    site.job("first", STEPS=300, DO="200:wait")
    site.job("second", STEPS=20)
    fill = [slurm.submit("true", "--hold") for _ in range(3)]
    assert "no successor ahead, since Slurm refused it: sbatch gave no answer" in site.orch("submit", "first")
    said = site.orch("submit", "second", code=6)
    assert "second is recorded, and Slurm takes no further job for now" in said and "sleeping and retrying" in said
    process = site.daemon()
    try:
        site.until(lambda: trained(site, "first"), "the first to train")
        assert site.status("second")["state"] == "waiting"
        go_on(site, "first")
        slurm.run("scancel", *map(str, fill))
        site.finished("second")
        site.finished("first")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


# --- nodes, and people ----------------------------------------------------------------------------------------------------


def test_nodes_without_slurms_commands(site: Site, daemon: object) -> None:
    """The gate goes by records alone; no notice step is made, and that is said."""
    bare = site.folder / "bare"
    bare.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in (*COMMANDS, "sacct", "sstat", "sattach", "salloc", "sbcast"):
            (bare / program.name).symlink_to(program)
    site.job("bare", yaml="", PATH=bare, STEPS=120, DO="60:crash")
    site.orch("submit", "bare")
    successor = site.until(lambda: (found := site.jobs("bare")) and len(found) == 2 and max(found, key=int), "its successor")
    site.finished("bare")
    attempts = site.status("bare")["attempts"]
    assert [(a["ending"], a["job_id"]) for a in attempts][1:] == [("finished", successor)], "the gate let it train"
    assert "no notice step (no srun here)" in (attempt_dir(site, "bare") / "out.log").read_text()


def test_a_job_that_a_person_requeues_and_holds_waits_until_a_person_releases_it(site: Site, daemon: object) -> None:
    site.job("put-back", STEPS=300, DO="200:wait")
    site.orch("submit", "put-back")
    site.until(lambda: trained(site, "put-back"), "it to train")
    job_id = first_start(site, "put-back")["job_id"]
    site.slurm.run("scontrol", "update", f"jobid={job_id}", "requeue=1")
    site.slurm.run("scontrol", "requeuehold", job_id)
    site.until(lambda: site.count("put-back", "requeued"), "it to be noted")
    shown = site.status("put-back")
    assert shown["state"] == "waiting" and job_id in [job["job_id"] for job in shown["jobs"]]
    assert "held" in site.orch("status", "put-back")
    go_on(site, "put-back")
    site.slurm.run("scontrol", "release", job_id)
    site.finished("put-back")
    assert [a["job_id"] for a in site.status("put-back")["attempts"]] == [job_id, job_id]


def test_a_dependency_that_can_never_be_met_is_mended(site: Site, daemon: object) -> None:
    failed = site.slurm.submit("exit 1")
    site.slurm.wait_for(failed, "FAILED")
    site.job("stuck", STEPS=160, DO="70:wait,80:crash")
    site.orch("submit", "stuck")
    site.until(lambda: trained(site, "stuck"), "it to train")
    site.slurm.run("scontrol", "update", f"jobid={successor_of(site, 'stuck')}", f"dependency=afterok:{failed}")
    go_on(site, "stuck")
    site.finished("stuck")
    assert site.endings("stuck") == ["crash", "finished"]
    assert any("can never happen any more" in e["why"] for e in events(site, "stuck", "asked", kind="repoint"))


def processes(command: str) -> list[str]:
    """Process ids with exactly this command line."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path("/proc", name, "cmdline").read_bytes() == wanted:
                found.append(name)
        except OSError:
            continue                   # ended meanwhile
    return found
