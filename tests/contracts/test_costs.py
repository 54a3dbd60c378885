"""Costs: what jobs took, in groups; what a fleet's time went into; shared out where it is spent, and only once."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from chunking.errors import Code
from storage import checkpoints, costs, fleet, jobs, leases, submission
from storage.database import Database
from storage.fleet import Done, Worker
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.submission import Request
from tests.contracts.test_leases import prepared, result


def ended(database: Database, name: str, state: str, *, label: str | None = None, device_s: float = 0.0) -> None:
    with database.transaction() as tx:
        submission.submit_all(tx, [MediaObject(f"file:///{name}", "1", 10)], JobOptions(), Request(label=label))
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        values = {"duration_s": 1800.0, "device_s": device_s, "cost": device_s / 3600}
        jobs.end_job(tx, lease, state, Verdict(Code.OK), **values)


def test_a_checkpoint_holds_what_it_took_and_a_second_one_adds_nothing(database: Database) -> None:
    job = prepared(database)
    with database.transaction() as tx:
        (lease, *_) = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)
        for _ in range(2):
            checkpoints.write(tx, lease, job, "w", [result(0), result(1)], spent={0: 3.0, 1: 1.5}, price_per_hour=0.8)
        assert checkpoints.spent_on(tx, job) == {"device_s": 4.5, "cost": pytest.approx(0.001)}


def test_jobs_in_groups(database: Database) -> None:
    ended(database, "a", "done", label="x", device_s=36.0)
    ended(database, "b", "partial", label="x", device_s=36.0)
    ended(database, "c", "failed", label="y", device_s=7.2)
    ended(database, "d", "done", device_s=3.6)
    with database.reading() as tx:
        by = {s.group: (s.jobs, s.audio_s, s.device_s, round(s.cost, 6)) for s in costs.spent(tx, "label")}
        assert by == {
            "x": (2, 3600.0, 72.0, 0.02), "y": (1, 0.0, pytest.approx(7.2), 0.002), "(none)": (1, 1800.0, 3.6, 0.001),
        }  # fmt: skip
        (model,) = costs.spent(tx, "model")
        assert (model.group, model.jobs) == ("tiny.en int8", 4)
        (day,) = costs.spent(tx, "day", label="x")
        today = tx.execute(text("SELECT date(finished_at) FROM jobs LIMIT 1")).scalar()
        assert (day.group, day.jobs, day.per_audio_hour) == (str(today), 2, pytest.approx(0.02))
        (dear,) = costs.spent(tx, "label", label="x", price=10.0)
        assert dear.cost == pytest.approx(0.2)


def test_where_a_fleets_time_went(database: Database) -> None:
    with database.transaction() as tx:
        fleet.register(tx, Worker("g", "h", "1", ("gpu",), "tiny.en int8 beam 1", 3.6, "spot"))
        fleet.register(tx, Worker("c", "h", "1", ("cpu",)))
        fleet.seen(tx, "g", Done(100.0, 5000.0))
        fleet.left(tx, "c")
    start = "datetime(seen_at, '-1000 seconds')" if database.is_sqlite else "seen_at - interval '1000 seconds'"
    with database.transaction() as tx:
        tx.execute(text(f"UPDATE workers SET started_at = {start}"))
    ended(database, "a", "done", device_s=60.0)
    ended(database, "b", "failed", device_s=10.0)
    with database.reading() as tx:
        w = costs.waste(tx)
        assert (w.workers, w.accepted_s, w.failed_s, w.repeated_s) == (1, 60.0, 10.0, 30.0)
        assert w.alive_s == pytest.approx(1000, abs=1.1)
        assert w.idle_s == pytest.approx(900, abs=1.1)
        assert w.cost == pytest.approx(1.0, abs=0.01)
        assert costs.waste(tx, price=0.0).cost == 0


def test_the_parts_of_a_fleets_time_are_the_whole_when_a_worker_died_before_it_told_of_its_last_results(
    database: Database,
) -> None:
    with database.transaction() as tx:
        fleet.register(tx, Worker("killed", "h", "1", ("gpu",), "tiny.en int8 beam 1", 3.6, "spot"))
    ended(database, "a", "done", device_s=60.0)
    with database.reading() as tx:
        w = costs.waste(tx)
    assert (w.alive_s, w.accepted_s, w.repeated_s, w.idle_s) == (60.0, 60.0, 0.0, 0.0)


def test_a_job_that_starts_again_has_taken_nothing_yet(database: Database) -> None:
    ended(database, "a", "failed", device_s=10.0)
    with database.transaction() as tx:
        (job,) = tx.execute(text("SELECT id FROM jobs")).scalars()
        submission.retry(tx, [job])
    with database.reading() as tx:
        assert tx.execute(text("SELECT device_s, cost FROM jobs")).one() == (0, 0)
