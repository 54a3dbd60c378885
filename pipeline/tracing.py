"""Traces: one for each recording, from its submission through every step of every process, by OpenTelemetry.

The only importer of opentelemetry, and only where SPOTSCRIBE_OTLP_ENDPOINT is set; else `on()` is false and nothing is
made. A job's row carries its trace (W3C `traceparent`, https://www.w3.org/TR/trace-context/), so processes need not
know each other. Spans hold no words of a transcript, and no part of a URL that may be a secret.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from pipeline.extras import needs
from pipeline.settings import Settings

PREFIX = "spotscribe."
QUEUE, EXPORT_S = 8192, 5.0
"""Spans that wait to be sent, beyond which they are dropped; seconds that a collector has to take some."""


class Span(Protocol):
    """A stretch of work. `parent`: what others hang theirs on."""

    parent: str | None

    def note(self, **attributes: Any) -> None: ...
    def event(self, name: str, **attributes: Any) -> None: ...
    def fail(self, why: str) -> None: ...
    def end(self) -> None: ...


class NoSpan:
    """Where nobody wants to know."""

    parent: str | None = None

    def note(self, **attributes: Any) -> None:
        """Nothing."""

    def event(self, name: str, **attributes: Any) -> None:
        """Nothing."""

    def fail(self, why: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


NO_SPAN = NoSpan()


@dataclass(slots=True)
class _Otel:
    """OpenTelemetry's parts, once they are wanted."""

    trace: Any
    provider: Any
    tracer: Any
    share: float


_otel: _Otel | None = None


def start(settings: Settings, worker: str = "") -> None:
    """Send traces from now on, if that is set. Raises UsageError where the packages for it are missing."""
    global _otel  # noqa: PLW0603 (one for each process, as OpenTelemetry has it)
    if not settings.otlp_endpoint:
        return
    what = "SPOTSCRIBE_OTLP_ENDPOINT"
    sdk = needs("opentelemetry.sdk.trace", what, "traces")
    export = needs("opentelemetry.sdk.trace.export", what, "traces")
    resources = needs("opentelemetry.sdk.resources", what, "traces")
    otlp = needs("opentelemetry.exporter.otlp.proto.http.trace_exporter", what, "traces")
    trace = needs("opentelemetry.trace", what, "traces")
    about = {"service.name": "spotscribe", "service.instance.id": worker}
    provider = sdk.TracerProvider(resource=resources.Resource.create(about), shutdown_on_exit=False)
    exporter = otlp.OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
    provider.add_span_processor(export.BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=1000))
    _otel = _Otel(trace, provider, provider.get_tracer("spotscribe"), settings.trace_share)


def on() -> bool:
    return _otel is not None


def flush(seconds: float) -> None:
    """Send what waits, for so long at most, whatever the collector does."""
    if (otel := _otel) is None:
        return
    sending = threading.Thread(target=otel.provider.force_flush, args=(round(1000 * seconds),), daemon=True)
    sending.start()
    sending.join(seconds)


def begin(name: str, parent: str | None, *, links: Sequence[str] = (), **attributes: Any) -> Span:
    """A span that hangs on `parent`, or none where that is not traced. Somebody has to end it."""
    if _otel is None or parent is None:
        return NO_SPAN
    return _Span(_otel, name, _context(_otel, parent), links, attributes)


def root(name: str, **attributes: Any) -> Span:
    """The span that all others of a recording will hang on: of the share of recordings that are traced."""
    if _otel is None or random.random() >= _otel.share:  # noqa: S311 (a sample)
        return NO_SPAN
    return _Span(_otel, name, _nobody(_otel), (), attributes)


def submitted(url: str) -> str | None:
    """The trace of a recording that is submitted now."""
    made = root("submit", url=place(url))
    made.end()
    return made.parent


@contextmanager
def span(name: str, parent: str | None, **attributes: Any) -> Iterator[Span]:
    """`begin`, as the one that `child` hangs its own on, and its end. An error that goes through it is noted."""
    made = begin(name, parent, **attributes)
    if not isinstance(made, _Span):
        yield made
        return
    with made.current():
        yield made


@contextmanager
def child(name: str) -> Iterator[None]:
    """A span below the current one of this thread, if there is one."""
    otel = _otel
    above = otel.trace.get_current_span() if otel is not None else None
    if otel is None or above is None or not above.get_span_context().is_valid or getattr(above, "name", "") == name:
        yield
        return
    with otel.tracer.start_as_current_span(name):
        yield


@contextmanager
def batch(parents: Sequence[str], **attributes: Any) -> Iterator[None]:
    """A call of the model: a trace of its own, linked with the spans whose chunks are in it."""
    if (otel := _otel) is None or not parents:
        yield
        return
    made = _Span(otel, "batch", _nobody(otel), sorted(set(parents)), attributes)
    with made.current():
        yield


def note(**attributes: Any) -> None:
    """On the current span of this thread, if there is one."""
    if _otel is not None:
        _otel.trace.get_current_span().set_attributes(_named(attributes))


def link(other: str | None) -> None:
    """From the current span of this thread, if there is one, to that one."""
    if (otel := _otel) is not None and other is not None:
        linked = _far(other).get_span_context()
        otel.trace.get_current_span().add_link(linked)


def current() -> str | None:
    """What stands in the header `traceparent` of a request that is made now."""
    return None if _otel is None else _parent_of(_otel.trace.get_current_span().get_span_context())


def place(url: str) -> str:
    """A URL without what may be a secret in it: user, password, query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else url.partition("?")[0]


class _Span:
    def __init__(self, otel: _Otel, name: str, context: Any, links: Sequence[str], attributes: dict[str, Any]) -> None:
        self._otel = otel
        found = [_far(link).get_span_context() for link in links]
        self._span = otel.tracer.start_span(
            name, context=context, links=[otel.trace.Link(c) for c in found], attributes=_named(attributes)
        )
        self.parent: str | None = _parent_of(self._span.get_span_context())

    def note(self, **attributes: Any) -> None:
        self._span.set_attributes(_named(attributes))

    def event(self, name: str, **attributes: Any) -> None:
        self._span.add_event(name, _named(attributes))

    def fail(self, why: str) -> None:
        self._span.set_status(self._otel.trace.Status(self._otel.trace.StatusCode.ERROR, why))

    def end(self) -> None:
        self._span.end()

    @contextmanager
    def current(self) -> Iterator[None]:
        with self._otel.trace.use_span(self._span, end_on_exit=True, record_exception=False):
            yield


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in attributes.items() if value is not None}


def _parent_of(context: Any) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context(otel: _Otel, parent: str) -> Any:
    """OpenTelemetry's context of a `traceparent`."""
    return otel.trace.set_span_in_context(_far(parent), _nobody(otel))


@lru_cache(maxsize=1024)
def _far(parent: str) -> Any:
    """The span of a `traceparent`, which another process may have made."""
    assert _otel is not None
    api = _otel.trace
    _, trace_id, span_id, flags = parent.split("-")
    remote = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16)))
    return api.NonRecordingSpan(remote)


def _nobody(otel: _Otel) -> Any:
    """A context without a span, whatever this thread is at."""
    return otel.trace.set_span_in_context(otel.trace.INVALID_SPAN)
