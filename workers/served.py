"""What a process serves of itself by HTTP: /metrics for Prometheus, /healthz and /readyz for whoever keeps it running.

The only importer of prometheus_client. What is served is read at the moment of asking: nothing is counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from chunking.errors import UsageError
from pipeline.metrics import Metric
from pipeline.settings import PREFIX
from pipeline.telemetry import Labels, Spread
from workers.addresses import address

PATIENCE_S = 10
"""How long a client may be silent."""
Values = Mapping[str, Mapping[Labels, float] | Spread]
"""By a metric's name."""


class Source(Collector):
    """Families of the metrics in a table, from one function that knows their values."""

    def __init__(self, metrics: Iterable[Metric], values: Callable[[], Values]) -> None:
        self._metrics, self._values = tuple(metrics), values

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        values = self._values()
        for metric in self._metrics:
            if (found := values.get(metric.name)) is not None:
                yield _family(metric, found)


def _family(metric: Metric, values: Mapping[Labels, float] | Spread) -> Family:
    if isinstance(values, Spread):
        upto = [sum(values.counts[: i + 1]) for i in range(len(values.counts))]
        ends = [*(str(float(b)) for b in metric.buckets), "+Inf"]
        buckets = [(end, float(n)) for end, n in zip(ends, upto, strict=True)]
        return HistogramMetricFamily(metric.name, metric.about, buckets=buckets, sum_value=values.total)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.about, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric([str(label) for label in labels], value)
    return family


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that went away in the middle is no news."""


class Served:
    """The server, from `start` until the process ends. `watch` says what it is to tell; until then: not ready."""

    def __init__(self, listen: str) -> None:
        """Listens on HOST:PORT or :PORT (0: any free port). Raises UsageError, naming the setting."""
        try:
            bound = address(listen, everywhere=True).bind()
        except UsageError as e:
            raise UsageError(f"{PREFIX}METRICS_LISTEN: {e}") from None
        self.port = int(bound.getsockname()[1])
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._stuck: Callable[[], str | None] = lambda: None
        self._ready: Callable[[], bool] = lambda: False
        self._server = _Server(("", 0), self._handler(), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = bound

    def start(self) -> None:
        Thread(target=self._server.serve_forever, name="served", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def watch(self, source: Source, stuck: Callable[[], str | None], ready: Callable[[], bool]) -> None:
        """`stuck`: why it does not get on, None if it does."""
        self.registry.register(source)
        self._stuck, self._ready = stuck, ready

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, content type, body."""
        if path == "/metrics":
            encoder, content_type = choose_encoder(accept)
            return 200, content_type, encoder(self.registry)
        if path == "/healthz":
            why = self._stuck()
            return (200, TEXT, b"ok\n") if why is None else (503, TEXT, f"{why}\n".encode())
        if path == "/readyz":
            return (200, TEXT, b"ready\n") if self._ready() else (503, TEXT, b"not ready\n")
        return 404, TEXT, b"/metrics, /healthz, /readyz\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_S

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                status, kind, body = served.answer(path, self.headers.get("Accept", ""))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


TEXT = "text/plain; charset=utf-8"


def printed(source: Source) -> str:
    """The metrics as text, for a file that node_exporter's textfile collector reads."""
    registry = CollectorRegistry()
    registry.register(source)
    return generate_latest(registry).decode()


def gauge(value: float | None) -> dict[Labels, float]:
    """A value without labels; none: nothing is served."""
    return {} if value is None or math.isnan(value) else {(): value}
