"""A collector of traces by OTLP over HTTP, for tests: what it was sent, as trees."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span that was sent."""

    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: frozenset[str]
    """Ids of spans."""
    seconds: float
    began: int


class Collector:
    """Listens from its making on; `hangs` makes it answer nobody."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.asked = 0
        self.hangs = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked += 1
                if collector.hangs.is_set():
                    collector.over.wait(60.0)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def all_traces(self) -> list[list[Seen]]:
        """The spans of each."""
        by_trace: dict[str, list[Seen]] = {}
        for s in list(self.spans):
            by_trace.setdefault(s.trace, []).append(s)
        return list(by_trace.values())

    def traces(self) -> dict[str, list[Seen]]:
        """By the name of the recording at their root, where each was submitted once."""
        roots = {s.trace: s.attributes["spotscribe.url"] for s in self.spans if s.name == "submit"}
        of = {spans[0].trace: spans for spans in self.all_traces()}
        return {url.rpartition("/")[2]: of[trace] for trace, url in roots.items()}


@contextmanager
def collecting() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def tree(spans: list[Seen]) -> str:
    """As a person reads it."""
    lines: list[str] = []

    def show(parent: str, depth: int) -> None:
        for s in sorted((x for x in spans if x.parent == parent), key=lambda x: x.began):
            about = ", ".join(f"{k.removeprefix('spotscribe.')} {v}" for k, v in s.attributes.items())
            events = f"; {len(s.events)} x {s.events[0]}" if s.events else ""
            lines.append(f"{'  ' * depth}{s.name}  {1000 * s.seconds:.0f} ms  ({about}{events})")
            show(s.id, depth + 1)

    show("", 0)
    return "\n".join(lines)


def _spans(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for s in scope.spans:
                yield Seen(
                    s.trace_id.hex(), s.span_id.hex(), s.parent_span_id.hex(), s.name,
                    {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in s.attributes},
                    tuple(e.name for e in s.events), frozenset(x.span_id.hex() for x in s.links),
                    (s.end_time_unix_nano - s.start_time_unix_nano) / 1e9, s.start_time_unix_nano,
                )  # fmt: skip
