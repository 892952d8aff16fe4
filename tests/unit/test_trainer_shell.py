"""What a job.sh without Python calls: `orch should-stop`, `orch should-save`, `orch notify-save STEP PATH`."""

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from orch_trainer import shell
from orch_trainer.complete import complete_checkpoints, damage
from orchestrator.attempt.deliver import Delivery

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path):
    """The environment of an attempt, epoch 7."""
    run_dir = tmp_path / "runs" / "a"
    folder = run_dir / "attempts" / "0002"
    folder.mkdir(parents=True)
    (run_dir / "checkpoints").mkdir()
    (run_dir / "epoch").write_text("7")
    return {"ORCH_RUN_DIR": str(run_dir), "ORCH_ATTEMPT_DIR": str(folder), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "2",
            "ORCH_CHECKPOINT_DIR": str(run_dir / "checkpoints"), "ORCH_CHECKPOINTS_KEPT": "2"}


def lines(job):
    text = Path(job["ORCH_ATTEMPT_DIR"], "trainer.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def checkpoints(job):
    return complete_checkpoints(Path(job["ORCH_CHECKPOINT_DIR"]))


def notice(job):
    Path(job["ORCH_ATTEMPT_DIR"], "notice.json").write_text('{"at": 1, "reason": "limit", "deadline": 1060.0, "deliver": []}')


def control(job, **keys):
    content = {"seq": 1, "interval_s": 30.0, "stop": None, "save": 0, **keys}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    Path(job["ORCH_RUN_DIR"], "control.json").write_text(json.dumps({**content, "sum": f"{zlib.crc32(text.encode()):08x}"}))


@pytest.mark.parametrize(("happened", "code", "said"), [
    (lambda job: None, 1, ""),
    (notice, 0, "notice: limit  60 s left\n"),
    (control, 1, ""),
    (lambda job: control(job, stop="cancel"), 0, "notice: cancel\n"),
    (lambda job: Path(job["ORCH_RUN_DIR"], "control.json").write_text("{"), 1, ""),
    (lambda job: Path(job["ORCH_RUN_DIR"], "epoch").write_text("8"), 0, "notice: a newer start has taken this run\n"),
    (lambda job: job.pop("ORCH_RUN_DIR"), 1, ""),       # outside orch
    (lambda job: job.update(ORCH_ATTEMPT_DIR="/nowhere/at/all"), 1, ""),
])
def test_should_stop(job, capsys, happened, code, said):
    happened(job)
    assert shell.should_stop(job, 1000.0) == code
    assert capsys.readouterr().out == said


def due(job, now):
    return shell.should_save(job, now) == 0


def test_a_save_is_due_when_the_interval_is_over(job, tmp_path):
    state = tmp_path / "state"
    state.write_text("x")
    now = time.time()
    assert not due({}, now), "outside orch"
    control(job, interval_s=600.0)
    assert not due(job, now - 900), "the first to ask begins the interval"
    assert not due(job, now - 301)
    assert due(job, now - 299)
    shell.notify_save(1, state, None, job)
    assert not due(job, now + 590)
    control(job, interval_s=300.0, seq=2)
    assert due(job, now + 590), "as the run's interval is by now"
    job["ORCH_DEADLINE"], job["ORCH_LEAD_S"] = str(now + 650), "60"
    assert not due(job, now + 590), "a moment before the notice, which asks for a save of its own"
    notice(job)
    assert not due(job, now + 1000), "that is should-stop's"


def test_a_save_that_is_asked_for_is_due_at_once_and_answered_once(job, tmp_path):
    state = tmp_path / "state"
    state.write_text("x")
    now = time.time()
    control(job, interval_s=3600.0, save=3)
    assert not due(job, now), "asked of an attempt before"
    control(job, interval_s=3600.0, save=4)
    assert due(job, now)
    assert due(job, now), "until it is saved"
    shell.notify_save(1, state, None, job)
    assert not due(job, now)
    assert [(line["event"], line["step"], line.get("request")) for line in lines(job)] == [
        ("first_step", None, 3), ("saving", 1, 4), ("saved", 1, None)]
    control(job, interval_s=3600.0, save=5)
    shell.notify_save(2, tmp_path / "gone", None, job)
    assert not due(job, now), "it was tried, and whoever asked is told"


def test_a_line_that_was_torn_is_passed_over(job):
    now = time.time()
    control(job, interval_s=600.0)
    assert not due(job, now - 900)
    with Path(job["ORCH_ATTEMPT_DIR"], "trainer.jsonl").open("a") as file:
        file.write('{"request": 0, "t": 1700000000.0, "event": "saving", "st')
    assert due(job, now - 299), "else nothing is saved until the notice"


def test_a_time_of_day_is_a_milestone(job):
    now = time.mktime((2026, 5, 4, 21, 59, 0, 0, 0, -1))
    job["ORCH_SAVE_AT"] = "5000 22:00"
    control(job, interval_s=36000.0)
    assert not due(job, now)
    assert not due(job, now + 59)
    assert due(job, now + 61)


def test_a_file_becomes_a_complete_checkpoint_and_old_ones_go(job, tmp_path, capsys):
    state = tmp_path / "state.bin"
    for step in (9, 10, 11):
        state.write_bytes(bytes([step]) * 1000)
        assert shell.notify_save(step, state, 0.5 if step == 9 else None, job) == 0
    state.write_bytes(b"the script writes on")           # into its own, not into a checkpoint
    found = checkpoints(job)
    assert [one.step for one in found] == [10, 11]
    assert (found[-1].path / "state.bin").read_bytes() == bytes([11]) * 1000
    assert [damage(one.path) for one in found] == ["", ""]
    saved = [line for line in lines(job) if line["event"] == "saved"]
    assert [(line["event"], line["step"], line["stall_s"], line["first"]) for line in saved] == [
        ("saved", 9, 0.5, True), ("saved", 10, None, False), ("saved", 11, None, False)]
    assert "saved step 11" in capsys.readouterr().out
    assert not list(Path(job["ORCH_CHECKPOINT_DIR"]).glob(".*"))


@pytest.mark.parametrize("where", ["in the checkpoint folder", "elsewhere"])
def test_a_folder(job, tmp_path, where):
    folder = (Path(job["ORCH_CHECKPOINT_DIR"]) if where != "elsewhere" else tmp_path) / "model-5"
    (folder / "parts").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "parts" / "b").write_text("bb")
    assert shell.notify_save(5, folder, None, job) == 0
    one, = checkpoints(job)
    assert (one.step, one.size_bytes) == (5, 3)
    assert (one.path / "parts" / "b").read_text() == "bb"
    assert one.path.name == ("step-00000005" if where == "elsewhere" else "model-5")


def test_what_this_attempt_resumed_from_stays(job, tmp_path):
    state = tmp_path / "state"
    state.write_text("x")
    shell.notify_save(1, state, None, job)
    job["ORCH_RESUME_FROM"] = str(checkpoints(job)[0].path)
    for step in (2, 3, 4):
        shell.notify_save(step, state, None, job)
    assert [one.step for one in checkpoints(job)] == [1, 3, 4]


def test_fenced(job, tmp_path):
    Path(job["ORCH_RUN_DIR"], "epoch").write_text("8")
    assert shell.notify_save(5, tmp_path / "runs", None, job) == 76
    assert checkpoints(job) == []
    assert lines(job)[-1]["event"] == "fenced"


def test_a_folder_that_holds_the_checkpoints_is_refused(job, tmp_path, capsys):
    for path in (tmp_path, Path(job["ORCH_CHECKPOINT_DIR"])):
        assert shell.notify_save(5, path, None, job) == 1
    assert "holds the checkpoint folder itself" in capsys.readouterr().out
    assert list(Path(job["ORCH_CHECKPOINT_DIR"]).iterdir()) == []


def test_what_is_not_there_is_a_warning_and_not_saved(job, tmp_path, capsys):
    assert shell.notify_save(5, tmp_path / "gone", None, job) == 1
    assert lines(job)[-1]["event"] == "save_failed"
    assert f"WARNING: no checkpoint of step 5: FileNotFoundError: {tmp_path / 'gone'}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    [], ["should-stop", "now"], ["should-save", "7"], ["notify-save"], ["notify-save", "5"], ["notify-save", "x", "y"],
    ["notify-save", "5", "y", "--stall"], ["notify-save", "5", "y", "--stall", "nan"], ["notify-save", "-5", "y"]])
def test_wrong_words(words, capsys):
    assert shell.main(words) == 2
    assert "usage: should-stop" in capsys.readouterr().err


SCRIPT = """
step=0
while :; do
  step=$((step + 1))
  if x=$({python} -m orch_trainer should-stop); then echo "left at $step: $x"; exit 0; fi
  [ $step = 3 ] && read -r line
done
"""


@pytest.mark.slow
def test_the_script_that_asks_is_registered_whatever_subshell_it_asks_in_and_gets_no_signal(job):
    events = []
    process = subprocess.Popen(
        ["bash", "-c", SCRIPT.format(python=sys.executable)], env={**os.environ, **job, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = Path(job["ORCH_ATTEMPT_DIR"])
    try:
        while not (folder / "trainer.jsonl").exists() and process.poll() is None:
            pass
        file, = (folder / "trainers").iterdir()
        entry = json.loads(file.read_text())
        assert (entry["pid"], entry["epoch"], entry["asks"]) == (process.pid, 7, True)
        delivery = Delivery(folder, 7, os.uname().nodename, "1", "TERM", lambda name, **keys: events.append(keys))
        delivery.deliver(process.pid, set())
        assert (list(delivery.told), events) == ([process.pid], [])
        notice(job)
        output, _ = process.communicate("\n", timeout=20)
    finally:
        process.kill()
        process.wait()
    assert "notice: limit" in output
    assert [line["event"] for line in lines(job)] == ["first_step"]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["orch_trainer", "orchestrator.cli.entry"])
def test_asking_imports_no_more_than_it_needs(job, module):
    code = ("import sys\nsys.argv = ['orch', 'should-stop']\n"
            "try:\n    import orchestrator.cli.entry as entry\n    entry.main()\nexcept SystemExit as e:\n    code = e.code\n"
            if module != "orch_trainer" else
            "import sys\nfrom orch_trainer.shell import main\ncode = main(['should-stop'])\n")
    code += ("print(code, sorted({name.partition('.')[0] for name in sys.modules} & {'click', 'rich', 'msgspec', 'yaml', "
             "'requests', 'threading', 'logging', 'shutil', 'subprocess', 'socket', 'concurrent'}), "
             "'orch_trainer.training' in sys.modules)")
    answer = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
                            capture_output=True, text=True, check=True, timeout=20)
    assert answer.stdout == "1 [] False\n"
