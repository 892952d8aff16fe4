"""The disk in memory does what a real one does: the same calls on both, in any order, give the same."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation.disk import Disk

Calls = dict[str, Callable[..., Any]]
NAMES = ("a", "b", "one/a", "one/b", "two/a", "two/deep/a", "one", "two", "two/deep")


def written(api: Any, path: str, data: bytes) -> None:
    descriptor = api.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        api.write(descriptor, data)
        assert api.fstat(descriptor).st_size >= len(data)
    finally:
        api.close(descriptor)


def rewritten(api: Any, path: str, data: bytes) -> None:
    descriptor = api.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        api.pwrite(descriptor, data, 0)
        api.ftruncate(descriptor, 3)
    finally:
        api.close(descriptor)


def read(api: Any, path: str) -> bytes:
    descriptor = api.open(path, os.O_RDONLY)
    try:
        found: bytes = api.pread(descriptor, 1 << 16, 0)
        return found
    finally:
        api.close(descriptor)


def listed(api: Any, path: str) -> list[str]:
    return sorted(api.listdir(path))


def done(api: Any, root: str, what: str, one: str, other: str, data: bytes) -> object:
    """What came of it, a refusal's kind included."""
    path, new = f"{root}/{one}", f"{root}/{other}"
    try:
        match what:
            case "written" | "rewritten":
                return {"written": written, "rewritten": rewritten}[what](api, path, data)
            case "link" | "replace":
                return getattr(api, what)(path, new)
            case "read" | "listed":
                return {"read": read, "listed": listed}[what](api, path)
            case "mkdir" | "unlink":
                return getattr(api, what)(path)
    except OSError as error:
        return type(error)
    raise AssertionError(what)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_calls_give_the_same(seed: int, tmp_path: Path) -> None:
    chance, disk, root = random.Random(seed), Disk(), str(tmp_path)
    disk.mkdir(root, parents=True)
    for name in ("one", "two", "two/deep"):
        os.mkdir(f"{root}/{name}")
        disk.mkdir(f"{root}/{name}")
    for _ in range(150):
        what = chance.choice(("written", "rewritten", "read", "link", "replace", "unlink", "mkdir", "listed"))
        folders = what in ("mkdir", "listed")
        one, other = chance.choice(NAMES[6:] if folders else NAMES[:6]), chance.choice(NAMES[:6])
        data = bytes(chance.choices(b"xyz\n", k=chance.randint(1, 9)))
        assert done(os, root, what, one, other, data) == done(disk, root, what, one, other, data), (what, one, other)
    for name in NAMES[:6]:
        assert os.path.exists(f"{root}/{name}") == disk.exists(f"{root}/{name}")


def test_a_folder_is_renamed_with_all_that_is_in_it() -> None:
    disk = Disk()
    disk.mkdir("/r/.tmp/deep", parents=True)
    disk.write_text("/r/.tmp/deep/state", "5")
    disk.rename("/r/.tmp", "/r/step-5")
    assert disk.listdir("/r") == ["step-5"]
    assert disk.read_text("/r/step-5/deep/state") == "5"


def test_what_was_parsed_is_parsed_anew_when_its_bytes_have_changed() -> None:
    disk = Disk()
    disk.mkdir("/r")
    asked: list[str] = []

    def said() -> str:
        asked.append(disk.read_text("/r/file"))
        return asked[-1]

    assert disk.parsed("/r/file", said, "none") == "none"
    for text in ("one", "two"):
        disk.write_text("/r/file", text)
        assert [disk.parsed("/r/file", said, "none") for _ in range(3)] == [text] * 3
    disk.write_text("/r/other", "three")
    disk.replace("/r/other", "/r/file")
    assert disk.parsed("/r/file", said, "none") == "three"
    assert asked == ["one", "two", "three"]


def test_a_watched_folder_tells_of_every_change_below_it() -> None:
    disk = Disk()
    disk.mkdir("/r/checkpoints/step-1", parents=True)
    before = disk.changes("/r/checkpoints")
    disk.write_text("/r/journal", "elsewhere")
    assert disk.changes("/r/checkpoints") == before
    disk.write_text("/r/checkpoints/step-1/COMPLETE", "{}")
    assert disk.changes("/r/checkpoints") != before
