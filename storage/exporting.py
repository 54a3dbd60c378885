"""What an export covers: its jobs planned into parts, and which parts are written. A ledger, not a watermark.

A job's `finished_at` is taken before its transaction commits, so a transcript may appear behind any moment that an
export has reached. Therefore no moment is kept: an end of a job that is not in the ledger has not been exported.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Connection,
    DateTime,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    update,
)  # fmt: skip

from chunking.errors import UsageError
from storage.database import Database, upsert
from storage.jobs import ENDED
from storage.moments import day_of, instant, now_plus
from storage.tables import Export, ExportedJob, ExportPart, Job, Label, SegmentRow, TranscriptRow

JOB_WORDS = 50
"""A job weighs as much as so many words, so that a part has an end even where nobody speaks."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs: those ids, or those with the label that ended in the time. All of it empty: every job."""

    ids: tuple[int, ...] = ()
    label: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Not included."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an export's jobs, whose files are written together. `day`: empty where days are not kept apart."""

    export: int
    round: int
    number: int
    day: str


@dataclass(frozen=True, slots=True)
class PartJob:
    """A job of a part, and how much its transcript weighs in memory."""

    id: int
    words: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Of some rounds. `states`: the jobs that have a transcript, and `without`: those that have none."""

    states: dict[str, int]
    without: dict[str, int]
    segments: int
    """Of the parts that are written."""


@contextmanager
def alone(database: Database, name: str) -> Iterator[None]:
    """Nobody else is at the export of this name meanwhile. Raises UsageError where somebody is.

    The lock goes with the process. It saves work: that a job is in one part only, and a file whole, needs no lock.
    """
    busy = f"another process is at this export ({name})"
    if database.is_sqlite:
        file = Path(f"{database.url.database}.{hashlib.sha256(name.encode()).hexdigest()[:8]}.lock")
        with file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(busy) from None
            yield
            file.unlink(missing_ok=True)
        return
    with database.lock(f"spotscribe.export {name}") as ours:
        if not ours:
            raise UsageError(busy)
        yield


def open_export(tx: Connection, name: str, asked: str) -> int:
    """The export of this name; nobody else plans for it until the transaction ends.

    Raises UsageError where the name stands for another one.
    """
    tx.execute(upsert(tx, Export).on_conflict_do_nothing(), [{"name": name, "asked": asked}])
    row = tx.execute(select(Export.id, Export.asked).where(Export.name == name).with_for_update()).one()
    if row.asked != asked:
        raise UsageError(f"this name stands for another export, {row.asked}: take another name")
    return int(row.id)


def plan(tx: Connection, export: int, chosen: Selection, *, part_words: int, by_day: bool) -> int:
    """Plan what has ended and is not in the ledger into the parts of a new round, which is the answer.

    Parts have about `part_words` words, `by_day`: of jobs that ended on one day each.
    """
    grown = update(Export).where(Export.id == export).values(rounds=Export.rounds + 1).returning(Export.rounds)
    number = int(tx.execute(grown).scalar_one())
    parted = _parted(_missing(export, chosen, by_day=by_day), part_words)
    columns = ["export_id", "job_id", "finished_at", "state", "round", "part"]
    rows = select(literal(export), parted.c.id, parted.c.finished_at, parted.c.state, literal(number), parted.c.part)
    ledger: Any = ExportedJob.__table__
    put = upsert(tx, ledger).from_select(columns, rows.where(parted.c.id > 0))  # SQLite parses no ON CONFLICT without
    changed = {name: put.excluded[name] for name in columns[2:]}
    tx.execute(put.on_conflict_do_update(index_elements=["export_id", "job_id"], set_=changed))
    day = func.min(day_of(ExportedJob.finished_at)) if by_day else literal("")
    mine = and_(ExportedJob.export_id == export, ExportedJob.round == number, ExportedJob.part > 0)
    made = select(ExportedJob.export_id, ExportedJob.round, ExportedJob.part, day).where(mine)
    made = made.group_by(ExportedJob.export_id, ExportedJob.round, ExportedJob.part)
    parts: Any = ExportPart.__table__
    tx.execute(insert(parts).from_select(["export_id", "round", "part", "day"], made))
    return number


def unwritten(tx: Connection, export: int) -> list[Part]:
    """Parts whose files are not known to be written, in order."""
    p = ExportPart
    rows = select(p.export_id, p.round, p.part, p.day).where(p.export_id == export, p.written_at.is_(None))
    return [Part(*r) for r in tx.execute(rows.order_by(p.round, p.part))]


def jobs_of(tx: Connection, part: Part) -> list[PartJob]:
    """The part's jobs. One that has begun again since is left out: it comes when it has ended again."""
    e = ExportedJob
    rows = (
        select(Job.id, TranscriptRow.words + JOB_WORDS)
        .join(e, and_(e.job_id == Job.id, e.finished_at == Job.finished_at))
        .join(TranscriptRow, TranscriptRow.id == Job.transcript_id)
        .where(e.export_id == part.export, e.round == part.round, e.part == part.number)
        .order_by(Job.id)
    )
    return [PartJob(*r) for r in tx.execute(rows)]


def written(tx: Connection, part: Part, urls: Sequence[str], segments: int) -> None:
    """The part's files are there."""
    tx.execute(_part(part).values(urls=list(urls), segments=segments, written_at=now_plus()))


def _part(part: Part) -> Any:
    p = ExportPart
    return update(p).where(p.export_id == part.export, p.round == part.round, p.part == part.number)


def still_right(tx: Connection, export: int, chosen: Selection) -> bool:
    """Whether the selection is, as it stands now, exactly what was planned."""
    if tx.execute(_missing(export, chosen, by_day=False).limit(1)).first() is not None:
        return False
    e = ExportedJob
    planned = select(func.count()).select_from(e).where(e.export_id == export)
    same = and_(e.job_id == Job.id, e.finished_at == Job.finished_at)
    now = select(func.count()).select_from(Job).join(e, same).where(e.export_id == export, *_wanted(chosen))
    return bool(tx.execute(planned).scalar_one() == tx.execute(now).scalar_one())


def forget_jobs(tx: Connection, export: int) -> None:
    """Everything is exported again next time. Which files are written is still known."""
    tx.execute(delete(ExportedJob).where(ExportedJob.export_id == export))
    tx.execute(delete(ExportPart).where(ExportPart.export_id == export, ExportPart.written_at.is_(None)))


def stale_files(tx: Connection, export: int, number: int) -> set[str]:
    """Files of earlier rounds that this one has not replaced."""
    p = ExportPart
    now: set[str] = set()
    before: set[str] = set()
    for row in tx.execute(select(p.round, p.urls).where(p.export_id == export, p.written_at.is_not(None))):
        (now if row.round == number else before).update(row.urls or ())
    return before - now


def forget(tx: Connection, export: int, number: int) -> None:
    """The round has ended: of the export no more need be known than its files."""
    tx.execute(delete(ExportedJob).where(ExportedJob.export_id == export))
    tx.execute(delete(ExportPart).where(ExportPart.export_id == export, ExportPart.round < number))


def counts(tx: Connection, export: int, rounds: Sequence[int]) -> Counts:
    """Jobs of those rounds by the state that they ended in."""
    e = ExportedJob
    rows = select(e.state, (e.part > 0).label("has"), func.count().label("n"))
    found = tx.execute(rows.where(e.export_id == export, e.round.in_(rounds)).group_by(e.state, "has")).all()
    parts = select(func.coalesce(func.sum(ExportPart.segments), 0))
    segments = tx.execute(parts.where(ExportPart.export_id == export, ExportPart.round.in_(rounds))).scalar_one()
    return Counts(
        {r.state: r.n for r in found if r.has}, {r.state: r.n for r in found if not r.has}, int(segments or 0)
    )


def at_work(tx: Connection, chosen: Selection) -> int:
    """Jobs of the selection, but for its times, that have not ended."""
    mine = select(func.count()).select_from(Job).where(Job.state.not_in(ENDED), *_named(chosen))
    return int(tx.execute(mine).scalar_one())


def any_labelled(tx: Connection, label: str) -> bool:
    """Whether a job has this label."""
    return tx.execute(select(Label.job_id).where(Label.label == label).limit(1)).first() is not None


def labels_of(tx: Connection, jobs: Sequence[int]) -> dict[int, list[str]]:
    """The labels of each of those jobs, up to some hundred, in order."""
    found: dict[int, list[str]] = {}
    for row in tx.execute(select(Label.job_id, Label.label).where(Label.job_id.in_(jobs)).order_by(Label.label)):
        found.setdefault(row.job_id, []).append(row.label)
    return found


def segments_of(tx: Connection, transcripts: Sequence[int], *, words: bool) -> dict[int, list[Any]]:
    """The rows of `segments` of each of those transcripts, up to some hundred, in order; `words`: with them."""
    found: dict[int, list[Any]] = {}
    columns = [c if words or c.name != "words" else null().label("words") for c in SegmentRow.__table__.columns]
    rows = select(*columns).where(SegmentRow.transcript_id.in_(transcripts))
    for row in tx.execute(rows.order_by(SegmentRow.transcript_id, SegmentRow.position)):
        found.setdefault(row.transcript_id, []).append(row)
    return found


def _missing(export: int, chosen: Selection, *, by_day: bool) -> Select[Any]:
    """Ends of jobs of the selection that are not in the ledger."""
    e = ExportedJob
    known = select(e.job_id).where(e.export_id == export, e.job_id == Job.id, e.finished_at == Job.finished_at)
    weight = case((TranscriptRow.id.is_not(None), TranscriptRow.words + JOB_WORDS), else_=0).label("weight")
    day = (day_of(Job.finished_at) if by_day else literal("")).label("day")
    has = case((TranscriptRow.id.is_not(None), 1), else_=0).label("has")
    rows = select(Job.id, Job.finished_at, Job.state, day, weight, has)
    rows = rows.outerjoin(TranscriptRow, TranscriptRow.id == Job.transcript_id)
    return rows.where(~known.exists(), *_wanted(chosen))


def _parted(missing: Select[Any], part_words: int) -> Any:
    """The same rows with the part that each is in, from 1: a part is full with the job that fills it."""
    m = missing.subquery()
    before = func.sum(m.c.weight).over(partition_by=(m.c.has, m.c.day), order_by=m.c.id) - m.c.weight
    b = select(m, (before // part_words).label("bucket")).subquery()
    number = func.dense_rank().over(partition_by=b.c.has, order_by=(b.c.day, b.c.bucket))
    return select(b.c.id, b.c.finished_at, b.c.state, case((b.c.has == 1, number), else_=0).label("part")).subquery()


def _wanted(chosen: Selection) -> list[Any]:
    rules: list[Any] = [Job.state.in_(ENDED), Job.finished_at.is_not(None), *_named(chosen)]
    if chosen.since is not None:
        rules.append(instant(Job.finished_at) >= _moment(chosen.since))
    if chosen.until is not None:
        rules.append(instant(Job.finished_at) < _moment(chosen.until))
    return rules


def _moment(moment: datetime) -> Any:
    return instant(literal(moment.astimezone(UTC), DateTime(timezone=True)))


def _named(chosen: Selection) -> list[Any]:
    rules: list[Any] = [Job.id.in_(chosen.ids)] if chosen.ids else []
    if chosen.label is not None:
        rules.append(Job.id.in_(select(Label.job_id).where(Label.label == chosen.label)))
    return rules
