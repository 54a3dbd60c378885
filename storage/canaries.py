"""What canaries have shown: one row each time that a worker read one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from sqlalchemy import Connection, Row, case, delete, func, insert, or_, select

from storage import fleet
from storage.moments import day_of, instant, now_plus, since
from storage.tables import CanaryRow

KEPT_S = 90 * 86_400.0
"""How far back others are compared with; what is older is deleted."""
LATELY_S = 3600.0
"""What was read in this time counts as how things are, even if its worker is gone."""
HOPELESS = 0.5
"""A WER above this is told of even where no better was ever read: no model reads speech so that it was made for."""

C = CanaryRow
SERIES = (C.engine, C.device, C.recording)


@dataclass(frozen=True, slots=True)
class Result:
    """A worker read a canary."""

    worker: str
    version: str
    """Of Spotscribe and of what decodes."""
    engine: str
    device: str
    recording: str
    """Which canary."""
    wer: float
    rtfx: float
    text: str


@dataclass(frozen=True, slots=True)
class Usual:
    """How one canary is read by one engine on one device, as far back as is kept."""

    wer: float
    """The best of the medians of each version's days: what went wrong for long does not become what is usual."""
    rtfx: float
    """The median of those medians."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One version, engine, device and canary, beside what is usual."""

    worst: Result
    """Of each worker's latest, that of the highest WER: one bad device among many is seen."""
    rtfx: float
    """The median of each worker's latest."""
    at: datetime
    """When it was read last."""
    workers: int
    """How many read it."""
    current: bool
    """Workers that are alive read it, or it was read within the hour. If not, it is what the last one read."""
    usual: Usual

    @property
    def hopeless(self) -> bool:
        return self.worst.wer > HOPELESS


def note(tx: Connection, result: Result) -> None:
    """Keep it, and forget what is too old."""
    tx.execute(delete(C).where(instant(C.created_at) < since(KEPT_S)))
    row = {name: getattr(result, name) for name in Result.__slots__}
    tx.execute(insert(C).values(**row, created_at=now_plus()))


def compared(tx: Connection) -> list[Compared]:
    """Each version on each device, the newest first."""
    usual = _usual(tx)
    groups: dict[tuple[Any, ...], list[Row[Any]]] = {}
    for r in _latest(tx):
        groups.setdefault((r.version, r.engine, r.device, r.recording), []).append(r)
    found = (_compared(rows, usual[key[1:]]) for key, rows in groups.items())
    return sorted(found, key=lambda c: c.at, reverse=True)


def _compared(rows: Sequence[Row[Any]], usual: Usual) -> Compared:
    """`rows`: each worker's latest, the newest last."""
    now = [r for r in rows if r.current]
    said = now or rows[-1:]
    worst = max(said, key=lambda r: r.wer)
    result = Result(**{name: getattr(worst, name) for name in Result.__slots__})
    at = rows[-1].created_at
    at = at if at.tzinfo else at.replace(tzinfo=UTC)  # SQLite's have none
    return Compared(result, median(r.rtfx for r in said), at, len(rows), bool(now), usual)


def _latest(tx: Connection) -> Iterator[Row[Any]]:
    """The newest row of each worker that counts as how things are, and of each version the newest of all."""
    kept = instant(C.created_at) >= since(KEPT_S)
    newest = func.row_number().over(partition_by=(C.worker, C.version, *SERIES), order_by=C.id.desc())
    alive = C.worker.in_([w.name for w in fleet.alive(tx)])
    current = or_(alive, instant(C.created_at) >= since(LATELY_S)).label("current")
    rows = select(C, current, newest.label("place")).where(kept).subquery()
    yield from tx.execute(select(rows).where(rows.c.place == 1).order_by(rows.c.id))


def _usual(tx: Connection) -> dict[tuple[Any, ...], Usual]:
    """By engine, device and canary."""
    day = day_of(C.created_at).label("day")
    group = (*SERIES, C.version, day)

    def place(column: Any) -> Any:
        return func.row_number().over(partition_by=group, order_by=column)

    size = func.count().over(partition_by=group).label("size")
    ranked = select(
        *SERIES, C.version, day, C.wer, C.rtfx, size, place(C.wer).label("by_wer"), place(C.rtfx).label("by_rtfx")
    )
    r = ranked.where(instant(C.created_at) >= since(KEPT_S)).subquery().c

    def middle(column: Any, rank: Any) -> Any:
        """The median: the one in the middle, or the mean of the two."""
        return func.avg(case((rank.in_(((r.size + 1) // 2, (r.size + 2) // 2)), column)))

    days = select(r.engine, r.device, r.recording, middle(r.wer, r.by_wer), middle(r.rtfx, r.by_rtfx))
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for engine, device, recording, wer, rtfx in tx.execute(
        days.group_by(r.engine, r.device, r.recording, r.version, r.day)
    ):
        found.setdefault((engine, device, recording), []).append((wer, rtfx))
    return {key: Usual(min(w for w, _ in each), median(x for _, x in each)) for key, each in found.items()}
