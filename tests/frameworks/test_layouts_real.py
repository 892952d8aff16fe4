"""Checkpoints that the real frameworks write: each is found, the newest by number, and a torn one is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import complete_checkpoints, newest_complete
from orchestrator.layouts import newest_first

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS = [9, 10]                        # by name "9" comes after "10"


def dcp(folder: Path) -> None:
    from torch.distributed import checkpoint

    for step in STEPS:
        checkpoint.save({"model": {"weight": torch.ones(50, 4)}, "step": step}, checkpoint_id=folder / f"step-{step}")


def hf(folder: Path) -> None:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    config = transformers.GPT2Config(vocab_size=16, n_positions=4, n_embd=8, n_layer=1, n_head=1, bos_token_id=0,
                                     eos_token_id=0)
    data = [{"input_ids": torch.ones(4).long(), "labels": torch.ones(4).long()}] * 20
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=10, save_steps=1, save_total_limit=2, per_device_train_batch_size=2, report_to=[],
        disable_tqdm=True, use_cpu=True)
    transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=data).train()


def accelerate(folder: Path) -> None:
    accelerate = pytest.importorskip("accelerate", exc_type=ImportError)
    settings = accelerate.utils.ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = accelerate.Accelerator(cpu=True, project_config=settings)
    model = torch.nn.Linear(8, 8)
    accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(11):
        accelerator.save_state()


FRAMEWORKS = {"DCP": dcp, "HF Trainer": hf, "Accelerate": accelerate}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture(params=FRAMEWORKS)
def laid_out(
    request: Any, made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path,
) -> tuple[str, Path]:
    """A copy of what the framework wrote, to be torn at will."""
    name = request.param
    if name not in made:
        folder = tmp_path_factory.mktemp("made")
        FRAMEWORKS[name](folder)
        made[name] = folder
    return name, shutil.copytree(made[name], tmp_path / "copy")


def test_the_newest_is_found_by_number(laid_out: tuple[str, Path]) -> None:
    name, folder = laid_out
    assert [(one.framework, one.step) for one in newest_first(folder)] == [(name, 10), (name, 9)]
    newest = newest_complete(folder)
    assert newest is not None and newest.step == 10 and newest.size_bytes > 100
    assert [one.step for one in complete_checkpoints(folder)] == STEPS


def test_what_is_cut_off_anywhere_is_passed_over(laid_out: tuple[str, Path]) -> None:
    """Every file of weights, optimiser or metadata that is missing or half there makes the older one the newest."""
    _, folder = laid_out
    newest = newest_complete(folder)
    assert newest is not None
    kinds = (".safetensors", ".bin", ".pt", ".distcp")
    told = (".metadata", "trainer_state.json")
    telling = [path for path in newest.path.rglob("*") if path.suffix in kinds or path.name in told]
    assert telling
    for path in telling:
        whole = path.read_bytes()
        path.write_bytes(whole[:len(whole) // 2])
        torn = newest_complete(folder)
        assert torn is not None and torn.step == 9, f"{path.name} is half there"
        path.write_bytes(whole)
    whole_again = newest_complete(folder)
    assert whole_again is not None and whole_again.path == newest.path


def test_the_last_file_is_what_makes_it_complete(laid_out: tuple[str, Path]) -> None:
    name, folder = laid_out
    newest = newest_complete(folder)
    assert newest is not None
    last = {"DCP": ".metadata", "HF Trainer": "trainer_state.json", "Accelerate": "random_states_0.pkl"}[name]
    (newest.path / last).unlink()
    found = newest_complete(folder)
    assert found is not None and found.step == 9
