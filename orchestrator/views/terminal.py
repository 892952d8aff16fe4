"""What a terminal would show of a program's output: progress bars draw one line many times over. Pure."""

from __future__ import annotations

_ERASE = "\x1b[K"       # to the end of the line


def as_shown(line: str) -> str:
    """A line in the end: each carriage return begins it anew, over what stands there."""
    if "\r" not in line:
        return line
    shown = ""
    for part in line.split("\r"):
        shown = part + ("" if _ERASE in part else shown[len(part):])
    return shown.rstrip()


class ShownLines:
    """Bytes in as they come, lines out when they are whole. A bar that is drawn for hours takes the room of one line."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[str]:
        *whole, rest = (self._rest + data).split(b"\n")
        drawn, again, last = rest.rpartition(b"\r")
        self._rest = as_shown(_text(drawn)).encode() + again + last if again else rest
        return [as_shown(_text(line)) for line in whole]

    def end(self) -> list[str]:
        """What has not ended in a newline."""
        rest, self._rest = self._rest, b""
        return [as_shown(_text(rest))] if rest else []


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
