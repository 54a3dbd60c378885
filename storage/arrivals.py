"""The drop folders' ledger: what was seen at the sources, once for each identity, and what of it may go on.

An object is recorded as `held`. It is admitted, which makes it a job, as soon as its source's share of the queue and
its budget of the day allow it (pipeline/admission.py). However often and by however many an object is seen, and in
whatever order they are told of it, it is one row here. Written again with the same bytes it is the same recording: it
goes through admission once more, which delivers its transcript again, and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, exists, func, null, select, update

from storage.database import now_plus, start_of_day, upsert
from storage.jobs import ENDED, MediaObject
from storage.sources import Source
from storage.tables import Arrival, Job, Output, SourceRow

AT_ONCE = 500
"""Rows of one statement."""
JUDGED_BY = 500
"""Recordings of a source whose length says what a byte of the next ones may come to."""
S_PER_BYTE = 1 / 16_000
"""What a byte is taken for where none of a source's recordings is known yet: 128 kbit/s."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An object that is to be taken."""

    media: MediaObject
    modified_s: int
    sidecar: dict[str, Any] | None = None
    note: str | None = None
    overtaken: bool = False
    """It is known from an event alone: something else, or nothing, lies at its URL by now."""


@dataclass(frozen=True, slots=True)
class Held:
    """An arrival that waits to be admitted."""

    id: int
    media: MediaObject
    modified_s: int
    sidecar: dict[str, Any] | None
    overtaken: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job came from."""

    source: str
    note: str | None
    """What was wrong with the recording's sidecar."""


def news(tx: Connection, seen: Sequence[Seen]) -> list[Seen]:
    """Those of them that the ledger does not have, or has as written earlier. Files that we delivered are no news."""
    found: list[Seen] = []
    for part in _parts(seen):
        rows = select(Arrival.identity, Arrival.modified_s).where(
            Arrival.identity.in_([s.media.identity for s in part])
        )
        known = {r.identity: r.modified_s for r in tx.execute(rows)}
        fresh = [s for s in part if not s.modified_s <= known.get(s.media.identity, -1)]
        ours = set(tx.execute(select(Output.url).where(Output.url.in_([s.media.url for s in fresh]))).scalars())
        found += [s for s in fresh if s.media.url not in ours]
    return found


def record(tx: Connection, source: Source, seen: Sequence[Seen]) -> int:
    """Into the ledger, as far as they are news. The answer is how many were."""
    count = 0
    for part in _parts(sorted(seen, key=lambda s: s.media.identity)):  # in order: two ingesters must not deadlock
        rows = {s.media.identity: _row(source, s) for s in part}
        insert = upsert(tx, Arrival).on_conflict_do_nothing().returning(Arrival.identity)
        fresh = set(tx.execute(insert, list(rows.values())).scalars())
        count += len(fresh) + _rewritten(tx, {i: r for i, r in rows.items() if i not in fresh})
    return count


def _rewritten(tx: Connection, rows: Mapping[str, dict[str, Any]]) -> int:
    """Those of the arrivals that have been written again since go through admission once more. How many."""
    a = Arrival
    known = select(a.id, a.identity, a.modified_s).where(a.identity.in_(list(rows))).order_by(a.id)
    later = [r for r in tx.execute(known).all() if r.modified_s < rows[r.identity]["modified_s"]]
    count = 0
    for found in later:  # by their numbers, as admission locks them
        new = rows[found.identity]
        again = update(a).where(a.id == found.id, a.modified_s < new["modified_s"])
        told = {name: new[name] for name in ("modified_s", "sidecar", "note", "overtaken")}
        count += tx.execute(again.values(state="held", admitted_at=None, **told)).rowcount
    return count


def waiting(tx: Connection) -> list[int]:
    """The sources from which something is held and may be admitted."""
    held = exists().where(Arrival.source_id == SourceRow.id, Arrival.state == "held")
    admitting = select(SourceRow.id).where(SourceRow.state.in_(("active", "ad_hoc")), held)
    return list(tx.execute(admitting.order_by(SourceRow.id)).scalars())


def lock_source(tx: Connection, source: int) -> bool:
    """Whether nobody else admits from this source now; nobody will until this transaction ends."""
    row = select(SourceRow.id).where(SourceRow.id == source).with_for_update(key_share=True, skip_locked=True)
    return tx.execute(row).first() is not None


def held(tx: Connection, source: int, limit: int) -> list[Held]:
    """The next ones of a source, in the order in which they were first seen."""
    a = Arrival
    rows = select(a.id, a.url, a.version, a.size_bytes, a.modified_s, a.sidecar, a.overtaken)
    rows = rows.where(a.source_id == source, a.state == "held").order_by(a.id).limit(limit).with_for_update()
    return [
        Held(r.id, MediaObject(r.url, r.version, r.size_bytes), r.modified_s, r.sidecar, bool(r.overtaken))
        for r in tx.execute(rows)
    ]


def note_ends(tx: Connection, source: int) -> None:
    """Those of a source whose jobs have ended are out of the queue. Who ends a job need know nothing of sources."""
    mine = (Arrival.source_id == source, Arrival.state == "submitted")
    over = select(Arrival.id).join(Job, Job.id == Arrival.job_id).where(*mine, Job.state.in_(ENDED))
    tx.execute(update(Arrival).where(Arrival.id.in_(over), *mine).values(state="ended"))


def in_queue(tx: Connection, source: int) -> int:
    """Recordings of a source whose jobs have not ended, by the last `note_ends`."""
    rows = select(func.count()).where(Arrival.source_id == source, Arrival.state == "submitted")
    return int(tx.execute(rows).scalar_one())


def counts(tx: Connection) -> dict[int, dict[str, int]]:
    """How many arrivals of each source are in which state."""
    found: dict[int, dict[str, int]] = {}
    over = and_(Arrival.state == "submitted", Job.state.in_(ENDED))
    state = case((over, "ended"), else_=Arrival.state)
    grouped = select(Arrival.source_id, state.label("state"), func.count().label("n"))
    grouped = grouped.outerjoin(Job, Job.id == Arrival.job_id).group_by(Arrival.source_id, state)
    for r in tx.execute(grouped):
        found.setdefault(r.source_id, {})[r.state] = r.n
    return found


def used_today(tx: Connection, source: int, s_per_byte: float) -> float:
    """Seconds of audio that were admitted from a source since midnight, UTC. What is not known yet is estimated."""
    estimate = case((Job.state.in_(ENDED), 0.0), else_=Arrival.size_bytes * s_per_byte)
    seconds = func.sum(func.coalesce(Job.duration_s, estimate))
    today = and_(Arrival.source_id == source, Arrival.admitted_at >= start_of_day())
    found = select(seconds).select_from(Arrival).join(Job, Job.id == Arrival.job_id).where(today)
    return float(tx.execute(found).scalar() or 0.0)


def seconds_per_byte(tx: Connection, source: int) -> float:
    """What a byte of this source's recordings comes to, by those that were read last."""
    a = Arrival
    last = select(Job.duration_s, a.size_bytes).join(Job, Job.id == a.job_id)
    last = last.where(a.source_id == source, a.state == "ended", Job.duration_s.is_not(None))
    some = last.order_by(a.id.desc()).limit(JUDGED_BY).subquery()
    found = tx.execute(select(func.sum(some.c.duration_s), func.sum(some.c.size_bytes))).one()
    return float(found[0]) / float(found[1]) if found[0] and found[1] else S_PER_BYTE


def admitted(tx: Connection, jobs: Mapping[int, int], *, ended: bool) -> None:
    """These arrivals have become these jobs. `ended`: the jobs had ended before, and cost nothing."""
    if jobs:
        table: Any = Arrival.__table__
        change = update(table).where(table.c.id == bindparam("arrival"))
        change = change.values(
            job_id=bindparam("job"),
            state="ended" if ended else "submitted",
            admitted_at=null() if ended else now_plus(),
        )
        tx.execute(change, [{"arrival": a, "job": j} for a, j in sorted(jobs.items())])


def of_job(tx: Connection, job: int) -> list[Origin]:
    """The sources that a job came from; none for one that was submitted."""
    rows = select(SourceRow.name, Arrival.note).join(SourceRow, SourceRow.id == Arrival.source_id)
    return [Origin(r.name, r.note) for r in tx.execute(rows.where(Arrival.job_id == job).order_by(Arrival.id))]


def _row(source: Source, seen: Seen) -> dict[str, Any]:
    m = seen.media
    return {
        "source_id": source.id, "identity": m.identity, "url": m.url, "version": m.version, "size_bytes": m.size_bytes,
        "modified_s": seen.modified_s, "sidecar": seen.sidecar, "note": seen.note, "overtaken": int(seen.overtaken),
    }  # fmt: skip


def _parts(seen: Sequence[Seen]) -> Iterable[Sequence[Seen]]:
    return (seen[first : first + AT_ONCE] for first in range(0, len(seen), AT_ONCE))
