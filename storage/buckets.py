"""Buckets that refuse recordings: left alone for a while, longer each time, until one of them can be read again.

Else a right that is taken away by mistake would reject every recording of the bucket, one after the other. The rest
begins with one refusal and ends with one attempt: while that is made, everybody else goes on waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, or_, select, update

from chunking.errors import Code
from storage import leases
from storage.database import upsert
from storage.leases import SUSPECT_CRASHES, Lease
from storage.moments import now_plus
from storage.sources import rest_s
from storage.tables import BucketRow, Job, Recording
from storage.urls import bucket_of, s3_url

ATTEMPT_S = 5.0
"""How long the others wait for the one that tries again."""
AT_ONCE = 500
"""Jobs that are put off together."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A bucket is left alone."""

    bucket: str
    seconds: float
    """How much longer."""
    until: datetime
    why: str

    def __str__(self) -> str:
        until = self.until.astimezone(UTC) if self.until.tzinfo else self.until  # the same words for all that wait
        return f"the bucket {self.bucket} refuses: {self.why}; it is asked again at {until:%H:%M:%S} UTC"


def refusals(tx: Connection, bucket: str) -> int:
    """How often it refused since something of it could be read. One cheap look, and 0 for nearly every bucket."""
    return tx.execute(select(BucketRow.refusals).where(BucketRow.bucket == bucket)).scalar() or 0


def resting(tx: Connection, bucket: str) -> Rest | None:
    """How long to leave it alone. None: it may be asked; once it has rested, by the one who is told so first."""
    b = BucketRow
    over = update(b).where(b.bucket == bucket, b.refusals > 0, b.rest_until <= now_plus())
    if tx.execute(over.values(rest_until=now_plus(ATTEMPT_S)).returning(b.bucket)).first() is not None:
        return None
    row = tx.execute(select(b.rest_until, b.why, now_plus().label("now")).where(b.bucket == bucket)).first()
    if row is None or row.rest_until is None:
        return None
    return Rest(bucket, max(0.1, (row.rest_until - row.now).total_seconds()), row.rest_until, row.why or "")


def refused(tx: Connection, bucket: str, why: str, seen: int) -> None:
    """It refused a recording, and rests. `seen`: its refusals when it was asked.

    Those who asked it at the same time have seen the same, and make one refusal together.
    """
    b = BucketRow
    tx.execute(upsert(tx, b).values(bucket=bucket).on_conflict_do_nothing())
    values = {"refusals": seen + 1, "rest_until": now_plus(rest_s(seen + 1)), "why": why}
    tx.execute(update(b).where(b.bucket == bucket, b.refusals == seen).values(values))


def answered(tx: Connection, bucket: str) -> None:
    """A recording of it could be read: nothing is held against it any more, and what waited for it goes on."""
    values = {"refusals": 0, "rest_until": None, "why": None}
    tx.execute(update(BucketRow).where(BucketRow.bucket == bucket).values(values))
    waiting = select(Job.id).where(Job.next_run_at.is_not(None), *_queued(bucket)).order_by(Job.id)
    ids = tx.execute(waiting.with_for_update(of=Job, skip_locked=True)).scalars().all()
    for first in range(0, len(ids), AT_ONCE):
        tx.execute(update(Job).where(Job.id.in_(ids[first : first + AT_ONCE])).values(next_run_at=None, error=None))


def ask_again(tx: Connection, jobs: Sequence[int]) -> None:
    """Somebody tries these jobs again, having done something about it: the buckets of those refused need not rest."""
    for first in range(0, len(jobs), AT_ONCE):
        refused = select(Recording.url).join(Job, Job.recording_id == Recording.id)
        refused = refused.where(Job.id.in_(jobs[first : first + AT_ONCE]), Job.code == Code.DENIED.value)
        names = {b for url in tx.execute(refused).scalars() if (b := bucket_of(url)) is not None}
        over = update(BucketRow).where(BucketRow.bucket.in_(sorted(names)), BucketRow.rest_until.is_not(None))
        tx.execute(over.values(rest_until=now_plus()))


def put_off(tx: Connection, lease: Lease, rest: Rest) -> None:
    """The leased job waits for its bucket, and with it the next ones of that bucket: else each would be claimed for
    nothing, and the jobs of other buckets would wait behind them.
    """
    leases.release(tx, lease, wait_s=rest.seconds, error=str(rest))
    due = or_(Job.next_run_at.is_(None), Job.next_run_at <= now_plus())
    mine = select(Job.id).where(due, Job.crashes < SUSPECT_CRASHES, *_queued(rest.bucket))
    mine = mine.order_by(Job.priority.desc(), Job.id).limit(AT_ONCE)
    ids = tx.execute(mine.with_for_update(of=Job, skip_locked=True)).scalars().all()
    later = update(Job).where(Job.id.in_(ids))
    tx.execute(later.values(next_run_at=now_plus(rest.seconds), error=str(rest)))


def _queued(bucket: str) -> tuple[Any, ...]:
    """The jobs whose recordings lie there and wait to be read."""
    below = Recording.url.startswith(s3_url(bucket, ""), autoescape=True)
    return Job.state == "queued", Job.recording_id == Recording.id, below
