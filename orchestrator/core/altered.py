"""Copies of frozen values in which something is otherwise: a fold makes them for every event of every journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

_Value = TypeVar("_Value")


def altered(value: _Value, **changes: Any) -> _Value:
    """``dataclasses.replace`` of a frozen value with slots, several times as fast: what is not changed is carried over as it
    is, past ``__init__``. A fold does hardly anything else."""
    kind: type = type(value)
    read, writes = _slots(kind)
    new: _Value = object.__new__(kind)
    for write, had in zip(writes.values(), read(value), strict=True):
        write(new, had)
    put(new, changes)
    return new


def put(value: object, changes: dict[str, Any]) -> None:
    """Into one that nobody else has seen yet."""
    kind: type = type(value)
    _, writes = _slots(kind)
    for name, wanted in changes.items():
        writes[name](value, wanted)


@cache
def _slots(kind: type) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, Callable[[Any, Any], None]]]:
    """What reads all fields of such a value, and what sets each."""
    names = [field.name for field in fields(kind)]
    return attrgetter(*names), {name: vars(kind)[name].__set__ for name in names}
