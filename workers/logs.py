"""What a long-running process says of itself: short lines on a terminal, elsewhere a JSON object a line; no secrets.

Everybody logs by the standard library's `logging` (libraries from WARNING on); structlog gives the lines their form.
Writing is done by a thread with a bounded queue: who reads too slowly, or not at all, holds up nobody.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

import structlog
from structlog.types import EventDict, Processor

from pipeline.settings import Settings

OURS = "spotscribe"
MOST_LINES = 10_000
"""Lines that wait to be written; more are dropped, and counted."""
HELD_BACK_S = 60.0
"""A warning that was said is not said again for so long."""
FLUSH_S = 0.5
SHORTEST = 4
"""Characters of a secret that is looked for by itself: a shorter one would be found everywhere."""
HIDDEN = "***"
PATTERNS = (
    (re.compile(r"(\w://[^\s/:@]*):[^\s/]+@"), rf"\1:{HIDDEN}@"),
    (
        re.compile(
            r"(?i)\b(X-Amz-(?:Signature|Credential|Security-Token)|[\w-]*(?:password|secret|token|sig))=[^&\s\"']+"
        ),
        rf"\1={HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{4,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)([\"'][\w-]*(?:password|secret|token)[\"']: *[\"'])[^\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=]+"), f"whsec_{HIDDEN}"),
)
_TEXT_LEFT_OUT = {"worker", "event", "level", "time", "logger", "step"}


class Logs:
    """From `start` until `flush` at the process's end."""

    def __init__(self, settings: Settings, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._queue: Queue[Any] = Queue(MOST_LINES)
        writer = logging.StreamHandler(self._stream)
        writer.handleError = lambda record: None  # type: ignore[method-assign]  # a closed pipe is not our work's concern
        self._listener = QueueListener(self._queue, writer)
        kind = settings.log_format
        plain = kind == "text" or (kind == "auto" and self._stream.isatty())
        redact = Redactor(secrets_of(settings))
        shared: list[Processor] = [
            structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"), _with_trouble,
        ]  # fmt: skip
        self._handler = _Handler(self._queue)
        self._handler.addFilter(HoldBack())
        self._handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=shared,
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    redact,
                    text if plain else as_json,
                ],
            )
        )

    def start(self, worker: str = "") -> None:
        """`worker` stands on every line."""
        _PROCESS["worker"] = worker
        _STARTED.append(self)
        root = logging.getLogger()
        root.handlers[:] = [self._handler]
        root.setLevel(logging.WARNING)
        logging.getLogger(OURS).setLevel(logging.INFO)
        logging.captureWarnings(True)
        self._listener.start()

    def flush(self) -> None:
        """Wait a moment for what is not written yet. Never raises."""
        deadline = time.monotonic() + FLUSH_S
        while not self._queue.empty() and time.monotonic() < deadline:
            time.sleep(0.01)


_PROCESS: dict[str, str] = {}
_STARTED: list[Logs] = []


def leave_now(code: int) -> None:
    """End the process at once, but for what was just said."""
    for logs in _STARTED:
        logs.flush()
    os._exit(code)


class _Handler(QueueHandler):
    """Forms the line where it is said, and drops it where too many wait."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped:
                told = logging.makeLogRecord(
                    {**record.__dict__, "msg": f"{self.dropped} lines were dropped", "args": None}
                )
                self.queue.put_nowait(told)
                self.dropped = 0
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (as logging calls it)
        """Saying something must never be what fails."""


class HoldBack(logging.Filter):
    """The same warning once a minute, with how often it was held back meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:  # an error is said each time, with its traceback
            return True
        key, now = (record.name, record.getMessage()), time.monotonic()
        at, held = self._said.get(key, (-HELD_BACK_S, 0))
        if now - at < HELD_BACK_S:
            self._said[key] = (at, held + 1)
            return False
        if len(self._said) > MOST_LINES:
            self._said.clear()
        self._said[key] = (now, 0)
        if held:
            record.held_back = held
        return True


class Redactor:
    """Takes secrets out of everything that a line holds: those that are set here, and what looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)

    def __call__(self, _logger: Any, _name: str, event: EventDict) -> EventDict:
        return {key: self.of(value) for key, value in event.items()}

    def of(self, value: Any) -> Any:
        """The same without secrets."""
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, HIDDEN)
            for pattern, instead in PATTERNS:
                value = pattern.sub(instead, value)
            return value
        if isinstance(value, Mapping):
            return {k: self.of(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(v) for v in value]
        return value if isinstance(value, int | float | None) else self.of(str(value))


def secrets_of(settings: Settings) -> list[str]:
    """What is set and nobody should read: passwords as they are written and as they are meant, keys, tokens."""
    found = [settings.events_token, settings.webhook_secret, os.environ.get("AWS_SECRET_ACCESS_KEY", "")]
    found.append(os.environ.get("AWS_SESSION_TOKEN", ""))
    for url in (settings.database_url, settings.broker_url):
        try:
            password = urlsplit(url).password
        except ValueError:
            password = None
        if password:
            found += [password, unquote(password)]
    return [s for s in found if s]


def _with_trouble(_logger: Any, _name: str, event: EventDict) -> EventDict:
    """The process's name, and a traceback as a field."""
    event.setdefault("worker", _PROCESS.get("worker", ""))
    return structlog.processors.format_exc_info(_logger, _name, event)


def as_json(_logger: Any, _name: str, event: EventDict) -> str:
    """One object a line."""
    first = {k: event.pop(k) for k in ("time", "level", "worker", "event") if event.get(k) not in (None, "")}
    return json.dumps({**first, **event}, default=str, ensure_ascii=False)


def text(_logger: Any, _name: str, event: EventDict) -> str:
    """`NAME: what happened, key value, …`; the traceback on lines of its own."""
    trouble = event.pop("exception", None)
    more = ", ".join(f"{k} {v}" for k, v in event.items() if k not in _TEXT_LEFT_OUT and v not in (None, ""))
    line = f"{event.get('worker') or OURS}: {event.get('event', '')}" + (f" ({more})" if more else "")
    return f"{line}\n{trouble}" if trouble else line
