"""What the exporter tells of the whole fleet. Indexes answer each question: no count goes over all that has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection, func, or_, select

from storage import costs, fleet
from storage.backlog import CPU
from storage.costs import Waste
from storage.errands import PUTTING_AWAY
from storage.jobs import ENDED
from storage.moments import instant, now_plus, seconds_between, since
from storage.purge import PURGED
from storage.tables import Errand, Job, Output, ShardRow, WorkerRow

OPEN = ("waiting", "queued", "preparing", "transcribing", "transcribed", "finishing")
HOUR_S, DAY_S = 3600.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for one kind of worker."""

    name: str
    """`cpu`, or an engine."""
    recordings: int
    shards: int
    audio_s: float
    """As far as lengths are known."""
    oldest_s: float
    """Age of the oldest job of which something waits."""
    workers: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything, at one moment."""

    jobs: dict[str, int]
    """That have not ended, by state."""
    ended: dict[tuple[str, str], int]
    """In the last 24 hours, by state and code."""
    queues: tuple[Queue, ...]
    held: int
    undelivered: int
    dead: dict[str, int]
    """By kind: notice, put_away, file."""
    lost: int
    """Workers of the last hour."""
    left: int
    waste: Waste
    """Of workers that started in the last 24 hours."""


def figures(tx: Connection) -> Figures:
    """Ask for all of them."""
    open_jobs = select(Job.state, func.count()).where(Job.state.in_(OPEN)).group_by(Job.state)
    lately = instant(Job.finished_at) >= since(DAY_S)
    ended = select(Job.state, Job.code, func.count()).where(Job.state.in_(ENDED), lately)
    undelivered = select(func.count()).where(Output.state.in_(("due", "delivering")))
    return Figures(
        jobs={r[0]: r[1] for r in tx.execute(open_jobs)},
        ended={(s, code or ""): n for s, code, n in tx.execute(ended.group_by(Job.state, Job.code))},
        queues=tuple(_queues(tx)),
        held=fleet.held(tx),
        undelivered=tx.execute(undelivered).scalar_one(),
        dead=_dead(tx),
        lost=_workers_since(tx, WorkerRow.lost_at),
        left=_workers_since(tx, WorkerRow.left_at),
        waste=costs.waste(tx, since=tx.execute(select(now_plus())).scalar_one() - timedelta(days=1)),
    )


def _queues(tx: Connection) -> Iterator[Queue]:
    """`cpu` always, and each engine of which there are shards that wait, or workers."""
    alive = fleet.alive(tx)
    seconds = func.coalesce(func.sum(Job.duration_s), 0.0)
    waiting = select(func.count(), seconds, func.min(Job.id)).where(Job.state.in_(("queued", "transcribed")))
    count, audio_s, oldest = tx.execute(waiting).one()
    cpu = sum("cpu" in w.roles for w in alive)
    yield Queue(CPU, count, 0, float(audio_s or 0.0), _age(tx, oldest), cpu)
    shards = select(
        ShardRow.engine,
        func.count(),
        func.count(func.distinct(ShardRow.job_id)),
        func.sum(ShardRow.end_s - ShardRow.start_s),
        func.min(ShardRow.job_id),
    ).where(ShardRow.state == "queued")
    found = {r[0]: r for r in tx.execute(shards.group_by(ShardRow.engine))}
    for engine in sorted({*found, *(w.engine for w in alive if w.engine)}):
        workers = sum(w.engine == engine for w in alive)
        if engine not in found:
            yield Queue(engine, 0, 0, 0.0, 0.0, workers)
            continue
        _, n, recordings, sound_s, first = found[engine]
        yield Queue(engine, recordings, n, float(sound_s), _age(tx, first), workers)


def _age(tx: Connection, job: int | None) -> float:
    """Seconds since the job was submitted; jobs are numbered in that order."""
    since = select(seconds_between(Job.created_at, now_plus())).where(Job.id == job)
    return float((tx.execute(since).scalar() if job is not None else None) or 0.0)


def _dead(tx: Connection) -> dict[str, int]:
    kinds = select(Errand.kind, func.count()).where(Errand.state == "dead").group_by(Errand.kind)
    found = {"notice": 0, "put_away": 0}
    for kind, n in tx.execute(kinds):
        found["put_away" if kind in PUTTING_AWAY else "notice"] += n
    files = select(func.count()).where(Output.state == "failed", or_(Output.error.is_(None), Output.error != PURGED))
    return {**found, "file": tx.execute(files).scalar_one()}


def _workers_since(tx: Connection, moment: object) -> int:
    lately = instant(moment) >= since(HOUR_S)
    return tx.execute(select(func.count()).select_from(WorkerRow).where(lately)).scalar_one()
