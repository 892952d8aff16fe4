"""orch.yaml and job.yaml: every mistake is answered with file, line, key, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Config, Job, load_config, load_job
from orchestrator.config.after import Awaited
from orchestrator.config.campaign import Part, load_campaign
from orchestrator.control.scaffold import JOB_YAML, ORCH_YAML
from orchestrator.control.submit import recorded_environment
from orchestrator.errors import ConfigError, UserError
from orchestrator.model import After

HEAD = "profiles:\n  small:\n    time: 8h\n"   # lines 1 to 3


def config(tmp_path: Path, text: str | bytes) -> Config:
    (tmp_path / "orch.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(tmp_path)


def job(tmp_path: Path, text: str) -> Job:
    (tmp_path / "job.yaml").write_text(text)
    return load_job(tmp_path)


def test_the_files_that_orch_writes_are_valid(tmp_path: Path) -> None:
    read = config(tmp_path, ORCH_YAML)
    profile = read.profile(None)
    assert (profile.name, profile.cpus, profile.memory_bytes) == ("default", 1, 2 * 2**30)
    assert (profile.time_s, profile.lead_s) == (28800, 300)
    assert read.policy.checkpoint_interval_s is None and read.policy.checkpoints_kept == 3
    assert job(tmp_path, JOB_YAML) == Job(environment={})
    every_line = job(tmp_path, "\n".join(line.removeprefix("# ") for line in JOB_YAML.splitlines()))
    assert every_line == Job(
        hung_after_s=1200.0, what="what changed against which run, and why", profile="default", after=(
            Awaited(name="OTHER_TAG", condition=After.FINISHED, where=f"{tmp_path / 'job.yaml'}:3: after.OTHER_TAG: "),),
        interval_s=600, keep=3,
        validate="python train.py --check-arguments", environment={"SEED": "1", "CUDA_HOME": None}, env_file="secrets.env",
        finished_when="cv.json")


def test_all_keys(tmp_path: Path) -> None:
    read = config(tmp_path, """
profiles:
  a: {partition: gpu, account: me, qos: low, reservation: week, gres: "gpu:2", nodes: 2, cpus: 4, memory: 36G,
      time: "12:30:00", lead: 10m, signal: SIGUSR1}
  b: {}
default_profile: b
successors_ahead: 0
queue: share
checkpoint: {interval: 90s, keep: 5}
recovery: {endings_without_progress: 2, backoff: 1m, backoff_at_most: 1h, retries: {setup-failure: 2}}
slurm: {conf: etc/slurm.conf, timeout: 5s}
daemon: {every: 10s}
env: {A: 1}
""")
    a = read.profile("a")
    assert (a.time_s, a.lead_s, a.signal, a.gres, a.memory_bytes) == (45000, 600, "USR1", "gpu:2", 36 * 2**30)
    assert a.reservation == "week"
    assert read.profile(None).name == "b"
    policy = read.policy
    assert policy.retries == {"setup-failure": 2}
    assert (policy.successors_ahead, policy.finish_first, policy.checkpoint_interval_s, policy.checkpoints_kept) == (
        0, False, 90, 5)
    assert (policy.endings_without_progress, policy.backoff_s, policy.backoff_at_most_s) == (2, 60, 3600)
    assert read.slurm_conf == tmp_path / "etc/slurm.conf" and (read.slurm_timeout_s, read.every_s) == (5, 10)


BAD_CONFIG = [
    # text, line, key and problem, words of the hint
    (HEAD + "successor_ahead: 1\n", 4, 'successor_ahead: unknown key "successor_ahead"', 'did you mean "successors_ahead"'),
    (HEAD + "    memry: 3G\n", 4, 'profiles.small.memry: unknown key "memry"', 'did you mean "memory"'),
    (HEAD + "checkpoint:\n  intervall: 3m\n", 5, 'checkpoint.intervall: unknown key', 'did you mean "interval"'),
    (HEAD + "checkpoint: {xyzzy: 1}\n", 4, 'checkpoint.xyzzy: unknown key', "known here: at_most, interval, keep, local, "),
    (HEAD + "xyzzy: 1\n", 4, 'xyzzy: unknown key', "known here: "),
    ("profiles:\n  small: {time: 8h\n", 3, "not YAML", "that line"),
    ("profiles:\n  small:\n\ttime: 8h\n", 3, "not YAML", "not tabs"),
    ("profiles:\n  small:\n    time: 12:30:00\n", 3, "profiles.small.time: YAML reads 12:30:00 as the number 45000",
     '"12:30:00"'),
    ("profiles:\n  small:\n    time: 1:30\n", 3, "profiles.small.time: YAML reads 1:30 as the number 90", '"1:30"'),
    ("profiles:\n  small:\n    time: 30\n",
     3, 'profiles.small.time: "30" is not a duration (add a unit: 30s, 30m or 30h)', ""),
    ("profiles:\n  small:\n    time: 20 mins\n", 3, 'profiles.small.time: "20 mins" is not a duration (write 90s', ""),
    ("profiles:\n  small:\n    time: 0s\n", 3, "profiles.small.time: 0s is not more than nothing", "write for example"),
    ("profiles:\n  small:\n    time: -5m\n", 3, 'profiles.small.time: "-5m" is not a duration', ""),
    ("profiles:\n  small:\n    time: .inf\n", 3, 'profiles.small.time: ".inf" is not a duration', ""),
    ("profiles:\n  small:\n    time: [8h]\n", 3, "profiles.small.time: must be", ""),
    ("profiles:\n  small:\n    time: true\n", 3, "profiles.small.time: must be", ""),
    ("profiles:\n  small:\n    memory: 36\n", 3, 'profiles.small.memory: "36" is not a size (add a unit: 36M or 36G)', ""),
    ("profiles:\n  small:\n    memory: 36 gigs\n", 3, 'profiles.small.memory: "36 gigs" is not a size', ""),
    ("profiles:\n  small:\n    time: 5m\n    lead: 5m\n", 4,
     "profiles.small.lead: the lead (5m) is not shorter than the time",
     "needs the lead to save"),
    ("profiles:\n  small:\n    time: 4d\n    lead: 1d\n", 4, "profiles.small.lead: 1d is more than Slurm takes", "65535s"),
    (HEAD + "    signal: KILL\n", 4, 'profiles.small.signal: "KILL" cannot give notice', "USR1"),
    (HEAD + "    cpus: 0\n", 4, "profiles.small.cpus: must be at least 1", ""),
    (HEAD + "    cpus: two\n", 4, "profiles.small.cpus: must be a whole number, not text", ""),
    (HEAD + "    cpus: 1\n  large:\n    cpus: two\n", 6, "profiles.large.cpus: must be a whole number, not text", ""),
    (HEAD + "  large: 7\n", 4, "profiles.large: must be keys and values, not a whole number", ""),
    (HEAD + "    partition: 7\n", 4, "profiles.small.partition: must be text or nothing, not a whole number", ""),
    (HEAD + "    gres: |\n      gpu:1\n", 4, "profiles.small.gres: is more than one line", "behind the colon"),
    (HEAD + "    time: 9h\n", 4, "profiles.small.time: written twice", "the first one is in line 3"),
    (HEAD + "profiles: {}\n", 4, "profiles: written twice", "line 1"),
    ("profiles: {}\n", 1, "profiles: is empty", "orch init"),
    ("queue: share\n", 1, 'profiles: "profiles" is missing', ""),
    ("", 1, 'profiles: "profiles" is missing', ""),
    ("# nothing\n", 1, 'profiles: "profiles" is missing', ""),
    ("- a\n- b\n", 1, "must be keys and values, not a list", ""),
    ("words\n", 1, "must be keys and values, not text", ""),
    ("profiles: [small]\n", 1, "profiles: must be keys and values, not a list", ""),
    (HEAD + "default_profile: smal\n", 4, 'default_profile: "smal" is not one of small', ""),
    (HEAD + "queue: fifo\n", 4, 'queue: "fifo" is not known', "finish_first or share"),
    (HEAD + "slurm: {backend: rest}\n", 4, 'slurm.backend: "rest" is not known', "commands or pyslurm"),
    (HEAD + "successors_ahead: 2\n", 4, "successors_ahead: 2 is not possible", "0 or 1"),
    (HEAD + "checkpoint: {keep: 1}\n", 4, "checkpoint.keep: 1 is too few", "half-written"),
    (HEAD + "checkpoint: {interval: 30}\n", 4, 'checkpoint.interval: "30" is not a duration', ""),
    (HEAD + "recovery: {backoff: 3}\n", 4, 'recovery.backoff: "3" is not a duration', ""),
    (HEAD + "recovery: {backoff: 1h}\n", 4, "recovery.backoff: is longer than where", "backoff_at_most"),
    (HEAD + "recovery: {memory_factor: 0.5}\n", 4, "recovery.memory_factor: 0.5 is not from 1 to 100", "1.5"),
    (HEAD + "recovery: {memory_factor: .nan}\n", 4, "recovery.memory_factor: nan is not from 1", "1.5"),
    (HEAD + "recovery: {lead_factor: .inf}\n", 4, "recovery.lead_factor: inf is not from 1", "1.5"),
    (HEAD + "recovery: {exclude_share: 25}\n", 4, "recovery.exclude_share: 25 is no share", "0.25"),
    (HEAD + "recovery: {endings_without_progress: 0}\n", 4, "recovery.endings_without_progress: 0 is below 1", "write 1"),
    (HEAD + "recovery: {retries: {crush: 3}}\n", 4, "recovery.retries.crush: is no ending that could be retried", '"crash"'),
    (HEAD + "recovery: {retries: {cancelled: 3}}\n", 4, "recovery.retries.cancelled: is no ending", "setup-failure"),
    (HEAD + "recovery: {retries: {crash: -1}}\n", 4, "recovery.retries.crash: -1 is below 0", "at once"),
    (HEAD + "daemon: {every: 1:00}\n", 4, "daemon.every: YAML reads 1:00 as the number 60", '"1:00"'),
    (HEAD + "env:\n  HF_TOKEN: abc\n", 5, "env.HF_TOKEN: looks like a secret", "env_file"),
    (HEAD + "env:\n  WANDB_API_KEY:\n", 5, "env.WANDB_API_KEY: looks like a secret", "env_file"),
    (HEAD + "env:\n  DB_PASSWORD: x\n", 5, "env.DB_PASSWORD: looks like a secret", "env_file"),
    (HEAD + "env:\n  AWS_SECRET_ACCESS_KEY: x\n", 5, "env.AWS_SECRET_ACCESS_KEY: looks like a secret", "env_file"),
    (HEAD + "env:\n  A-B: x\n", 5, "env.A-B: is no name of an environment variable", ""),
    (HEAD + "env:\n  A: [1]\n", 5, "env.A: must be", ""),
    (HEAD + "env:\n  WHEN: 2026-13-01\n", 5, "env.WHEN: 2026-13-01 is no value", '"2026-13-01"'),
    (HEAD + "env: &all\n  A: *all\n", 5, "env.A: contains itself", "instead of an alias"),
    (HEAD + "env: {A: *none}\n", 4, "not YAML", ""),
    (HEAD + "env: {A: !python/object:os.system x}\n", 4, "not YAML", ""),
    (HEAD + "---\nmore: 1\n", 4, "not YAML", ""),
    (HEAD + "env: {A: \x07}\n", None, "not YAML", ""),
    (b"profiles: caf\xe9\n", None, "not UTF-8 text", ""),
]


@pytest.mark.parametrize(("text", "line", "problem", "hint"), BAD_CONFIG)
def test_mistakes_in_orch_yaml(tmp_path: Path, text: str | bytes, line: int | None, problem: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, text)
    where = f"{tmp_path / 'orch.yaml'}:{line}: " if line is not None else f"{tmp_path / 'orch.yaml'}: "
    assert caught.value.message.startswith(where)
    assert problem in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2
    assert "[...]" not in caught.value.message and "|" not in caught.value.message


@pytest.mark.parametrize(("text", "line", "problem", "hint"), [
    ("profil: a\n", 1, 'profil: unknown key "profil"', 'did you mean "profile"'),
    ("after: a\n", 1, "after: a is no list", "write [a], or {a: ended}"),
    ("after: 012\n", 1, "after: 012 is no list", "write [012]"),
    ("after: {a: afterok}\n", 1, 'after.a: "afterok" is no condition', 'did you mean "finished"?'),
    ("after:\n  a: finished\n  b: afterany\n", 3, 'after.b: "afterany" is no condition', 'did you mean "ended"?'),
    ("after: {a: endet}\n", 1, 'after.a: "endet" is no condition', 'did you mean "ended"?'),
    ("after: {a: 7}\n", 1, 'after.a: "7" is no condition', "write finished or ended"),
    ("after: {a}\n", 1, "after.a: has no condition", "write finished or ended"),
    ("after: {a: [ended]}\n", 1, "after.a: ", "write finished or ended"),
    ("after: [a, {b: ended}]\n", 1, "after[1]: is neither a tag nor a job id", "without the list"),
    ("after: [a b]\n", 1, 'after[0]: "a b" is neither', "{TAG: finished, TAG: ended}"),
    ("after: ['a:ended']\n", 1, 'after[0]: "a:ended" is neither', "{TAG: finished, TAG: ended}"),
    ("checkpoint: {interval: 5}\n", 1, 'checkpoint.interval: "5" is not a duration', ""),
    ("what: x\ncheckpoint:\n  keep: 1\n", 3, "checkpoint.keep: 1 is too few", ""),
    ("env:\n  MY_WEBHOOK_URL: x\n", 2, "env.MY_WEBHOOK_URL: looks like a secret", "env_file"),
    ("validate: [a]\n", 1, "validate: must be text or nothing, not a list", ""),
    ("after:\n  - [a]\n", 2, "after[0]: is neither a tag nor a job id", "write [TAG, TAG]"),
    ("save_at:\n  - 100\n  - noon\n", 3, 'save_at[1]: "noon" is no step and no time of day', 'write a step like 5000'),
    ("save_at: [24:00]\n", 1, 'save_at[0]: "24:00" is no step', ""),
    ("save_at: [0]\n", 1, 'save_at[0]: "0" is no step', ""),
])
def test_mistakes_in_job_yaml(tmp_path: Path, text: str, line: int, problem: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'job.yaml'}:{line}: ")
    assert problem in caught.value.message and hint in caught.value.hint


@pytest.mark.parametrize(("text", "line", "problem", "hint"), [
    ("", 1, 'runs: "runs" is missing', ""), ("runs:\n", 1, "runs: must be", ""), ("runs: {}\n", 1, "runs: is empty", "TAG"),
    ("run: {a: }\n", 1, 'run: unknown key "run"', 'did you mean "runs"?'),
    ("runs:\n  a: {qqq: 1}\n", 2, 'runs.a.qqq: unknown key "qqq"', 'known here: after, profile'),
    ("runs:\n  a: {qqq: 1}\n  b: {run: 1}\n", 2, 'runs.a.qqq: unknown key "qqq"', 'known here: after, profile'),
    ("runs:\n  a:\n  b: {aftr: [a]}\n", 3, 'runs.b.aftr: unknown key "aftr"', 'did you mean "after"?'),
    ("runs:\n  a: [b]\n", 2, "runs.a: must be", ""), ("runs:\n  a b:\n", 2, 'runs.a b: "a b" cannot be a tag', "jobs/"),
    ("runs:\n  a:\n  a:\n", 3, "runs.a: written twice", "line 2"),
    ("runs:\n  a:\n  b:\n    after:\n      a: ok\n", 5, 'runs.b.after.a: "ok" is no condition', '"finished"'),
    ("runs:\n  a:\n  b: {after: a}\n", 3, "runs.b.after: a is no list", "[a]")])
def test_mistakes_in_a_campaign(tmp_path: Path, text: str, line: int, problem: str, hint: str) -> None:
    path = tmp_path / "jobs" / "c.campaign.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_campaign(tmp_path, "c")
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert problem in caught.value.message and hint in caught.value.hint


def test_a_campaign_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "c.campaign.yaml"
    path.parent.mkdir()
    path.write_text("runs:\n  v1.2:\n  b: {profile: cpu, after: [v1.2, 77]}\n  d: {after: {v1.2: ended, b: finished}}\n")
    parts = load_campaign(tmp_path, "c").parts
    assert parts["v1.2"] == Part() and parts["b"].profile == "cpu"
    assert [(item.name, item.condition) for item in parts["b"].after] == [("v1.2", None), ("77", None)]
    assert [(item.name, item.condition) for item in parts["d"].after] == [("v1.2", After.ENDED), ("b", After.FINISHED)]
    assert parts["d"].after[0].where == f"{path}:4: runs.d.after.v1.2: "
    (tmp_path / "jobs" / "c").mkdir()
    with pytest.raises(ConfigError, match="jobs/c is a job folder"):
        load_campaign(tmp_path, "c")


def test_no_orch_yaml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no orch\.yaml") as caught:
        load_config(tmp_path)
    assert "orch init" in caught.value.hint


def test_an_unknown_profile_is_answered_with_the_nearest(tmp_path: Path) -> None:
    read = config(tmp_path, "profiles: {small: {}, large: {}}\n")
    with pytest.raises(UserError, match='no profile "smal"') as caught:
        read.profile("smal")
    assert caught.value.hint == 'did you mean "small"?' and caught.value.exit_code == 2
    with pytest.raises(UserError) as caught:
        read.profile("xyzzy")
    assert caught.value.hint == "there are: small, large"


@pytest.mark.parametrize(("written", "read"), [
    ("010", "010"), ("1.10", "1.10"), ("12:30:00", "12:30:00"), ("true", "true"), ("on", "on"), ("1e-3", "1e-3"),
    ("0x1F", "0x1F"),
    ("1_000", "1_000"), ('"a b"', "a b"), ("''", ""), ("", None), ("~", None), ("ünï", "ünï")])
def test_values_of_env_are_taken_as_they_are_written(tmp_path: Path, written: str, read: str | None) -> None:
    assert job(tmp_path, f"env:\n  A: {written}\n").environment == {"A": read}
    assert config(tmp_path, f"{HEAD}env:\n  A: {written}\n").environment == {"A": read}


def test_after_is_taken_as_it_is_written(tmp_path: Path) -> None:
    assert job(tmp_path, "after: [a, 12, 0123, b.2]\n").after == tuple(
        Awaited(name=name, where=f"{tmp_path / 'job.yaml'}:1: after[{index}]: ")
        for index, name in enumerate(("a", "12", "0123", "b.2")))


def test_save_at_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """22:00 without quotes is a number to YAML."""
    assert job(tmp_path, 'save_at: [5000, 22:00, "7:05"]\n').save_at == ("5000", "22:00", "7:05")


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "TOKENS_PER_BATCH", "NCCL_DEBUG"])
def test_names_that_only_resemble_secrets(tmp_path: Path, name: str) -> None:
    assert name in job(tmp_path, f"env: {{{name}: 1}}\n").environment


# --- the recorded environment ------------------------------------------------------------------------------------------

SHELL = {
    "PATH": "/venv/bin:/usr/bin", "VIRTUAL_ENV": "/venv", "LANG": "C", "LC_ALL": "C", "CONDA_PREFIX": "/c", "HOME": "/h",
    "HF_TOKEN": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter2", "SSH_AUTH_SOCK": "/s", "SBATCH_TIMELIMIT": "1",
    "SLURM_JOB_ID": "7",
    "SQUEUE_FORMAT": "%i", "MY_SETTING": "x", "SEED": "5", "DBUS_SESSION_BUS_ADDRESS": "unix:x", "PATHOLOGY": "no",
}


def test_the_environment_is_an_allow_list_and_what_env_names(tmp_path: Path) -> None:
    read = config(tmp_path, f"{HEAD}env: {{A: 1, B: 2, SEED: }}\n")
    recorded = recorded_environment(SHELL, read, job(tmp_path, "env: {B: 3, MY_SETTING: }\n"))
    assert recorded == {
        "PATH": "/venv/bin:/usr/bin", "VIRTUAL_ENV": "/venv", "LANG": "C", "LC_ALL": "C", "CONDA_PREFIX": "/c", "HOME": "/h",
        "A": "1", "B": "3", "SEED": "5", "MY_SETTING": "x"}


def test_a_name_without_a_value_must_be_set_in_the_shell(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NOWHERE has no value and is not set") as caught:
        recorded_environment(SHELL, config(tmp_path, f"{HEAD}env: {{NOWHERE: }}\n"), Job(environment={}))
    assert "export it" in caught.value.hint


def test_a_profile_may_build_on_another(tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(
        "profiles:\n  small: &small {cpus: 2, memory: 4G, time: 2h}\n  large:\n    <<: *small\n    memory: 64G\n")
    profiles = load_config(tmp_path).profiles
    assert (profiles["large"].cpus, profiles["large"].memory_bytes) == (2, 64 * 2**30)
    assert profiles["small"].memory_bytes == 4 * 2**30
