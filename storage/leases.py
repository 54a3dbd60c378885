"""Leases: the right of one worker to one job or shard until a time. The one locking query of the project.

Every claim raises the row's fence. Whoever writes on behalf of a lease checks the fence in the same transaction
(`hold`), so a worker that slept past its lease can wake up and do no harm. Time is the database's.

Locks are taken jobs first, in order of their ids, then shards, then checkpoints and files, then errands: whoever takes
several keeps to that, so that workers and users do not block each other for ever.

A lease that ran out goes back to the queue by `reclaim`, and counts as a death of its worker. Rows whose workers
died twice without getting on are suspects: they are claimed only by a process that has nothing else in hand, so that
the third death can be laid at nobody else's door (storage/quarantine.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import Connection, SQLColumnExpression, Table, and_, bindparam, or_, select, update
from sqlalchemy.exc import DBAPIError

from chunking.errors import LeaseLost, TransientError
from storage.database import Database
from storage.moments import now_plus
from storage.tables import Errand, Job, Output, ShardRow, WorkerRow

LEASE_S = 20.0
"""A lease nobody renewed for so long is free. Renewed every quarter of it."""
QUERIES = 256
"""Claiming queries that a process keeps: one for each step and number of rows asked for."""
RECLAIMED = 500
"""Rows of a step that one call of `reclaim` frees at most."""
SUSPECT_CRASHES = 2
"""Deaths without progress after which a row is claimed alone; the tables' partial indexes say the same."""


class Step(Enum):
    """What is leased: on which table, from which state, to which."""

    PREPARE = (Job.__table__, "queued", "preparing")
    TRANSCRIBE = (ShardRow.__table__, "queued", "running")
    FINISH = (Job.__table__, "transcribed", "finishing")
    DELIVER = (Output.__table__, "due", "delivering")
    ERRAND = (Errand.__table__, "due", "running")

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
    seconds: float = field(default=LEASE_S, compare=False)
    crashes: int = field(default=0, compare=False)


def claim(
    tx: Connection,
    step: Step,
    worker: str,
    *,
    limit: int = 1,
    seconds: float = LEASE_S,
    engine: str | None = None,
    suspects: bool = False,
) -> list[Lease]:
    """Take up to `limit` rows that are ready, most urgent first. `engine`: shards of these jobs only.

    `suspects`: take one of those instead; only for who has nothing else in hand, and takes nothing else beside it.
    """
    taken = tx.execute(_claiming(step, worker, 1 if suspects else limit, seconds, engine, suspects))
    return [Lease(step, r.id, r.fence, seconds, r.crashes) for r in sorted(taken, key=lambda r: (-r.priority, r.id))]


@lru_cache(QUERIES)
def _claiming(step: Step, worker: str, limit: int, seconds: float, engine: str | None, suspects: bool) -> Any:
    """The locking query. A worker asks the same ones again and again, and to build one takes longer than to run it."""
    t = step.table.c
    # A plain subquery may run once for each row, and then takes more than the limit; a CTE runs once.
    wanted = select(t.id).where(*_free(step, worker, engine, suspects=suspects)).order_by(t.priority.desc(), t.id)
    picked = wanted.limit(limit).with_for_update(skip_locked=True)
    ids = picked.cte("picked").prefix_with("MATERIALIZED", dialect="postgresql")
    return (
        update(step.table)
        .where(t.id.in_(select(ids.c.id)), t.state == step.ready)
        .values(
            state=step.running,
            fence=t.fence + 1,
            worker=worker,
            lease_until=now_plus(seconds),
            next_run_at=None,
            solo=int(suspects),
        )
        .returning(t.id, t.fence, t.priority, t.crashes)
    )


def has_suspects(tx: Connection, step: Step, worker: str, engine: str | None = None) -> bool:
    """Whether there is a row that has to be claimed alone."""
    free = _free(step, worker, engine, suspects=True)
    return tx.execute(select(step.table.c.id).where(*free).limit(1)).first() is not None


def hold(tx: Connection, lease: Lease) -> None:
    """Make sure, until this transaction ends, that the lease is still ours. Raises LeaseLost."""
    if tx.execute(_holding(lease.step), _which(lease)).first() is None:
        raise LeaseLost()


@cache
def _holding(step: Step) -> Any:
    """As below, kept: to build a statement takes longer than to run it."""
    t = step.table.c
    return select(t.id).where(*_leased(step)).with_for_update(read=True)


@cache
def _ending(step: Step) -> Any:
    return update(step.table).where(*_leased(step)).returning(step.table.c.id)


def _leased(step: Step) -> tuple[Any, ...]:
    t = step.table.c
    return (t.id == bindparam("leased_id"), t.fence == bindparam("leased_fence"), t.state == step.running)


def _which(lease: Lease) -> dict[str, Any]:
    return {"leased_id": lease.id, "leased_fence": lease.fence}


def renew(tx: Connection, leases: Iterable[Lease]) -> set[Lease]:
    """Prolong; the answer is the leases that are still held."""
    held = set()
    for lease in sorted(leases, key=lambda x: (x.step.name, x.id)):
        t = lease.step.table
        until = now_plus(lease.seconds)
        done = tx.execute(update(t).where(t.c.id == lease.id, *_is(lease)).values(lease_until=until).returning(t.c.id))
        if done.first() is not None:
            held.add(lease)
    return held


def got_on(tx: Connection, lease: Lease) -> None:
    """The leased row made progress: deaths of earlier workers are not its fault."""
    if lease.crashes:
        t = lease.step.table
        tx.execute(update(t).where(t.c.id == lease.id, t.c.crashes > 0).values(crashes=0, solo_crashes=0))


def end(tx: Connection, lease: Lease, state: str, **values: Any) -> None:
    """Give the lease up and leave the row in `state`. Raises LeaseLost where it was not ours any more."""
    values = {"state": state, "worker": None, "lease_until": None, "crashes": 0, "solo_crashes": 0, **values}
    computed = {k: v for k, v in values.items() if isinstance(v, SQLColumnExpression)}
    told = {k: v for k, v in values.items() if k not in computed}
    statement = _ending(lease.step).values(computed) if computed else _ending(lease.step)
    if tx.execute(statement, _which(lease) | told).first() is None:
        raise LeaseLost()


def release(tx: Connection, lease: Lease, *, wait_s: float = 0.0, **values: Any) -> bool:
    """Back to the queue, to be taken again after `wait_s`. False where it was not ours any more."""
    t = lease.step.table.c
    kept = {"crashes": t.crashes, "solo_crashes": t.solo_crashes}
    try:
        end(tx, lease, lease.step.ready, next_run_at=now_plus(wait_s) if wait_s else None, **kept, **values)
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


def reclaim(tx: Connection) -> dict[Step, int]:
    """Back to the queue: what workers held whose leases ran out. How many rows of each step.

    Rows that somebody has locked are left to the next call, so that a frozen worker cannot freeze this one.
    """
    counts: dict[Step, int] = {}
    for step in Step:
        t = step.table.c
        # The UPDATE looks at state and lease again: between the two somebody may have renewed (River #1302).
        over = and_(t.state == step.running, t.lease_until < now_plus())
        found = tx.execute(select(t.id, t.worker).where(over).limit(RECLAIMED).with_for_update(skip_locked=True)).all()
        if not found:
            continue
        freed = update(step.table).where(t.id.in_([r.id for r in found]), over)
        values = {"crashes": t.crashes + 1, "solo_crashes": t.solo_crashes + t.solo, "fence": t.fence + 1}
        freed = freed.values(state=step.ready, worker=None, lease_until=None, **values)
        counts[step] = len(tx.execute(freed.returning(t.id)).all())
        lost = update(WorkerRow).where(WorkerRow.name.in_({r.worker for r in found}))
        tx.execute(lost.values(lost_at=now_plus()))
    return counts


def unheld(table: Any) -> dict[str, Any]:
    """Values of a row that begins anew: whoever held it finds its fence gone, and nothing is held against it."""
    return {
        "fence": table.fence + 1, "worker": None, "lease_until": None, "next_run_at": None,
        "crashes": 0, "solo": 0, "solo_crashes": 0,
    }  # fmt: skip


def holders(tx: Connection) -> set[str]:
    """The workers that hold any lease."""
    found: set[str] = set()
    for step in Step:
        t = step.table.c
        found.update(tx.execute(select(t.worker).where(t.state == step.running, t.worker.is_not(None))).scalars())
    return found


class Heartbeat:
    """Keeps leases alive, from one thread, while steps run that have no loop to do it in.

    A lease is kept as long as its step runs, so what ends otherwise loses it; `longest_s` bounds a step that hangs.
    A database that is away is asked again at the next beat. Safe to share by threads.
    """

    def __init__(self, database: Database, *, longest_s: float = 4 * 3600.0) -> None:
        self._db, self._longest_s = database, longest_s
        self._held: dict[Lease, float] = {}
        self._lock, self._some = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, lease: Lease) -> Iterator[None]:
        """Keep this lease inside the `with`."""
        with self._lock:
            self._held[lease] = time.monotonic() + self._longest_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
                self._thread.start()
        self._some.set()
        try:
            yield
        finally:
            with self._lock:
                del self._held[lease]

    def _beat(self) -> None:
        while self._some.wait():
            with self._lock:
                every = min((x.seconds for x in self._held), default=0.0) / 4
                if not every:
                    self._some.clear()
                    continue
            time.sleep(every)
            with self._lock:
                now = time.monotonic()
                held = [lease for lease, until in self._held.items() if until > now]
            with suppress(TransientError, DBAPIError), self._db.transaction() as tx:
                renew(tx, held)


def _free(step: Step, worker: str, engine: str | None, *, suspects: bool) -> list[Any]:
    t = step.table.c
    free = [
        t.state == step.ready,
        or_(t.next_run_at.is_(None), t.next_run_at <= now_plus()),
        or_(t.assigned.is_(None), t.assigned == worker),
        t.crashes >= SUSPECT_CRASHES if suspects else t.crashes < SUSPECT_CRASHES,
    ]
    return free if engine is None else [*free, t.engine == engine]


def _is(lease: Lease) -> tuple[Any, ...]:
    t = lease.step.table.c
    return (t.fence == lease.fence, t.state == lease.step.running)
