"""What transcripts cost, and what was spent on nothing: device seconds as workers measured them, at their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, case, func, literal, select

from storage.jobs import ENDED, WITH_TRANSCRIPT
from storage.moments import day_of, seconds_between
from storage.tables import Job, Label, WorkerRow

BY = ("label", "day", "model")
UNLABELLED = "(none)"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one group of jobs took. A job with two labels is in both groups."""

    group: str
    jobs: int
    audio_s: float
    """Length of the recordings that have a transcript."""
    device_s: float
    cost: float

    @property
    def per_audio_hour(self) -> float | None:
        return self.cost * 3600 / self.audio_s if self.audio_s else None


@dataclass(frozen=True, slots=True)
class Waste:
    """Where the device seconds of a fleet went, and what its machines cost in that time."""

    workers: int
    alive_s: float
    """Of workers that have a model, from their start until they were last seen."""
    accepted_s: float
    """Device seconds of results that stand, in jobs that have a transcript."""
    failed_s: float
    """Of results in jobs that have none."""
    repeated_s: float
    """Of results that were lost or done twice: preemption, kills, retries; and of jobs that have not ended yet."""
    idle_s: float
    """In which no call of the model ran: start, loading, waiting for work, the last moments of a job."""
    cost: float
    """Of all the time alive."""


def spent(
    tx: Connection, by: str, *, label: str | None = None, since: datetime | None = None, price: float | None = None
) -> list[Spent]:
    """Ended jobs in groups `by` label, day or model. `price`: of a device hour, instead of what the workers paid."""
    of: dict[str, ColumnElement[Any]] = {
        "label": func.coalesce(Label.label, UNLABELLED),
        "day": day_of(Job.finished_at),
        "model": Job.options["model"].as_string() + " " + Job.options["compute_type"].as_string(),
    }
    group = of[by].label("name")
    audio = case((Job.state.in_(WITH_TRANSCRIPT), func.coalesce(Job.duration_s, 0.0)), else_=0.0)
    cost: Any = func.sum(Job.cost) if price is None else func.sum(Job.device_s) * literal(price / 3600, Float())
    rows = select(
        group, func.count().label("jobs"), func.sum(audio).label("audio"), func.sum(Job.device_s).label("device"),
        cost.label("cost"),
    ).where(Job.state.in_(ENDED), Job.finished_at.is_not(None))  # fmt: skip
    if by == "label":
        rows = rows.outerjoin(Label, Label.job_id == Job.id)
        if label is not None:
            rows = rows.where(Label.label == label)
    elif label is not None:
        rows = rows.where(Job.id.in_(select(Label.job_id).where(Label.label == label)))
    if since is not None:
        rows = rows.where(Job.finished_at >= since)
    found = tx.execute(rows.group_by(group).order_by(group))
    return [Spent(str(r.name), r.jobs, r.audio or 0.0, r.device or 0.0, r.cost or 0.0) for r in found]


def waste(tx: Connection, *, since: datetime | None = None, price: float | None = None) -> Waste:
    """Of the workers that started since then, and the jobs that ended since."""
    w = WorkerRow
    alive = seconds_between(w.started_at, w.seen_at)
    rate: Any = w.price_per_hour if price is None else literal(price, Float())
    workers = select(
        func.count(), func.sum(alive), func.sum(w.device_s), func.sum(alive * rate / 3600)
    ).where(w.engine != "")  # fmt: skip
    results = select(Job.state.in_(WITH_TRANSCRIPT).label("stands"), func.sum(Job.device_s).label("device"))
    results = results.where(Job.state.in_(ENDED)).group_by("stands")
    if since is not None:
        workers, results = workers.where(w.started_at >= since), results.where(Job.finished_at >= since)
    count, alive_s, device_s, cost = tx.execute(workers).one()
    of = {bool(r.stands): r.device or 0.0 for r in tx.execute(results)}
    accepted, failed = of.get(True, 0.0), of.get(False, 0.0)
    # A worker that was killed had said how it stood some seconds before: its results tell of what came after.
    busy = max(device_s or 0.0, accepted + failed)
    alive_s = max(alive_s or 0.0, busy)
    return Waste(
        workers=count,
        alive_s=alive_s,
        accepted_s=accepted,
        failed_s=failed,
        repeated_s=busy - accepted - failed,
        idle_s=alive_s - busy,
        cost=cost or 0.0,
    )


def total(rows: Sequence[Spent]) -> Spent:
    """All groups together."""
    return Spent(
        "total", sum(r.jobs for r in rows), sum(r.audio_s for r in rows), sum(r.device_s for r in rows),
        sum(r.cost for r in rows),
    )  # fmt: skip
