"""Telling systemd how the daemon is, by the datagram socket that it names in the environment (sd_notify(3)).

Elsewhere nobody listens. A manager that cannot be told is no reason to stop the passes: it will find out by its watchdog.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

SEND_AT_MOST_S = 1.0


class Manager:
    """The service manager. Its variables are taken out of ``environ``: what orch starts must not speak in its name."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # @: a name without a file
        limit, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._watches = limit not in ("", "0") and whose in ("", str(os.getpid()))

    def ready(self) -> None:
        self._send("READY=1")

    def alive(self) -> None:
        if self._watches:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={' '.join(text.split())}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_AT_MOST_S)
            sender.sendto(state.encode(errors="replace"), self._address)
