"""What came of sending one message, as values. Nothing here raises: a channel that is away is no error of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """It is there. ``message_id`` is '' where the channel gives none; nothing more may be sent for ``pause_s``."""

    message_id: str = ""
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Not delivered, or nobody knows (``unknown``: the answer got lost). ``after_s``: the channel's wish; None: back off."""

    why: str
    after_s: float | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The channel does not want this message, whoever sends it again; others it may take."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The channel takes nothing from us: its address is wrong or no longer good."""

    why: str


Result = Delivered | TryAgain | Rejected | Refused
