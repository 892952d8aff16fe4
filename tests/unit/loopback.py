"""A webhook on this machine that answers as Discord does, or as a test says: what arrived is kept, with times."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

ID, TOKEN = "223704706495545344", "s3cr3t-T0ken_of.this-webhook"


@dataclass(frozen=True)
class Arrived:
    """One request."""

    at: float
    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    status: int | None                 # as it was answered; None: not at all

    @property
    def content(self) -> str:
        return str(self.body.get("content", ""))

    @property
    def everything(self) -> str:
        return json.dumps(self.body, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    """What to answer instead of taking the message. ``status`` None: nothing; ``hang``: nothing, and the line stays open."""

    status: int | None = None
    body: str | dict[str, Any] = ""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    taken: bool = False                # the message counts as delivered all the same


HANG = Reply(hang=True)
CLOSE = Reply()
NO_CONTENT = Reply(204, taken=True)
LOST = Reply(taken=True)               # it is there, and the answer got lost
BAD = Reply(400, {"message": "Invalid Form Body", "code": 50035})
BROKEN = Reply(500, "oops")
NO_WEBHOOK = Reply(404, {"message": "Unknown Webhook", "code": 10015})


def limited(after_s: float) -> Reply:
    return Reply(429, {"message": "You are being rate limited.", "retry_after": after_s, "global": False},
                 {"Retry-After": str(int(after_s) + 1), "X-RateLimit-Scope": "user"})


def cloudflare(after: str | None) -> Reply:
    return Reply(429, "<html><title>Access denied</title> error 1015</html>",
                 {"Content-Type": "text/html", **({"Retry-After": after} if after is not None else {})})


class Loopback:
    """``with Loopback() as discord:``. ``discord.replies`` are used up first, one a request; then ``discord.usual`` holds if
    it is set; else messages are taken. ``arrived`` is every request, ``messages`` what a reader of the channel sees."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.usual: Reply | None = None
        self.remaining: Callable[[], dict[str, str]] = dict  # further headers of a good answer
        self.arrived: list[Arrived] = []
        self.messages: dict[str, dict[str, Any]] = {}
        self.clock: Callable[[], float] = time.time
        self._release = threading.Event()
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                loopback._answer(self)

            do_PATCH = do_POST

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass                   # clients go away in the middle, as they are meant to

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/api/webhooks/{ID}/{TOKEN}"

    def contents(self) -> list[str]:
        """What a reader sees, in order, the living messages left out."""
        return [body["content"] for body in self.messages.values() if "flags" not in body]

    def posts(self) -> list[Arrived]:
        return [one for one in self.arrived if one.method == "POST"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = read_body(handler.rfile.read(int(handler.headers["Content-Length"])))
        reply = self.replies.pop(0) if self.replies else self.usual
        reply = reply or self._take(handler, body)
        if reply.taken:
            self._keep(handler, body)
        self.arrived.append(Arrived(self.clock(), handler.command, handler.path, body, dict(handler.headers), reply.status))
        if reply.hang:
            self._release.wait()
        if reply.status is None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        content = (json.dumps(reply.body) if isinstance(reply.body, dict) else reply.body).encode()
        handler.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def _take(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> Reply:
        """As Discord does."""
        wrong = mistakes(body)
        if wrong:
            return Reply(400, {"message": "Invalid Form Body", "code": 50035, "errors": wrong})
        number = handler.path.partition("?")[0].rpartition("/messages/")[2] if handler.command == "PATCH" else ""
        if handler.command == "PATCH" and number not in self.messages:
            return Reply(404, {"message": "Unknown Message", "code": 10008})
        number = self._keep(handler, body)
        if handler.command == "POST" and "wait=true" not in handler.path:
            return Reply(204)
        return Reply(200, {"id": number}, self.remaining())

    def _keep(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> str:
        number = handler.path.partition("?")[0].rpartition("/messages/")[2] if handler.command == "PATCH" else ""
        number = number or str(1000 + len(self.messages))
        kept = self.messages.get(number, {})
        self.messages[number] = {**kept, **body}
        return number


def read_body(data: bytes) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(data)
    except ValueError:
        return {"raw": data.decode()}
    return body


def mistakes(body: dict[str, Any]) -> dict[str, Any]:
    """What Discord would not take, by its own page on limits."""
    wrong: dict[str, Any] = {}
    if not 1 <= len(body["content"].strip()) <= 2000:
        wrong["content"] = len(body["content"])
    if body.get("allowed_mentions") != {"parse": []}:
        wrong["allowed_mentions"] = "open"  # not Discord's complaint but ours
    whole = 0
    for embed in body.get("embeds", []):
        fields = embed.get("fields", [])
        footer = embed.get("footer", {}).get("text", "")
        if not (embed.get("description") or fields) or len(embed.get("description", "")) > 4096 or len(footer) > 2048:
            wrong["embed"] = "description or footer"
        if len(fields) > 25 or any(not 1 <= len(f["name"]) <= 256 or not 1 <= len(f["value"]) <= 1024 for f in fields):
            wrong["fields"] = "size"
        whole += len(embed.get("description", "")) + len(footer) + sum(len(f["name"]) + len(f["value"]) for f in fields)
    if whole > 6000 or len(body.get("embeds", [])) > 10:
        wrong["embeds"] = whole
    return wrong
