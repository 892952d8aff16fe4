"""Every mistake: a sentence on stderr or, with --json, an object on stdout; the right exit code; nothing written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Orch

JOB = "jobs/resnet-a/job.sh"


def nothing_was_recorded(repository: Path) -> bool:
    return not (repository / "runs").exists()


@pytest.mark.parametrize(("arguments", "code", "problem", "hint"), [
    (("submit", "resnet-b"), 3, 'no job folder jobs/resnet-b, so no run "resnet-b"', 'did you mean "resnet-a"?'),
    (("submit", "a/b"), 2, "cannot be a tag", '"a-b"'),
    (("submit", "a b"), 2, "cannot be a tag", '"a-b"'),
    (("submit", ""), 2, "cannot be a tag", ""),
    (("submit", "--", "-x"), 2, '"-x" cannot be a tag', '"x"'),
    (("submit", "-x"), 2, "No such option", ""),
    (("submit",), 2, "Missing argument", ""),
    (("submit", "resnet-a", "--profile", "defualt"), 2, 'no profile "defualt"', 'did you mean "default"?'),
    (("submit", "resnet-a", "--memory", "36"), 2, '--memory: "36" is not a size (add a unit: 36M or 36G)', ""),
    (("submit", "resnet-a", "--after", "resnet-a"), 2, "resnet-a cannot wait for itself", ""),
    (("submit", "resnet-a", "--after", "xyz"), 3, 'no run to wait for called "xyz"', "there is none yet"),
    (("submit", "resnet-a", "--after", "83_1"), 2, "83_1 is a part of job 83", "write 83"),
    (("submit", "resnet-a", "--after", "84+1"), 2, "84+1 is a part of job 84", "write 84"),
    (("status", "resnet-a"), 3, "jobs/resnet-a has never been submitted", "orch submit"),
    (("status", "../resnet-a"), 3, 'no run "../resnet-a"', ""),
    (("logs", "x"), 3, 'no run "x"', ""),
    (("explain", "x"), 3, 'no run "x"', ""),
    (("hold", "x"), 3, 'no run "x"', ""),
    (("release", "x"), 3, 'no run "x"', ""),
    (("cancel", "x"), 3, 'no run "x"', ""),
    (("wait", "x"), 3, 'no run "x"', ""),
    (("wait", "x", "--for", "done"), 2, "--for: unknown state done", "finished"),
    (("wait", "x", "--timeout", "5"), 2, '--timeout: "5" is not a duration', ""),
    (("sumbit", "x"), 2, 'did you mean "submit"?', ""),
    (("submit", "resnet-a"), 5, "sinfo", ""),
])
def test_mistakes(orch: Orch, repository: Path, arguments: tuple[str, ...], code: int, problem: str, hint: str) -> None:
    answer = orch(*arguments)
    assert answer.code == code, answer
    assert problem in answer.err and hint in answer.err and answer.out == "" and "Traceback" not in answer.err
    assert nothing_was_recorded(repository)


@pytest.mark.parametrize(("arguments", "code", "kind"), [
    (("submit", "resnet-b", "--json"), 3, "UnknownTag"), (("submit", "a/b", "--json"), 2, "UserError"),
    (("submit", "--json"), 2, "UserError"), (("submit", "x", "--nonsense", "--json"), 2, "UserError"),
    (("hold", "x", "--json"), 3, "UnknownTag"), (("submit", "resnet-a", "--json"), 5, "SlurmUnreachable")])
def test_errors_as_objects(orch: Orch, repository: Path, arguments: tuple[str, ...], code: int, kind: str) -> None:
    answer = orch(*arguments)
    assert answer.code == code and answer.err == ""
    assert set(answer.json) == {"error", "message", "hint"} and answer.json["error"] == kind and answer.json["message"]


def test_no_such_tag_names_the_nearest_run(orch: Orch, repository: Path) -> None:
    answer = orch("submit", "resnet-aa", "--json")
    assert answer.json["hint"] == 'did you mean "resnet-a"?'


@pytest.mark.parametrize(("spoil", "code", "problem"), [
    (lambda job: job.write_bytes(b"#!/bin/bash\r\nls\r\n"), 2, "job.sh:1: has Windows line ends"),
    (lambda job: job.chmod(0o644), 2, "is not executable"),
    (lambda job: job.write_text("sleep 1\n"), 2, "job.sh:1: does not begin with #!"),
    (lambda job: job.write_text("#!/bin/bash\nif\n"), 2, "bash cannot parse it"),
    (lambda job: job.write_text("#!/bin/bash\n# nothing\n"), 2, "has no command in it"),
    (lambda job: job.write_text(""), 2, "does not begin with #!"),
    (lambda job: job.unlink(), 2, "does not exist"),
    (lambda job: (job.parent / "job.yaml").write_text("profil: a\n"), 2, 'job.yaml:1: profil: unknown key "profil"'),
    (lambda job: (job.parent / "job.yaml").write_text("a: [\n"), 2, "not YAML"),
    (lambda job: (job.parent / "job.yaml").write_text("env_file: gone.env\n"), 2, "gone.env does not exist"),
    (lambda job: (job.parent / "job.yaml").write_text("env: {NOT_SET_ANYWHERE: }\n"), 2, "is not set in this shell"),
    (lambda job: (job.parents[2] / "orch.yaml").write_text("profiles:\n  a: {time: 12:30:00}\n"), 2,
     "orch.yaml:2: profiles.a.time"),
])
def test_files_that_are_wrong(orch: Orch, repository: Path, spoil: Callable[[Path], object], code: int, problem: str) -> None:
    spoil(repository / JOB)
    answer = orch("submit", "resnet-a")
    assert answer.code == code and problem in answer.err and answer.out == ""
    assert nothing_was_recorded(repository)


def test_an_env_file_that_others_can_read(orch: Orch, repository: Path) -> None:
    (repository / "jobs/resnet-a/job.yaml").write_text("env_file: secrets.env\n")
    secrets = repository / "jobs/resnet-a/secrets.env"
    secrets.write_text("HF_TOKEN=hunter2\n")
    secrets.chmod(0o644)
    answer = orch("submit", "resnet-a")
    assert answer.code == 2 and "can be read by others" in answer.err and "chmod 600" in answer.err
    assert "hunter2" not in answer.err


def test_damaged_journals_are_named_and_hide_nothing(orch: Orch, repository: Path) -> None:
    for tag, content in (("bad", b"x\n"), ("newer", b'{"event": "submit", "t": 1, "schema": 99}\n'), ("empty", b"")):
        (repository / "runs" / tag).mkdir(parents=True)
        (repository / "runs" / tag / "journal.jsonl").write_bytes(content)
    answer = orch("status")
    assert answer.code == 0
    for words in ("bad/journal.jsonl:1: not an event", "newer/journal.jsonl:1: written by a newer orch",
                  "empty/journal.jsonl: has no"):
        assert words in answer.err
    assert len(orch("status", "--json").json["errors"]) == 3
    for tag in ("bad", "newer", "empty"):
        for command in ("status", "hold", "explain", "logs", "cancel", "wait"):
            refused = orch(command, tag)
            assert refused.code == 8 and "journal.jsonl" in refused.err, (command, tag, refused)
    assert orch("tick").code == 8
    assert (repository / "runs/bad/journal.jsonl").read_bytes() == b"x\n"


def test_a_repository_that_cannot_be_written(orch: Orch, repository: Path) -> None:
    (repository / "ops").rename(repository / "ops-away")
    (repository / "ops").write_text("a file where a folder should be")
    answer = orch("tick")
    assert answer.code == 7 and "ops" in answer.err and "Traceback" not in answer.err


def test_a_newline_in_the_repositorys_path(orch: Orch, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = repository / "a\nb"
    odd.mkdir()
    monkeypatch.chdir(odd)
    (odd / "orch.yaml").write_text("profiles: {p: {}}\n")
    assert orch("new", "x").code == 0
    answer = orch("submit", "x")
    assert answer.code == 2 and "holds a newline" in answer.err


def test_no_runs_yet(orch: Orch, repository: Path) -> None:
    assert "no runs yet" in orch("status").out
    assert orch("status", "--json").json == {"runs": [], "errors": [], "slurm_silent": None}
    assert orch("tick").code == 0


def test_a_second_daemon_is_refused(orch: Orch, repository: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys\nfrom pathlib import Path\nfrom orchestrator.control.loop import only_daemon\n"
         "with only_daemon(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()", str(repository)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None and holder.stdout is not None
    try:
        holder.stdout.readline()
        answer = orch("daemon")
        assert answer.code == 4 and f"a daemon runs here already (pid {holder.pid} on " in answer.err
    finally:
        holder.communicate()
