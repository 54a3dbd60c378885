"""One engine for SQLite (one machine) and Postgres (a fleet), its transactions and its schema.

All decisions about leases use the database's time (moments.py): workers' clocks may be hours off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InternalError, OperationalError

from chunking.errors import DatabaseAway, UsageError

T = TypeVar("T")
TRIES = 3
BUSY_S = 30
"""How long a writer waits for SQLite's one write lock before it is an error."""
CONNECT_S = 5
TOO_MUCH = "54"
"""Postgres' class of errors for what it can never take: a row too long for its index."""
REFERS_TO_NOTHING = "23503"
"""Postgres' code for a row that refers to one that is gone: only purging deletes what others may refer to."""
PURGED_MEANWHILE = "what this refers to was purged at the same time; the same again will do"
OTHER_SESSION = {"42P05", "26000"}
"""Postgres' codes for a prepared statement that is there already, or is not: a pooler gave us another session."""
IDLE_S = 10
"""A transaction that its worker leaves lying (it was frozen, its machine is gone) is ended by Postgres after so long,
so that the rows it locked are free before their lease is over."""
LOCK_S = 30
LIMITS = (f"idle_in_transaction_session_timeout = '{IDLE_S}s'", f"lock_timeout = '{LOCK_S}s'")
POOLED = "pooled"
"""In a connection's `info`: a pooler stands before Postgres."""
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
"""A connection whose other end is gone without a word ends after some 20 s (libpq's parameters; the last in ms)."""


class Database:
    """The engine and its transactions. Safe to share by threads."""

    def __init__(self, url: str, *, pool_size: int = 4, ping: bool = True) -> None:
        """`ping`: ask a connection whether it lives before it is used again. Who tries again anyway need not."""
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {
            "pool_size": pool_size,
            "max_overflow": 4,
            "pool_pre_ping": ping and not self.is_sqlite,
        }
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        if not self.is_sqlite:
            options["connect_args"] = {"connect_timeout": CONNECT_S, **KEEPALIVE}
        self.engine: Engine = create_engine(self.url, **options)
        reading = {"reading": True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._readers = self.engine.execution_options(**reading)
        self._writing = threading.Lock() if self.is_sqlite else nullcontext()
        if self.is_sqlite:
            _tune_sqlite(self.engine)
        else:
            _tune_postgres(self.engine)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end, rolled back on an error.

        SQLite has one write lock, and its own waiting for it is a sleep of up to 100 ms: threads queue up here instead.
        Raises DatabaseAway where Postgres cannot be reached or gives up, and then nobody knows whether a COMMIT that
        had been sent took place: what is written must be such that writing it again does no harm.
        """
        with self._translated(), self._writing, self.engine.begin() as connection:
            yield connection

    def again(self, do: Callable[[Connection], T]) -> T:
        """Do this in a transaction, and up to three times where the database gives up on it: a deadlock, a restart.

        It must be such that doing it twice does no harm. Raises DatabaseAway.
        """
        for _ in range(TRIES - 1):
            with suppress(DatabaseAway), self.transaction() as tx:
                return do(tx)
        with self.transaction() as tx:
            return do(tx)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Look without locking anything out. Raises DatabaseAway."""
        with self._translated(), self._readers.connect() as connection:
            yield connection

    @contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        """Whether nobody else holds Postgres' lock of that name; it is ours until the end, or our death.

        The transaction that it hangs on reads and writes nothing, so Postgres may clean up meanwhile.
        """
        taken = text("SELECT pg_try_advisory_xact_lock(hashtextextended(current_schema() || :name, 0))")
        with self._translated(), self.engine.connect() as connection:
            connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            try:
                yield bool(connection.execute(taken, {"name": name}).scalar())
            finally:
                with suppress(DBAPIError):  # a broken connection has no lock any more, and hides no other error
                    connection.rollback()

    @property
    def pooled(self) -> bool:
        """A pooler stands before Postgres."""
        with self._translated(), self.engine.connect() as connection:
            return POOLED in connection.info

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Postgres restarted, cut off, overloaded or out of disk is no fault of the work: it may be tried again."""
        try:
            yield
        except (OperationalError, InternalError) as e:
            if self.is_sqlite or str(getattr(e.orig, "sqlstate", None) or "").startswith(TOO_MUCH):
                raise
            raise DatabaseAway(_first_line(e)) from e
        except IntegrityError as e:
            if str(getattr(e.orig, "sqlstate", None) or "") != REFERS_TO_NOTHING:
                raise
            raise DatabaseAway(PURGED_MEANWHILE) from e
        except DBAPIError as e:
            if not e.connection_invalidated and getattr(e.orig, "sqlstate", None) not in OTHER_SESSION:
                raise
            raise DatabaseAway(_first_line(e)) from e

    def upgrade(self) -> None:
        """Create or migrate the schema. Costs one query when it is up to date, or newer than this version needs."""
        from migrations import HEAD

        if (self.revision() or "") >= HEAD:
            return
        from alembic import command
        from alembic.config import Config

        import migrations
        from storage import published

        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        with self._translated(), self.engine.connect() as connection:
            if self.is_sqlite:  # tables are rebuilt there, and what refers to them must not be checked meanwhile
                _driver(connection).execute("PRAGMA foreign_keys=OFF")
            with connection.begin():
                if not self.is_sqlite:  # two workers that start at once must not both migrate
                    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('spotscribe.migrate'))"))
                config.attributes["connection"] = connection
                published.withdraw(connection)
                command.upgrade(config, "head")
                published.publish(connection)
            if self.is_sqlite:
                _driver(connection).execute("PRAGMA foreign_keys=ON")

    def check(self) -> None:
        """Make sure that the schema is one that this version can work with. Raises UsageError, DatabaseAway.

        A newer one is: migrations only add, so that old workers go on while new ones start.
        """
        from migrations import HEAD

        revision = self.revision()
        if revision is None or revision < HEAD:
            stands = f"stands at {revision}" if revision else "has no tables of Spotscribe"
            raise UsageError(f"the database {stands}, this version needs {HEAD}: run `spotscribe db upgrade`")

    def revision(self) -> str | None:
        """The migration that the schema stands at; None for an empty database."""
        with self.reading() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

    def close(self) -> None:
        self.engine.dispose()


def _checked(url: str) -> URL:
    """The URL, with psycopg for Postgres. Raises UsageError where it names neither of our databases."""
    try:
        made = make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError("the database URL cannot be read; it looks like postgresql://user@host/name") from None
    backend = made.get_backend_name()
    if backend not in {"sqlite", "postgresql"}:
        raise UsageError(f"the database must be sqlite or postgresql, not {backend}")
    return made.set(drivername="postgresql+psycopg") if backend == "postgresql" else made


def _driver(connection: Connection) -> Any:
    """The driver's own connection, which begins no transaction by itself."""
    return connection.connection.driver_connection


def _first_line(error: DBAPIError) -> str:
    text = str(error.orig or error).strip()
    return f"the database does not answer: {text.splitlines()[0] if text else type(error).__name__}"


def _tune_postgres(engine: Engine) -> None:
    """Limits for locks and idle transactions; nothing that belongs to a session where there is none.

    Behind a pooler (PgBouncer in transaction mode, RDS Proxy) each transaction may be another session of Postgres:
    limits are then set for each, and statements are not prepared. Who answers with another process id than the
    connection began with is one.
    """

    @event.listens_for(engine, "connect")
    def _connect(dbapi: Any, record: Any) -> None:
        with dbapi.cursor() as cursor:
            (process,) = cursor.execute("SELECT pg_backend_pid()").fetchone()
            if process != dbapi.info.backend_pid:
                record.info[POOLED] = True
                dbapi.prepare_threshold = None
            else:
                cursor.execute("; ".join(f"SET {limit}" for limit in LIMITS))
        dbapi.commit()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if POOLED in connection.info and "isolation_level" not in connection.get_execution_options():  # AUTOCOMMIT
            connection.exec_driver_sql("; ".join(f"SET LOCAL {limit}" for limit in LIMITS))


def upsert(connection: Connection, table: Any) -> Any:
    """An INSERT that knows ON CONFLICT, in the dialect of this connection."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _tune_sqlite(engine: Engine) -> None:
    """WAL, so that readers do not wait; NORMAL survives any death of the process; BEGIN IMMEDIATE is the one lock."""

    @event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_S * 1000}", "foreign_keys=ON"):
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
