"""Canaries on both databases: each version beside all before it, and what the command makes of that."""

from __future__ import annotations

from storage import canaries
from storage.canaries import Result, compared
from storage.database import Database
from workers.commands.canary import drift, line

ENGINE = "tiny.en int8 beam 1"


def sung(database: Database, version: str, wer: float, *, engine: str = ENGINE, recording: str = "r") -> None:
    with database.transaction() as tx:
        canaries.note(tx, Result("w", version, engine, "cpu", recording, wer, 50.0, "text"))


def test_a_version_is_compared_with_those_before_it_on_the_same_device(database: Database) -> None:
    for wer in (0.0, 0.1, 0.0):
        sung(database, "1", wer)
    sung(database, "2", 0.4)
    sung(database, "2", 0.5, engine="base int8 beam 1")
    sung(database, "2", 0.5, recording="another")
    with database.reading() as tx:
        found = {(c.latest.version, c.latest.engine, c.latest.recording): c for c in compared(tx)}
    new = found["2", ENGINE, "r"]
    assert (new.latest.wer, new.wer_before, new.times) == (0.4, 0.0, 1)
    assert found["1", ENGINE, "r"].times == 3
    assert found["2", "base int8 beam 1", "r"].wer_before is None
    assert found["2", ENGINE, "another"].wer_before is None
    assert drift(new, 0.05)
    assert not drift(new, 0.5)
    assert "DRIFT" in line(new, drifted=True)


def test_the_same_version_that_gets_worse_drifts_too(database: Database) -> None:
    for wer in (0.0, 0.0, 0.3):
        sung(database, "1", wer)
    with database.reading() as tx:
        (found,) = compared(tx)
    assert drift(found, 0.05)
