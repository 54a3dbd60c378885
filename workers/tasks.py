"""What a worker does with a message: it looks for work, and holds the message while it has its hands full."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from workers.celery_app import TASK


def add_tasks(app: Celery, take_nudge: Callable[[], bool]) -> None:
    """The one task. Its argument, a row's id, is for people who look into the broker.

    `take_nudge` returns when the process has room for more work; False: it is leaving, and others need the message.
    """

    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def nudge(row: int) -> None:
        if not take_nudge():
            raise Reject("leaving", requeue=True)
