"""A database in simulated time: SQLite in a scratch file, whose clock says what it is told.

SQLite lets a connection replace `strftime`, and all times in our SQL come from there (moments.py), so that leases,
backlogs and the rest run unchanged, in the time of a simulation.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from storage.database import Database


class Clock:
    """Seconds since the simulation's beginning."""

    def __init__(self) -> None:
        self.now = 0.0


EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def simulated(folder: Path, clock: Clock) -> Database:
    """An empty database of ours in that folder."""
    database = Database(f"sqlite:///{folder / 'simulated.db'}", pool_size=1)

    @event.listens_for(database.engine, "connect")
    def _connect(dbapi: sqlite3.Connection, _record: Any) -> None:
        dbapi.execute("PRAGMA synchronous=OFF")
        dbapi.create_function("strftime", -1, lambda *arguments: _strftime(clock, *arguments))

    database.upgrade()
    return database


def _strftime(clock: Clock, form: str, moment: str | None, *modifiers: str) -> str | None:
    if moment is None:
        return None
    if moment == "now":
        at = EPOCH + timedelta(seconds=clock.now)
    else:
        at = datetime.fromisoformat(str(moment)).replace(tzinfo=UTC)
    for modifier in modifiers:
        number, _, unit = modifier.partition(" ")
        if unit != "seconds":
            raise ValueError(f"{modifier}: only seconds are needed by our SQL")
        at += timedelta(seconds=float(number))
    return at.strftime(form.replace("%f", f"{at.second:02d}.{at.microsecond // 1000:03d}"))
