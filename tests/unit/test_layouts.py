"""Layouts of frameworks that cannot be installed here, made as their sources make them (named in `layouts`)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from orchestrator.checkpoints import newest_complete
from orchestrator.layouts import newest_first


def archive(path: Path) -> None:
    """What torch.save writes is a zip archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"x" * 100)


def steps(folder: Path) -> list[int]:
    return [one.step for one in newest_first(folder)]


def megatron(folder: Path, *iterations: int, tracker: str) -> None:
    for iteration in iterations:
        for rank in range(2):
            archive(folder / f"iter_{iteration:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(tracker)


def test_megatron_saves_are_complete_up_to_the_tracker(tmp_path: Path) -> None:
    megatron(tmp_path, 900, 1000, 1100, tracker="1000")
    assert steps(tmp_path) == [1000, 900], "1100 is still being written"


@pytest.mark.parametrize("tracker", ["release", "", "half"])
def test_a_megatron_tracker_without_a_number_names_nothing(tmp_path: Path, tracker: str) -> None:
    megatron(tmp_path, 900, tracker=tracker)
    assert newest_complete(tmp_path) is None


def test_a_torn_megatron_part_makes_the_older_one_the_newest(tmp_path: Path) -> None:
    megatron(tmp_path, 900, 1000, tracker="1000\n")
    part = tmp_path / "iter_0001000" / "mp_rank_01" / "model_optim_rng.pt"
    part.write_bytes(part.read_bytes()[:60])
    assert steps(tmp_path) == [900]


def deepspeed(folder: Path, *tags: str, latest: str) -> None:
    for tag in tags:
        archive(folder / tag / "mp_rank_00_model_states.pt")
        archive(folder / tag / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text(latest)


def test_deepspeed_saves_are_complete_up_to_latest(tmp_path: Path) -> None:
    deepspeed(tmp_path, "global_step99", "global_step100", "global_step101", latest="global_step100")
    assert steps(tmp_path) == [100, 99]


def test_a_torn_deepspeed_part_makes_the_older_one_the_newest(tmp_path: Path) -> None:
    deepspeed(tmp_path, "global_step99", "global_step100", latest="global_step100")
    part = tmp_path / "global_step100" / "mp_rank_00_model_states.pt"
    part.write_bytes(part.read_bytes()[:60])
    assert steps(tmp_path) == [99]


def test_a_pickle_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    import os
    import pickle

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "step-5").mkdir()
    (tmp_path / "step-5" / ".metadata").write_bytes(pickle.dumps(Harmful()))
    assert newest_complete(tmp_path) is None
    assert not (tmp_path / "harm").exists()


def test_a_damaged_checkpoint_of_orch_is_no_frameworks_own(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000005"
    folder.mkdir()
    for name in ("COMPLETE", ".metadata"):
        (folder / name).write_bytes(b"")
    assert newest_complete(tmp_path) is None
