"""The journal: whole lines or none, one writer, and nothing lost without a word."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import submit
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import journal
from orchestrator.control.ports import read_run, require_run, runs_now
from orchestrator.core.fold import fold
from orchestrator.errors import JournalError, StorageError


def append(run_dir: Path, name: str, **context: Any) -> dict[str, Any]:
    with journal.locked(run_dir, wait_s=0, clock=lambda: 7.0) as locked:
        return locked.append(name, **context)


def begin(run_dir: Path) -> Path:
    """A journal with its first event; its path."""
    append(run_dir, "submit", schema=1, spec=submit()["spec"])
    return journal.journal_path(run_dir)


def names(run_dir: Path) -> list[str]:
    return [event["event"] for event in journal.read(run_dir)[0]]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    path = begin(tmp_path)
    written = append(tmp_path, "held", by="user", reason="ünï 训练\n\r\u2028 \"")
    first = {**json.loads(json.dumps(submit())), "t": 7.0}
    assert journal.read(tmp_path) == ([first, written], "")
    assert path.read_bytes().count(b"\n") == 2
    assert journal.length(tmp_path) == path.stat().st_size


def test_none_and_an_empty_one_have_no_events(tmp_path: Path) -> None:
    assert journal.read(tmp_path) == ([], "")
    assert journal.length(tmp_path) == 0
    journal.journal_path(tmp_path).touch()
    assert journal.read(tmp_path) == ([], "")


def test_names_that_are_no_utf8_come_back_as_they_were(tmp_path: Path) -> None:
    begin(tmp_path)
    hostile = os.fsdecode(b"/data/caf\xe9")
    append(tmp_path, "note", text=hostile)
    assert journal.read(tmp_path)[0][-1]["text"] == hostile


# --- torn --------------------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_then_cut_off_and_kept_as_a_note(tmp_path: Path) -> None:
    path = begin(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"event": "held", "t"')
    events, torn = journal.read(tmp_path)
    assert [e["event"] for e in events] == ["submit"] and torn == '{"event": "held", "t"'
    append(tmp_path, "cancel", now=False)
    assert names(tmp_path) == ["submit", "note", "cancel"]
    assert torn in journal.read(tmp_path)[0][1]["text"]


def test_a_torn_first_line_does_not_push_submit_from_the_head(tmp_path: Path) -> None:
    journal.journal_path(tmp_path).write_bytes(b'{"event": "submit", "t": 1.0, "spe')
    assert journal.read(tmp_path)[0] == []
    begin(tmp_path)
    assert names(tmp_path) == ["submit", "note"]


def test_bytes_that_are_no_text_are_torn_off_too(tmp_path: Path) -> None:
    path = begin(tmp_path)
    with path.open("ab") as file:
        file.write(b"\xff\x00\xfe")
    append(tmp_path, "held")
    assert names(tmp_path) == ["submit", "note", "held"]


# --- damaged -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [
    b"garbage", b"[1, 2]", b'"held"', b'{"t": 1}', b'{"event": "held"}', b"\x00\x00\x00", b"\xff\xfe",
    b'{"event": "held", "t": '])
def test_garbage_in_the_middle_names_its_line_and_is_never_passed_over(tmp_path: Path, garbage: bytes) -> None:
    path = begin(tmp_path)
    with path.open("ab") as file:
        file.write(garbage + b'\n{"event": "held", "t": 3}\n')
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: not an event") as caught:
        journal.read(tmp_path)
    assert "line 2" in caught.value.hint and caught.value.exit_code == 8


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    append(tmp_path, "submit", schema=2, spec=submit()["spec"])
    with pytest.raises(JournalError, match="newer orch") as caught:
        journal.read(tmp_path)
    assert "nothing was changed" in caught.value.hint


def test_a_beginning_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    journal.journal_path(tmp_path).write_text('{"event": "held", "t": 1}\n')
    with pytest.raises(JournalError, match='begins with "submit"'):
        journal.read(tmp_path)


@pytest.mark.parametrize("event", [
    {"event": "started", "t": 1}, {"event": "ended", "t": 1, "epoch": 1, "ending": "exploded", "ended_at": 1},
    {"event": "held", "t": "yesterday"}, {"event": "queueing", "t": 1, "submission_id": "s", "number": None}])
def test_an_event_without_what_its_name_promises_is_damage(event: dict[str, Any]) -> None:
    told = [submit(), {"event": "started", "t": 1, "number": 1, "submission_id": "s1", "job_id": "1", "restart_count": 0,
                       "epoch": 1, "started_at": 1}, event]
    if event["event"] == "ended":
        with pytest.raises(JournalError, match='event 3 of the journal of a is a damaged "ended"'):
            fold(told)
    else:
        with pytest.raises(JournalError, match="is a damaged"):
            fold([submit(), event])


def test_a_spec_of_an_unknown_shape_is_damage() -> None:
    with pytest.raises(JournalError, match='event 1 of the journal is a damaged "submit"'):
        fold([{"event": "submit", "t": 1, "spec": {"tag": "a"}}])


def test_one_damaged_journal_hides_no_other(tmp_path: Path) -> None:
    for tag in ("bad", "empty", "good"):
        (tmp_path / "runs" / tag).mkdir(parents=True)
        begin(tmp_path / "runs" / tag)
    journal.journal_path(tmp_path / "runs" / "bad").write_bytes(b"x\n")
    journal.journal_path(tmp_path / "runs" / "empty").write_bytes(b"")
    runs, errors = runs_now(tmp_path)
    assert len(runs) == 1
    assert [error.message.split("runs/")[1].split("/")[0] for error in errors] == ["bad", "empty"]


def test_a_journal_that_lost_all_it_held_is_no_unknown_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    journal.journal_path(tmp_path / "runs" / "a").touch()
    assert read_run(tmp_path, "a") is None
    with pytest.raises(JournalError, match="has no whole event") as caught:
        require_run(tmp_path, "a")
    assert "orch submit a" in caught.value.hint


# --- full disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting a tiny file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_a_full_disk_leaves_the_journal_as_it_was(tiny_disk: Path) -> None:
    path = begin(tiny_disk)
    fill(tiny_disk)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="No space left on device; the event was not recorded") as caught:
        append(tiny_disk, "note", text="y" * 8192)
    assert caught.value.exit_code == 7 and path.read_bytes() == before
    (tiny_disk / "filler").unlink()
    append(tiny_disk, "held")
    assert names(tiny_disk) == ["submit", "held"]


def test_a_full_disk_at_the_first_event_leaves_no_half_run(tiny_disk: Path) -> None:
    (tiny_disk / "lock").touch()
    fill(tiny_disk)
    with pytest.raises(StorageError):
        append(tiny_disk, "submit", schema=1, spec=submit()["spec"])
    assert journal.length(tiny_disk) == 0


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from orchestrator import journal
from orchestrator.errors import StorageError
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with journal.locked(folder, wait_s=0) as locked:
    limit = locked.length() + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        locked.append("note", text="longer than twenty bytes")
    except StorageError as error:
        sys.exit(error.exit_code)
"""


def test_a_write_that_was_cut_short_is_undone(tmp_path: Path) -> None:
    path = begin(tmp_path)
    before = path.read_bytes()
    ended = subprocess.run([sys.executable, "-c", _LIMITED, str(tmp_path)], check=False)
    assert ended.returncode == 7 and path.read_bytes() == before


# --- other processes -------------------------------------------------------------------------------------------------------

_APPENDER = """
import sys
from pathlib import Path
from orchestrator import journal
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
for number in range(count):
    with journal.locked(folder, wait_s=60) as locked:
        locked.append("note", who=name, number=number, text="x" * 200)
"""


def start_appender(run_dir: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _APPENDER, str(run_dir), name, str(count)], stdout=subprocess.PIPE)


def test_two_processes_keep_every_line_whole_and_in_order(tmp_path: Path) -> None:
    begin(tmp_path)
    both = [start_appender(tmp_path, name, 200) for name in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    for process in both:
        assert process.stdout is not None
        process.stdout.close()
    events = journal.read(tmp_path)[0][1:]
    assert len(events) == 400
    for name in "ab":
        assert [e["number"] for e in events if e["who"] == name] == list(range(200))


def test_a_lock_that_another_process_holds(tmp_path: Path) -> None:
    begin(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
         "print('held', flush=True); sys.stdin.read()", str(tmp_path / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None and holder.stdout is not None
    try:
        holder.stdout.readline()
        with pytest.raises(JournalError, match="another orch process") as caught:
            append(tmp_path, "held")
        assert caught.value.exit_code == 8
    finally:
        holder.communicate()
    append(tmp_path, "held")
    assert names(tmp_path) == ["submit", "held"]


@pytest.mark.parametrize("lines_before_the_kill", [0, 1, 7, 30])
def test_killed_while_appending(tmp_path: Path, lines_before_the_kill: int) -> None:
    path = begin(tmp_path)
    process = start_appender(tmp_path, "a", 100_000)
    assert process.stdout is not None
    process.stdout.readline()
    while path.read_bytes().count(b"\n") <= lines_before_the_kill:
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before, torn = journal.read(tmp_path)
    append(tmp_path, "held")
    after = journal.read(tmp_path)[0]
    assert after[: len(before)] == before and after[-1]["event"] == "held"
    assert len(after) == len(before) + 1 + bool(torn)


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        append(tmp_path / "gone", "held")


def test_the_lock_is_let_go_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), journal.locked(tmp_path, wait_s=0):
        raise KeyError
    with (tmp_path / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- any journal -----------------------------------------------------------------------------------------------------------

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6)
_contexts = st.lists(st.dictionaries(st.text().filter(lambda key: key not in ("event", "self", "t")), _values, max_size=4),
                     max_size=6)


@given(_contexts)
@settings(max_examples=40)
def test_any_events_round_trip(contexts: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin(folder)
        with journal.locked(folder, wait_s=0, clock=lambda: 7.0) as locked:
            written = [locked.append("note", **context) for context in contexts]
        assert journal.read(folder)[0][1:] == written


@given(_contexts, st.data())
@settings(max_examples=40)
def test_cut_at_any_byte_there_are_fewer_events_and_never_a_wrong_one(
    contexts: list[dict[str, Any]], data: st.DataObject,
) -> None:
    lines = [json.dumps(submit(), ensure_ascii=False)]
    lines += [json.dumps({"event": "note", "t": 1.0, **context}, ensure_ascii=False) for context in contexts]
    content = "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")
    cut = data.draw(st.integers(0, len(content)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal.journal_path(folder).write_bytes(content[:cut])
        events, torn = journal.read(folder)
        assert events == [json.loads(line) for line in lines][: content[:cut].count(b"\n")]
        assert bool(torn) == (cut > 0 and content[cut - 1 : cut] != b"\n")
        before = len(events)
        begin(folder) if not events else append(folder, "held")
        assert len(journal.read(folder)[0]) == before + 1 + bool(torn)
