"""``orch status``, ``watch``, ``completion`` and the page for agents, on runs that lie on the disk, without a Slurm."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Orch

from orchestrator.control.ports import runs_now
from orchestrator.model import Profile, RunSpec

NOW = time.time()                                      # of all that was made here; the program has its own
PROGRAM = [sys.executable, "-c", "from orchestrator.cli.main import main; main()"]


def make_run(repository: Path, tag: str, *events: dict[str, Any], at: float | None = None) -> Path:
    """A journal that begins with ``submit``."""
    at = NOW - 60 if at is None else at
    spec = RunSpec(tag=tag, repository=str(repository), python=sys.executable, profile=Profile(name="p"), script_sha256="0",
                   slurm=os.environ["SLURM_CONF"])
    folder = repository / "runs" / tag
    folder.mkdir(parents=True)
    lines = [{"event": "submit", "t": at, "schema": 1, "spec": asdict(spec)}, *({"t": at, **event} for event in events)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


QUEUED = [{"event": "queueing", "submission_id": "s1", "number": 1},
          {"event": "queued", "submission_id": "s1", "job_id": "7"}]
STARTED = {"event": "started", "number": 1, "submission_id": "s1", "job_id": "7", "restart_count": 0, "epoch": 1,
           "host": "n1", "started_at": NOW - 50}
ENDED = {"event": "ended", "epoch": 1, "number": 1, "ended_at": NOW - 40, "ending": "finished"}
FINISHED = {"event": "finished", "metrics": {"accuracy": 0.98}}
HELD = {"event": "held", "by": "orch", "reason": "attempt 1: crash: \x1b[31mred\nand more " + "why " * 60}


def said(folder: Path, *lines: dict[str, Any]) -> None:
    attempt = folder / "attempts" / "0001"
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt / "trainer.jsonl").write_text("".join(json.dumps({"t": NOW - 45, **line}) + "\n" for line in lines))


# --- progress -------------------------------------------------------------------------------------------------------------


def test_progress_is_the_trainers_words_and_what_it_did_not_say_is_null(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", *QUEUED, STARTED)
    said(folder, {"event": "start", "of": 90},
         {"event": "progress", "step": 9, "loss": 0.5, "steps_per_s": 2.0, "left_s": 40.5, "memory_bytes": 2**30,
          "gpu_memory_bytes": 2**31})
    run = orch("status", "a", "--json").json
    assert (run["step"], run["of"], run["loss"], run["left_s"]) == (9, 90, 0.5, 40.5)
    assert (run["memory_bytes"], run["gpu_memory_bytes"]) == (2**30, 2**31)
    said(folder, {"event": "progress", "step": 9, "loss": None, "steps_per_s": 2.0})
    run = orch("status", "a", "--json").json
    unsaid = ("of", "loss", "left_s", "memory_bytes", "gpu_memory_bytes")
    assert run["step"] == 9 and [run[key] for key in unsaid] == [None] * 5


def test_odd_words_of_a_trainer_break_nothing(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", *QUEUED, STARTED)
    said(folder, {"event": "progress", "step": "nine", "of": "x\n", "loss": float("inf"), "left_s": float("nan"),
                  "steps_per_s": [1], "memory_bytes": {}}, {"event": "saved", "step": None})
    run = orch("status", "a", "--json").json
    assert all(run[key] is None for key in ("step", "of", "loss", "left_s", "steps_per_s", "memory_bytes"))
    assert orch("status", "a").code == orch("status").code == 0


# --- the list -------------------------------------------------------------------------------------------------------------


def test_piped_status_is_plain_and_uncut(orch: Orch, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    make_run(repository, "bad", *QUEUED, STARTED, {**ENDED, "ending": "crash"}, HELD)
    for command in (("status",), ("status", "bad"), ("watch",)):
        answer = orch(*command)
        assert answer.code == 0 and "\x1b" not in answer.out and "…" not in answer.out
        assert "attempt 1: crash: [31mred and more" in answer.out


def test_what_ended_long_ago_is_folded_and_shown_with_all(orch: Orch, repository: Path) -> None:
    for number in range(3):
        make_run(repository, f"old-{number}", *QUEUED, STARTED, ENDED, FINISHED, at=time.time() - 90_000)
    make_run(repository, "new", *QUEUED, STARTED, ENDED, FINISHED)
    assert "old-1" not in orch("status").out
    assert orch("status").out.splitlines()[-1] == "and 3 finished earlier: `orch status --all`"
    assert "old-1" in orch("status", "--all").out
    assert len(orch("status", "--json").json["runs"]) == 4


def test_slurm_is_not_asked_when_nothing_is_under_way(orch: Orch, repository: Path) -> None:
    make_run(repository, "done", *QUEUED, STARTED, ENDED, FINISHED)
    for command in (("status",), ("status", "done"), ("watch", "done")):
        answer = orch(*command)
        assert answer.code == 0 and "finished" in answer.out and "does not answer" not in answer.out + answer.err
    make_run(repository, "going", *QUEUED)
    assert "does not answer" in orch("status").err


def test_status_with_json_of_one_run_has_its_saves_and_its_timeline(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", *QUEUED, STARTED, ENDED, FINISHED)
    said(folder, {"event": "saved", "step": 5}, {"event": "progress", "step": 6}, {"event": "saved", "step": 9})
    run = orch("status", "a", "--json").json
    assert run["attempts"][0]["saves"] == 2 and "reliability" in run
    assert [moment["words"] for moment in run["timeline"]] == [
        "submitted", "finished: accuracy=0.98", "attempt 1 started on n1 (job 7)", "2 saves, the last at step 9",
        "attempt 1 ended: finished"]


def test_a_short_attempts_last_step_is_the_runs(orch: Orch, repository: Path) -> None:
    """Its trainer speaks every 30 s; its end tells of what came behind."""
    folder = make_run(repository, "a", *QUEUED, STARTED, {**ENDED, "ending": "crash", "last_step": 39})
    said(folder, {"event": "first_step", "step": 1})
    assert orch("status", "a", "--json").json["step"] == 39


def test_what_no_pass_has_noted_yet_is_shown_all_the_same(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", *QUEUED) / "attempts" / "0001"
    folder.mkdir(parents=True)
    start = {"number": 1, "submission_id": "s1", "job_id": "7", "restart_count": 0, "epoch": 1, "host": "n1", "boot_id": "b",
             "pid": 1, "pid_start": 1, "started_at": NOW - 50}
    end = {"number": 1, "job_id": "7", "restart_count": 0, "epoch": 1, "ended_at": time.time() - 40, "exit_code": 1,
           "trainer": "failed", "knows_orch": True, "first_step_at": time.time() - 45, "notice": "limit",
           "notice_at": time.time() - 42}
    (folder / "start.json").write_text(json.dumps(start))
    (folder / "end.json").write_text(json.dumps(end))
    words = [moment["words"] for moment in orch("status", "a", "--json").json["timeline"]]
    assert words[1:3] == ["attempt 1 started on n1 (job 7)", "notice: limit"]
    assert words[3].startswith("attempt 1 ended: limit-unsaved (no checkpoint after the notice); ")
    assert len((repository / "runs/a/journal.jsonl").read_text().splitlines()) == 3


def test_a_journal_that_has_not_changed_is_not_read_again(orch: Orch, repository: Path) -> None:
    folder = make_run(repository, "a", *QUEUED)
    make_run(repository, "b", *QUEUED)
    before = runs_now(repository)[0]
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"t": time.time(), **STARTED}) + "\n")
    after = runs_now(repository)[0]
    assert after[1] is before[1] and after[0].live is not None and before[0].live is None
    shutil.rmtree(folder)
    assert [run.spec.tag for run in runs_now(repository)[0]] == ["b"]


# --- on a terminal --------------------------------------------------------------------------------------------------------


class Terminal:
    """orch in a pseudo-terminal of this size."""

    def __init__(self, columns: int, lines: int, *arguments: str, **environment: str) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")}
        self.process = subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
                                        env={**kept, "TERM": "xterm-256color", **environment}, start_new_session=True)
        os.close(theirs)
        self.shown = ""

    def read_until(self, words: str, timeout_s: float = 20.0) -> str:
        give_up = time.monotonic() + timeout_s
        while words not in self.shown or not words:
            assert time.monotonic() < give_up, f"{words!r} not in {self.shown!r}"
            ready, _, _ = select.select([self._ours], [], [], 0.1)
            if ready:
                try:
                    data = os.read(self._ours, 65536)
                except OSError:                          # Linux: the other end is closed
                    data = b""
                if not data:
                    break
                self.shown += data.decode()
        return self.shown

    def finish(self) -> str:
        """All that it showed until its end, which must be a good one."""
        self.read_until("")
        assert self.process.wait(timeout=10) == 0, self.shown
        return self.shown

    def close(self) -> None:
        os.close(self._ours)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)


@contextlib.contextmanager
def terminal(columns: int, lines: int, *arguments: str, **environment: str) -> Iterator[Terminal]:
    made = Terminal(columns, lines, *arguments, **environment)
    try:
        yield made
    finally:
        made.close()


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOURS = re.compile(r"\x1b\[[0-9;]*3[0-9]m")


@pytest.fixture
def held(repository: Path) -> Path:
    make_run(repository, "bad", *QUEUED, STARTED, {**ENDED, "ending": "crash"}, HELD)
    return repository


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_terminal_gets_colour_and_lines_that_fit(held: Path, columns: int) -> None:
    with terminal(columns, 30, "status") as screen:
        shown = screen.finish()
    assert COLOURS.search(shown)
    lines = ESCAPES.sub("", shown).splitlines()
    assert len(lines) == 2 and all(len(line) <= columns for line in lines) and lines[1].endswith("…")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_forbidden(held: Path, environment: dict[str, str]) -> None:
    with terminal(80, 30, "status", **environment) as screen:
        assert not COLOURS.search(screen.finish())


def test_what_others_wrote_never_reaches_the_terminal_as_an_order(held: Path) -> None:
    with terminal(80, 30, "status", "bad") as screen:
        assert "[31mred and more" in screen.finish().replace("\x1b[1;31m", "") and "\x1b[31mred" not in screen.shown


def test_watch_ends_when_everything_is_over_or_held_and_leaves_its_last_picture(held: Path) -> None:
    with terminal(80, 30, "watch") as screen:
        shown = screen.finish()
    assert "held" in ESCAPES.sub("", shown) and "Traceback" not in shown


def test_watch_goes_on_while_something_waits_asks_slurm_rarely_and_ends_by_ctrl_c(repository: Path, orch: Orch) -> None:
    make_run(repository, "going", *QUEUED)
    squeue = repository / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho asked >> {repository}/asked\necho squeue: error: connection refused >&2\nexit 1\n")
    squeue.chmod(0o755)
    began = time.monotonic()
    with terminal(80, 30, "watch", PATH=f"{squeue.parent}:{os.environ['PATH']}") as screen:
        for _ in range(3):                               # drawn three times
            screen.read_until("waiting")
            screen.shown = ""
        os.kill(screen.process.pid, signal.SIGINT)
        assert "Traceback" not in screen.finish()
    asked = (repository / "asked").read_text().count("asked")
    assert 1 <= asked <= 1 + (time.monotonic() - began) // 10, "every ten seconds at most"


def test_watch_sees_what_ends_meanwhile(repository: Path, orch: Orch) -> None:
    folder = make_run(repository, "going", *QUEUED, STARTED)
    with terminal(80, 30, "watch", "going") as screen:
        screen.read_until("running")
        with (folder / "journal.jsonl").open("a") as journal:
            journal.writelines(json.dumps({"t": time.time(), **event}) + "\n" for event in (ENDED, FINISHED))
        assert "result: accuracy=0.98" in ESCAPES.sub("", screen.finish())


# --- completion -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_a_script(orch: Orch, repository: Path, shell: str) -> None:
    answer = orch("completion", shell)
    assert answer.code == 0 and f"_ORCH_COMPLETE={shell}_complete" in answer.out


def completed(repository: Path, *words: str) -> list[str]:
    """What a shell is offered for the last of these words."""
    environment = {**os.environ, "_ORCH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words),
                   "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run(PROGRAM, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return [line.partition(",")[2] for line in ran.stdout.split()]


def test_commands_and_tags_are_completed(orch: Orch, repository: Path) -> None:
    for tag in ("base", "bert"):
        make_run(repository, tag)
    (repository / "runs" / ".lib").mkdir()
    (repository / "jobs" / "better").mkdir()
    assert completed(repository, "orch", "wat") == ["watch"]
    for command in ("status", "watch", "explain", "hold", "release", "cancel", "wait"):
        assert completed(repository, "orch", command, "b") == ["base", "bert"], command
    assert completed(repository, "orch", "status", "") == ["base", "bert"]
    assert completed(repository, "orch", "submit", "b") == ["better"]
    assert completed(repository, "orch", "submit", "better", "--after", "be") == ["bert"]
    assert completed(repository, "orch", "new", "x", "--from", "be") == ["better"]
    assert completed(repository / "jobs", "orch", "status", "ba") == ["base"]
    (repository / "orch.yaml").unlink()
    assert completed(repository, "orch", "status", "b") == []


# --- the page for agents --------------------------------------------------------------------------------------------------


def test_a_pass_writes_the_page_and_leaves_it_alone_while_nothing_changes(orch: Orch, repository: Path) -> None:
    make_run(repository, "done", *QUEUED, STARTED, ENDED, FINISHED)
    assert orch("tick").code == 0
    page, data = repository / "ops/STATE.md", repository / "ops/state.json"
    assert page.read_text().startswith("**The queue is empty and nothing trains since")
    assert json.loads(data.read_text())["runs"][0]["tag"] == "done"
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (page, data)]
    assert orch("tick").code == 0
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (page, data)] == before


def test_the_page_says_that_slurm_is_silent_and_what_is_damaged(orch: Orch, repository: Path) -> None:
    make_run(repository, "going", *QUEUED)
    (repository / "runs" / "torn").mkdir()
    (repository / "runs" / "torn" / "journal.jsonl").write_text("x\n")
    assert orch("tick").code == 5
    first, *rest = (repository / "ops/STATE.md").read_text().splitlines()
    assert first.startswith("**Slurm does not answer** (`squeue") and "1 cannot be dealt with" in first
    assert any("torn/journal.jsonl:1: not an event" in line and "repair line 1" in line for line in rest)


def test_a_page_that_is_no_text_any_more_is_written_anew(orch: Orch, repository: Path) -> None:
    (repository / "ops/STATE.md").write_bytes(b"\xff\xfe")
    assert orch("tick").code == 0 and "The queue is empty" in (repository / "ops/STATE.md").read_text()


def test_the_guide_for_agents_names_commands_that_exist(orch: Orch, repository: Path) -> None:
    guide = (repository / "AGENTS.md").read_text()
    for command in set(re.findall(r"`orch (\w+)", guide)):
        assert orch(command, "--help").code == 0, command
    for words in ("ops/STATE.md", "Never write sbatch", "orch new NEW --from OLD", "ops/decisions.md", "journal.jsonl",
                  "control.json", "orch release TAG", "--again"):
        assert words in guide
    assert len(guide) < 3.5 * 1000
