"""The Celery application: one kind of message, which says that there is work and carries an id and nothing else.

Each setting below was chosen against others that lost work or hung in tests (ARCHITECTURE.md, "The fleet"). The truth
is in the database: losing, repeating or reordering messages does no harm.
"""

from __future__ import annotations

import hashlib

from celery import Celery
from kombu.entity import Queue

CPU = "cpu"
TASK = "spotscribe.nudge"
VISIBILITY_S = 900
"""A message that nobody acknowledged for so long is delivered again; no task holds one for longer than HOLD_S."""
HOLD_S = 300.0


def gpu(engine: str) -> str:
    """The queue of the workers that can decode for this engine."""
    return f"gpu.{hashlib.sha256(engine.encode()).hexdigest()[:8]}"


def make_app(broker_url: str, prefix: str) -> Celery:
    """The application for one broker; `prefix` keeps the queues of two fleets on one broker apart."""
    app = Celery("spotscribe", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_acks_on_timeout=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_create_missing_queues=False,
        task_default_queue=f"{prefix}.{CPU}",
        task_queues=[_queue(f"{prefix}.{CPU}")],
        task_publish_retry=False,  # the reconciler sends another
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_soft_shutdown_timeout=0,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a broker without memory refuses, and must not end the worker
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 1,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
    )
    return app


def _queue(name: str) -> Queue:
    return Queue(name, routing_key=name)  # type: ignore[no-untyped-call]


def queue(app: Celery, name: str) -> Queue:
    """The queue of that name (`CPU`, or one of `gpu`), known to the application from now on."""
    full = app.conf.task_default_queue.rpartition(f".{CPU}")[0] + f".{name}"
    if full not in app.amqp.queues:
        app.amqp.queues.add(_queue(full))
    found: Queue = app.amqp.queues[full]
    return found
