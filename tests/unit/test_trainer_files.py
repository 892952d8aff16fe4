"""What the trainer reads and writes: control.json, notice.json, lines, the fence, complete checkpoints."""

import json
import os
from pathlib import Path

import pytest

from orch_trainer.checkpoint import Checkpoints, complete_checkpoints, read_checkpoint
from orch_trainer.control import Control, Notice, checksum, read_control, read_notice
from orch_trainer.fence import Fence, Fenced
from orch_trainer.files import Files
from orch_trainer.lines import QUEUE_LINES_MAX, Lines
from orch_trainer.ranks import Rounds, Team, find_team, steps_per_round
from orch_trainer.settings import read_settings


def control_text(**keys):
    content = {"seq": 12, "interval_s": 30.0, "stop": None, "save": 0, **keys}
    return (json.dumps({**content, "sum": checksum(content)}).ljust(256) + "\n").encode()


GOOD = control_text()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GOOD, Control(12, 30.0, None, 0)),
        (control_text(stop="cancel", save=3), Control(12, 30.0, "cancel", 3)),
        (control_text(new_key=[1]), Control(12, 30.0, None, 0)),
        (control_text(interval_s=None), Control(12, None, None, 0)),
        (GOOD.replace(b"30.0", b"31.0"), None),
        (GOOD[:40], None),
        (GOOD[:30] + control_text(seq=13, stop="cancel")[30:], None),
        (control_text(interval_s="soon"), None),
        (b"", None),
        (b"[]\n", None),
        (b"\xff\xfe" * 100, None),
    ],
)
def test_control(tmp_path, data, expected):
    path = tmp_path / "control.json"
    path.write_bytes(data)
    assert read_control(path) == expected


def test_checksum_is_the_protocols():
    assert checksum({"b": None, "a": 1.5}) == "5fdb3c5d"


def test_notice(tmp_path):
    path = tmp_path / "notice.json"
    assert read_notice(path) is None
    path.write_text('{"at": 1, "reason": "limit", "deadline": 99.5, "deliver": []}')
    assert read_notice(path) == Notice("limit", 99.5)
    path.write_text('{"at": 1, "reason": "signal", "deadline": null}')
    assert read_notice(path) == Notice("signal", None)


@pytest.mark.parametrize(("number", "passes"), [("000000000006", True), ("000000000007", True), ("000000000008", False)])
def test_fence(tmp_path, number, passes):
    (tmp_path / "epoch").write_text(number + "\n")
    fence = Fence(tmp_path / "epoch", 7)
    if passes:
        with fence.held():
            pass
    else:
        with pytest.raises(Fenced), fence.held():
            raise AssertionError("published")


@pytest.mark.parametrize("content", ["", "garbage\n", None])
def test_an_unreadable_epoch_publishes_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "epoch").write_text(content)
    with pytest.raises(OSError), Fence(tmp_path / "epoch", 7).held():
        raise AssertionError("published")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_queued_lines_come_before_a_written_one(tmp_path):
    lines = Lines(tmp_path / "t.jsonl")
    lines.put({"event": "a", "loss": float("nan")})
    assert (tmp_path / "t.jsonl").read_text() == ""
    lines.write({"event": "b"})
    assert lines_of(tmp_path / "t.jsonl") == [{"event": "a", "loss": None}, {"event": "b"}]


def test_a_full_queue_drops_and_counts(tmp_path):
    lines = Lines(tmp_path / "t.jsonl")
    for number in range(QUEUE_LINES_MAX + 5):
        lines.put({"event": "progress", "step": number})
    lines.flush()
    found = lines_of(tmp_path / "t.jsonl")
    assert len(found) == QUEUE_LINES_MAX
    assert found[0]["dropped"] == 5
    assert "dropped" not in found[1]


def test_a_torn_last_line_is_cut_off(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"event": "a"}\n{"eve')
    Lines(tmp_path / "t.jsonl").write({"event": "b"})
    assert [line["event"] for line in lines_of(tmp_path / "t.jsonl")] == ["a", "b"]


def make(parent, *steps, keep=3, epoch=1):
    it = Checkpoints(parent, Fence(None, epoch), attempt=1, keep=keep, files=Files())
    for step in steps:
        folder = it.temporary(step, os.getpid())
        it.begin(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "state").write_bytes(b"x" * step)
        it.publish(step, folder, it.sync(folder), saved_at=1.0)
    return it


def steps_in(parent):
    return [one.step for one in complete_checkpoints(parent)]


def test_marker(tmp_path):
    make(tmp_path, 1200)
    marker = json.loads((tmp_path / "step-00001200" / "COMPLETE").read_text())
    assert marker == {"protocol": 1, "step": 1200, "epoch": 1, "attempt": 1, "saved_at": 1.0,
                      "files": {"sub/state": 1200}, "sums": {"sub/state": "83ea684f"}, "sum_bytes": 64 << 20}


@pytest.mark.parametrize("damage", [
    lambda folder: (folder / "COMPLETE").unlink(),
    lambda folder: (folder / "COMPLETE").write_text('{"step": 5'),
    lambda folder: (folder / "COMPLETE").write_text('{"step": 5}'),
    lambda folder: (folder / "sub" / "state").write_bytes(b"short"[:2]),
    lambda folder: (folder / "sub" / "state").unlink(),
])
def test_a_damaged_checkpoint_is_none_and_makes_way(tmp_path, damage):
    make(tmp_path, 5)
    damage(tmp_path / "step-00000005")
    assert read_checkpoint(tmp_path / "step-00000005") is None
    make(tmp_path, 5)
    assert steps_in(tmp_path) == [5]


def test_a_complete_checkpoint_of_the_same_step_is_kept(tmp_path):
    make(tmp_path, 5)
    inode = (tmp_path / "step-00000005").stat().st_ino
    make(tmp_path, 5, epoch=2)
    assert (tmp_path / "step-00000005").stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


@pytest.mark.parametrize(
    ("steps", "keep", "just_saved", "left"),
    [
        ([1, 2, 3, 4], 3, 4, [2, 3, 4]),
        ([1, 2], 3, 2, [1, 2]),
        ([1, 2, 3], 1, 3, [3]),
        ([1, 2, 9], 1, 2, [2, 9]),              # after a roll-back: neither the newest nor the one just saved
        ([99999999, 100000000], 1, 100000000, [100000000]),
    ],
)
def test_retention(tmp_path, steps, keep, just_saved, left):
    make(tmp_path)
    for step in steps:                          # small files; the order is the marker's
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "COMPLETE").write_text(json.dumps({"step": step, "epoch": 1, "attempt": 1, "files": {}}))
    it = make(tmp_path, keep=keep)
    it.retire(just_saved)
    it.empty(it.set_aside())
    assert steps_in(tmp_path) == left
    assert not list(tmp_path.glob(".*"))


def test_sweep_takes_the_temp_folders_of_dead_starts_only(tmp_path):
    dead = [".tmp-step-00000001-3-77", f".tmp-step-00000001-7-{os.getpid()}", ".tmp-step-00000001-7-999999999"]
    alive = [".tmp-step-00000001-8-77", f".tmp-step-00000001-7-{os.getppid()}", ".tmp-mine"]
    for name in dead + alive:
        (tmp_path / name).mkdir()
    it = make(tmp_path, epoch=7)
    it.sweep()
    it.empty(it.set_aside())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(alive)


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        ({}, 0, 1),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, 0, 1),                            # batch script, no step
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, 0, 1),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_STEP_ID": "0"}, 2, 4),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, 1, 2),
    ],
)
def test_ranks(environ, rank, size):
    team = find_team(environ, lambda values: values)
    assert (team.rank, team.size) == (rank, size)


def test_several_ranks_must_be_able_to_agree():
    with pytest.raises(RuntimeError, match=r"rank 1 of 2.*agree="):
        find_team({"RANK": "1", "WORLD_SIZE": "2"}, None)


@pytest.mark.parametrize(("agree_s", "step_s", "steps"),
                         [(1e-4, 0.2, 1), (1e-4, 0.01, 10), (1, 1e-6, 1000), (1, 0, 1), (1, 0.5, 10)])
def test_agreeing_costs_less_than_a_thousandth(agree_s, step_s, steps):
    assert steps_per_round(agree_s, step_s) == steps


def test_a_notice_at_any_rank_reaches_all():
    rounds = Rounds(Team(0, 2, lambda values: [values[0], values[1], 1, values[3]]), lambda: 0.0)
    assert rounds.is_due()
    assert rounds.hold(save=False, stop=False, noticed=False) is True
    assert rounds.is_due()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"tag": "", "attempt": 1, "epoch_file": None, "attempt_dir": None, "interval_s": 600.0}),
        ({"ORCH_RUN_DIR": "/r/a", "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "3", "ORCH_DEADLINE": "", "ORCH_RESUME_FROM": "",
          "ORCH_CHECKPOINT_INTERVAL_S": "12.5"},
         {"tag": "a", "attempt": 3, "epoch": 7, "deadline": None, "resume_from": None, "interval_s": 12.5,
          "checkpoint_dir": Path("/r/a/checkpoints"), "attempt_dir": Path("/r/a/attempts/0003"),
          "epoch_file": Path("/r/a/epoch"), "control_file": Path("/r/a/control.json")}),
    ],
)
def test_settings(environ, expected):
    settings = read_settings(environ, None, None, None)
    assert {key: getattr(settings, key) for key in expected} == expected


@pytest.mark.parametrize(("name", "value"), [("ORCH_PROTOCOL", "2"), ("ORCH_SIGNAL", "NOPE")])
def test_settings_that_cannot_be_followed_are_named(name, value):
    with pytest.raises(RuntimeError, match=f"{name}={value}"):
        read_settings({"ORCH_RUN_DIR": "/r/a", name: value}, None, None, None)


class Recording(Files):
    """Notes each operation and the path below the checkpoint folder."""

    def __init__(self, parent):
        self.parent, self.done = parent, []

    def before(self, operation, path):
        self.done.append((operation, path.relative_to(self.parent).as_posix().replace(f"-1-{os.getpid()}", "")))


def test_what_a_power_cut_may_not_tear_is_on_the_disk_before_the_next_thing_says_so(tmp_path):
    """Kills cannot show it, for what was written stays in memory: every file, every folder, the marker, and then the name."""
    files = Recording(tmp_path)
    it = Checkpoints(tmp_path, Fence(None, 1), attempt=1, keep=1, files=files)
    folder = it.temporary(5, os.getpid())
    it.begin(folder)
    (folder / "sub").mkdir()
    for name in ("a", "sub/b"):
        (folder / name).write_text(name)
    it.publish(5, folder, it.sync(folder), saved_at=1.0)
    tmp = ".tmp-step-00000005"
    assert files.done == [
        ("mkdir", tmp), ("fsync", f"{tmp}/sub/b"), ("fsync", f"{tmp}/sub"), ("fsync", f"{tmp}/a"), ("fsync", tmp),
        ("create", f"{tmp}/.complete"), ("write", f"{tmp}/.complete"), ("fsync", f"{tmp}/.complete"),
        ("rename", f"{tmp}/.complete"), ("fsync", tmp), ("rename", tmp), ("fsync", ".")]
