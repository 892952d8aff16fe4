"""One YAML file as data, and the line of every key, so that every complaint can name both.

PyYAML parses and msgspec checks types; what is added here is where a thing stands, the nearest known key for an unknown one,
what to write instead, and that nothing is taken for a number that was not meant as one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from orchestrator.errors import ConfigError
from orchestrator.units import parse_duration_s, parse_size_bytes

Quantity = str | int | float
T = TypeVar("T")


class Document:
    """One YAML file: its data, and the line of every key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, int] = {}
        self._raw: dict[str, str] = {}
        self._open: list[yaml.Node] = []  # the nodes that the one being built stands in
        try:
            text = path.read_text(encoding="utf-8")
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text ({error.reason})") from error
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise self._yaml_error(error) from error
        self._loader = loader
        self.data: Any = self._build(node, "") if node is not None else {}

    def _yaml_error(self, error: yaml.YAMLError) -> ConfigError:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        advice = "use blanks, not tabs, for indentation" if "'\\t'" in problem else "look at that line and the one above"
        return ConfigError(f"{self.path}{line}: not YAML: {problem}", hint=advice)

    def _build(self, node: yaml.Node, key: str) -> Any:
        self._lines.setdefault(key, node.start_mark.line + 1)
        if node in self._open:
            raise self.error(key, "contains itself", "write the value out instead of an alias")
        self._open.append(node)
        try:
            return self._value(node, key)
        finally:
            self._open.pop()

    def _value(self, node: yaml.Node, key: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, f"{key}[{index}]") for index, item in enumerate(node.value)]
        self._raw[key] = str(node.value)
        try:
            return self._loader.construct_object(node)
        except yaml.YAMLError as error:
            raise self._yaml_error(error) from error
        except ValueError as error:  # 2026-13-01 looks like a date to YAML, and is none
            raise self.error(key, f"{node.value} is no value ({error})", f'write it in quotes: "{node.value}"') from error

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[str, Any]:
        written: dict[str, int] = {}
        for key_node, _ in node.value:
            name, line = str(key_node.value), key_node.start_mark.line + 1
            if name in written:
                path = f"{key}.{name}" if key else name
                raise ConfigError(f"{self.path}:{line}: {path}: written twice",
                                  hint=f"the first one is in line {written[name]}")
            written[name] = line
        self._loader.flatten_mapping(node)  # `<<: *base`: what is merged comes first, and what is written here wins
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(key_node.value)
            path = f"{key}.{name}" if key else name
            self._lines[path] = key_node.start_mark.line + 1
            mapping[name] = self._build(value_node, path)
        return mapping

    def error(self, key: str, problem: str, remedy: str) -> ConfigError:
        known = key
        while known not in self._lines and known:
            known = known.rpartition(".")[0]
        what = f"{key}: " if key else ""   # of the file as a whole there is no key
        return ConfigError(f"{self.path}:{self._lines.get(known, 1)}: {what}{problem}", hint=remedy)

    def written(self, key: str) -> str:
        """A value as it was written: YAML makes 8 of 010, 1.1 of 1.10 and 45000 of 12:30:00."""
        return self._raw[key]

    def duration_s(self, key: str, value: Quantity) -> float:
        return self._quantity(key, value, parse_duration_s, "12h30m")

    def size_bytes(self, key: str, value: Quantity) -> int:
        return int(self._quantity(key, value, parse_size_bytes, "36G"))

    def _quantity(self, key: str, value: Quantity, parse: Any, example: str) -> float:
        raw = self._raw.get(key, str(value))
        if not isinstance(value, str) and ":" in raw:
            raise self.error(key, f"YAML reads {raw} as the number {value}", f'write it in quotes: "{raw}", or {example}')
        try:
            parsed = float(parse(raw))
        except ValueError as error:
            raise self.error(key, str(error), "") from None
        if parsed <= 0:
            raise self.error(key, f"{raw} is not more than nothing", f"write for example {example}")
        return parsed

    def convert(self, kind: type[T]) -> T:
        try:
            return msgspec.convert(self.data, kind)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), kind) from None

    def _explain(self, message: str, kind: type[Any]) -> ConfigError:
        """msgspec's sentence with our key, line and the nearest key that exists."""
        problem, _, where = message.partition(" - at `$")
        key = self._exact(where.rstrip("`").lstrip("."), message, kind)
        field = re.search(r"(unknown|required) field `(.*)`", problem)
        if field is None:
            words = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
                     "object": "keys and values", "null": "nothing"}
            got = problem.replace("`", "").replace("Expected", "must be").replace(", got", ", not").replace(" | ", " or ")
            return self.error(key, re.sub(r"\b\w+\b", lambda m: words.get(m[0], m[0]), got), "")
        name = field.group(2)
        path = f"{key}.{name}" if key else name
        if field.group(1) == "required":
            return self.error(path, f'"{name}" is missing', "")
        known = _keys_at(kind, key)
        near = difflib.get_close_matches(name, known, 1)
        return self.error(path, f'unknown key "{name}"',
                          f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(sorted(known))}")

    def _exact(self, where: str, message: str, kind: type[Any]) -> str:
        """The key that msgspec means: it writes `[...]` for a mapping's key, and each is tried alone to find which."""
        head, unnamed, tail = where.partition("[...]")
        for name, value in self.data[head].items() if unnamed else ():
            try:
                msgspec.convert({**self.data, head: {name: value}}, kind)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return f"{head}.{name}{tail}"
        return head + tail


def known_keys(kind: Any) -> set[str]:
    """All keys that some part of this file knows; enough for a good guess."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return {field.name for field in fields}.union(*(known_keys(field.type) for field in fields))
    return set().union(*(known_keys(part) for part in get_args(kind)))


def _keys_at(kind: Any, key: str) -> set[str]:
    """The keys that may stand under this one; all of the file's where that cannot be told."""
    here = [kind]
    for name in key.split(".") if key else ():
        here = [inner for part in here for inner in _inside(part, name)]
    return {field.name for part in here for option in _options(part) if _is_struct(option)
            for field in msgspec.structs.fields(option)} or known_keys(kind)


def _inside(kind: Any, name: str) -> list[Any]:
    return [field.type for option in _options(kind) if _is_struct(option)
            for field in msgspec.structs.fields(option) if field.name == name] \
        + [get_args(option)[1] for option in _options(kind) if get_origin(option) in (dict, Mapping)]


def _options(kind: Any) -> tuple[Any, ...]:
    """The members of a union; of another type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
