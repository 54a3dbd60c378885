"""What the exporter tells of a fleet, on both databases; and that asking does not read all that has ended."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from chunking.errors import Code
from storage import errands, fleet, jobs, leases, submission
from storage.database import Database
from storage.errands import Wanted
from storage.figures import Figures, figures
from storage.fleet import Worker
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.submission import Request
from tests.contracts.test_leases import prepared

ENGINE = JobOptions().engine
MANY = 20_000


def asked(database: Database) -> Figures:
    with database.reading() as tx:
        return figures(tx)


def test_an_empty_fleet_has_nothing_to_tell(database: Database) -> None:
    found = asked(database)
    assert (found.jobs, found.ended) == ({}, {})
    assert [(q.name, q.recordings, q.workers, q.oldest_s) for q in found.queues] == [("cpu", 0, 0, 0.0)]
    assert (found.held, found.undelivered, sum(found.dead.values()), found.lost, found.left) == (0, 0, 0, 0, 0)


def test_what_waits_is_told_by_queue_with_its_age(database: Database) -> None:
    prepared(database)
    with database.transaction() as tx:
        submission.submit_all(tx, [MediaObject("file:///new", "1", 10)], JobOptions(), Request())
        fleet.register(tx, Worker("both", "h", "1", ("cpu", "gpu"), ENGINE))
        fleet.register(tx, Worker("other", "h", "1", ("gpu",), "base int8 beam 1"))
        hour = "'-3600 seconds'" if database.is_sqlite else "interval '3600 seconds'"
        at = f"datetime(created_at, {hour})" if database.is_sqlite else f"created_at - {hour}"
        tx.execute(text(f"UPDATE jobs SET created_at = {at}"))
    found = asked(database)
    cpu, other, mine = found.queues
    assert (cpu.name, cpu.recordings, cpu.shards, cpu.workers) == ("cpu", 1, 0, 1)
    assert (other.name, other.shards, other.audio_s, other.workers) == ("base int8 beam 1", 0, 0.0, 1)
    assert (mine.name, mine.recordings, mine.workers) == (ENGINE, 1, 1)
    with database.reading() as tx:
        n, seconds = tx.execute(text("SELECT count(*), sum(end_s - start_s) FROM shards")).one()
    assert (mine.shards, mine.audio_s) == (n, pytest.approx(seconds))
    assert mine.oldest_s == pytest.approx(3600, abs=60)
    assert found.jobs == {"queued": 1, "transcribing": 1}


def test_ends_of_the_day_count_and_older_ones_do_not(database: Database) -> None:
    for name, state, code in (("a", "done", Code.OK), ("b", "failed", Code.INTERNAL), ("c", "done", Code.OK)):
        with database.transaction() as tx:
            submission.submit_all(tx, [MediaObject(f"file:///{name}", "1", 10)], JobOptions(), Request())
            (lease,) = leases.claim(tx, Step.PREPARE, "w")
            jobs.end_job(tx, lease, state, Verdict(code))
    with database.transaction() as tx:
        ago = "datetime('now', '-2 days')" if database.is_sqlite else "now() - interval '2 days'"
        tx.execute(text(f"UPDATE jobs SET finished_at = {ago} WHERE id = (SELECT max(id) FROM jobs)"))
    assert asked(database).ended == {("done", "ok"): 1, ("failed", "internal"): 1}


def test_workers_that_went_lately(database: Database) -> None:
    with database.transaction() as tx:
        for name in ("left", "lost", "long ago"):
            fleet.register(tx, Worker(name, "h", "1", ("cpu",)))
        fleet.left(tx, "left")
        now, old = (
            ("datetime('now')", "datetime('now', '-2 hours')")
            if database.is_sqlite
            else ("now()", "now() - interval '2 hours'")
        )
        tx.execute(text(f"UPDATE workers SET lost_at = {now} WHERE name = 'lost'"))
        tx.execute(text(f"UPDATE workers SET lost_at = {old} WHERE name = 'long ago'"))
    found = asked(database)
    assert (found.lost, found.left) == (1, 1)


def test_what_was_given_up_is_told_by_kind(database: Database) -> None:
    with database.transaction() as tx:
        (made,) = submission.submit_all(tx, [MediaObject("file:///a", "1", 10)], JobOptions(), Request())
        errands.want_all(tx, [Wanted(made.job, "webhook", "https://example.org/hook")])
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        jobs.end_job(tx, lease, "rejected", Verdict(Code.NOT_MEDIA))
    with database.transaction() as tx:
        (errand,) = leases.claim(tx, Step.ERRAND, "w")
        errands.dead(tx, errand, "nobody is there")
    assert asked(database).dead == {"notice": 1, "put_away": 0, "file": 0}


def test_asking_reads_none_of_the_jobs_that_ended_long_ago(postgres: Database) -> None:
    with postgres.transaction() as tx:
        tx.execute(
            text(
                "INSERT INTO recordings (url, identity, size_bytes, created_at)"
                " SELECT 's3://b/' || i, i, 9, now() FROM generate_series(1, :n) i"
            ),
            {"n": MANY},
        )
        tx.execute(
            text(
                "INSERT INTO jobs (recording_id, options, options_digest, model, state, code, created_at, finished_at)"
                " SELECT id, '{}', 'd', 'm', 'done', 'ok', now(), now() - interval '3 days' FROM recordings"
            )
        )
    with postgres.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.execute(text("VACUUM ANALYZE"))
    rows = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
    with postgres.reading() as tx:
        before = tx.execute(text(rows)).scalar_one()
        figures(tx)
        assert tx.execute(text(rows)).scalar_one() - before < MANY / 10
