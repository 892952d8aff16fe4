"""Sending to a Discord webhook, as Discord asks for it: ``wait=true``, so that an answer means that the message is there.

Nothing is retried and nothing sleeps here; what is to follow is a value. The webhook's URL is a secret: no text that leaves
this module has it in it, which is why no exception of requests' does (its words quote the URL).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from orchestrator.notify.result import Delivered, Refused, Rejected, Result, TryAgain

if TYPE_CHECKING:
    import requests

ANSWER_AT_MOST_BYTES = 64 * 1024
WAIT_AT_MOST_S = 3600.0                # an answer that asks for more patience is asked again after this
LIMITED_S = 60.0                       # rate limited, and nobody says for how long
# Discord asks for this form, and Cloudflare before it turns programs away that have none.
AGENT = "DiscordBot (orch-slurm, 1)"
_NOBODY_KNOWS = frozenset({502, 504, 520, 521, 522, 523, 524})  # a gateway's word; what is behind it may have done it
_UNKNOWN_WEBHOOK = 10015
_BLOCKED_BY_CLOUDFLARE = 40333


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one request may take, in seconds; all of it, names and drops of an answer included, ends after ``whole_s``."""

    connect_s: float = 3.0
    read_s: float = 4.0
    whole_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What matters of a response."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""

    @property
    def json(self) -> dict[str, Any]:
        """The body, {} where it is none of Discord's (Cloudflare answers in HTML)."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def number(self, name: str) -> float | None:
        try:
            return max(0.0, float(self.headers[name]))
        except (KeyError, ValueError):
            return None


def post(url: str, payload: dict[str, Any], *, message_id: str = "", patience: Patience) -> Result:
    """Send a new message, or with ``message_id`` edit that one."""
    method, target = ("PATCH", edit_url(url, message_id)) if message_id else ("POST", post_url(url))
    answer = _within(patience.whole_s, lambda: _request(method, target, payload, patience))
    if not isinstance(answer, Answer):
        return answer
    return read_answer(answer, editing=bool(message_id))


def post_url(url: str) -> str:
    """With wait=true; a thread_id in the webhook's URL stays."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "wait"]
    return urlunsplit(parts._replace(query=urlencode([*query, ("wait", "true")]), fragment=""))


def edit_url(url: str, message_id: str) -> str:
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name == "thread_id"]
    path = f"{parts.path.rstrip('/')}/messages/{message_id}"
    return urlunsplit(parts._replace(path=path, query=urlencode(query), fragment=""))


# --- what an answer means -------------------------------------------------------------------------------------------------


def read_answer(answer: Answer, *, editing: bool = False) -> Result:
    """A pure function of the answer. Only Discord's own word gives a message or a webhook up; what a proxy, a portal or a
    page in HTML says will pass."""
    status = answer.status
    if 200 <= status < 300:
        spent = answer.headers.get("x-ratelimit-remaining") == "0"
        pause_s = (answer.number("x-ratelimit-reset-after") or 0.0) if spent else 0.0
        return Delivered(message_id=_id(answer), pause_s=min(pause_s, WAIT_AT_MOST_S))
    if status == 429:
        return TryAgain(why=f"rate limited ({status})", after_s=_asked_for_s(answer))
    if status == 403 and _not_discords(answer):
        return TryAgain(why="Cloudflare, in front of it, turns this machine away (403)")
    if status in (401, 403, 404) and "code" in answer.json:
        if editing and status == 404 and answer.json["code"] != _UNKNOWN_WEBHOOK:
            return Rejected(why="that message is gone")
        return Refused(why=_said(answer))
    if status in (400, 413) and not _not_discords(answer):
        return Rejected(why=_said(answer))
    return TryAgain(why=f"it answers {status}", unknown=status in _NOBODY_KNOWS)


def _id(answer: Answer) -> str:
    found = answer.json.get("id")
    return found if isinstance(found, str) and found.isalnum() else ""


def _asked_for_s(answer: Answer) -> float:
    body = answer.json.get("retry_after")
    asked = max(0.0, float(body)) if isinstance(body, (int, float)) else answer.number("retry-after")
    return min(asked if asked is not None else LIMITED_S, WAIT_AT_MOST_S)


def _not_discords(answer: Answer) -> bool:
    """Cloudflare's word says nothing about the webhook."""
    return answer.json.get("code") == _BLOCKED_BY_CLOUDFLARE or "html" in answer.headers.get("content-type", "") \
        or answer.body.startswith(b"error code:")


def _said(answer: Answer) -> str:
    """What it said, on one line and short."""
    text = " ".join([f"{answer.status}:", *answer.body[:400].decode(errors="replace").split()])
    return (text if len(text) <= 300 else text[:297] + "...").rstrip(":")


# --- the request ----------------------------------------------------------------------------------------------------------


def _within(seconds: float, request: Callable[[], Answer | TryAgain]) -> Answer | TryAgain:
    """The answer, or after ``seconds`` nobody's: a name server alone can keep a request far longer than its time-outs say.
    The thread that still waits ends by itself."""
    answers: list[Answer | TryAgain] = []

    def work() -> None:
        try:
            answers.append(request())
        except Exception as error:  # its words may quote the URL: its name must do
            answers.append(TryAgain(why=type(error).__name__, unknown=True))

    thread = threading.Thread(target=work, daemon=True, name="orch-notify")
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else TryAgain(why=f"no answer within {seconds:g} s", unknown=True)


def _request(method: str, url: str, payload: dict[str, Any], patience: Patience) -> Answer | TryAgain:
    import requests

    try:
        with requests.Session() as session:
            session.trust_env = urlsplit(url).scheme == "https"  # a proxy is for the world, not for this machine
            response = session.request(
                method, url, data=json.dumps(payload).encode(), stream=True, allow_redirects=False,
                timeout=(patience.connect_s, patience.read_s), auth=lambda request: request,  # ~/.netrc is not for Discord
                headers={"Content-Type": "application/json", "User-Agent": AGENT})
            with response:
                body = response.raw.read(ANSWER_AT_MOST_BYTES, decode_content=True)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, headers, _without_secrets(body, url))
    except requests.RequestException as error:
        return _unanswered(error)


def _without_secrets(body: bytes, url: str) -> bytes:
    """An error page may quote the path that was asked for."""
    parts = urlsplit(url)
    for secret in (*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))):
        if len(secret) > 8:            # longer than "webhooks"
            body = body.replace(secret.encode(), b"...")
    return body


def _unanswered(error: requests.RequestException) -> TryAgain:
    """Whether the request can have got there. Only what failed before a connection stood surely did not."""
    import requests
    from urllib3.exceptions import NewConnectionError

    if isinstance(error, requests.ConnectTimeout):
        return TryAgain(why="no connection in time")
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(reason, NewConnectionError):
        return TryAgain(why="no connection (refused, or its name is not found)")
    if isinstance(error, (requests.exceptions.SSLError, requests.exceptions.ProxyError)):
        return TryAgain(why=f"no connection ({type(error).__name__})")
    why = "no answer in time" if isinstance(error, requests.ReadTimeout) else f"the answer got lost ({type(error).__name__})"
    return TryAgain(why=why, unknown=True)
