"""``orch daemon`` as a process: what it tells systemd, what it does at a signal, how its lines look, what starts it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Orch

from orchestrator.model import Profile, RunSpec
from orchestrator.sd_notify import Manager

DAEMON = [sys.executable, "-c", "from orchestrator.cli.main import main; main()", "daemon"]
PATIENCE_S = 20


@contextmanager
def ear(address: str) -> Iterator[socket.socket]:
    """Where systemd would listen; a name that begins with a NUL is in no folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(PATIENCE_S)
        yield listener


def heard(listener: socket.socket, wanted: str) -> list[str]:
    """All that was told until then."""
    told: list[str] = []
    while not told or not told[-1].startswith(wanted):
        told.append(listener.recv(4096).decode())
    return told


@contextmanager
def running(repository: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    (repository / "orch.yaml").write_text("profiles: {p: {}}\ndaemon: {every: 10m}\nslurm: {timeout: 300ms}\n")
    with subprocess.Popen([*DAEMON, *arguments], cwd=repository, env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def waiting(repository: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A daemon that has made its first pass."""
    address = str(repository / "notify")
    with ear(address) as listener, running(repository, *arguments, NOTIFY_SOCKET=address) as process:
        heard(listener, "STATUS=")
        yield process, listener


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("kind", ["a path", "abstract"])
def test_systemd_is_told(repository: Path, tmp_path: Path, kind: str) -> None:
    name = f"orch-test-{os.getpid()}"
    given, bound = (str(tmp_path / "notify"),) * 2 if kind == "a path" else (f"@{name}", f"\0{name}")
    with ear(bound) as listener, running(repository, NOTIFY_SOCKET=given, WATCHDOG_USEC="3000000") as process:
        assert heard(listener, "STATUS=")[:2] == ["READY=1", "WATCHDOG=1"]
        assert "WATCHDOG=1" in heard(listener, "WATCHDOG=1"), "while it waits, too"
        process.send_signal(signal.SIGTERM)
        heard(listener, "STOPPING=1")
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0 and err == "" and out.endswith("ended; jobs go on by themselves\n")


def test_a_pass_tells_that_it_gets_on(repository: Path, tmp_path: Path) -> None:
    """Hundreds of runs and a slow Slurm must not look like a hang."""
    for tag in ("a", "b"):
        spec = RunSpec(tag=tag, repository=str(repository), python="python", profile=Profile(name="p"), script_sha256="0")
        (repository / "runs" / tag).mkdir(parents=True)
        (repository / "runs" / tag / "journal.jsonl").write_text(
            json.dumps({"event": "submit", "t": 1.0, "schema": 1, "spec": asdict(spec)}) + "\n")
    address = str(tmp_path / "notify")
    with ear(address) as listener, running(repository, NOTIFY_SOCKET=address, WATCHDOG_USEC="3000000"):
        *told, status = heard(listener, "STATUS=")
    assert told == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"], "before, for each run, and after"
    assert status.startswith("STATUS=0 running, 2 waiting; Slurm is silent; passed at ")


def test_the_managers_variables_go_no_further(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    with ear(environ["NOTIFY_SOCKET"]) as listener:
        manager = Manager(environ)
        assert environ == {"HOME": "/"}
        manager.alive()                                # another process is watched, not this one
        manager.status("two\nlines")
        assert heard(listener, "STATUS") == ["STATUS=two lines"]
    manager.ready()                                    # nobody listens any more
    Manager({}).ready()


def test_sighup_reads_orch_yaml_and_passes_at_once(repository: Path) -> None:
    with waiting(repository) as (process, listener):
        assert "a pass every 600 s" in line_of(process)
        (repository / "orch.yaml").write_text("profilez: {}\n")
        for _ in range(2):                             # asked twice, told twice what is wrong
            process.send_signal(signal.SIGHUP)
            assert "asked to read orch.yaml" in line_of(process)
            assert 'unknown key "profilez"' in line_of(process)
            heard(listener, "STATUS=")
        process.send_signal(signal.SIGINT)
        assert "ended" in line_of(process)
        assert process.wait(PATIENCE_S) == 0


def test_lines_as_objects(repository: Path) -> None:
    (repository / "runs" / "bad").mkdir(parents=True)
    (repository / "runs" / "bad" / "journal.jsonl").write_text("x\n")
    with waiting(repository, "--json") as (process, _):
        lines: list[dict[str, Any]] = [json.loads(line_of(process)) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        lines += map(json.loads, process.communicate(timeout=PATIENCE_S)[0].splitlines())
    assert [(line["tag"], line["action"]) for line in lines] == [(None, "begin"), ("bad", "error"), (None, "end")]
    assert all(line["t"] > 1e9 and line["text"] for line in lines)


def test_where_it_hung_is_printed(repository: Path) -> None:
    """systemd's watchdog sends SIGABRT."""
    with waiting(repository) as (process, _):
        process.send_signal(signal.SIGABRT)
        assert "orchestrator/control/loop.py" in process.communicate(timeout=PATIENCE_S)[1]


def test_a_reader_that_goes_away_ends_no_daemon(repository: Path) -> None:
    with waiting(repository) as (process, listener):
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        heard(listener, "STATUS=")                     # it passed again
        assert process.poll() is None


def test_a_terminal_that_is_closed_ends_it(repository: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(DAEMON, cwd=repository, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                          preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) as process:
        os.close(theirs)
        assert b"daemon for" in os.read(ours, 4096)
        os.close(ours)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode in (0, 120)              # 120: Python's last words found no terminal


@pytest.mark.parametrize(("option", "expected"), [
    ("--print-unit", r'(?m)^ExecStart="/\S*/orch" daemon$'), ("--print-cron", r"(?m)^\* \* \* \* \* export PATH=/\S+"),
    ("--print-scrontab", r"(?m)^#SCRON --time=.*\n(#SCRON .*\n)+\*/5 \* \* \* \* cd ")])
def test_what_starts_it_is_printed(orch: Orch, repository: Path, option: str, expected: str) -> None:
    answer = orch("daemon", option)
    assert answer.code == 0 and re.search(expected, answer.out), answer
    assert str(repository) in answer.out
    assert f"SLURM_CONF={repository}/no-slurm.conf" in answer.out, "this shell's, which nothing else would know"
    assert not (repository / ".orch").exists(), "nothing is started and nothing locked"


def test_the_repositorys_own_slurm_needs_no_word(orch: Orch, repository: Path) -> None:
    (repository / "orch.yaml").write_text("profiles: {p: {}}\nslurm: {conf: slurm.conf}\n")
    (repository / "slurm.conf").write_text("")
    assert "SLURM_CONF=" not in orch("daemon", "--print-unit").out


def test_the_line_for_cron_runs_a_pass_without_this_environment(orch: Orch, repository: Path) -> None:
    line = orch("daemon", "--print-cron").out.splitlines()[-1]
    command = line.removeprefix("* * * * * ").replace(r"\%", "%")
    ran = subprocess.run(["/bin/sh", "-c", command], env={"HOME": str(repository), "PATH": "/usr/bin:/bin"}, cwd="/",
                         capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert (repository / "ops" / "tick.log").read_text() == "" and (repository / "ops" / "STATE.md").exists()
