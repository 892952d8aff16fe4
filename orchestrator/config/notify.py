"""``notify:`` in orch.yaml, and the webhook's URL, which is a secret and stands in a file of its own.

The URL is read where it is needed and held nowhere: a file that is missing or readable by others stops messages, never runs.
No text made here has the URL in it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.config.document import Document
from orchestrator.config.keys import NotifyFile
from orchestrator.errors import ConfigError

CREDENTIAL = "discord-webhook"
SETTLES_AFTER_PASSES = 2               # how long the queue must be lower before that is told, in passes
_DISCORD = re.compile(r"(?:(?:canary|ptb)\.)?discord(?:app)?\.com")
_WEBHOOK = re.compile(r"/api(?:/v\d+)?/webhooks/(\d+)/([A-Za-z0-9._-]+)/?")
_LOOKS_LIKE = "it looks like https://discord.com/api/webhooks/ID/TOKEN"
_URL_ITSELF = re.compile(r"://|webhooks/\d")  # where the name of a file belongs; also without its https://
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Who is to be told, and when."""

    discord: bool = False
    webhook_file: Path | None = None   # None: the systemd credential
    where: str = ""                    # file and line that say so
    command: tuple[str, ...] = ()
    slurm_silent_after_s: float = 600.0
    settle_s: float = 60.0

    @property
    def channels(self) -> tuple[str, ...]:
        return (*(["discord"] if self.discord else []), *(["command"] if self.command else []))


NOBODY = Notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """``version`` changes when somebody writes the file anew."""

    url: str = field(repr=False)
    version: str


def parse_notify(document: Document, file: NotifyFile, repository: Path, every_s: float) -> Notify:
    """Raises ConfigError."""
    if file.command is not None and not (file.command and file.command[0]):
        raise document.error("notify.command", "is empty", "write a program and its arguments: [./tell.sh, --all]")
    said = document.data.get("notify") or {}
    path = file.discord.webhook_file if file.discord else None
    if path and _URL_ITSELF.search(path):
        raise document.error("notify.discord.webhook_file", "is the URL itself, and orch.yaml is for everybody to read",
                             "write the URL into a file with mode 0600 and name that file here; then make a new webhook")
    return Notify(
        discord="discord" in said, webhook_file=repository / Path(path).expanduser() if path else None,
        where=document.error("notify.discord.webhook_file" if path else "notify.discord", "", "").message.rstrip(": "),
        command=tuple(file.command or ()),
        slurm_silent_after_s=document.duration_s("notify.slurm_silent_after", file.slurm_silent_after),
        settle_s=SETTLES_AFTER_PASSES * every_s)


def read_webhook(notify: Notify) -> Webhook:
    """The webhook's URL as its file has it now. Raises ConfigError that says what to do, without the URL."""
    path = notify.webhook_file
    if path is None:
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            raise ConfigError(f"{notify.where}: neither webhook_file nor a systemd credential {CREDENTIAL}",
                              hint="write `webhook_file: PATH`, or LoadCredential= into the unit; until then messages wait")
        path = Path(folder) / CREDENTIAL
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(4096)
    except OSError as error:
        raise ConfigError(f"{notify.where}: {path}: {error.strerror}",
                          hint=f"write the webhook's URL into it, then `chmod 600 {path}`") from None
    if notify.webhook_file is not None:  # systemd keeps its own
        _only_ours(notify.where, path, status)
    words = content.decode(errors="replace").split()
    if len(words) != 1:
        raise ConfigError(f"{notify.where}: {path}: must hold the webhook's URL and nothing else, has {len(words)} words")
    return Webhook(url=_checked(words[0], f"{notify.where}: {path}"), version=f"{path} {status.st_mtime_ns} {status.st_size}")


def _only_ours(where: str, path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{where}: {path} belongs to another user (uid {status.st_uid})",
                          hint="copy it into a file of your own with mode 0600")
    if mode & 0o077:
        raise ConfigError(f"{where}: {path} has mode {mode:04o}: others can read or change the webhook's URL",
                          hint=f"`chmod 600 {path}`; if others may have read it, make a new webhook")


def _checked(url: str, where: str) -> str:
    """The URL to use. Discord's own gets an API version: without one it answers as a long outdated one did, with
    milliseconds for seconds."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"{where}: is no URL") from None
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise ConfigError(f"{where}: is an http:// URL, which sends the secret in the clear", hint="write https://")
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ConfigError(f"{where}: is no webhook's URL", hint=_LOOKS_LIKE)
    if not _DISCORD.fullmatch(host):
        return url
    match = _WEBHOOK.fullmatch(parts.path)
    if match is None:
        raise ConfigError(f"{where}: is an address of Discord's, and none of a webhook (or not all of it)",
                          hint=f"{_LOOKS_LIKE}, without /slack or /github behind it")
    return parts._replace(netloc="discord.com", path=f"/api/v10/webhooks/{match[1]}/{match[2]}").geturl()
