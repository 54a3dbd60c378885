"""Errands: what is to be done when a job has ended and its files are delivered. Somebody told, the recording put away.

Each is done at least once. A kill while it is done, or a round of the job that begins meanwhile, may have it done
again; who is told finds the same key with it. A recording is put away only where each job of it is `done` and no file
is missing: any other stays where it is, so that somebody can look at it.

Locks are taken jobs first, then files, then errands (storage/leases.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, exists, not_, or_, select, update

from chunking.errors import LeaseLost
from storage import leases
from storage.database import upsert
from storage.leases import Lease, unheld
from storage.moments import now_plus
from storage.receivers import GIVE_UP_S, receiver_of
from storage.tables import Errand, Job, Label, Output, Recording

NOTICES = ("webhook", "sqs", "sns")
PUTTING_AWAY = ("move", "tag", "delete")
TOLD = ("done", "partial", "rejected", "failed")
"""Ends of a job that errands are for. A cancelled one is nobody's news."""
OVER = ("done", "dead", "void")
UNDELIVERED = ("wanted", "due", "delivering")
"""States of a file that is still to come, where there is a transcript."""
AT_ONCE = 500
"""Rows of one statement."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One errand: for which job, of which kind (`NOTICES`, `PUTTING_AWAY`), and for whom or whither."""

    job: int
    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Due:
    """A leased errand, and the recording that it is about."""

    id: int
    job: int
    kind: str
    target: str
    receiver: str
    round: int
    attempts: int
    """Earlier ones."""
    place: str | None
    url: str
    version: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ErrandView:
    """An errand as others may see it. Its target may hold a password."""

    id: int
    job: int
    kind: str
    target: str
    state: str
    round: int
    attempts: int
    error: str | None
    place: str | None
    due_at: datetime | None
    next_run_at: datetime | None
    done_at: datetime | None


def want_all(tx: Connection, wanted: Sequence[Wanted]) -> None:
    """Note that these errands are wanted. One that is over and is asked for again begins a new round."""
    for part in _parts(sorted(set(wanted), key=lambda w: (w.job, w.kind, w.target))):
        jobs = sorted({w.job for w in part})
        # As for files: none may end between this look and our rows, which its end is to make due.
        urls = select(Job.id, Recording.url).join(Recording, Recording.id == Job.recording_id).where(Job.id.in_(jobs))
        found = tx.execute(urls.order_by(Job.id).with_for_update(read=True, of=Job))
        url = {r.id: r.url for r in found}
        rows = upsert(tx, Errand).values([_row(w, url[w.job]) for w in part])
        key = ["job_id", "kind", "target"]
        tx.execute(rows.on_conflict_do_update(index_elements=key, set_=_anew(), where=Errand.state.in_(OVER)))
        settle(tx, jobs)


def start_again(tx: Connection, jobs: Sequence[int], kinds: Sequence[str] = (*NOTICES, *PUTTING_AWAY)) -> None:
    """These jobs end again, or their ends are to be told again: a new round. Who is at one finds its fence gone."""
    for part in _parts(jobs):
        tx.execute(update(Errand).where(Errand.job_id.in_(part), Errand.kind.in_(kinds)).values(_anew()))


def put_away_after_all(tx: Connection, jobs: Sequence[int]) -> None:
    """Files of these jobs are written again: recordings that stayed because of files that failed may go then."""
    stayed = (Errand.job_id.in_(jobs), Errand.kind.in_(PUTTING_AWAY), Errand.state == "void")
    tx.execute(update(Errand).where(*stayed).values(_anew()))


def lock(tx: Connection, jobs: Sequence[int]) -> None:
    """The jobs are ours until this transaction ends, as `settle` asks for where files change."""
    tx.execute(select(Job.id).where(Job.id.in_(jobs)).order_by(Job.id).with_for_update(key_share=True)).all()


_ANY_WANTED = (
    select(Errand.id).where(Errand.job_id.in_(bindparam("jobs", expanding=True)), Errand.state == "wanted").limit(1)
)
"""Built once: most jobs have no errands, and it is asked at each end and for each file."""


def settle(tx: Connection, jobs: Sequence[int]) -> None:
    """These jobs may have ended, and with all their files delivered or given up: what waited for that is due.

    The caller has the jobs locked. Of two files that are delivered at once each would see the other still to come.
    """
    for part in _parts(jobs):
        if tx.execute(_ANY_WANTED, {"jobs": part}).first() is None:
            continue
        ready = select(Job.id).where(Job.id.in_(part), over())
        stays = and_(Errand.kind.in_(PUTTING_AWAY), Errand.job_id.not_in(clean(part)))
        waiting = update(Errand).where(Errand.job_id.in_(ready), Errand.state == "wanted")
        state = case((stays, "void"), else_="due")
        tx.execute(waiting.values(state=state, attempts=0, error=None, due_at=now_plus(), next_run_at=None))


def settle_forgotten(tx: Connection, after: int = 0) -> int | None:
    """Those whose jobs were ended by somebody who knew nothing of errands: a worker of an older version.

    `AT_ONCE` jobs, in the order of their numbers. The answer: after which one to go on; None: those were all.
    """
    forgotten = select(Errand.job_id).join(Job, Job.id == Errand.job_id)
    forgotten = forgotten.where(Errand.state == "wanted", Errand.job_id > after, over()).distinct()
    jobs = list(tx.execute(forgotten.order_by(Errand.job_id).limit(AT_ONCE)).scalars())
    lock(tx, jobs)
    settle(tx, jobs)
    return jobs[-1] if len(jobs) == AT_ONCE else None


def of_lease(tx: Connection, lease: Lease) -> Due:
    """The leased errand. Raises LeaseLost where it is not ours any more, or its job is at work again."""
    e = Errand
    found = select(
        e.id, e.job_id.label("job"), e.kind, e.target, e.receiver, e.round, e.attempts, e.place, Recording.url,
        Recording.version, Recording.size_bytes,
    )  # fmt: skip
    found = found.join(Job, Job.id == e.job_id).join(Recording, Recording.id == Job.recording_id)
    mine = (e.id == lease.id, e.fence == lease.fence, e.state == lease.step.running, Job.state.in_(TOLD))
    row = tx.execute(found.where(*mine)).first()
    if row is None:
        raise LeaseLost()
    return Due(**row._mapping)


def still(tx: Connection, due: Due) -> bool:
    """Whether what was read so far was of the round that the errand is about: its job was not started again since."""
    mine = select(Errand.id).where(Errand.id == due.id, Errand.round == due.round, Errand.state == "running")
    return tx.execute(mine).first() is not None


def done(tx: Connection, lease: Lease, note: str = "") -> None:
    """The leased errand is done. `note`: why there was nothing to do."""
    place = None if note else Errand.place
    leases.end(tx, lease, "done", error=note or None, place=place, done_at=now_plus(), attempts=Errand.attempts + 1)


def dead(tx: Connection, lease: Lease, why: str) -> None:
    """The leased errand cannot be done. It stays to be seen, and to be tried again by hand."""
    leases.end(tx, lease, "dead", error=why, done_at=now_plus(), attempts=Errand.attempts + 1)


def put_off(tx: Connection, lease: Lease, why: str, wait_s: float, *, tried: bool = True) -> None:
    """The leased errand could not be done now. It is tried again, unless it has been for `GIVE_UP_S`.

    `tried`: False where nobody was asked.
    """
    over = select(Errand.id).where(Errand.id == lease.id, Errand.due_at <= now_plus(-GIVE_UP_S))
    if tx.execute(over).first() is not None:
        dead(tx, lease, why)
    else:
        later(tx, lease, wait_s, error=why, attempts=Errand.attempts + int(tried))


def later(tx: Connection, lease: Lease, wait_s: float, **values: Any) -> None:
    """The leased errand waits so long, through no fault of its own. Nothing happens where it is not ours any more."""
    values |= {"crashes": Errand.crashes, "solo_crashes": Errand.solo_crashes}
    with suppress(LeaseLost):
        leases.end(tx, lease, "later", next_run_at=now_plus(wait_s), **values)


def listing(
    tx: Connection,
    *,
    states: Sequence[str] = (),
    retried: bool = False,
    label: str | None = None,
    ids: Sequence[int] = (),
) -> list[ErrandView]:
    """Errands in these states (none: in any), the newest first. `retried`: and those that were tried in vain so far."""
    e = Errand
    rows = select(
        e.id, e.job_id.label("job"), e.kind, e.target, e.state, e.round, e.attempts, e.error, e.place, e.due_at,
        e.next_run_at, e.done_at,
    )  # fmt: skip
    again = and_(e.state.in_(("due", "running", "later")), e.attempts > 0)
    if states:
        rows = rows.where(or_(e.state.in_(states), again) if retried else e.state.in_(states))
    if label is not None:
        rows = rows.where(e.job_id.in_(select(Label.job_id).where(Label.label == label)))
    if ids:
        rows = rows.where(e.id.in_(ids))
    return [ErrandView(**r._mapping) for r in tx.execute(rows.order_by(e.id.desc()))]


def retry(tx: Connection, ids: Sequence[int]) -> int:
    """Try these again that were given up: the same round, so who was told after all can know it. How many."""
    count = 0
    for part in _parts(ids):
        dead_ones = update(Errand).where(Errand.id.in_(part), Errand.state == "dead")
        values = {"state": "due", "attempts": 0, "due_at": now_plus(), "done_at": None, **unheld(Errand)}
        count += len(tx.execute(dead_ones.values(values).returning(Errand.id)).all())
    return count


def over(*, and_cancelled: bool = False) -> Any:
    """Jobs that have ended, with every file delivered or given up that there can be."""
    undelivered = exists().where(Output.job_id == Job.id, Output.state.in_(UNDELIVERED))
    without = ("rejected", "failed", "cancelled") if and_cancelled else ("rejected", "failed")
    return or_(Job.state.in_(without), and_(Job.state.in_(("done", "partial")), not_(undelivered)))


def clean(jobs: Sequence[int]) -> Any:
    """Those of the jobs that ended well, with every file written."""
    missing = exists().where(Output.job_id == Job.id, Output.state != "written")
    return select(Job.id).where(Job.id.in_(jobs), Job.state == "done", not_(missing))


def _row(wanted: Wanted, recording: str) -> dict[str, Any]:
    receiver = receiver_of(wanted.kind, wanted.target, recording)
    return {"job_id": wanted.job, "kind": wanted.kind, "target": wanted.target, "receiver": receiver}


def _anew() -> dict[str, Any]:
    """Values of an errand that waits for its job's end, in a new round."""
    return {
        "state": "wanted", "round": Errand.round + 1, "attempts": 0, "error": None, "due_at": None, "done_at": None,
        **unheld(Errand),
    }  # fmt: skip


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rows = list(items)
    for first in range(0, len(rows), AT_ONCE):
        yield rows[first : first + AT_ONCE]
