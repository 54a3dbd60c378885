"""`spotscribe db`: the schema's history."""

from __future__ import annotations

import click

from chunking.errors import DatabaseAway, UsageError
from migrations import HEAD
from pipeline.settings import PREFIX
from workers.display import say
from workers.wiring import Wiring, read_settings


@click.group()
def db() -> None:
    """Migrate the database, or say how it stands."""


@db.command()
def upgrade() -> None:
    """Create or migrate the tables. Workers may go on meanwhile: migrations only add."""
    database = Wiring(read_settings()).database
    try:
        before = database.revision()
        database.upgrade()
        after = database.revision()
    except DatabaseAway as e:
        raise UsageError(f"{e}: see {PREFIX}DATABASE_URL") from None
    if after != before:
        say(f"the database stands at {after} now (was: {before or 'empty'})")
    elif after != HEAD:
        say(f"the database stands at {after} already, which is newer than this version needs ({HEAD}): nothing to do")
    else:
        say(f"the database stands at {after} already")


@db.command()
def current() -> None:
    """Say at which migration the tables stand. Exit code 2 where they must be migrated."""
    database = Wiring(read_settings()).database
    try:
        say(f"the database stands at {database.revision() or 'nothing: it is empty'}")
        database.check()
    except DatabaseAway as e:
        raise UsageError(f"{e}: see {PREFIX}DATABASE_URL") from None
