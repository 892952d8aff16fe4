"""Complete checkpoints of frameworks that know nothing of orch, read as they lie. Never writes; runs nothing that
lies in them.

What makes one complete is what its framework writes last; a torn one (that file missing, a file of it cut off) is passed
over. Order is by number, never by name: checkpoint-1000 comes after checkpoint-999.

    Megatron-LM, Bridge   iter_0001000/   latest_checkpointed_iteration.txt names it or a later one; .metadata or mp_rank_*
    DeepSpeed             global_step500/ `latest` names it or a later one; whole *_model_states.pt
    HF Trainer            checkpoint-500/ trainer_state.json of that step; whole weights and optimiser
    Accelerate            checkpoint_5/   random_states_0.pkl; whole weights and optimisers
    TorchTitan, DCP       step-500/       .metadata, and every file that it names

Sources: save_checkpoint in Megatron Bridge's training/checkpointing.py (067f987) and Megatron-LM's of that name,
DeepSpeedEngine.save_checkpoint, transformers 5.24 Trainer._save_checkpoint, accelerate 1.15 Accelerator.save_state, torch
2.13 FileSystemWriter.finish.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEGATRON_TRACKER, DEEPSPEED_TRACKER = "latest_checkpointed_iteration.txt", "latest"
# Where a framework makes a folder of its own in the one that it is given: TorchTitan's and Accelerate's.
BELOW = ("", "checkpoint", "checkpoints")
_SAFETENSORS_HEADER_AT_MOST = 100_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """How one framework lays out a checkpoint; ``last`` is the file that it writes last, None where the folder is torn."""

    framework: str
    pattern: re.Pattern[str]
    last: Callable[[Path, int], Path | None]
    tracker: str = ""                  # the file beside it whose number no complete one exceeds


@dataclass(frozen=True, slots=True)
class Found:
    """One complete checkpoint of a framework's own."""

    path: Path
    step: int
    saved_at: float
    size_bytes: int
    framework: str

    @property
    def counts_steps(self) -> bool:
        """Accelerate numbers the saves that it names by itself."""
        return not self.path.name.startswith("checkpoint_")


def newest_first(folder: Path) -> Iterator[Found]:
    """Complete checkpoints in this folder, each read when it is asked for."""
    here = _names(folder)
    candidates = [one for below in BELOW if not below or below in here
                  for one in _candidates(folder / below, _names(folder / below) if below else here)]
    for step, path, layout in sorted(candidates, key=lambda one: one[0], reverse=True):
        try:
            last = layout.last(path, step)
            if last is not None:
                yield Found(path, step, last.stat().st_mtime, _size_bytes(path), layout.framework)
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, struct.error,
                pickle.UnpicklingError):
            continue                   # cut off, or being written


def _size_bytes(folder: Path) -> int:
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(folder) for name in names)


def tracked(folder: Path, tracker: str) -> int | None:
    """The number that a tracker file names; None where there is none."""
    try:
        digits = re.search(r"(\d+)\s*$", (folder / tracker).read_text())
    except (OSError, ValueError):
        return None
    return int(digits[1]) if digits else None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _candidates(folder: Path, names: list[str]) -> Iterator[tuple[int, Path, Layout]]:
    for layout in LAYOUTS:
        newest = tracked(folder, layout.tracker) if layout.tracker in names else None
        if layout.tracker and newest is None:
            continue
        for name in names:
            number = layout.pattern.fullmatch(name)
            if number is not None and (newest is None or int(number[1]) <= newest):
                yield int(number[1]), folder / name, layout


# --- the file written last, for each layout -----------------------------------------------------------------------------


def _megatron(folder: Path, step: int) -> Path | None:
    if (folder / ".metadata").exists():
        return _dcp(folder, step)
    parts = sorted(folder.glob("mp_rank_*/model_optim_rng.pt"))
    return parts[-1] if parts and all(zipfile.is_zipfile(part) for part in parts) else None


def _deepspeed(folder: Path, step: int) -> Path | None:
    parts = sorted(folder.glob("*_states.pt"))
    models = [part for part in parts if part.name.endswith("_model_states.pt")]
    return parts[-1] if models and all(zipfile.is_zipfile(part) for part in parts) else None


def _hf(folder: Path, step: int) -> Path | None:
    state = folder / "trainer_state.json"
    is_whole = json.loads(state.read_bytes())["global_step"] == step and _files_are_whole(folder)
    return state if is_whole else None


def _accelerate(folder: Path, step: int) -> Path | None:
    last = folder / "random_states_0.pkl"
    return last if last.stat().st_size > 0 and _files_are_whole(folder) else None


def _dcp(folder: Path, step: int) -> Path | None:
    """``.metadata`` is renamed into place after every other file. It says which file holds what, and up to where."""
    if (folder / "COMPLETE").exists():
        return None                    # orch's own, and no whole one
    metadata = folder / ".metadata"
    with open(metadata, "rb") as file:
        places = _Inert.state_of(_InertUnpickler(file).load())["storage_data"].values()
    ends: dict[str, int] = {}
    for place in map(_Inert.state_of, places):
        name = str(place["relative_path"])
        ends[name] = max(ends.get(name, 0), place["offset"] + place["length"])
    return metadata if ends and all((folder / name).stat().st_size >= end for name, end in ends.items()) else None


class _Inert:
    """What stands for every object of a pickle: it keeps the state and does nothing. It may be a key."""

    def __init__(self, *arguments: object) -> None:
        self.state: Any = {}

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, item: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    @staticmethod
    def state_of(value: _Inert) -> dict[str, Any]:
        return dict(value.state)


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Inert]:
        return _Inert


LAYOUTS = (
    Layout("Megatron", re.compile(r"iter_(\d+)"), _megatron, MEGATRON_TRACKER),
    Layout("DeepSpeed", re.compile(r"\w*?(\d+)"), _deepspeed, DEEPSPEED_TRACKER),
    Layout("HF Trainer", re.compile(r"checkpoint-(\d+)"), _hf),
    Layout("Accelerate", re.compile(r"(?:checkpoint|step)_(\d+)"), _accelerate),
    Layout("DCP", re.compile(r"step-(\d+)"), _dcp),
)


# --- whether a file is whole --------------------------------------------------------------------------------------------


def _files_are_whole(folder: Path) -> bool:
    """Weights and optimiser there, and none of their files cut off."""
    for index in folder.glob("*.safetensors.index.json"):
        if not all((folder / name).exists() for name in set(json.loads(index.read_bytes())["weight_map"].values())):
            return False
    weights = list(folder.glob("*.safetensors"))
    archives = [path for kind in ("*.pt", "*.bin", "*.pth") for path in folder.glob(kind)]
    return bool(weights or archives) and all(map(_safetensors_is_whole, weights)) and all(map(zipfile.is_zipfile, archives))


def _safetensors_is_whole(path: Path) -> bool:
    """Eight bytes of length, a JSON header with every tensor's place, the tensors; the last one ends where the file does."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > _SAFETENSORS_HEADER_AT_MOST:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return bool(path.stat().st_size == 8 + length + max(ends, default=0))
