"""``ops/try-on-your-cluster`` on private Slurms: a usual one, one that was made odd on purpose, and one that is interrupted.

All trials run beside each other, since each waits for a time limit of a minute.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.script import repository_key

if TYPE_CHECKING:
    from conftest import PrivateSlurm

OPS = Path(__file__).parents[2] / "ops"
sys.path.append(str(OPS))

from try_across import Met as MetHere  # noqa: E402
from try_across import caches, clocks, locks, offset_s  # noqa: E402
from try_files import KINDS, Seen, exchange, prepare_marks  # noqa: E402
from try_here import delays, memory_of_jobs, preemption, tracking  # noqa: E402
from try_report import Result, State, fine, table, wrong  # noqa: E402

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

JOB_SUBMIT_LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
    job_desc.comment = "billed to nobody"
    job_desc.tres_per_node = ""
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
"""
CLI_FILTER_LUA = """\
function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end
function slurm_cli_pre_submit(options, pack_offset)
    if options["type"] == "srun" then return slurm.ERROR end
    return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
"""
GAP = "from the end to the successor's start"
EVERY_NODE = "the notice of a limit on every node"


@dataclass(frozen=True)
class Trial:
    """A trial that runs or has run, with its output in a file."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    def end(self, within_s: float = 140) -> int:
        return self.process.wait(timeout=within_s)

    def rows(self) -> dict[str, tuple[str, str, str]]:
        """Result, finding and meaning by check, from the table."""
        after = self.said().partition("| check |")[2]
        lines = [line.removeprefix("| ") for line in after.splitlines()[2:] if line.startswith("|")]
        return {row[0]: (row[1], row[2], row[3]) for row in (re.split(r" (?<!\\)\| ?", line) for line in lines)}

    def jobs_left(self, slurm: PrivateSlurm) -> list[str]:
        """Names of its jobs that wait or run; its folder's checksum is in them."""
        names = slurm.run("squeue", "--noheader", "--states=PD,R,CF,S", "--format=%j").split()
        keys = [repository_key(str(path)) for path in self.folder.iterdir()] if self.folder.exists() else []
        return [name for name in names if name.partition("@")[2] in keys]


def start(stack: ExitStack, slurm: PrivateSlurm, folder: Path, *options: str) -> Trial:
    output = stack.enter_context((folder.parent / f"{folder.name}.out").open("wb"))
    process = stack.enter_context(subprocess.Popen(
        [OPS / "try-on-your-cluster", "--yes", "--folder", folder, *options], env=slurm.environment, stdin=subprocess.DEVNULL,
        stdout=output, stderr=subprocess.STDOUT, cwd=slurm.folder))
    stack.callback(process.terminate)           # where it has not ended: it cancels what it submitted
    return Trial(process, folder, Path(output.name))


@pytest.fixture(scope="module")
def odd_slurm(make_slurm_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> PrivateSlurm | None:
    """Comments and GPUs are dropped at submission, job steps are refused, ended jobs are forgotten at once. None: no plugins
    to do that with."""
    plugins = [found for pattern in ("slurm*/job_submit_lua.so", "slurm*/cli_filter_lua.so", "liblua5*.so*")
               for found in [next(Path("/usr/lib").glob(f"*/{pattern}"), None)]]
    if None in plugins:
        return None
    folder = tmp_path_factory.mktemp("odd")
    (folder / "etc").mkdir()
    (folder / "etc" / "job_submit.lua").write_text(JOB_SUBMIT_LUA)
    (folder / "etc" / "cli_filter.lua").write_text(CLI_FILTER_LUA)
    slurm: PrivateSlurm = make_slurm_cluster(
        folder=folder, cpus=8, gpus=1, min_job_age_s=2, extra_conf="JobSubmitPlugins=lua\nCliFilterPlugins=lua\n")
    return slurm


@pytest.fixture(scope="module")
def trials(
    slurm_cluster: PrivateSlurm, odd_slurm: PrivateSlurm | None, tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Trial]]:
    folder = tmp_path_factory.mktemp("trials")
    with ExitStack() as stack:
        made = {"usual": start(stack, slurm_cluster, folder / "usual", "--partition", "main", "--gres", "gpu:1")}
        if odd_slurm is not None:
            made["no-steps"] = start(stack, odd_slurm, folder / "no-steps", "--partition", "main")
            made["no-gres"] = start(stack, odd_slurm, folder / "no-gres", "--partition", "low", "--gres", "gpu:1",
                                    "--nodes", "1")
        yield made


def odd(trials: Mapping[str, Trial], name: str) -> Trial:
    if name not in trials:
        pytest.skip("this Slurm has no lua plugins")
    return trials[name]


def test_an_interrupt_leaves_no_job(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    with ExitStack() as stack:
        trial = start(stack, slurm_cluster, tmp_path / "interrupted", "--partition", "main")
        slurm_cluster.wait_until(lambda: "dependency kept" in trial.said(), 20, "the successor is queued")
        assert len(trial.jobs_left(slurm_cluster)) == 3
        trial.process.send_signal(signal.SIGINT)
        assert trial.end(within_s=30) == 130
    assert trial.jobs_left(slurm_cluster) == []
    assert trial.said().count("cancelled job") == 3
    assert f"files are left in {trial.folder}" in trial.said()


def test_a_usual_site_has_all_that_is_needed(trials: Mapping[str, Trial], slurm_cluster: PrivateSlurm) -> None:
    trial = trials["usual"]
    assert trial.end() == 0, trial.said()
    rows = trial.rows()
    copes = {check for check, row in rows.items() if row[0] == "not as needed (orch copes)"}
    # this private Slurm ends jobs after 5 s; its machine may have no NVIDIA driver and let it have no cgroups
    assert copes <= {"KillWait", "GPU on the node", "out-of-memory kills", "what a job leaves behind"}, trial.said()
    assert {check for check, row in rows.items() if row[0] != "ok"} == copes
    assert "KillWait" in copes
    assert rows[EVERY_NODE][1].startswith("2 of 2 nodes"), rows[EVERY_NODE]
    assert "and it went on" in rows[GAP][1]
    assert "2 of 2 nodes" in rows["notice step, and a TERM to it"][1]
    assert "cancelled job" not in trial.said()
    assert "one machine" in rows["locks between this host and the node"][2]
    assert trial.jobs_left(slurm_cluster) == []


def test_the_table_names_no_path_host_or_user(trials: Mapping[str, Trial]) -> None:
    trial = trials["usual"]
    trial.end()
    (written,) = trial.folder.glob("*/table.md")
    text = written.read_text()
    assert text.strip() == trial.said()[trial.said().index("| what |"):].strip()
    assert not re.search(rf"{trial.folder}|{Path.home()}/|\b{re.escape(os.uname().nodename)}\b", text)
    assert "| Slurm | 2" in text


def test_what_submit_plugins_drop_is_named(trials: Mapping[str, Trial], odd_slurm: PrivateSlurm) -> None:
    trial = odd(trials, "no-gres")
    assert trial.end() == 4
    rows = trial.rows()
    assert rows["comment kept"][:2] == ("not as needed", "it became 'billed to nobody' (JobSubmitPlugins=lua)")
    assert rows["gres kept"][:2] == ("not as needed", "gpu:1 became nothing (JobSubmitPlugins=lua)")
    assert rows["GPU on the node"][0] == "not as needed"
    assert rows[EVERY_NODE][0] == "could not be tried" and "setup-failure" in rows[EVERY_NODE][1]
    assert rows[GAP][0] == "could not be tried"
    assert rows["preemption"][1] == "partition_prio, PreemptMode=CANCEL, GraceTime=20 s"
    assert trial.jobs_left(odd_slurm) == []


def test_where_steps_are_refused_other_nodes_hear_no_notice(trials: Mapping[str, Trial]) -> None:
    trial = odd(trials, "no-steps")
    assert trial.end() == 4
    rows = trial.rows()
    assert rows["notice step, and a TERM to it"][0] == "not as needed (orch copes)"
    assert rows[EVERY_NODE][0] == "not as needed" and rows[EVERY_NODE][1].startswith("1 of 2 nodes; srun: error: cli_filter")
    assert rows["how long Slurm remembers"][:2] == ("not as needed (orch copes)", "MinJobAge 2 sec, accounting no")
    assert rows[GAP][0] == "ok", rows[GAP]      # although Slurm has forgotten the predecessor


def test_nobody_to_ask_and_no_slurm_are_errors(slurm_cluster: PrivateSlurm, tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([OPS / "try-on-your-cluster", "--folder", tmp_path, *options], env=slurm_cluster.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    asked = run()
    assert (asked.returncode, "--yes submits without asking" in asked.stderr) == (2, True)
    refused = run("--yes", "--partition", "nowhere")
    assert refused.returncode == 4
    assert "sbatch: " in refused.stdout and "invalid partition specified: nowhere" in refused.stdout


# --- what one machine cannot show ---------------------------------------------------------------------------------------

HERE_S, NODE_S = 1000.0, 1007.5                 # the node's clock is 7.5 s fast


def facts(**changes: Any) -> dict[str, Any]:
    late_s = {**dict.fromkeys(KINDS, 7.5 + 0.2), "new": 7.5 + 29.0}
    return {"boot_id": "another", "refused": True, "met": True, "stamp": HERE_S, "got_at": NODE_S + 0.04,
            "seen": {"late_s": late_s, "known": [], "torn": 0, "gone": 0}, **changes}


def met(**changes: Any) -> MetHere:
    return MetHere(**{"refused": True, "stamp": NODE_S + 0.05, "got_at": HERE_S + 0.09,
                      "seen": Seen(late_s=dict.fromkeys(KINDS, -7.5 + 0.1)), **changes})


def test_clocks_are_compared_by_locks_and_taken_out_of_what_caches_cost() -> None:
    offset = offset_s(facts(), met())
    assert offset is not None and abs(offset - 7.5) < 0.001
    clock = clocks(facts(), met())
    assert (clock.state, clock.needed, clock.found) == (State.WRONG, False, "the node's is +7.50 s from this host's")
    on_node, here = caches(facts(), met())
    assert (on_node.state, on_node.needed) == (State.WRONG, False)
    assert on_node.found == "replaced 0.20 s, rewritten 0.20 s, appended 0.20 s, new 29.00 s"
    assert "slowest save and 29 s" in on_node.means
    assert (here.state, here.found) == (State.OK, "replaced 0.10 s, rewritten 0.10 s, appended 0.10 s, new 0.10 s")


@pytest.mark.parametrize(("node", "host", "found"), [
    ({}, {}, "held on one side"),
    ({"refused": False}, {}, "given to the node"),
    ({}, {"refused": False}, "given to this host"),
    ({"met": False}, {"got_at": None}, "did not come free"),
    ({"stamp": None}, {}, "not seen by its next holder"),
    ({"lock_error": "lock-login: this file system has no locks"}, {}, "has no locks"),
])
def test_locks_that_do_not_reach_the_other_host_are_told(node: dict[str, Any], host: dict[str, Any], found: str) -> None:
    result = locks(facts(**node), met(**host))
    assert found in result.found
    assert (result.state is State.OK) == (not node and not host)
    assert result.needed


def test_half_of_a_file_is_seen_as_torn(tmp_path: Path) -> None:
    prepare_marks(tmp_path / "theirs")
    (tmp_path / "mine").mkdir()
    prepare_marks(tmp_path / "mine")
    stop = threading.Event()

    def tear() -> None:
        while not stop.is_set():
            (tmp_path / "theirs" / "replaced").write_text("1\n" * 500)
            time.sleep(0.01)

    thread = threading.Thread(target=tear)
    thread.start()
    seen = exchange(tmp_path / "mine", tmp_path / "theirs", 0.4)
    stop.set()
    thread.join()
    assert seen.torn > 0 and seen.late_s == {}


@pytest.mark.parametrize(("result", "good"), [
    (memory_of_jobs({"MinJobAge": "300 sec", "AccountingStorageType": "accounting_storage/none"}), True),
    (memory_of_jobs({"MinJobAge": "50 sec"}), False),
    (preemption({"PreemptType": "preempt/none"}, {"PreemptMode": "OFF"}), True),
    (preemption({"PreemptType": "preempt/qos", "KillWait": "30 sec"}, {"PreemptMode": "REQUEUE", "GraceTime": "0"}), True),
    (preemption({"PreemptType": "preempt/qos", "KillWait": "5 sec"}, {"PreemptMode": "REQUEUE", "GraceTime": "10"}), False),
    (preemption({"PreemptType": "preempt/partition_prio"}, {"PreemptMode": "SUSPEND,GANG"}), True),
    (tracking({"ProctrackType": "proctrack/pgid", "TaskPlugin": "task/none"}), False),
    (tracking({"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup"}), True),
])
def test_settings_are_judged(result: Result, good: bool) -> None:
    assert (result.state is State.OK) == good
    assert bool(result.means) != good or result.state is State.OK


def test_what_delays_a_successor_is_named() -> None:
    assert delays({"SchedulerParameters": "defer,bf_interval=120,sched_interval=30,max_rpc_cnt=150", "CompleteWait": "32 sec",
                   "EpilogMsgTime": "2000 usec"}) == "defer, bf_interval=120, CompleteWait=32s"


def test_a_table_hides_what_is_private_and_stays_a_table() -> None:
    results = [fine("a", "in /data/me/x of me|you"), wrong("b", "some\nthing", "home is /data/me", needed=False)]
    text = table(results, {"Slurm": "26.05"}, {"/data/me": "~", "me": "USER"})
    assert "| a | ok | in ~/x of USER\\|you |  |" in text
    assert "| b | not as needed (orch copes) | some thing | home is ~ |" in text
    assert text.endswith("1 ok, 1 not as needed (1 of which orch copes with), 0 could not be tried")
