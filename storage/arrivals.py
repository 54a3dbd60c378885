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

from sqlalchemy import Connection, and_, bindparam, case, exists, false, func, null, or_, select, update
from sqlalchemy.orm import aliased

from chunking.errors import Code
from storage.database import upsert
from storage.jobs import ENDED, MediaObject, digest_of
from storage.moments import now_plus, start_of_day
from storage.sources import Source
from storage.tables import Arrival, Errand, Job, Output, Recording, SourceRow

AT_ONCE = 500
"""Rows of one statement."""
JUDGED_BY = 500
"""Recordings of a source whose length says what a byte of the next ones may come to."""
STALE_S = 300.0
"""A listing may be so much older than what an event has told since: only then what it shows counts more."""
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
    has_sidecar: bool
    """Also one in which nothing could be read."""
    overtaken: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job came from."""

    source: str
    note: str | None
    """What was wrong with the recording's sidecar."""


def news(tx: Connection, seen: Sequence[Seen]) -> list[Seen]:
    """Those of them that the ledger does not have, or has as something else than what lies there now.

    Files that we delivered, and recordings that we put away, are no news.
    """
    found: list[Seen] = []
    for part in _parts(seen):
        known = _known(tx, [s.media.identity for s in part])
        fresh = [s for s in part if (k := known.get(s.media.identity)) is None or _is_news(k, s)]
        urls = [s.media.url for s in fresh]
        ours = set(tx.execute(select(Output.url).where(Output.url.in_(urls))).scalars())
        away = select(Errand.place).where(Errand.place.in_(urls), Errand.kind == "move")
        ours.update(place for place in tx.execute(away).scalars() if place)
        found += [s for s in fresh if s.media.url not in ours]
    return found


def record(tx: Connection, source: Source, seen: Sequence[Seen]) -> int:
    """Into the ledger, as far as they are news. The answer is how many were."""
    count = 0
    for part in _parts(sorted(seen, key=lambda s: s.media.identity)):  # in order: two ingesters must not deadlock
        each = {s.media.identity: s for s in part}
        for identity in _forgotten(tx, list(each)):
            del each[identity]
        if not each:
            continue
        insert = upsert(tx, Arrival).on_conflict_do_nothing().returning(Arrival.identity)
        fresh = set(tx.execute(insert, [_row(source, s) for s in each.values()]).scalars())
        count += len(fresh) + _again(tx, source, {i: s for i, s in each.items() if i not in fresh})
    return count


@dataclass(frozen=True, slots=True)
class _Known:
    """A row of the ledger, as far as it says whether an object is news."""

    id: int
    identity: str
    modified_s: int
    overtaken: int
    forgotten: bool
    """It was purged: whatever lies there, it is not taken again."""
    lost: bool
    """The ledger has it for gone or superseded, or held at a source that is removed, and there it lies."""


def _known(tx: Connection, identities: Sequence[str]) -> dict[str, _Known]:
    newer = aliased(Recording)
    lost = or_(
        and_(Job.state == "rejected", Job.code == Code.GONE.value, Job.finished_at <= now_plus(-STALE_S)),
        and_(newer.id.is_not(None), newer.created_at <= now_plus(-STALE_S)),
        and_(Arrival.state == "held", SourceRow.state == "removed"),
    )
    a = Arrival
    digests = {digest_of(i): i for i in identities}
    rows = select(a.id, a.identity, a.url, a.modified_s, a.overtaken, func.coalesce(lost, false()).label("lost"))
    rows = rows.join(SourceRow, SourceRow.id == a.source_id).outerjoin(Job, Job.id == a.job_id)
    rows = rows.outerjoin(Recording, Recording.id == Job.recording_id)
    rows = rows.outerjoin(newer, newer.id == Recording.superseded_by)
    found = tx.execute(rows.where(a.identity.in_({*identities, *digests})))
    known = [
        _Known(r.id, digests.get(r.identity, r.identity), r.modified_s, r.overtaken, not r.url, bool(r.lost))
        for r in found
    ]
    return {k.identity: k for k in known}


def _is_news(known: _Known, seen: Seen) -> bool:
    """Written again, or there although it had gone. What an event alone told of is not there."""
    return not known.forgotten and not seen.overtaken and (seen.modified_s > known.modified_s or known.lost)


def _again(tx: Connection, source: Source, seen: Mapping[str, Seen]) -> int:
    """Those of the arrivals that are news go through admission once more. How many."""
    count = 0
    known = _known(tx, list(seen)).values()
    for k in sorted(known, key=lambda k: k.id):  # by their numbers, as admission locks them
        s = seen[k.identity]
        if not _is_news(k, s):
            continue
        row = update(Arrival).where(Arrival.id == k.id)
        if not k.lost:
            row = row.where(Arrival.modified_s < s.modified_s)
        if not k.modified_s and not k.overtaken and not k.lost:  # it could not be looked at, and its time is known now
            tx.execute(row.values(modified_s=s.modified_s))
            continue
        new = _row(source, s)
        told = {name: new[name] for name in ("source_id", "modified_s", "sidecar", "note", "overtaken")}
        count += tx.execute(row.values(state="held", **told)).rowcount
    return count


def forget(tx: Connection, which: Any) -> int:
    """Of these arrivals no more is kept than a digest, by which the ledger knows the object again. How many."""
    a = Arrival
    rows = tx.execute(select(a.id, a.identity).where(which, a.url != "").order_by(a.id).with_for_update()).all()
    table: Any = a.__table__
    if rows:
        change = update(table).where(table.c.id == bindparam("row")).values(**_NOTHING, identity=bindparam("digest"))
        tx.execute(change, [{"row": r.id, "digest": digest_of(r.identity)} for r in rows])
    return len(rows)


def forget_jobs(tx: Connection, jobs: Sequence[int]) -> None:
    """These jobs are about to go: what arrived for them is forgotten, and where it was moved to as well."""
    _forget_moved(tx, jobs)
    forget(tx, Arrival.job_id.in_(jobs))
    tx.execute(update(Arrival).where(Arrival.job_id.in_(jobs)).values(job_id=None))


def _forget_moved(tx: Connection, jobs: Sequence[int]) -> None:
    """Recordings of these jobs that were moved are known by digest where they are now: they are not taken there."""
    moved = select(Arrival.source_id, Errand.place, Recording.version).distinct()
    moved = moved.join(Job, Job.id == Errand.job_id).join(Recording, Recording.id == Job.recording_id)
    moved = moved.join(Arrival, Arrival.job_id == Job.id)
    rows = tx.execute(moved.where(Errand.job_id.in_(jobs), Errand.place.is_not(None))).all()
    if rows:
        fresh = [
            {**_NOTHING, "source_id": r.source_id, "identity": digest_of(MediaObject(r.place, r.version, 0).identity)}
            for r in rows
        ]
        tx.execute(upsert(tx, Arrival).on_conflict_do_nothing(), fresh)


_NOTHING = {
    "url": "", "version": "", "size_bytes": 0, "modified_s": 0, "sidecar": null(), "note": None,
    "state": "ended", "admitted_at": None,
}  # fmt: skip
"""What is left of an arrival that is forgotten."""


def _forgotten(tx: Connection, identities: Sequence[str]) -> list[str]:
    digests = {digest_of(i): i for i in identities}
    rows = select(Arrival.identity).where(Arrival.identity.in_(digests), Arrival.url == "")
    return [digests[d] for d in tx.execute(rows).scalars()]


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
    """The next ones of a source, in the order in which they were written: of two at one URL the later one is last."""
    a = Arrival
    rows = select(a.id, a.url, a.version, a.size_bytes, a.modified_s, a.sidecar, a.note, a.overtaken)
    rows = rows.where(a.source_id == source, a.state == "held")
    rows = rows.order_by(a.modified_s, a.id).limit(limit).with_for_update()
    return [
        Held(
            r.id,
            MediaObject(r.url, r.version, r.size_bytes),
            r.modified_s,
            r.sidecar,
            bool(r.sidecar or r.note),
            bool(r.overtaken),
        )
        for r in tx.execute(rows)
    ]


def note_ends(tx: Connection, source: int) -> None:
    """Those of a source whose jobs have ended are out of the queue. Who ends a job need know nothing of sources."""
    over = update(Arrival).where(Arrival.source_id == source, Arrival.state == "submitted")
    # As UPDATE … FROM: with a subquery and statistics of before a burst Postgres takes seconds for thousands.
    over = over.where(Job.id == Arrival.job_id, Job.state.in_(ENDED))
    tx.execute(over.values(state="ended"))


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
        change = change.values(job_id=bindparam("job"), state="ended" if ended else "submitted")
        change = change if ended else change.values(admitted_at=now_plus())
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
