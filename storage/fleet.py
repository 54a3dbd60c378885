"""Who is at work and how much there is: the workers' register, and the figures of `spotscribe status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, func, or_, select, update

from storage.database import upsert
from storage.jobs import ENDED
from storage.moments import now_plus
from storage.tables import Arrival, Checkpoint, EngineLimit, Errand, Job, Label, Output, ShardRow, WorkerRow

SEEN_S = 30.0
"""A worker that was not seen for so long is not counted as alive."""
REASONS = 3


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of the fleet, as it introduces itself."""

    name: str
    host: str
    version: str
    roles: tuple[str, ...]
    engine: str = ""
    price_per_hour: float = 0.0
    """Of its device."""
    market: str = ""
    """How its machine was bought."""
    device: str = ""
    """What its model runs on."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker has done so far."""

    device_s: float = 0.0
    """Seconds that its device was at work."""
    audio_s: float = 0.0
    """Seconds of sound of the chunks whose result was accepted."""


NOTHING = Done()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for a worker of one engine."""

    engine: str
    shards: int
    audio_s: float
    oldest: datetime | None
    workers: int
    """Live workers that can decode it."""


@dataclass(frozen=True, slots=True)
class Overview:
    """How the whole stands, or the jobs of one label."""

    jobs: dict[str, int]
    """By state."""
    codes: dict[str, int]
    """By code, of those that ended otherwise than well."""
    audio_s: float
    """Of the recordings whose length is known."""
    chunks: int
    chunks_done: int
    backlog: tuple[Backlog, ...]
    workers: tuple[Worker, ...]
    undelivered: int
    """Files that are due and not written."""
    given_up: int
    """Notices that were not sent and recordings that were not put away, for good (`spotscribe notices`)."""
    held: int
    """Recordings that have arrived at sources and wait for their share or budget."""
    put_off: tuple[str, ...]
    """Why work waits that was tried and could not be done now: some of the reasons."""

    @property
    def left(self) -> int:
        return sum(n for state, n in self.jobs.items() if state not in ENDED)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far one job is."""

    shards: int
    shards_done: int
    chunks: int
    chunks_done: int
    workers: tuple[str, ...]
    """Who holds something of it now."""
    labels: tuple[str, ...]


def register(tx: Connection, worker: Worker) -> None:
    tx.execute(
        upsert(tx, WorkerRow)
        .values(
            name=worker.name, host=worker.host, version=worker.version, roles=" ".join(worker.roles),
            engine=worker.engine, price_per_hour=worker.price_per_hour, market=worker.market,
            device=worker.device,
        )
        .on_conflict_do_nothing()
    )  # fmt: skip


def seen(tx: Connection, worker: str, done: Done = NOTHING) -> None:
    """It lives, and has done so much."""
    here = {"seen_at": now_plus(), "device_s": done.device_s, "audio_s": done.audio_s}
    tx.execute(update(WorkerRow).where(WorkerRow.name == worker).values(here))


def left(tx: Connection, worker: str, done: Done = NOTHING) -> None:
    """It said goodbye."""
    gone = {"seen_at": now_plus(), "left_at": now_plus(), "device_s": done.device_s, "audio_s": done.audio_s}
    tx.execute(update(WorkerRow).where(WorkerRow.name == worker).values(gone))


def alive(tx: Connection) -> list[Worker]:
    """The workers that were seen lately."""
    here = or_(WorkerRow.lost_at.is_(None), WorkerRow.lost_at < WorkerRow.seen_at)
    recent = select(WorkerRow).where(WorkerRow.left_at.is_(None), WorkerRow.seen_at > now_plus(-SEEN_S), here)
    return [
        Worker(r.name, r.host, r.version, tuple(r.roles.split()), r.engine)
        for r in tx.execute(recent.order_by(WorkerRow.started_at))
    ]


def overview(tx: Connection, label: str | None = None) -> Overview:
    """Counts over all jobs, or over those of a label."""
    mine = select(Label.job_id).where(Label.label == label) if label is not None else None

    def of(query: Any, column: Any) -> Any:
        return tx.execute(query.where(column.in_(mine)) if mine is not None else query)

    grouped = select(Job.state, Job.code, func.count().label("n"), func.sum(Job.duration_s).label("s"))
    by_state = of(grouped.group_by(Job.state, Job.code), Job.id).all()
    states: dict[str, int] = {}
    codes: dict[str, int] = {}
    for row in by_state:
        states[row.state] = states.get(row.state, 0) + row.n
        if row.code and row.state in {"partial", "rejected", "failed"}:
            codes[row.code] = codes.get(row.code, 0) + row.n
    workers = alive(tx)
    why = {
        reason
        for row, key in ((Job, Job.id), (Output, Output.job_id), (Errand, Errand.job_id))
        for (reason,) in of(
            select(row.error).where(row.next_run_at.is_not(None), row.error.is_not(None)).distinct().limit(REASONS), key
        )
    }
    return Overview(
        jobs=states,
        codes=codes,
        audio_s=sum(row.s or 0.0 for row in by_state),
        chunks=of(select(func.coalesce(func.sum(ShardRow.chunks), 0)), ShardRow.job_id).scalar_one(),
        chunks_done=of(select(func.count()).select_from(Checkpoint), Checkpoint.job_id).scalar_one(),
        backlog=tuple(_backlog(of, workers)),
        workers=tuple(workers),
        undelivered=of(select(func.count()).where(Output.state.in_(("due", "delivering"))), Output.job_id).scalar_one(),
        given_up=of(select(func.count()).where(Errand.state == "dead"), Errand.job_id).scalar_one(),
        held=held(tx) if label is None else 0,
        put_off=tuple(sorted(why)),
    )


def held(tx: Connection) -> int:
    return tx.execute(select(func.count()).where(Arrival.state == "held")).scalar_one()


def progress(tx: Connection, job: int) -> JobProgress:
    """How far a job is."""
    shards = tx.execute(select(ShardRow.state, ShardRow.chunks, ShardRow.worker).where(ShardRow.job_id == job)).all()
    done = tx.execute(select(func.count()).select_from(Checkpoint).where(Checkpoint.job_id == job)).scalar_one()
    holder = tx.execute(select(Job.worker).where(Job.id == job)).scalar()
    labels = tx.execute(select(Label.label).where(Label.job_id == job).order_by(Label.label)).scalars()
    return JobProgress(
        shards=len(shards),
        shards_done=sum(s.state == "done" for s in shards),
        chunks=sum(s.chunks for s in shards),
        chunks_done=done,
        workers=tuple(sorted({w for w in (holder, *(s.worker for s in shards)) if w})),
        labels=tuple(labels),
    )


def batch_limit(tx: Connection, engine: str, device: str) -> int | None:
    """The largest batch that this kind of device was found to have memory for; None: not met yet."""
    found = select(EngineLimit.batch_size).where(EngineLimit.engine == engine, EngineLimit.device == device)
    return tx.execute(found).scalar()


def limit_batch(tx: Connection, engine: str, device: str, batch_size: int) -> None:
    """Remember that a larger batch ran out of memory."""
    row = upsert(tx, EngineLimit).values(engine=engine, device=device, batch_size=batch_size)
    least = case((EngineLimit.batch_size < batch_size, EngineLimit.batch_size), else_=batch_size)
    tx.execute(
        row.on_conflict_do_update(
            index_elements=["engine", "device"], set_={"batch_size": least, "found_at": now_plus()}
        )
    )


def _backlog(of: Any, workers: Sequence[Worker]) -> list[Backlog]:
    waiting = select(
        ShardRow.engine,
        func.count().label("n"),
        func.sum(ShardRow.end_s - ShardRow.start_s).label("s"),
        func.min(Job.created_at).label("oldest"),
    ).join(Job, Job.id == ShardRow.job_id)
    rows = of(waiting.where(ShardRow.state == "queued").group_by(ShardRow.engine), ShardRow.job_id)
    return [Backlog(r.engine, r.n, float(r.s), r.oldest, sum(w.engine == r.engine for w in workers)) for r in rows]
