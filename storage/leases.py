"""Leases: the right of one worker to one job or shard until a time. The one locking query of the project.

Every claim raises the row's fence. Whoever writes on behalf of a lease checks the fence in the same transaction
(`hold`), so a worker that slept past its lease can wake up and do no harm. Time is the database's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from sqlalchemy import Connection, Table, and_, case, or_, select, update

from chunking.errors import LeaseLost
from storage.database import Database, now_plus
from storage.tables import Job, ShardRow

LEASE_S = 30.0
"""A lease nobody renewed for so long is free. Renewed every third of it."""


class Step(Enum):
    """The three steps that are leased: on which table, from which state, to which."""

    PREPARE = (Job.__table__, "queued", "preparing")
    TRANSCRIBE = (ShardRow.__table__, "queued", "running")
    FINISH = (Job.__table__, "transcribed", "finishing")

    @property
    def table(self) -> Table:
        table: Table = self.value[0]  # type: ignore[assignment]
        return table

    @property
    def ready(self) -> str:
        return self.value[1]

    @property
    def running(self) -> str:
        return self.value[2]


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's right to one row, while `fence` is the row's."""

    step: Step
    id: int
    fence: int


def claim(tx: Connection, step: Step, worker: str, *, limit: int = 1, seconds: float = LEASE_S) -> list[Lease]:
    """Take up to `limit` rows that are ready or whose lease ran out, most urgent first."""
    t = step.table.c
    free = or_(
        and_(t.state == step.ready, or_(t.next_run_at.is_(None), t.next_run_at <= now_plus())),
        and_(t.state == step.running, t.lease_until < now_plus()),
    )
    mine = or_(t.assigned.is_(None), t.assigned == worker)
    wanted = select(t.id).where(free, mine).order_by(t.priority.desc(), t.id).limit(limit)
    # A plain subquery may run once for each row, and then takes more than the limit; a CTE runs once.
    picked = wanted.with_for_update(skip_locked=True).cte("picked").prefix_with("MATERIALIZED", dialect="postgresql")
    taken = tx.execute(
        update(step.table)
        .where(t.id.in_(select(picked.c.id)), free)
        .values(
            state=step.running,
            fence=t.fence + 1,
            worker=worker,
            lease_until=now_plus(seconds),
            next_run_at=None,
            crashes=t.crashes + case((t.state == step.running, 1), else_=0),
        )
        .returning(t.id, t.fence, t.priority)
    )
    return [Lease(step, r.id, r.fence) for r in sorted(taken, key=lambda r: (-r.priority, r.id))]


def hold(tx: Connection, lease: Lease) -> None:
    """Make sure, until this transaction ends, that the lease is still ours. Raises LeaseLost."""
    t = lease.step.table.c
    mine = select(t.id).where(t.id == lease.id, *_is(lease)).with_for_update(read=True)
    if tx.execute(mine).first() is None:
        raise LeaseLost()


def renew(tx: Connection, leases: Iterable[Lease], *, seconds: float = LEASE_S) -> set[Lease]:
    """Prolong; the answer is the leases that are still held."""
    held = set()
    for lease in sorted(leases, key=lambda x: (x.step.name, x.id)):
        t = lease.step.table
        done = tx.execute(
            update(t).where(t.c.id == lease.id, *_is(lease)).values(lease_until=now_plus(seconds)).returning(t.c.id)
        )
        if done.first() is not None:
            held.add(lease)
    return held


def end(tx: Connection, lease: Lease, state: str, **values: Any) -> None:
    """Give the lease up and leave the row in `state`. Raises LeaseLost where it was not ours any more."""
    t = lease.step.table
    values = {"state": state, "worker": None, "lease_until": None, **values}
    if tx.execute(update(t).where(t.c.id == lease.id, *_is(lease)).values(values).returning(t.c.id)).first() is None:
        raise LeaseLost()


def release(tx: Connection, lease: Lease, *, wait_s: float = 0.0) -> bool:
    """Back to the queue, to be taken again after `wait_s`. False where it was not ours any more."""
    try:
        end(tx, lease, lease.step.ready, next_run_at=now_plus(wait_s) if wait_s else None)
    except LeaseLost:
        return False
    return True


def release_worker(tx: Connection, worker: str) -> int:
    """Back to the queue: all that a worker holds which is known to be dead. The answer is how many rows."""
    count = 0
    for step in Step:
        t = step.table
        freed = tx.execute(
            update(t)
            .where(t.c.worker == worker, t.c.state == step.running)
            .values(state=step.ready, worker=None, lease_until=None, fence=t.c.fence + 1)
            .returning(t.c.id)
        )
        count += len(freed.all())
    return count


def holders(tx: Connection) -> set[str]:
    """The workers that hold any lease."""
    found: set[str] = set()
    for step in Step:
        t = step.table.c
        found.update(tx.execute(select(t.worker).where(t.state == step.running, t.worker.is_not(None))).scalars())
    return found


class Heartbeat:
    """Keeps leases alive from a thread of its own while a step runs that has no loop to do it in.

    Ends with the step, so a process that hangs elsewhere loses its leases; `longest_s` bounds a step that hangs itself.
    """

    def __init__(self, database: Database, *held: Lease, longest_s: float = 4 * 3600.0) -> None:
        self._db, self._held, self._longest = database, held, longest_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        left = self._longest
        while left > 0 and not self._over.wait(LEASE_S / 3):
            left -= LEASE_S / 3
            with self._db.transaction() as tx:
                renew(tx, self._held)


def _is(lease: Lease) -> tuple[Any, ...]:
    t = lease.step.table.c
    return (t.fence == lease.fence, t.state == lease.step.running)
