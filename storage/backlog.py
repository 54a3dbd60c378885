"""What waits for workers, how fast they are, and what was last said of how many are wanted."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from storage import fleet
from storage.database import upsert
from storage.jobs import ENDED, JobOptions
from storage.moments import instant, now_plus, seconds_between, since
from storage.tables import Job, Scaling, ShardRow, WorkerRow

CPU = "cpu"
SAMPLE = 1000
"""Recordings by which those that are not prepared yet are judged: which engines they want, and how long they are."""
TYPICAL_S = 300.0
"""Of a recording, where nothing is known of any."""
MEASURED_S = 3600.0
"""Workers that were seen so lately say how fast an engine is."""
ENOUGH_S = 30.0
"""Seconds at work, of all of them, before that is believed."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one kind of worker has to do: seconds of sound."""

    queue: str
    """`cpu`, or an engine."""
    waiting_s: float = 0.0
    in_hand_s: float = 0.0
    coming_s: float = 0.0
    """Of recordings that are not prepared yet."""
    workers: int = 0
    rtfx: float | None = None
    """Of one worker at work; None: not measured."""

    @property
    def audio_s(self) -> float:
        """All that is not done yet."""
        return self.waiting_s + self.in_hand_s + self.coming_s


def backlogs(tx: Connection) -> list[Backlog]:
    """`cpu` first, then each engine that is wanted or there."""
    coming, waiting_s, preparing_s = _unprepared(tx)
    shards = _shards(tx)
    alive, speeds = fleet.alive(tx), _speeds(tx)
    engines = sorted({*coming, *(e for e, _ in shards), *(w.engine for w in alive if w.engine)})
    cpu = Backlog(CPU, waiting_s, preparing_s, 0.0, sum("cpu" in w.roles for w in alive))
    return [
        cpu,
        *(
            Backlog(
                e, shards.get((e, "queued"), 0.0), shards.get((e, "running"), 0.0), coming.get(e, 0.0),
                sum(w.engine == e for w in alive), speeds.get(e),
            )
            for e in engines
        ),
    ]  # fmt: skip


def _shards(tx: Connection) -> dict[tuple[str, str], float]:
    """Seconds of sound by engine and state."""
    seconds = func.sum(ShardRow.end_s - ShardRow.start_s)
    rows = select(ShardRow.engine, ShardRow.state, seconds).where(ShardRow.state.in_(("queued", "running")))
    return {(e, state): float(s) for e, state, s in tx.execute(rows.group_by(ShardRow.engine, ShardRow.state))}


def _unprepared(tx: Connection) -> tuple[dict[str, float], float, float]:
    """Seconds of sound that are to come, by engine; of those in the queue; and of those being prepared.

    All are counted, but only the next ones are looked at: a million options would take seconds to read.
    """
    states = ("queued", "preparing")
    states_of = select(Job.state, func.count()).where(Job.state.in_(states)).group_by(Job.state)
    counts = {r[0]: r[1] for r in tx.execute(states_of)}
    total = sum(counts.values())
    if not total:
        return {}, 0.0, 0.0
    next_ones = select(Job.options, Job.duration_s).where(Job.state.in_(states))
    sample = tx.execute(next_ones.order_by(Job.state, Job.priority.desc(), Job.id).limit(SAMPLE)).all()
    typical = _typical(tx)
    found: dict[str, float] = {}
    for options, duration in sample:
        engine = JobOptions(**options).engine
        found[engine] = found.get(engine, 0.0) + (duration or typical)
    scale = total / len(sample)
    each = scale * sum(found.values()) / total
    coming = {engine: s * scale for engine, s in found.items()}
    return coming, each * counts.get("queued", 0), each * counts.get("preparing", 0)


def _typical(tx: Connection) -> float:
    """Seconds of a recording, by those that ended last."""
    last = select(Job.duration_s).where(Job.state.in_(ENDED), Job.finished_at >= since(7 * 86_400.0))
    last = last.where(Job.duration_s.is_not(None)).order_by(Job.finished_at.desc()).limit(SAMPLE)
    return float(tx.execute(select(func.avg(last.subquery().c.duration_s))).scalar() or TYPICAL_S)


def _speeds(tx: Connection) -> dict[str, float]:
    """RTFx of each engine's workers while their device was at work."""
    w = WorkerRow
    rows = select(w.engine, func.sum(w.audio_s).label("audio"), func.sum(w.device_s).label("device"))
    rows = rows.where(w.engine != "", instant(w.seen_at) >= since(MEASURED_S)).group_by(w.engine)
    return {r.engine: r.audio / r.device for r in tx.execute(rows) if r.device >= ENOUGH_S and r.audio > 0}


def said(tx: Connection, queues: list[str]) -> dict[str, tuple[int, float | None]]:
    """What was last said, and for how long fewer would have done. Nobody else decides until the transaction ends."""
    for queue in queues:
        row = upsert(tx, Scaling).values(queue=queue, wanted=0, decided_at=now_plus())
        tx.execute(row.on_conflict_do_nothing())
    age = seconds_between(Scaling.fewer_since, now_plus())
    rows = select(Scaling.queue, Scaling.wanted, age.label("age")).where(Scaling.queue.in_(queues))
    return {r.queue: (r.wanted, r.age) for r in tx.execute(rows.order_by(Scaling.queue).with_for_update())}


def say(tx: Connection, queue: str, wanted: int, *, fewer: bool) -> None:
    """Note it. `fewer` would do: since when, is kept."""
    row = update(Scaling).where(Scaling.queue == queue)
    began = func.coalesce(Scaling.fewer_since, now_plus()) if fewer else None
    tx.execute(row.values(wanted=wanted, fewer_since=began, decided_at=now_plus()))
