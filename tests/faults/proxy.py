"""What stands between a worker and a server, and does to their talk what networks do: cut, hang, slow down, lose.

`TcpProxy` knows bytes only; `S3Proxy` knows requests, and can answer one itself or cut an answer in the middle.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

BLOCK = 64 << 10
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset, as a machine does that knows nothing of the connection."""


class _Line:
    """A client's connection and ours to the server."""

    def __init__(self, client: socket.socket, server: socket.socket | None) -> None:
        self.client, self.server = client, server
        self.answer_lost = False
        """Cut as soon as the server answers."""

    def cut(self) -> None:
        for end in (self.client, self.server):
            if end is not None:
                try:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
                except OSError:
                    pass
                end.close()


class TcpProxy:
    """127.0.0.1:`port` → the target. A context; what it has been told to do holds for new connections as well."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._delay_s = 0.0
        self._open = threading.Event()
        self._open.set()
        self._pattern, self._times, self._every, self._seen = b"", 0, 1, 0
        self._where: Literal["before", "after"] = "after"
        self.cuts = 0
        """Connections that were cut because of what was said on them."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections there are. New ones are taken."""
        with self._lock:
            lines, self._lines = self._lines, set()
        for line in lines:
            line.cut()

    def hang(self) -> None:
        """From now on connections are taken and everything is swallowed: the other side is there, and silent."""
        self._open.clear()

    def resume(self) -> None:
        """Forward again, on new connections; what was swallowed is lost, and so are the connections."""
        self._open.set()
        self.cut()

    def delay(self, seconds: float) -> None:
        """Each piece, in either direction, arrives so much later."""
        self._delay_s = seconds

    def cut_at(
        self, pattern: bytes, times: int, *, every: int = 1, where: Literal["before", "after"] = "after"
    ) -> None:
        """Cut a connection on which the client says this, so many times, each `every`th time that it is said.

        `after` the server has got it and acted on it, but its answer is lost; or `before` the server has got it.
        """
        with self._lock:
            self._pattern, self._times, self._every, self._where, self._seen = pattern, times, every, where, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = None
        if self._open.is_set():
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
            except OSError:
                _Line(client, None).cut()
                return
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(client, server)
        with self._lock:
            self._lines.add(line)
        threading.Thread(target=self._pump, args=(line, client, server), daemon=True).start()
        if server is not None:
            self._pump(line, server, client)

    def _pump(self, line: _Line, source: socket.socket, sink: socket.socket | None) -> None:
        """One direction of a line, until it ends."""
        try:
            while data := source.recv(BLOCK):
                if self._delay_s:
                    time.sleep(self._delay_s)
                if sink is None or not self._open.is_set():
                    continue
                if source is line.client:
                    if self._struck(data):
                        if self._where == "before":
                            break
                        line.answer_lost = True
                elif line.answer_lost:
                    break
                sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._lines.discard(line)
        if self._open.is_set() or source is line.client:  # while it hangs, not even the end is passed on
            line.cut()

    def _struck(self, data: bytes) -> bool:
        with self._lock:
            if not self._times or self._pattern not in data:
                return False
            self._seen += 1
            if self._seen % self._every:
                return False
            self._times -= 1
            self.cuts += 1
            return True


Fault = Callable[["Call"], bool]
"""Looks at a request; True: it has dealt with it, and the server never hears of it."""


class Call:
    """A request on its way to the S3 server, for a fault to do something to."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes, target: int) -> None:
        self.method, self.path, self._handler, self._body, self._target = (
            handler.command, handler.path, handler, body, target,
        )  # fmt: skip

    def refuse(self, status: int, code: str, message: str = "a test says so", more: str = "") -> None:
        """Answer as S3 does when it will not; `more`: further elements of its answer."""
        said = f"<Code>{code}</Code><Message>{message}</Message>{more}"
        content = f"<?xml version='1.0'?><Error>{said}</Error>".encode() if self.method != "HEAD" else b""
        self._answer(status, [("Content-Type", "application/xml")], content, len(content))

    def forward(self, upto: float = 1.0, then: Callable[[], None] = lambda: None) -> None:
        """To the server and back. Less than 1: only that part of the body comes, then the connection ends."""
        server = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30.0)
        try:
            server.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self._handler.headers.items():  # Host too, as the signature covers it
                if name.lower() not in {"expect", "connection"}:
                    server.putheader(name, value)
            server.endheaders(self._body or None)
            got = server.getresponse()
            content = got.read()
        finally:
            server.close()
        length = int(got.headers.get("Content-Length", len(content)))
        kept = [(n, v) for n, v in got.headers.items() if n.lower() not in {"content-length", "connection"}]
        self._answer(got.status, kept, content[: int(len(content) * upto)] if upto < 1.0 else content, length)
        if upto < 1.0:
            self._handler.wfile.flush()
            then()
            self._handler.close_connection = True

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, length: int) -> None:
        self._handler.send_response_only(status)
        for name, value in headers:
            self._handler.send_header(name, value)
        self._handler.send_header("Content-Length", str(length))
        self._handler.end_headers()
        self._handler.wfile.write(content)


class S3Proxy:
    """An S3 endpoint that hands on to another. A context. `faults` are asked in order before each request goes on."""

    def __init__(self, target: int) -> None:
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        """Method and path of each request."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def do_GET(self) -> None:
                call = Call(self, self.rfile.read(int(self.headers.get("Content-Length", 0))), target)
                proxy.calls.append(f"{self.command} {self.path}")
                if not any(fault(call) for fault in list(proxy.faults)):
                    call.forward()

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def seldom(times: int, fault: Fault) -> Fault:
    """That fault, no more often than so many times."""
    left = [True] * times
    lock = threading.Lock()

    def limited(call: Call) -> bool:
        with lock:
            return bool(left) and fault(call) and left.pop()

    return limited
