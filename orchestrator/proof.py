"""How far the proof is that a run resumes where it was stopped (``core.canary``)."""

from __future__ import annotations

from enum import StrEnum


class Canary(StrEnum):
    """NONE: nobody asked for it, or it was decided about by hand."""

    NONE = ""
    WANTED = "wanted"
    STOPPING = "stopping"
    PROVEN = "proven"
    BROKEN = "broken"
