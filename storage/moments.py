"""Times in SQL that both databases understand: the database's own, days in UTC, stretches between two."""

from __future__ import annotations

from typing import Any

from sqlalchemy import DateTime, Float, Text, literal, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now_plus(FunctionElement[Any]):  # noqa: N801 (it reads as the SQL function that it is)
    """The database's time, so many seconds from now."""

    type = DateTime(timezone=True)
    inherit_cache = True

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(literal(float(seconds), Float()))


@compiles(now_plus, "sqlite")
def _sqlite_now(element: now_plus, compiler: Any, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', ({compiler.process(element.clauses, **kw)}) || ' seconds')"


@compiles(now_plus, "postgresql")
def _postgres_now(element: now_plus, compiler: Any, **kw: Any) -> str:
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


def since(seconds: float) -> Any:
    """The database's time so many seconds ago, found once a statement, so that an index can answer comparisons with it.

    Postgres asks a clock anew for each row, and then no index helps."""
    return instant(select(now_plus(-seconds)).scalar_subquery())


class start_of_day(FunctionElement[Any]):  # noqa: N801 (as above)
    """Midnight, UTC, of the database's day."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(start_of_day, "sqlite")
def _sqlite_day(element: start_of_day, compiler: Any, **kw: Any) -> str:
    return "strftime('%Y-%m-%d 00:00:00.000', 'now')"


@compiles(start_of_day, "postgresql")
def _postgres_day(element: start_of_day, compiler: Any, **kw: Any) -> str:
    return "date_trunc('day', clock_timestamp(), 'UTC')"


class day_of(FunctionElement[Any]):  # noqa: N801 (as above)
    """A time's day in UTC, as 2026-12-01."""

    type = Text()
    inherit_cache = True


@compiles(day_of, "sqlite")
def _sqlite_day_of(element: day_of, compiler: Any, **kw: Any) -> str:
    return f"substr({compiler.process(element.clauses, **kw)}, 1, 10)"


@compiles(day_of, "postgresql")
def _postgres_day_of(element: day_of, compiler: Any, **kw: Any) -> str:
    return f"to_char({compiler.process(element.clauses, **kw)} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


class instant(FunctionElement[Any]):  # noqa: N801 (as above)
    """A time such that it can be compared with another: SQLite compares texts, of three decimals or six."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(instant, "sqlite")
def _sqlite_instant(element: instant, compiler: Any, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', {compiler.process(element.clauses, **kw)})"


@compiles(instant, "postgresql")
def _postgres_instant(element: instant, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


class seconds_between(FunctionElement[Any]):  # noqa: N801 (it reads as the SQL function that it is)
    """From one time to another, in seconds."""

    type = Float()
    inherit_cache = True


@compiles(seconds_between, "sqlite")
def _sqlite_between(element: seconds_between, compiler: Any, **kw: Any) -> str:
    start, end = (compiler.process(c, **kw) for c in element.clauses)
    return f"((julianday({end}) - julianday({start})) * 86400.0)"


@compiles(seconds_between, "postgresql")
def _postgres_between(element: seconds_between, compiler: Any, **kw: Any) -> str:
    start, end = (compiler.process(c, **kw) for c in element.clauses)
    return f"CAST(extract(epoch FROM ({end} - {start})) AS float)"
