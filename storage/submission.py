"""What users ask for: jobs for recordings, one or a hundred thousand at once; to cancel them; to try them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select, update

from chunking.errors import DatabaseAway
from storage import buckets, errands
from storage.database import PURGED_MEANWHILE, upsert
from storage.jobs import ENDED, OF_THE_MOMENT, JobOptions, MediaObject
from storage.leases import unheld
from storage.moments import now_plus
from storage.tables import Checkpoint, Job, Label, Output, Recording, ShardRow

AT_ONCE = 500
"""Rows of one statement. SQLite takes 32 766 parameters."""
RETRIED = ("failed", "rejected", "partial", "cancelled")


@dataclass(frozen=True, slots=True)
class Request:
    """What a submission says besides which recording and how to decode it: none of it changes a word."""

    label: str | None = None
    priority: int = 0
    """Higher first. A job that is asked for again keeps the higher one."""
    metadata: Mapping[str, str] | None = None
    force: bool = False
    """Decode again what has been decoded."""
    current: bool = True
    """False: other bytes are known to lie at their URLs by now."""


Trace = Callable[[str], str | None]


def _untraced(_url: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job for a recording, and whether it was there already."""

    job: int
    state: str
    known: bool


def submit(
    tx: Connection, media: MediaObject, options: JobOptions, *, force: bool = False, trace: Trace = _untraced
) -> int:
    """The job for this recording and these options: a new one, or the one there is. With `force` it starts again."""
    return submit_all(tx, [media], options, Request(force=force), trace)[0].job


def submit_all(
    tx: Connection,
    media: Sequence[MediaObject],
    options: JobOptions,
    request: Request,
    trace: Trace = _untraced,
) -> list[Submitted]:
    """A job for each recording, in their order. The same recording and options again is the same job.

    `trace`: what a new job's row says of its trace, by its URL.

    One that failed, was rejected for reasons of the moment, or whose result was purged, starts again.
    """
    recordings = _recordings(tx, media)
    ids = [recordings[s.identity] for s in media]
    _supersede(tx, {m.url: r for m, r in zip(media, ids, strict=True)}, current=request.current)
    key = options.digest
    known = _jobs(tx, ids, key)
    url = dict(zip(ids, (m.url for m in media), strict=True))
    fresh: list[dict[str, Any]] = [
        {"recording_id": r, "options_digest": key, "options": options.stored, "model": options.model,
         "state": "queued", "priority": request.priority, "metadata": dict(request.metadata or {}) or None,
         "trace": trace(url[r])}
        for r in sorted(set(ids) - set(known))
    ]  # fmt: skip
    if fresh:
        tx.execute(upsert(tx, Job.__table__).on_conflict_do_nothing(), fresh)
    found = _jobs(tx, ids, key, lock=True)
    if len(found) < len(set(ids)):
        raise DatabaseAway(PURGED_MEANWHILE)
    again = {j.id for r, j in found.items() if r in known and (request.force or _passing(j))}
    _start_again(tx, again, force=request.force)
    _note(tx, {j.id for j in found.values()}, request)
    if request.label and found:
        labels = [{"label": request.label, "job_id": j} for j in sorted({j.id for j in found.values()})]
        tx.execute(upsert(tx, Label).on_conflict_do_nothing(), labels)
    states = {j.id: "queued" if j.id in again else j.state for j in found.values()}
    return [Submitted(found[r].id, states[found[r].id], r in known) for r in ids]


def labelled(tx: Connection, label: str, states: Sequence[str] = ()) -> list[int]:
    """The jobs that have this label, oldest first; with `states` only those that are in one of them."""
    found = select(Label.job_id).join(Job, Job.id == Label.job_id).where(Label.label == label).order_by(Label.job_id)
    return list(tx.execute(found.where(Job.state.in_(states)) if states else found).scalars())


def existing(tx: Connection, jobs: Sequence[int]) -> set[int]:
    """Those of the jobs that there are."""
    found: set[int] = set()
    for part in _parts(jobs):
        found.update(tx.execute(select(Job.id).where(Job.id.in_(part))).scalars())
    return found


def cancel(tx: Connection, jobs: Iterable[int]) -> int:
    """End these jobs where they stand; who is at one finds its fence gone. The answer is how many had not ended.

    Jobs that waited for one of them, having equal content, go on by themselves.
    """
    count = 0
    for part in _parts(sorted(set(jobs))):
        tx.execute(select(Job.id).where(Job.id.in_(part)).order_by(Job.id).with_for_update(key_share=True)).all()
        ending = update(Job).where(Job.id.in_(part), Job.state.not_in(ENDED))
        ending = ending.values(state="cancelled", leader=0, finished_at=now_plus(), **unheld(Job))
        ended = list(tx.execute(ending.returning(Job.id)).scalars())
        shards = update(ShardRow).where(ShardRow.job_id.in_(ended), ShardRow.state.not_in(("done", "failed")))
        tx.execute(shards.values(state="cancelled", **unheld(ShardRow)))
        waiting = update(Job).where(Job.follows.in_(ended), Job.state == "waiting")
        tx.execute(waiting.values(state="queued", follows=None))
        count += len(ended)
    return count


def retry(tx: Connection, jobs: Iterable[int]) -> int:
    """From the start: those of the jobs that failed, were rejected or cancelled, or are partial. How many."""
    wanted: list[int] = []
    for part in _parts(sorted(set(jobs))):
        mine = select(Job.id).where(Job.id.in_(part), Job.state.in_(RETRIED)).order_by(Job.id)
        wanted += tx.execute(mine.with_for_update(key_share=True)).scalars()
    buckets.ask_again(tx, wanted)
    _start_again(tx, wanted, force=True)
    return len(wanted)


def _recordings(tx: Connection, media: Sequence[MediaObject]) -> dict[str, int]:
    """The recordings' ids by identity, those that were not there inserted."""
    wanted = {s.identity: s for s in media}
    found = _ids(tx, wanted)
    missing = [wanted[i] for i in sorted(wanted.keys() - found.keys())]  # in order: two submitters must not deadlock
    if missing:
        rows = [
            {"identity": s.identity, "url": s.url, "version": s.version, "size_bytes": s.size_bytes} for s in missing
        ]
        tx.execute(upsert(tx, Recording).on_conflict_do_nothing(), rows)
        found |= _ids(tx, [s.identity for s in missing])
    if len(found) < len(wanted):  # somebody else's row, which we left alone, was purged since
        raise DatabaseAway(PURGED_MEANWHILE)
    return found


def _supersede(tx: Connection, newest: Mapping[str, int], *, current: bool) -> None:
    """Of all recordings at a URL the newest is what lies there: its transcript counts, the others' stand superseded."""
    r = Recording
    for part in _parts(sorted(newest)):
        others: dict[str, list[Any]] = {}
        for row in tx.execute(select(r.id, r.url, r.superseded_by).where(r.url.in_(part)).order_by(r.id)):
            others.setdefault(row.url, []).append(row)
        for rows in others.values():
            if len(rows) == 1:
                continue
            mine = newest[rows[0].url]
            lying = [row.id for row in rows if row.superseded_by is None and row.id != mine]
            now = mine if current else max(lying, default=mine)
            changed = [row.id for row in rows if row.superseded_by != (None if row.id == now else now)]
            for one in changed:
                tx.execute(update(r).where(r.id == one).values(superseded_by=None if one == now else now))


def _ids(tx: Connection, identities: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in _parts(sorted(identities)):
        rows = tx.execute(select(Recording.identity, Recording.id).where(Recording.identity.in_(part)))
        found.update({r.identity: r.id for r in rows})
    return found


def _jobs(tx: Connection, recordings: Iterable[int], digest: str, *, lock: bool = False) -> dict[int, Any]:
    """The jobs with these options by their recording; with `lock` they are ours until the transaction ends."""
    found: dict[int, Any] = {}
    columns = select(Job.id, Job.recording_id, Job.state, Job.code, Job.purged_at).order_by(Job.recording_id)
    columns = columns.with_for_update(key_share=True) if lock else columns
    for part in _parts(sorted(set(recordings))):
        rows = tx.execute(columns.where(Job.recording_id.in_(part), Job.options_digest == digest))
        found.update({r.recording_id: r for r in rows})
    return found


def _passing(job: Any) -> bool:
    return bool(job.purged_at or job.state == "failed" or (job.state == "rejected" and job.code in OF_THE_MOMENT))


def _note(tx: Connection, jobs: set[int], request: Request) -> None:
    """Priority, which is never lowered, and metadata, whose later values count."""
    for part in _parts(sorted(jobs)):
        followed = select(Job.follows).where(Job.id.in_(part), Job.state == "waiting")
        meant = sorted({*part, *tx.execute(followed).scalars()})
        raised = update(Job).where(Job.id.in_(meant), Job.priority < request.priority)
        ids = list(tx.execute(raised.values(priority=request.priority).returning(Job.id)).scalars())
        if ids:
            tx.execute(update(ShardRow).where(ShardRow.job_id.in_(ids)).values(priority=request.priority))
        if request.metadata:
            said = select(Job.id, Job.meta.label("meta")).where(Job.id.in_(part)).order_by(Job.id)
            for row in tx.execute(said).all():
                merged = {**(row.meta or {}), **request.metadata}
                if merged != row.meta:
                    tx.execute(update(Job).where(Job.id == row.id).values(meta=merged))


def _start_again(tx: Connection, jobs: Iterable[int], *, force: bool) -> None:
    """Back to the start, whatever stood. A worker that is at one finds its fence gone.

    The jobs are locked first, then their shards, so that no plan and no checkpoint comes in between.
    """
    for part in _parts(sorted(jobs)):
        tx.execute(
            update(Job)
            .where(Job.id.in_(part))
            .values(
                state="queued", leader=0, follows=None, force=int(force), code=None, error=None, language=None,
                language_probability=None, transcript_id=None, finished_at=None, purged_at=None, device_s=0.0, cost=0.0,
                **unheld(Job),
            )
        )  # fmt: skip
        shards = select(ShardRow.id).where(ShardRow.job_id.in_(part)).order_by(ShardRow.id)
        tx.execute(shards.with_for_update()).all()
        tx.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(part)))
        tx.execute(delete(ShardRow).where(ShardRow.job_id.in_(part)))
        outputs = update(Output).where(Output.job_id.in_(part))
        tx.execute(outputs.values(state="wanted", written_at=None, error=None, **unheld(Output)))
        errands.start_again(tx, part)


def _parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    rows = list(items)
    for first in range(0, len(rows), AT_ONCE):
        yield rows[first : first + AT_ONCE]
