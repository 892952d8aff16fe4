"""What the callbacks do apart from trainings that are interrupted, which tests/slurm shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orch_trainer.complete import complete_checkpoints, damage

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Under orch, in a first attempt."""
    monkeypatch.setenv("ORCH_RUN_DIR", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture(params=["hf", "lightning"])
def callback_class(request: Any) -> Any:
    pytest.importorskip({"hf": "transformers", "lightning": "lightning"}[request.param], exc_type=ImportError)
    module = __import__(f"orch_trainer.{request.param}", fromlist=["OrchCallback"])
    return module.OrchCallback


def test_there_is_nothing_to_resume_from_on_the_first_attempt(orch: Path, callback_class: Any) -> None:
    assert callback_class().resume_from is None


def test_outside_orch_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback_class: Any) -> None:
    monkeypatch.delenv("ORCH_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert callback_class().resume_from is None
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_from_before_the_callback_is_resumed_from(orch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from orch_trainer.hf import OrchCallback

    before = orch / "checkpoints" / "checkpoint-500"
    before.mkdir()
    (before / "trainer_state.json").write_text('{"global_step": 500}')
    monkeypatch.setenv("ORCH_RESUME_FROM", str(before))
    assert OrchCallback().resume_from == str(before)


def test_what_cannot_be_kept_is_refused_in_a_sentence(orch: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from orch_trainer.hf import OrchCallback

    with pytest.raises(ValueError, match="load_best_model_at_end=True: under OrchCallback checkpoints are saved when"):
        OrchCallback().on_train_begin(SimpleNamespace(load_best_model_at_end=True), SimpleNamespace(), None)


def test_ranks_on_another_node_cannot_save_through_this_nodes_memory(orch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    from orch_trainer.hf import OrchCallback

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    arguments = SimpleNamespace(load_best_model_at_end=False, world_size=4)
    with pytest.raises(ValueError, match="in_background=True on several nodes: "):
        OrchCallback(in_background=True).on_train_begin(arguments, SimpleNamespace(max_steps=1), None)


def test_lightnings_own_requeue_is_turned_off(orch: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from lightning.fabric.plugins.environments import SLURMEnvironment

    from orch_trainer.lightning import OrchCallback

    environment = SLURMEnvironment(auto_requeue=True)
    trainer = SimpleNamespace(_accelerator_connector=SimpleNamespace(cluster_environment=environment))
    OrchCallback().setup(trainer, None, "fit")
    assert environment.auto_requeue is False


def test_a_node_on_which_lightning_writes_nothing_has_nothing_to_bring(orch: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from orch_trainer.lightning import OrchCallback

    stage = tmp_path / "memory"
    trainer = SimpleNamespace(max_steps=2, global_step=1, local_rank=0, global_rank=1, callback_metrics={},
                              save_checkpoint=lambda path: None)
    callback = OrchCallback(in_background=stage, interval_s=1e-6, background=False)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_end(trainer, None)
    saved, = complete_checkpoints(orch / "checkpoints")
    assert [path.name for path in saved.path.glob("*.*")] == ["random-1.pt"]


LAST_STEP = """
import os
from pathlib import Path
import torch
from hearing import hear
from lightning import LightningModule, Trainer
from orch_trainer.lightning import OrchCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, number):
        return self.layer(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class Noticed(OrchCallback):
    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == 3:
            Path(os.environ["ORCH_ATTEMPT_DIR"], "notice.json").write_text('{"reason": "limit"}')
            hear(self._training)
        super().on_train_batch_end(trainer, *rest)

orch = Noticed()
trainer = Trainer(max_steps=int(os.environ.get("STEPS", "3")), callbacks=[orch], accelerator="cpu", logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
data = torch.randn(int(os.environ.get("SAMPLES", "3")), 2)
trainer.fit(Model(), torch.utils.data.DataLoader(data), ckpt_path=orch.resume_from)
"""


def test_a_lightning_training_that_was_stopped_at_its_last_step_is_finished_by_the_next_attempt(tmp_path: Path) -> None:
    """Lightning then calls no hook of a training; the run was held, for it had no result."""
    pytest.importorskip("lightning", exc_type=ImportError)

    def attempt(number: int, resume_from: str = "", **more: str) -> int:
        (tmp_path / "epoch").write_text(str(number))
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "unit"), "ORCH_RUN_DIR": str(tmp_path),
                   "ORCH_EPOCH": str(number), "ORCH_ATTEMPT": str(number),
                   "ORCH_ATTEMPT_DIR": str(tmp_path / str(number)), "ORCH_RESUME_FROM": resume_from, **more}
        return subprocess.run([sys.executable, "-W", "ignore", "-c", LAST_STEP], env=environ, check=False).returncode

    assert attempt(1) == 75
    saved = str(tmp_path / "checkpoints" / "step-00000003")
    assert attempt(2, saved, STEPS="9", SAMPLES="0") == 0
    assert not (tmp_path / "result.json").exists(), "without data nothing was trained"
    assert attempt(2, saved) == 0
    assert json.loads((tmp_path / "result.json").read_text())["step"] == 3
    last = (tmp_path / "2" / "trainer.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["event"] == "finished"


def test_each_node_brings_its_shards_into_one_folder(tmp_path: Path) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    from orch_trainer.lightning import _bring

    for node in ("n1", "n2"):
        (tmp_path / node).mkdir()
        (tmp_path / node / f"{node}.distcp").write_text(node)
        _bring(tmp_path / node, tmp_path / "lightning.ckpt")
        assert not (tmp_path / node).exists()
    assert sorted(path.name for path in (tmp_path / "lightning.ckpt").iterdir()) == ["n1.distcp", "n2.distcp"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_full_costs_checkpoints_and_no_training(small: Path) -> None:
    pytest.importorskip("transformers", exc_type=ImportError)
    trainer = Path(__file__).parents[1] / "slurm" / "trainers" / "hugging.py"

    def training(step_s: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, trainer, "100", str(step_s)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(trainer.parents[3]), "ORCH_RUN_DIR": str(small),
                 "ORCH_CHECKPOINT_INTERVAL_S": "1"})

    process, give_up = training(0.1), time.monotonic() + 120
    while not complete_checkpoints(small / "checkpoints") and time.monotonic() < give_up:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    with (small / "others").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))
    assert process.stdout is not None
    said = ""
    while "WARNING: no checkpoint of step" not in said:
        said += (line := process.stdout.readline())
        assert line, said
    kept = complete_checkpoints(small / "checkpoints")
    assert kept and [damage(one.path) for one in kept] == [""] * len(kept), said
    (small / "others").unlink()
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "saved step" in rest and "FINISHED" in rest, said + rest
