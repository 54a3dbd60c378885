"""Three roles in Postgres: each can do its work, and nothing beyond it (infra/roles.sql)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from storage import fleet, leases, submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.leases import Step
from storage.published import publish
from storage.submission import Request
from storage.views import views

ROLES = Path(__file__).parents[2] / "infra" / "roles.sql"


@contextmanager
def login(postgres: Database, group: str) -> Iterator[Database]:
    """The database as a new member of that role sees it."""
    name = f"m{uuid.uuid4().hex[:12]}"
    with postgres.transaction() as tx:
        tx.execute(text(f"CREATE ROLE {name} LOGIN IN ROLE {group}"))
        if group == "spotscribe_owner":
            tx.execute(text(f"ALTER ROLE {name} SET role = {group}"))
    url = postgres.url.set(drivername="postgresql", username=name).render_as_string(hide_password=False)
    seen = Database(url)
    try:
        yield seen
    finally:
        seen.close()
        with postgres.transaction() as tx:
            tx.execute(text(f"DROP ROLE {name}"))


@pytest.fixture
def guarded(postgres: Database) -> Iterator[Database]:
    """A database with roles; applied twice, since an operator may."""
    for _ in range(2):
        with postgres.transaction() as tx:
            tx.connection.driver_connection.execute(ROLES.read_text())  # type: ignore[union-attr]
    yield postgres
    with postgres.transaction() as tx:  # roles belong to the server and not to the database
        tx.execute(text("REASSIGN OWNED BY spotscribe_owner TO CURRENT_USER"))
        for role in ("worker", "analyst", "owner"):
            tx.execute(text(f"DROP OWNED BY spotscribe_{role}"))


def refused(database: Database, statement: str) -> None:
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), database.transaction() as tx:
        tx.execute(text(statement))


def test_a_worker_works_and_changes_no_table(guarded: Database) -> None:
    with login(guarded, "spotscribe_worker") as worker:
        with worker.transaction() as tx:
            media = MediaObject("s3://bucket/a.wav", "1", 10)
            (made,) = submission.submit_all(tx, [media], JobOptions(), Request(label="november"))
            (lease,) = leases.claim(tx, Step.PREPARE, "w", limit=1, seconds=60.0)
            assert lease.id == made.job
            assert fleet.overview(tx).left == 1
        refused(worker, "DROP TABLE segments")
        refused(worker, "ALTER TABLE jobs ADD COLUMN colour TEXT")
        refused(worker, "CREATE TABLE mine (id INT)")


def test_an_analyst_reads_views_and_no_table(guarded: Database) -> None:
    with login(guarded, "spotscribe_analyst") as analyst:
        with analyst.reading() as tx:
            for view in views(postgres=True):
                tx.execute(text(f"SELECT * FROM {view.name}"))
            tx.execute(text("SELECT * FROM search_segments('hello')"))
        for statement in (
            "SELECT * FROM jobs",
            "SELECT * FROM segments",
            "SELECT * FROM recordings",
            "SELECT * FROM sources",
            "SELECT * FROM errands",
            "SELECT * FROM workers",
            "DELETE FROM jobs",
        ):
            refused(analyst, statement)


def test_search_does_not_run_what_an_analyst_puts_in_its_way(guarded: Database) -> None:
    """It has its owner's rights: a temporary view of the name of a table must not be read with them."""
    with login(guarded, "spotscribe_analyst") as analyst, analyst.transaction() as tx:
        for table in ("segments", "jobs", "labels", "terms", "recordings"):
            tx.execute(text(f"CREATE TEMP VIEW {table} AS SELECT 1 / 0 AS language"))
        assert tx.execute(text("SELECT * FROM search_segments('hello', fuzzy => true)")).all() == []


def test_a_migration_leaves_analysts_their_rights(guarded: Database) -> None:
    with login(guarded, "spotscribe_owner") as owner, owner.transaction() as tx:
        publish(tx)
    with login(guarded, "spotscribe_analyst") as analyst, analyst.reading() as tx:
        tx.execute(text("SELECT * FROM segments_v"))
        tx.execute(text("SELECT * FROM search_segments('hello')"))


def test_the_owner_migrates_and_workers_have_rights_on_what_is_new(guarded: Database) -> None:
    with login(guarded, "spotscribe_owner") as owner, owner.transaction() as tx:
        tx.execute(text("CREATE TABLE later (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note TEXT)"))
        tx.execute(text("ALTER TABLE jobs ADD COLUMN colour TEXT"))
    with login(guarded, "spotscribe_worker") as worker, worker.transaction() as tx:
        tx.execute(text("INSERT INTO later (note) VALUES ('x')"))
