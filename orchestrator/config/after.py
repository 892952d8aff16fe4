"""``after:`` as it is written in job.yaml and in a campaign, and ``--after``: checked entries, each with where it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.config.document import Document
from orchestrator.errors import UserError
from orchestrator.model import TAG_PATTERN, After

# Slurm's words, and what else comes to mind
_MEANT = {"afterok": After.FINISHED, "ok": After.FINISHED, "success": After.FINISHED, "done": After.FINISHED,
          "afterany": After.ENDED, "any": After.ENDED, "afternotok": After.ENDED, "failed": After.ENDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """One entry: the tag of a run, or the id of another Slurm job, which nobody has told apart yet."""

    name: str
    condition: After | None = None     # None: not said
    where: str                         # begins every complaint about it


def parse_after(document: Document, key: str, value: Any) -> tuple[Awaited, ...]:
    """``[a, b]`` (both finished) or ``{a: finished, b: ended}``. Raises ConfigError with file, line, key and remedy."""
    if value is None:
        return ()
    if not isinstance(value, list | dict):
        raise document.error(key, f"{document.written(key)} is no list", f"write [{document.written(key)}], "
                             f"or {{{document.written(key)}: ended}} for any end of it")
    return tuple(_from_list(document, key, value) if isinstance(value, list) else _from_mapping(document, key, value))


def _from_list(document: Document, key: str, value: list[Any]) -> Iterator[Awaited]:
    for index, item in enumerate(value):
        at = f"{key}[{index}]"
        if not isinstance(item, str | int | float):
            raise document.error(at, "is neither a tag nor a job id",
                                 "write [TAG, TAG], or {TAG: finished, TAG: ended} without the list")
        yield _entry(document, at, document.written(at), None)


def _from_mapping(document: Document, key: str, value: dict[str, Any]) -> Iterator[Awaited]:
    for name, word in value.items():
        at = f"{key}.{name}"
        if not isinstance(word, str) or word not in set(After):
            written = document.written(at) if not isinstance(word, list | dict) else "a list or a mapping"
            raise document.error(at, f'"{written}" is no condition' if word is not None else "has no condition",
                                 meant(str(written)))
        yield _entry(document, at, name, After(word))


def _entry(document: Document, at: str, name: str, condition: After | None) -> Awaited:
    if not TAG_PATTERN.fullmatch(name):
        raise document.error(at, f'"{name}" is neither a tag nor a job id', "write [TAG, TAG] or {TAG: finished, TAG: ended}")
    return Awaited(name=name, condition=condition, where=document.error(at, "", "").message)


def meant(word: str) -> str:
    """What to write instead of a word that is no condition."""
    near = _MEANT.get(word.lower()) or next(iter(difflib.get_close_matches(word.lower(), list(After), 1)), None)
    return f'did you mean "{near}"?' if near else "write finished or ended"


def parse_option(texts: tuple[str, ...]) -> tuple[Awaited, ...]:
    """``--after a,b:ended``. Raises UserError."""
    found = []
    for text in (part for given in texts for part in given.split(",") if part):
        name, colon, word = text.partition(":")
        if colon and word not in set(After):
            raise UserError(f'--after {text}: "{word}" is no condition', hint=meant(word))
        found.append(Awaited(name=name, condition=After(word) if colon else None, where="--after: "))
    return tuple(found)
