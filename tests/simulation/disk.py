"""A disk in memory: what ``os`` and ``pathlib`` do with files, for the calls that the production code makes in a schedule.

A file keeps what its bytes were parsed to last, until they change: start and end records, control.json and trainers' lines
are read again by everybody in every pass, and reading them was most of a schedule's time. Nothing here has an instant at
which somebody may be killed; the seams put those before the calls that change something.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

Name = str | Path
_Parsed = TypeVar("_Parsed")
_NOT_YET = object()
_MISSING, _THERE = os.strerror(errno.ENOENT), os.strerror(errno.EEXIST)


class Stat(NamedTuple):
    """What is asked of a file here."""

    st_size: int
    st_ino: int
    st_mtime_ns: int


@dataclass(slots=True, eq=False)
class Node:
    """One file, by however many names."""

    number: int
    data: bytes = b""
    version: int = 0
    parsed: Any = _NOT_YET


@dataclass(slots=True)
class _Open:
    node: Node
    path: str
    appends: bool


class Disk:
    """``wipe`` empties it."""

    def __init__(self) -> None:
        self._numbers = 0              # of files and of descriptors: none comes twice
        self.wipe()

    def wipe(self) -> None:
        self.files: dict[str, Node] = {}
        self._folders: dict[str, dict[str, None]] = {"": {}}
        self._open: dict[int, _Open] = {}
        self._watched: tuple[str, ...] = ()
        self._changes = 0              # of what lies in folders that are watched

    # --- names --------------------------------------------------------------------------------------------------------------

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, _MISSING, path)

    def _node(self, path: str) -> Node:
        node = self.files.get(path)
        if node is None:
            raise self._missing(path)
        return node

    def _changed(self, path: str) -> None:
        if path.startswith(self._watched):
            self._changes += 1

    def _enter(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._folders:
            raise self._missing(path)
        self._folders[parent][name] = None
        self._changed(path)

    def _leave(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        del self._folders[parent][name]
        self._changed(path)

    def changes(self, folder: Name) -> int:
        """Another number whenever something in this folder, or below it, has changed since it was asked first."""
        inside = f"{folder}/"
        if inside not in self._watched:
            self._watched = (*self._watched, inside)
        return self._changes

    def mkdir(self, path: Name, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        name = str(path)
        if name in self._folders or name in self.files:
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, _THERE, name)
            return
        if parents and name.rpartition("/")[0] not in self._folders:
            self.mkdir(name.rpartition("/")[0], parents=True, exist_ok=True)
        self._enter(name)
        self._folders[name] = {}

    def listdir(self, path: Name) -> list[str]:
        names = self._folders.get(str(path))
        if names is None:
            raise self._missing(str(path))
        return list(names)

    def is_dir(self, path: Name) -> bool:
        return str(path) in self._folders

    def exists(self, path: Name) -> bool:
        name = str(path)
        return name in self.files or name in self._folders

    def stat(self, path: Name) -> Stat:
        return self._stat(self._node(str(path)))

    @staticmethod
    def _stat(node: Node) -> Stat:
        return Stat(len(node.data), node.number, node.version)

    def unlink(self, path: Name) -> None:
        name = str(path)
        self._node(name)
        del self.files[name]
        self._leave(name)

    def link(self, path: Name, new: Name) -> None:
        node, name = self._node(str(path)), str(new)
        if self.exists(name):
            raise FileExistsError(errno.EEXIST, _THERE, name)
        self._enter(name)
        self.files[name] = node

    def replace(self, path: Name, new: Name) -> None:
        old, name = str(path), str(new)
        if old in self._folders:
            self._move(old, name)
            return
        node = self._node(old)
        if self.files.get(name) is node:
            return                     # two names of one file: POSIX leaves both
        self._enter(name)
        self.files[name] = node
        del self.files[old]
        self._leave(old)

    rename = replace

    def _move(self, old: str, name: str) -> None:
        """A folder with all that is in it."""
        assert not self.exists(name), f"{name} is there already"
        self.mkdir(name)
        for inside in list(self._folders[old]):
            self.replace(f"{old}/{inside}", f"{name}/{inside}")
        del self._folders[old]
        self._leave(old)

    # --- content ------------------------------------------------------------------------------------------------------------

    def _put(self, opened: _Open, data: bytes) -> None:
        node = opened.node
        node.data, node.parsed = data, _NOT_YET
        node.version += 1
        self._changed(opened.path)

    def _create(self, path: str) -> Node:
        self._enter(path)
        self._numbers += 1
        node = self.files[path] = Node(self._numbers)
        return node

    def open(self, path: Name, flags: int, mode: int = 0o777) -> int:
        name = str(path)
        node = self.files.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise self._missing(name)
            node = self._create(name)
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, _THERE, name)
        self._numbers += 1
        self._open[self._numbers] = _Open(node, name, bool(flags & os.O_APPEND))
        return self._numbers

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def number_of(self, descriptor: int) -> int:
        """Of the file that this descriptor is open on; 0 once it is closed."""
        opened = self._open.get(descriptor)
        return opened.node.number if opened is not None else 0

    def fstat(self, descriptor: int) -> Stat:
        return self._stat(self._open[descriptor].node)

    def pread(self, descriptor: int, size: int, at: int) -> bytes:
        return self._open[descriptor].node.data[at:at + size]

    def write(self, descriptor: int, data: bytes) -> int:
        opened = self._open[descriptor]
        assert opened.appends or not opened.node.data, "only what is appended to is written to twice"
        self._put(opened, opened.node.data + data)
        return len(data)

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        opened = self._open[descriptor]
        before = opened.node.data
        self._put(opened, before[:at].ljust(at, b"\0") + data + before[at + len(data):])
        return len(data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        opened = self._open[descriptor]
        if size != len(opened.node.data):
            self._put(opened, opened.node.data[:size].ljust(size, b"\0"))

    def fdopen(self, descriptor: int, mode: str) -> _File:
        assert mode == "wb", mode
        return _File(self, descriptor)

    # --- as pathlib and open() have it --------------------------------------------------------------------------------------

    def read_bytes(self, path: Name) -> bytes:
        return self._node(str(path)).data

    def read_text(self, path: Name, encoding: str | None = None, errors: str | None = None) -> str:
        return self._node(str(path)).data.decode(encoding or "utf-8", errors or "strict")

    def write_text(self, path: Name, text: str) -> None:
        name = str(path)
        node = self.files.get(name) or self._create(name)
        self._put(_Open(node, name, False), text.encode())

    def open_file(self, path: Name, mode: str = "r", buffering: int = -1) -> Any:
        if mode == "rb":
            return io.BytesIO(self._node(str(path)).data)
        assert mode == "ab", mode
        return _File(self, self.open(path, os.O_CREAT | os.O_APPEND))

    def iterdir(self, path: Path) -> Iterator[Path]:
        return (path / name for name in self.listdir(path))

    # --- what was parsed ----------------------------------------------------------------------------------------------------

    def parsed(self, path: str, parse: Callable[[], _Parsed], missing: _Parsed) -> _Parsed:
        """What this file says, parsed anew if it has changed since; ``missing`` where there is none."""
        node = self.files.get(path)
        if node is None:
            return missing
        if node.parsed is _NOT_YET:
            node.parsed = parse()
        said: _Parsed = node.parsed
        return said


class _File:
    """A file object to write to."""

    def __init__(self, disk: Disk, descriptor: int) -> None:
        self._disk, self._descriptor = disk, descriptor

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *raised: object) -> None:
        self._disk.close(self._descriptor)

    def write(self, data: bytes) -> int:
        return self._disk.write(self._descriptor, data)

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._descriptor
