"""Durations and sizes as people write them, and back. Seconds and bytes inside, text at the edges.

A number without a unit is refused everywhere: nobody can say whether ``time: 30`` meant seconds or minutes.
"""

from __future__ import annotations

import re

_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)")

_SIZE_UNITS = {
    "": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?B)?", re.IGNORECASE)


def parse_duration_s(text: str) -> float:
    """Seconds from ``90s``, ``5m``, ``1h30m``, ``1.5h``, ``2d`` or Slurm's ``[D-]HH:MM:SS``.

    Raises ValueError whose message says what to write instead.
    """
    text = text.strip()
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    parts = _DURATION_PART.findall(text)
    if not parts or _DURATION_PART.sub("", text).strip():
        unitless = re.fullmatch(r"\d+(\.\d+)?", text)
        advice = f"add a unit: {text}s, {text}m or {text}h" if unitless else "write 90s, 20m, 1h30m or 00:20:00"
        raise ValueError(f'"{text}" is not a duration ({advice})')
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)


def parse_size_bytes(text: str) -> int:
    """Bytes from ``36G``, ``512M``, ``1.5T``; powers of 1024, as Slurm counts memory.

    Raises ValueError whose message says what to write instead.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match or not (match.group(2) or match.group(3)):
        unitless = re.fullmatch(r"\d+(\.\d+)?", text.strip())
        advice = f"add a unit: {text}M or {text}G" if unitless else "write 512M, 36G or 1.5T"
        raise ValueError(f'"{text}" is not a size ({advice})')
    return int(float(match.group(1)) * _SIZE_UNITS[match.group(2).upper()])


def format_duration(seconds: float) -> str:
    """A duration for people: ``0.4s``, ``48s``, ``2m05s``, ``1h02m``, ``3d04h``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds % 1 else f"{int(seconds)}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    if whole < 86400:
        hours, rest = divmod(whole, 3600)
        return f"{hours}h{rest // 60:02d}m" if rest >= 60 else f"{hours}h"
    days, rest = divmod(whole, 86400)
    return f"{days}d{rest // 3600:02d}h" if rest >= 3600 else f"{days}d"


def format_clock(seconds: float) -> str:
    """A time limit to the second, as Slurm writes it: ``8:00:00``, ``1-12:00:00``."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_m = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{rest_h}:{rest_m:02d}:{rest_s:02d}"


def format_size(size_bytes: float) -> str:
    """A size for people and for Slurm: ``0B``, ``512K``, ``36G``, ``1.5T``; powers of 1024."""
    value = float(size_bytes)
    for unit in ("B", "K", "M", "G", "T"):
        if value < 1024 or unit == "T":
            return f"{value:.0f}{unit}" if value == int(value) or value >= 100 else f"{value:.1f}{unit}"
        value /= 1024
    raise AssertionError("unreachable")


def slurm_minutes(seconds: float) -> int:
    """A time limit as Slurm counts it: whole minutes, rounded up, at least one."""
    return max(1, -int(-seconds // 60))


def slurm_memory_mib(size_bytes: int) -> int:
    """Memory as ``--mem`` takes it: whole MiB, rounded up."""
    return -(-size_bytes // 2**20)
