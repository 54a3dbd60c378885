"""What still names a recording once its rows are gone: looked for in every table, and wiped where that can be done."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import JSON, Connection, MetaData, String, Text, cast, func, select, update
from sqlalchemy.exc import DBAPIError

from storage.database import Database
from storage.purge import PURGED, parts
from storage.tables import BucketRow, Export, ExportedJob, SourceRow

OPTIMIZE = "INSERT INTO segments_search (segments_search) VALUES ('optimize')"


def forget_words_of(tx: Connection, url: str) -> None:
    """What refused to be read, or could not be listed, may be named where it is said why."""
    for column in (BucketRow.why, SourceRow.problem):
        said = update(column.class_).where(_position(tx, column, url) > 0)
        tx.execute(said.values({column.key: PURGED}))


def exports_of(tx: Connection, jobs: Sequence[int]) -> list[str]:
    """Names of exports that these jobs are known to be in."""
    e = select(Export.name).join(ExportedJob, ExportedJob.export_id == Export.id).distinct()
    return sorted({n for part in parts(jobs) for n in tx.execute(e.where(ExportedJob.job_id.in_(part))).scalars()})


def mentions(tx: Connection, url: str) -> dict[str, int]:
    """Where this URL still stands, in any column of any table that holds text: `table.column` and in how many rows."""
    named = re.compile(re.escape(url) + r"(?![\w%.~/-])")
    found: dict[str, int] = {}
    reflected = MetaData()
    reflected.reflect(tx)
    for table in reflected.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, String | JSON):
                said = tx.execute(select(cast(column, Text)).where(_position(tx, column, url) > 0)).scalars()
                if count := sum(1 for text in said if named.search(text)):
                    found[f"{table.name}.{column.name}"] = count
    return found


def scrub(database: Database) -> None:
    """SQLite keeps what was deleted in its pages, its search index and its log until they are written anew.

    Where somebody else is at the database that is left to the next time. Postgres does it by itself, with autovacuum.
    """
    if not database.is_sqlite:
        return
    raw = database.engine.raw_connection()
    try:
        with suppress(DBAPIError, sqlite3.OperationalError):
            for statement in (OPTIMIZE, "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                raw.cursor().execute(statement)
    finally:
        raw.close()


def _position(tx: Connection, column: Any, text: str) -> Any:
    return (func.instr if tx.dialect.name == "sqlite" else func.strpos)(cast(column, Text), text)
