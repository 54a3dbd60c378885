"""Sending nudges: from a thread of its own, so that a broker that hangs holds nobody up, and never twice for sure."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from chunking.errors import UsageError
from workers import celery_app
from workers.celery_app import TASK

WAITING = 1000
"""Nudges that may wait to be sent; the reconciler makes good for those beyond."""
ERRORS = (OSError, KombuError, OperationalError, RedisError)


def check_broker(app: Celery, timeout_s: float = 5.0) -> None:
    """Whether the broker answers. Raises UsageError."""
    try:
        url = app.connection_for_write().as_uri()  # without the password
    except (ValueError, TypeError, KeyError):
        raise UsageError("SPOTSCRIBE_BROKER_URL cannot be read; it looks like redis://host:6379/0") from None
    options = app.conf.broker_transport_options | {"socket_timeout": timeout_s}
    try:
        with app.connection_for_write(transport_options=options) as connection:
            connection.ensure_connection(max_retries=0, timeout=timeout_s)
            connection.default_channel.client.ping()
    except ERRORS as e:
        raise UsageError(f"the broker {url} does not answer ({_plain(e)}): see SPOTSCRIBE_BROKER_URL") from None


class Nudges:
    """`send` and `top_up` return at once and raise nothing. What cannot be sent is forgotten."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._waiting: deque[tuple[str, int]] = deque(maxlen=WAITING)
        self._least: dict[str, int] = {}
        """How many messages there should be in a queue."""
        self._some, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._connection: Any = None
        threading.Thread(target=self._loop, name="nudges", daemon=True).start()

    def send(self, queue: str, row: int) -> None:
        """Say to the workers of that queue that there is work; `row` is whose, for whoever looks into the broker."""
        self._idle.clear()
        self._waiting.append((queue, row))
        self._some.set()

    def top_up(self, queue: str, least: int) -> None:
        """See that so many messages wait in that queue. They are nobody's, so their row is 0."""
        self._idle.clear()
        self._least[queue] = least
        self._some.set()

    def flush(self, seconds: float) -> bool:
        """Wait until all has been sent, or could not be; no longer than that."""
        return self._idle.wait(seconds)

    def _loop(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            while self._waiting or self._least:
                while self._waiting:
                    if not self._publish(*self._waiting.popleft()):
                        self._waiting.clear()  # the broker is away: the reconciler will send others
                if self._least:
                    self._top_up(*self._least.popitem())
            self._idle.set()

    def _top_up(self, queue: str, least: int) -> None:
        try:
            name = celery_app.queue(self._app, queue).name
            there = self._channel().queue_declare(queue=name, passive=False).message_count
        except Exception:  # as below
            self._close()
            return
        for _ in range(least - int(there)):
            if not self._publish(queue, 0):
                return

    def _publish(self, queue: str, row: int) -> bool:
        for _ in range(2):  # a connection that broke since the last time is opened anew
            try:
                self._channel()
                self._app.send_task(TASK, (row,), queue=celery_app.queue(self._app, queue), connection=self._connection)
                return True
            except Exception:  # whatever it is: a nudge may be lost, this thread may not
                self._close()
        return False

    def _channel(self) -> Any:
        if self._connection is None:
            self._connection = self._app.connection_for_write()
            self._connection.ensure_connection(max_retries=0, timeout=5.0)
        return self._connection.default_channel

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.release()


def _plain(error: BaseException) -> str:
    text = str(error) or str(error.__cause__ or "") or type(error).__name__
    return text.splitlines()[0]
