"""What somebody of the fleet does every so often, whoever comes first: all workers together do it once."""

from __future__ import annotations

from sqlalchemy import Connection, update

from storage.database import upsert
from storage.moments import instant, now_plus, since
from storage.tables import Chore


def take(tx: Connection, name: str, every_s: float) -> bool:
    """Whether it falls to us now. The first time comes so long after it was first asked about."""
    tx.execute(upsert(tx, Chore).values(name=name, taken_at=now_plus()).on_conflict_do_nothing())
    mine = update(Chore).where(Chore.name == name, instant(Chore.taken_at) <= since(every_s))
    return bool(tx.execute(mine.values(taken_at=now_plus())).rowcount)
