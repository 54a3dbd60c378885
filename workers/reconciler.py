"""The reconciler: a thread in every worker, of which one at a time is at it. It makes good what was lost.

Leases that ran out go back to the queue; what kills its workers is taken out; where work is ready and no message says
so, messages are sent; audio in work that nobody needs is deleted, and
what its source does not keep so long. So a lost worker, message or broker costs seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection, func, or_, select, text

from chunking.errors import PermanentError, TransientError
from pipeline import admission
from pipeline.finish import sweep
from pipeline.retention import carry_out
from storage import chores, errands, fleet, leases, receivers
from storage.database import Database
from storage.fleet import Done
from storage.leases import Step
from storage.moments import now_plus
from storage.objects import ObjectStore
from storage.quarantine import quarantine
from workers.celery_app import CPU, gpu
from workers.nudges import Nudges

MOST_NUDGES = 64
"""Messages in a queue beyond which no more are sent: a nudge is for a worker, not for a row."""
ERRAND_NUDGES = 2
"""For errands: the threads that do them look by themselves, and a receiver that hangs makes no room for more."""
SWEEP_S = 600.0
"""How often one worker of the fleet deletes what nobody needs."""
SEEN_S = 10.0


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass found."""

    reclaimed: dict[Step, int] = field(default_factory=dict)
    quarantined: int = 0
    ready: dict[str, int] = field(default_factory=dict)
    """Rows that could be claimed now, by queue, counted up to MOST_NUDGES."""


class Reconciler:
    """`run` in a thread of its own; `once` is one pass."""

    def __init__(
        self,
        database: Database,
        store: ObjectStore,
        nudges: Nudges,
        worker: str,
        lease_s: float,
        done: Callable[[], Done] = Done,
    ) -> None:
        """`done`: what the worker has done so far."""
        self._db, self._store, self._nudges, self._worker = database, store, nudges, worker
        self._every_s = min(2.0, lease_s / 10)
        self._lease_s, self._done = lease_s, done
        self._seen = 0.0
        self._house: threading.Thread | None = None

    def run(self, stop: threading.Event) -> None:
        answered = time.monotonic()
        while not stop.wait(self._every_s):
            with suppress(TransientError):  # the database is away, or the store
                away = time.monotonic() - answered > self._lease_s / 2
                if away or time.monotonic() - self._seen > SEEN_S:
                    self._say_hello()
                if away:  # and is back: workers get the time to renew before anything is taken from them
                    stop.wait(self._lease_s / 2)
                found = self.once()
                answered = time.monotonic()
                if found is not None:  # what is held at the sources goes on, whether anybody watches them or not
                    admission.admit(self._db, rounds=1)
                if found is not None and self._db.again(lambda tx: chores.take(tx, "house", SWEEP_S)):
                    self._settle_forgotten()
                    self._keep_house()

    def once(self) -> Pass | None:
        """One pass; None where another worker is at it."""
        with self._db.transaction() as tx:
            if not self._alone(tx):
                return None
            reclaimed, quarantined = leases.reclaim(tx), quarantine(tx)
            receivers.come_due(tx)
            found = Pass(reclaimed, quarantined, _ready(tx))
        for queue, rows in found.ready.items():
            self._nudges.top_up(queue, min(rows, MOST_NUDGES))  # from its thread: a broker may hang
        return found

    def _settle_forgotten(self) -> None:
        after: int | None = 0
        while after is not None:
            after = self._db.again(partial(errands.settle_forgotten, after=after))

    def _keep_house(self) -> None:
        """Delete what nobody needs, in a thread of its own: it may take an hour, and leases must not wait for that."""
        if self._house is not None and self._house.is_alive():
            return

        def work() -> None:
            with suppress(TransientError, PermanentError, OSError):  # no right to list or to delete: doctor says so
                sweep(self._db, self._store)
                carry_out(self._db, self._store)

        self._house = threading.Thread(target=work, name="house", daemon=True)
        self._house.start()

    def _say_hello(self) -> None:
        self._seen = time.monotonic()
        with self._db.transaction() as tx:
            fleet.seen(tx, self._worker, self._done())

    def _alone(self, tx: Connection) -> bool:
        """Whether no other reconciler of these tables is at it. The lock ends with the transaction, so none is left."""
        if self._db.is_sqlite:
            return True
        lock = text("SELECT pg_try_advisory_xact_lock(hashtext('spotscribe.reconcile ' || current_schema()))")
        return bool(tx.execute(lock).scalar())


def _ready(tx: Connection) -> dict[str, int]:
    """Rows that could be claimed, by queue; each count stops at MOST_NUDGES."""
    found: dict[str, int] = {}
    for step in Step:
        t = step.table.c
        free = (t.state == step.ready, or_(t.next_run_at.is_(None), t.next_run_at <= now_plus()), t.assigned.is_(None))
        if step is Step.TRANSCRIBE:
            some = select(t.engine).where(*free).limit(MOST_NUDGES).subquery()
            rows = tx.execute(select(some.c.engine, func.count().label("n")).group_by(some.c.engine))
            found.update({gpu(r.engine): r.n for r in rows})
        else:
            most = ERRAND_NUDGES if step is Step.ERRAND else MOST_NUDGES
            # In the order of claims, so that their index is asked: a scan may read all that is done for the first two.
            some = select(t.id).where(*free).order_by(t.priority.desc(), t.id).limit(most).subquery()
            count = tx.execute(select(func.count()).select_from(some)).scalar_one()
            found[CPU] = found.get(CPU, 0) + count
    return {queue: n for queue, n in found.items() if n}
