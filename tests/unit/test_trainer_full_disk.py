"""A disk that is really full: a small tmpfs, where this user may mount one. Quotas answer alike (test_trainer_block)."""

import json
import os
import signal
import subprocess

import pytest

from orch_trainer import Training
from orch_trainer.complete import complete_checkpoints, damage
from orch_trainer.files import is_disk_trouble

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


def test_a_library_that_says_so_in_words_alone(tmp_path):
    class SafetensorError(Exception):
        pass

    said = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert is_disk_trouble(said, tmp_path)
    assert not is_disk_trouble(SafetensorError("InvalidHeader"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_the_space_of_a_torn_save_is_free_again(small, tmp_path, background):
    """torch.save leaves its file open when the disk is full; the error's frames must not keep it so after that."""
    class Writer:
        def __init__(self, path):
            self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

        def __del__(self):
            os.close(self.descriptor)

    def write(folder):
        writer = Writer(folder / "state")
        try:
            while True:
                os.write(writer.descriptor, bytes(MB))
        except OSError:
            raise RuntimeError("unexpected pos 576 vs 534") from None

    (tmp_path / "run" / "attempts" / "0001").mkdir(parents=True)
    (tmp_path / "run" / "epoch").write_text("7")
    environ = {"ORCH_RUN_DIR": str(tmp_path / "run"), "ORCH_EPOCH": "7", "ORCH_ATTEMPT": "1",
               "ORCH_CHECKPOINT_DIR": str(small / "checkpoints")}
    with Training(environ=environ, keep=1) as training:
        training.step(1)
        saving = training.saving(1, background=background)
        with saving as folder:
            if background:
                saving.rest(lambda: write(folder))
            else:
                write(folder)
        training._saver.wait()
        lines = (tmp_path / "run" / "attempts" / "0001" / "trainer.jsonl").read_text()
        assert "RuntimeError: unexpected pos 576 vs 534 (the disk is full or fails)" in lines
        assert os.statvfs(small).f_bavail * os.statvfs(small).f_frsize > 3 * MB, "while `saving` is still there"
        training.finish({})
