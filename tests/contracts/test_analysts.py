"""What analysts find: views that say what the tables hold, documents that say what the views are, and no query slow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from chunking.errors import Code
from chunking.timeline import Coverage, CoverageSpan, Plan, Segment, Span, Transcript, Word
from infra.pages import DOCS, PAGES
from storage import checkpoints, jobs, leases, plans, recordings, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.recordings import Media
from storage.submission import Request
from storage.views import views

QUERIES = Path(__file__).parents[2] / "docs" / "queries.md"
MANY = int(os.environ.get("SPOTSCRIBE_TEST_SEGMENTS", "1000000"))
"""Segments under the ten queries."""
TRANSCRIPT = Transcript(
    60.0, 1, "en", 0.98,
    (
        Segment(1.0, 3.0, "Hello there.", "en", 0, -0.2, words=(Word(1.0, 2.0, " Hello", 0.9), Word(2.0, 3.0, " there.", 0.5))),
        Segment(4.0, 9.0, "General.", "en", 0, -1.2, flags=("low_confidence", "tail")),
    ),
    (
        CoverageSpan(Span(0.0, 9.0), Coverage.TRANSCRIBED),
        CoverageSpan(Span(9.0, 50.0), Coverage.NO_SPEECH),
        CoverageSpan(Span(50.0, 60.0), Coverage.FAILED, "unread"),
    ),
)  # fmt: skip


def rows(tx: Connection, statement: str) -> list[dict[str, Any]]:
    return [dict(r._mapping) for r in tx.execute(text(statement))]


@pytest.fixture
def used(database: Database) -> Database:
    """A job that ended well, one that was rejected, one that waits."""
    with database.transaction() as tx:
        media = [MediaObject(f"s3://calls/{name}", "1", 10) for name in ("a.wav", "b.wav", "c.wav")]
        submission.submit_all(tx, media, JobOptions(language="en"), Request(label="november", metadata={"desk": "4"}))
        first, second = leases.claim(tx, Step.PREPARE, "w", limit=2)
        recordings.describe(tx, [first.id], Media(container="wav", codec="pcm_s16le", channels=2, gain_db=12.0))
        plans.store_plan(tx, first, Plan(60.0, 1, ()), [])
        (last,) = leases.claim(tx, Step.FINISH, "w")
        row = checkpoints.write_transcript(tx, TRANSCRIPT, Made("ab" * 32, "d", "tiny.en", "int8", "transcribe"))
        jobs.end_job(tx, last, "done", Verdict(Code.OK), transcript_id=row, language="en", device_s=6.0, cost=0.02)
        jobs.end_job(tx, second, "rejected", Verdict(Code.NOT_MEDIA, "no media"))
    return database


def test_views_say_what_the_tables_hold(used: Database) -> None:
    with used.reading() as tx:
        first, second, third = rows(tx, "SELECT * FROM jobs_v ORDER BY job_id")
        assert (first["state"], second["code"], third["state"]) == ("done", "not_media", "queued")
        assert (first["url"], first["container"], first["source_channels"], first["gain_db"]) == (
            "s3://calls/a.wav", "wav", 2, 12.0,
        )  # fmt: skip
        assert (first["language_asked"], first["channels_asked"], bool(first["current"])) == ("en", "mix", True)
        assert list(first["labels"]) == ["november"] or first["labels"] == "november"
        (made,) = rows(tx, "SELECT * FROM transcripts_v")
        assert (made["text"], made["words"], made["failed_s"]) == ("Hello there. General.", 3, 10.0)
        assert made["words_per_minute"] == pytest.approx(20.0)
        hello, general = rows(tx, "SELECT * FROM segments_v ORDER BY position")
        assert (hello["text"], general["end_s"]) == ("Hello there.", 9.0)
        assert hello["confidence"] == pytest.approx(0.8187, abs=1e-4)
        assert " ".join(hello["flags"]) == ""
        assert general["flags"] in (["low_confidence", "tail"], "low_confidence tail")
        said = rows(tx, "SELECT * FROM words_v ORDER BY segment, position")
        assert [(w["segment"], w["position"], w["word"], w["start_s"], w["probability"]) for w in said] == [
            (0, 0, "Hello", 1.0, 0.9), (0, 1, "there.", 2.0, 0.5),
        ]  # fmt: skip
        assert [c["kind"] for c in rows(tx, "SELECT * FROM coverage_v ORDER BY start_s")] == [
            "transcribed", "no_speech", "failed",
        ]  # fmt: skip
        (failed,) = rows(tx, "SELECT * FROM failures_v")
        assert (failed["code"], failed["error"], failed["failed_s"]) == ("not_media", "no media", None)
        (quality,) = rows(tx, "SELECT * FROM quality_v")
        assert (quality["segments"], quality["flagged"], quality["lowest_logprob"]) == (2, 1, -1.2)
        assert quality["avg_logprob"] == pytest.approx((2 * -0.2 + 5 * -1.2) / 7)
        assert quality["failed"] == pytest.approx(1 / 6)
        (day,) = rows(tx, "SELECT * FROM daily_usage_v")
        assert (day["jobs"], day["done"], day["rejected"], day["device_s"], day["cost"]) == (2, 1, 1, 6.0, 0.02)
        today = tx.execute(text("SELECT date(finished_at) FROM jobs WHERE state = 'done'")).scalar()
        assert str(day["day"]) == str(today)


def test_the_views_have_the_columns_that_are_documented(database: Database) -> None:
    with database.reading() as tx:
        for view in views(postgres=not database.is_sqlite):
            assert list(tx.execute(text(f"SELECT * FROM {view.name}")).keys()) == list(view.columns), view.name
            assert all(about.endswith((".", ")")) for about in (view.about, *view.columns.values())), view.name


def test_both_dialects_have_the_same_views() -> None:
    both = [[(v.name, v.about, dict(v.columns)) for v in views(postgres=p)] for p in (True, False)]
    assert both[0] == both[1]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "`make docs` writes it anew"


def test_all_of_it_is_commented(postgres: Database) -> None:
    with postgres.reading() as tx:
        uncommented = rows(
            tx,
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') "
            "AND obj_description(oid) IS NULL AND relname <> 'alembic_version'",
        )
        assert uncommented == []
        columns = rows(
            tx,
            "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
            "WHERE relnamespace = 'public'::regnamespace AND relkind = 'v' AND attnum > 0 "
            "AND col_description(attrelid, attnum) IS NULL",
        )
        assert columns == []
        told = tx.execute(text("SELECT col_description('recordings'::regclass, attnum) FROM pg_attribute WHERE attrelid = 'recordings'::regclass AND attname = 'clipped'")).scalar()  # fmt: skip
        assert told == "Share of samples at full scale, 0 to 1."


def ten() -> Iterator[tuple[str, str]]:
    """Title and statement of each."""
    yield from re.findall(
        r"^## (\d+\. [^\n]*)\n.*?```sql\n(.*?)```", QUERIES.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.fixture(scope="module")
def large(postgres_server: str, postgres_template: str) -> Iterator[Database]:
    from tests.conftest import copied

    with copied(postgres_server, postgres_template) as database:
        _fill(database, MANY)
        yield database


def test_the_ten_queries_run_and_none_reads_all_segments(large: Database) -> None:
    """By what Postgres counts itself, functions included."""
    queries = dict(ten())
    assert len(queries) == 10
    scans = text(
        "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname IN ('segments', 'coverage') ORDER BY 1"
    )
    with large.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:

        def counted() -> list[Any]:
            c.execute(text("SELECT pg_stat_force_next_flush()"))
            c.execute(text("SELECT pg_stat_clear_snapshot()"))
            return list(c.execute(scans).all())

        before = counted()
        for title, query in queries.items():
            found = c.execute(text(query.replace(":", "\\:"))).all()
            assert found, title
            assert counted() == before, f"{title} reads a whole table"


def _fill(database: Database, segments: int) -> None:
    """Recordings of 100 segments each, of ten minutes, over the last thousand hours; one in a hundred has a label."""
    n = {"n": segments // 100}
    with database.transaction() as tx:
        for statement in (
            "INSERT INTO recordings (url, identity, size_bytes, created_at) SELECT 's3://b/' || i, i, 9, now() FROM generate_series(1, :n) i",
            "INSERT INTO transcripts (sha256, options_digest, model, compute_type, task, language, language_probability, duration_s, channels, words, transcribed_s, no_speech_s, failed_s, created_at) "
            "SELECT md5(i::text), 'd', 'tiny.en', 'int8', 'transcribe', CASE WHEN i % 10 = 0 THEN 'de' ELSE 'en' END, 1, 600, 1, 1000, 500, 90, 10, now() FROM generate_series(1, :n) i",
            "INSERT INTO jobs (recording_id, options, options_digest, model, state, code, transcript_id, duration_s, created_at, finished_at) "
            "SELECT i, '{}', 'd', 'tiny.en', CASE WHEN i % 20 = 0 THEN 'partial' ELSE 'done' END, 'ok', i, 600, now() - make_interval(hours => 1 + i % 1000), now() - make_interval(hours => i % 1000) FROM generate_series(1, :n) i",
            "INSERT INTO labels SELECT 'november', id FROM jobs WHERE id % 100 = 17",
            "CREATE TEMP TABLE said AS SELECT i, 'refund of last month number ' || i || ' ' || md5(i::text) AS text FROM generate_series(0, 999) i",
            """INSERT INTO segments (transcript_id, position, channel, start_s, end_s, text, language, avg_logprob, no_speech_prob, compression_ratio, temperature, flags, words)
            SELECT t, p, 0, p * 6, p * 6 + 5, s.text, CASE WHEN t % 10 = 0 THEN 'de' ELSE 'en' END, -random(), 0, 1, 0, CASE WHEN p = 7 THEN 'tail' ELSE '' END,
            CASE WHEN t % 100 = 17 THEN json_build_array(json_build_array(p * 6, p * 6 + 1, ' refund', 0.9)) END
            FROM generate_series(1, :n) t, generate_series(0, 99) p JOIN said s ON s.i = p""",
            "INSERT INTO coverage SELECT t, p, 0, p * 60, p * 60 + 60, 'no_speech', '' FROM generate_series(1, :n) t, generate_series(0, 9) p",
        ):
            tx.execute(text(statement), n if ":n" in statement else {})
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as c:
        c.execute(text("VACUUM ANALYZE"))
