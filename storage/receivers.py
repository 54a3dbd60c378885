"""Who errands go to: a host of webhooks, a queue, a topic, a bucket. What keeps one of them waiting keeps them all.

So all errands of a receiver that does not answer, or that takes long while others wait, are put off together: else each
would be claimed for nothing, one after the other, and those of other receivers would wait behind them. What is put off
is `later` and not `due`, so that no claim has to pass over it; the reconciler makes it due again (`come_due`).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, case, exists, null, or_, select, update

from storage.moments import now_plus
from storage.tables import DUE, LATER, Errand
from storage.urls import bucket_of

GIVE_UP_S = 24 * 3600.0
"""An errand is tried for so long."""
TOGETHER = 5000
"""Errands that one statement puts off, or makes due."""


def receiver_of(kind: str, target: str, recording: str) -> str:
    """Whom an errand asks: which host, queue or topic, or which bucket (or the machine's files) the recording is in."""
    if kind == "webhook":
        return host_of(target)
    if kind in {"sqs", "sns"}:
        return f"{kind}:{target}"
    bucket = bucket_of(recording)
    return f"s3://{bucket}" if bucket is not None else f"{urlsplit(recording).scheme}://"


def host_of(url: str) -> str:
    """`scheme://host:port`, without a name and a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}".lower()


def put_off_others(tx: Connection, receiver: str, seconds: float, why: str | None = None) -> int:
    """What is due of this receiver waits so long. How many: call again, in another transaction, if it is `TOGETHER`.

    `why`: it does not answer, and whatever has waited for that for `GIVE_UP_S` is dead. None: others go first.
    """
    e = Errand
    values: dict[str, Any] = {"state": "later", "next_run_at": now_plus(seconds)}
    if why is not None:
        over = e.due_at <= now_plus(-GIVE_UP_S)
        values = {
            "state": case((over, "dead"), else_="later"), "error": why,
            "next_run_at": case((over, null()), else_=now_plus(seconds)),
            "done_at": case((over, now_plus()), else_=null()),
        }  # fmt: skip
    return _change(tx, select(e.id).where(DUE, e.receiver == receiver).order_by(e.id), values)


def others_wait(tx: Connection, receiver: str) -> bool:
    """Whether anything is due of another receiver."""
    before, after = (exists().where(DUE, other) for other in (Errand.receiver < receiver, Errand.receiver > receiver))
    return bool(tx.execute(select(or_(before, after))).scalar())


def come_due(tx: Connection) -> int:
    """What was put off, and has waited long enough, is due again. How many; the rest is left to the next call."""
    e = Errand
    now = select(now_plus()).scalar_subquery()  # as a subquery it is one value, which an index can be asked for
    over = select(e.id).where(LATER, e.next_run_at <= now).order_by(e.next_run_at)
    return _change(tx, over, {"state": "due", "next_run_at": None})


def _change(tx: Connection, which: Any, values: dict[str, Any]) -> int:
    """`TOGETHER` of them, but for those that somebody has locked. By number: a join may be planned as a whole scan."""
    ids = tx.execute(which.limit(TOGETHER).with_for_update(skip_locked=True)).scalars().all()
    if ids:
        tx.execute(update(Errand).where(Errand.id.in_(ids)).values(values))
    return len(ids)
