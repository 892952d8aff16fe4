"""A disk that is really full: a small tmpfs, where this user may mount one. Quotas answer alike (test_trainer_block)."""

import json
import os
import signal
import subprocess

import pytest

from orch_trainer import Training
from orch_trainer.complete import complete_checkpoints, damage

MB = 1 << 20


@pytest.fixture
def small(tmp_path):
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True,
                             check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    for number, handler in before.items():
        signal.signal(number, handler)


def save(training, step, size, background):
    training.step(step)
    saving = training.saving(step, background=background)

    def write(folder):
        (folder / "state").write_bytes(bytes([step]) * size)

    with saving as folder:
        if background:
            saving.rest(lambda: write(folder))
        else:
            write(folder)
    if background:
        training._saver.wait()


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("everything", [False, True], ids=["checkpoints on it", "the whole run on it"])
def test_a_full_disk_costs_one_checkpoint(small, tmp_path, background, everything):
    run_dir = small / "run" if everything else tmp_path / "run"
    (run_dir / "attempts" / "0001").mkdir(parents=True)
    (run_dir / "epoch").write_text("7")
    environ = {"ORCH_RUN_DIR": str(run_dir), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1",
               "ORCH_CHECKPOINT_DIR": str(small / "checkpoints")}
    with Training(environ=environ, keep=1) as training:
        save(training, 1, MB, background)
        save(training, 2, 4 * MB, background)       # does not fit beside the first
        first, = complete_checkpoints(small / "checkpoints")
        assert (first.step, damage(first.path)) == (1, "")
        assert os.listdir(small / "checkpoints") == [first.path.name]
        save(training, 3, MB, background)           # training goes on, and so do its saves
        training.finish({"done": True})
    assert [one.step for one in complete_checkpoints(small / "checkpoints")] == [3]
    lines = [json.loads(line) for line in (run_dir / "attempts" / "0001" / "trainer.jsonl").read_text().splitlines()]
    failed, = [line for line in lines if line["event"] == "save_failed"]
    assert (failed["step"], "No space left on device" in failed["error"]) == (2, True)
    assert lines[-1]["event"] == "finished"
