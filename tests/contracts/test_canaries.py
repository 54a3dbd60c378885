"""Canaries on both databases: each version beside what is usual, and what the command makes of that."""

from __future__ import annotations

from sqlalchemy import text

from storage import canaries, fleet
from storage.canaries import Compared, Result, compared
from storage.database import Database
from storage.fleet import Worker
from workers.commands.canary import drift, line

ENGINE = "tiny.en int8 beam 1"


def sung(
    database: Database, version: str, wer: float, *, worker: str = "w", engine: str = ENGINE, recording: str = "r",
    days_ago: float = 0.0, rtfx: float = 50.0,
) -> None:  # fmt: skip
    with database.transaction() as tx:
        canaries.note(tx, Result(worker, version, engine, "cpu", recording, wer, rtfx, "text"))
        ago = f"'-{days_ago * 24} hours'" if database.is_sqlite else f"interval '{days_ago * 24} hours'"
        at = f"datetime(created_at, {ago})" if database.is_sqlite else f"created_at - {ago}"
        tx.execute(text(f"UPDATE canaries SET created_at = {at} WHERE id = (SELECT max(id) FROM canaries)"))


def asked(database: Database) -> dict[tuple[str, str, str], Compared]:
    with database.reading() as tx:
        return {(c.worst.version, c.worst.engine, c.worst.recording): c for c in compared(tx)}


def test_a_version_is_compared_with_those_before_it_on_the_same_device(database: Database) -> None:
    for wer in (0.0, 0.1, 0.0):
        sung(database, "1", wer, days_ago=2)
    sung(database, "2", 0.4)
    sung(database, "2", 0.45, engine="base int8 beam 1")
    sung(database, "2", 0.45, recording="another")
    found = asked(database)
    new = found["2", ENGINE, "r"]
    assert (new.worst.wer, new.usual.wer, new.current) == (0.4, 0.0, True)
    assert not found["1", ENGINE, "r"].current
    assert drift(new, 0.05)
    assert not drift(new, 0.5)
    assert "DRIFT" in line(new, drifted=True)
    for other in (found["2", "base int8 beam 1", "r"], found["2", ENGINE, "another"]):
        assert other.usual.wer == 0.45
        assert not drift(other, 0.05)


def test_a_version_that_gets_worse_under_way_drifts_for_as_long_as_its_good_days_are_kept(database: Database) -> None:
    sung(database, "1", 0.0, days_ago=89)
    for day in range(60, 0, -1):
        sung(database, "1", 0.3, days_ago=day)
    sung(database, "1", 0.3)
    (found,) = asked(database).values()
    assert drift(found, 0.05)


def test_one_bad_device_among_many_is_seen_until_it_reads_well_again(database: Database) -> None:
    sung(database, "1", 0.4, worker="bad")
    for name in ("a", "b", "c"):
        sung(database, "1", 0.0, worker=name)
    (found,) = asked(database).values()
    assert (found.worst.worker, found.worst.wer, found.workers, found.usual.wer) == ("bad", 0.4, 4, 0.0)
    assert "bad of 4 workers" in line(found, drifted=True)
    sung(database, "1", 0.0, worker="bad")
    (found,) = asked(database).values()
    assert found.worst.wer == 0.0


def test_what_a_worker_read_counts_for_as_long_as_it_lives(database: Database) -> None:
    sung(database, "1", 0.0, worker="gone", days_ago=3)
    sung(database, "1", 0.4, worker="alive", days_ago=2)
    sung(database, "1", 0.0, worker="gone too", days_ago=1)
    (found,) = asked(database).values()
    assert (found.worst.worker, found.current) == ("gone too", False)
    with database.transaction() as tx:
        fleet.register(tx, Worker("alive", "h", "1", ("gpu",), ENGINE))
    (found,) = asked(database).values()
    assert (found.worst.worker, found.current) == ("alive", True)


def test_what_was_never_read_well_is_told_of(database: Database) -> None:
    sung(database, "1", 0.9)
    (found,) = asked(database).values()
    assert drift(found, 0.05)


def test_speed_is_the_workers_median_beside_the_days_median(database: Database) -> None:
    for day, rtfx in ((3, 100.0), (3, 120.0), (2, 10.0), (1, 130.0)):
        sung(database, "1", 0.0, rtfx=rtfx, days_ago=day)
    for name, rtfx in (("a", 40.0), ("b", 50.0), ("c", 90.0)):
        sung(database, "2", 0.0, worker=name, rtfx=rtfx)
    found = asked(database)["2", ENGINE, "r"]
    assert (found.rtfx, found.usual.rtfx) == (50.0, 80.0)  # of 110, 10, 130 and 50


def test_what_is_too_old_is_forgotten(database: Database) -> None:
    sung(database, "1", 0.0, days_ago=91)
    sung(database, "2", 0.4)
    with database.reading() as tx:
        assert tx.execute(text("SELECT version FROM canaries")).scalars().all() == ["2"]
