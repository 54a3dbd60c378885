"""Whom webhooks go to: a real HTTP server that fails or hangs as it is told, checks signatures, and counts by key."""

from __future__ import annotations

import base64
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = b"a key of our own that nobody knows"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
Answer = Callable[["Receiver", str], int | None]


class Receiver:
    """A real HTTP server. `answer` says with which status, or hangs; what it took is in `taken`, by key."""

    def __init__(self, answer: Answer = lambda receiver, key: 200) -> None:
        self.answer = answer
        self.posts: list[str] = []
        self.taken: dict[str, list[dict[str, Any]]] = {}
        self.forged = 0
        self.release = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["webhook-id"]
                if not _signed(self.headers, body) or self.headers["Idempotency-Key"] != key:
                    receiver.forged += 1
                receiver.posts.append(key)
                status = receiver.answer(receiver, key)
                if status is None:
                    receiver.release.wait(60.0)
                    return
                if 200 <= status < 300:
                    receiver.taken.setdefault(key, []).append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://user:hunter2@127.0.0.1:{self._server.server_port}/hook?token=hidden"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def _signed(headers: Any, body: bytes) -> bool:
    """Written from the scheme's specification, not from our code."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    return headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(KEY, content, "sha256")).decode()


@contextmanager
def receiver(answer: Answer = lambda receiver, key: 200) -> Iterator[Receiver]:
    made = Receiver(answer)
    try:
        yield made
    finally:
        made.close()
