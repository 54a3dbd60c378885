"""What a worker does with a message: it looks for work, and holds the message while it has its hands full."""

from __future__ import annotations

from celery import Celery
from celery.exceptions import Reject

from workers.celery_app import TASK
from workers.fleet import FleetWorker


def add_tasks(app: Celery, worker: FleetWorker) -> None:
    """The one task. Its argument, a row's id, is for people who look into the broker."""

    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def nudge(row: int) -> None:
        if not worker.take_nudge():
            raise Reject("leaving", requeue=True)
