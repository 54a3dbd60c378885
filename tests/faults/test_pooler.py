"""Behind a real PgBouncer in transaction mode, where two transactions of a connection are two sessions of Postgres."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL

from chunking.errors import UsageError
from infra.server import Server
from storage import exporting, leases, submission
from storage.database import IDLE_S, LOCK_S, Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.submission import Request

BOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(BOUNCER is None, reason="no pgbouncer (Debian: apt install pgbouncer)")
SERVERS = 3
"""Sessions of Postgres that all clients share."""
CONFIG = """[databases]
* = host={host} port={port} user={user}{secret}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {servers}
"""


class PgBouncer(Server):
    """Before a Postgres, in transaction mode. It will not be root, and becomes another user by itself."""

    def __init__(self, folder: Path, before: URL) -> None:
        super().__init__(folder)
        parts = before.translate_connect_args(username="user")
        secret = f" password={before.password}" if before.password else ""
        (self.folder / "config.ini").write_text(
            CONFIG.format(listen=self.port, servers=SERVERS, secret=secret, **parts)
        )

    def command(self) -> list[str]:
        return [str(BOUNCER), "-q", *(["-u", "nobody"] if os.geteuid() == 0 else []), "config.ini"]


@pytest.fixture
def pooled(postgres: Database, tmp_path: Path) -> Iterator[Database]:
    """The same database, through a pooler."""
    with PgBouncer(tmp_path / "pgbouncer", postgres.url) as server:
        url = postgres.url.set(host="127.0.0.1", port=server.port)
        database = Database(url.render_as_string(hide_password=False), pool_size=8)
        yield database
        database.close()


def test_it_is_noticed_and_a_connection_without_one_is_not(postgres: Database, pooled: Database) -> None:
    assert pooled.pooled
    assert not postgres.pooled


def test_statements_that_are_repeated_by_many_threads_work(pooled: Database) -> None:
    def submit(worker: int) -> int:
        count = 0
        for i in range(12):  # psycopg prepares a statement at its sixth time
            with pooled.transaction() as tx:
                media = [MediaObject(f"s3://b/{worker}-{i}", "1", 10)]
                count += len(submission.submit_all(tx, media, JobOptions(), Request()))
            with pooled.transaction() as tx:
                leases.claim(tx, Step.PREPARE, f"w{worker}")
        return count

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(submit, range(8))) == 96
    with pooled.reading() as tx:
        rows: Any = tx.execute(text("SELECT state, count(*) FROM jobs GROUP BY state")).all()
    assert [tuple(r) for r in rows] == [("preparing", 96)]


def test_each_transaction_has_its_limits_and_no_session_keeps_them(postgres: Database, pooled: Database) -> None:
    asked = text("SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')")
    for _ in range(2 * SERVERS):
        with pooled.transaction() as tx:
            assert tuple(tx.execute(asked).one()) == (f"{LOCK_S}s", f"{IDLE_S}s")
        with pooled.reading() as tx:
            assert tuple(tx.execute(asked).one()) == ("0", "0")
    with postgres.reading() as tx:
        assert tuple(tx.execute(asked).one()) == (f"{LOCK_S}s", f"{IDLE_S}s")


def test_an_exports_lock_is_one_and_goes(pooled: Database) -> None:
    for _ in range(2 * SERVERS):
        with (
            exporting.alone(pooled, "lake"),
            pytest.raises(UsageError, match="another process"),
            exporting.alone(pooled, "lake"),
        ):
            pass


def test_migrations_go_through_it(pooled: Database) -> None:
    with pooled.transaction() as tx:
        tx.execute(text("DROP SCHEMA public CASCADE"))
        tx.execute(text("CREATE SCHEMA public"))
    pooled.upgrade()
    with pooled.reading() as tx:
        assert tx.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 0
