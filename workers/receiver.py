"""The receiver: a small HTTP server that object stores send their events to (webhooks of SeaweedFS, MinIO and others).

The only importer of waitress, which reads requests whole before a thread of ours sees them, so that slow senders hold
up nobody. Whoever knows the token can make us look at objects of our own sources, and do nothing else.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from waitress import create_server, wasyncore  # type: ignore[import-untyped]

from chunking.errors import TransientError, UsageError
from pipeline.events import MOST_BYTES, Event, Unreadable, parse
from pipeline.settings import PREFIX
from workers.addresses import address

THREADS = 4
IDLE_S = 30
"""A connection on which nothing happens for so long is closed."""
LEAVE_S = 5.0
"""How long requests in hand may take when the receiver is closed."""


class Receiver:
    """Takes events by HTTP from `start` to `close`. `take` is called by several threads."""

    def __init__(self, listen: str, token: str, take: Callable[[Sequence[Event]], None]) -> None:
        """Listens on HOST:PORT (0: any free port). Raises UsageError where it cannot, or may not without a token."""
        self._token = token.strip().encode()
        self._take = take
        self._leaving = threading.Event()
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # four busy threads are no news
        bound = _bind(listen, bool(self._token))
        self.port = int(bound.getsockname()[1])
        self._map: dict[int, Any] = {}
        self._server = create_server(
            self._answer, map=self._map, sockets=[bound], threads=THREADS, ident="spotscribe",
            max_request_body_size=MOST_BYTES + 1, max_request_header_size=16 << 10, channel_timeout=IDLE_S,
            cleanup_interval=5,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._serve, name="receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Returns when nothing is taken any more, after LEAVE_S or so at the latest."""
        if self._thread.is_alive():
            self._server.trigger.pull_trigger(self._leaving.set)  # wakes the loop
            self._thread.join(LEAVE_S + 1)
        elif self._thread.ident is None:
            self._end()

    def _serve(self) -> None:
        while not self._leaving.is_set():
            wasyncore.loop(timeout=1, map=self._map, use_poll=True, count=1)
        self._end()

    def _end(self) -> None:
        threads = self._server.task_dispatcher
        threads.shutdown(timeout=LEAVE_S)
        if not threads.threads:  # one that hangs would later write to the loop's pipe, whatever that is by then
            wasyncore.close_all(self._map)

    def _answer(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        status, text = self._heard(request)
        body = b"" if request["REQUEST_METHOD"] == "HEAD" else f"{text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        if status.startswith("401"):
            headers.append(("WWW-Authenticate", "Bearer"))
        start(status, headers)
        return [body]

    def _heard(self, request: WSGIEnvironment) -> tuple[str, str]:
        """Status and one line of explanation."""
        method = request["REQUEST_METHOD"]
        if method == "HEAD" or (method == "GET" and request.get("PATH_INFO") == "/healthz"):
            return "200 OK", "ok"  # MinIO asks by HEAD whether somebody is there
        if method != "POST":
            return "405 Method Not Allowed", "events come by POST"
        if not self._authorised(request.get("HTTP_AUTHORIZATION", "")):
            return "401 Unauthorized", "the token is missing or wrong"
        try:
            self._take(parse(request["wsgi.input"].read()))
        except Unreadable as e:
            return "400 Bad Request", " ".join(str(e).split())
        except TransientError:
            return "503 Service Unavailable", "try again later"
        return "200 OK", "ok"

    def _authorised(self, header: str) -> bool:
        """With the word Bearer or without it: MinIO sends what it was given."""
        first, _, rest = header.strip().partition(" ")
        shown = rest.strip() if first.lower() == "bearer" and rest else header.strip()
        return not self._token or hmac.compare_digest(shown.encode("latin-1"), self._token)  # as WSGI has it


def _bind(listen: str, guarded: bool) -> socket.socket:
    """A socket on HOST:PORT that nobody listens to yet. Raises UsageError."""
    where = address(listen)
    if not guarded and not ipaddress.ip_address(str(where.address[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"{PREFIX}EVENTS_TOKEN is not set: without it events are taken on 127.0.0.1 only, not {listen}"
        )
    return where.bind()
