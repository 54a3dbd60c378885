"""Chores on both databases: of many who ask, one does it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from storage import chores
from storage.database import Database


def test_a_chore_falls_to_one_once_in_its_time(database: Database) -> None:
    def ask(every_s: float) -> bool:
        return database.again(lambda tx: chores.take(tx, "house", every_s))

    assert not ask(3600.0)
    assert ask(0.0)
    assert not ask(3600.0)


def test_of_those_who_ask_at_once_one_gets_it(postgres: Database) -> None:
    with postgres.transaction() as tx:
        assert not chores.take(tx, "house", 3600.0)
    with postgres.transaction() as tx:
        tx.exec_driver_sql("UPDATE chores SET taken_at = taken_at - interval '2 hours'")

    def ask(_: int) -> bool:
        return postgres.again(lambda tx: chores.take(tx, "house", 3600.0))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(16))) == 1
