"""Submitting twice is once; equal bytes are decoded once and end alike; a transcript comes back as it went in."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import inspect, text

from chunking.errors import Code, Rejected, UsageError
from chunking.timeline import ChunkResult, Coverage, CoverageSpan, Plan, Segment, Span, Transcript, Word
from storage import checkpoints, jobs, leases, outputs, plans, recordings, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobOptions, JobView, MediaObject, Verdict
from storage.leases import Lease, Step
from storage.outputs import WantedOutput
from storage.recordings import Media
from storage.records import from_record, to_record
from storage.tables import Base
from tests.contracts.test_leases import PLAN

SHA = "ab" * 32
TRANSCRIPT = Transcript(
    12.5, 1, "en", 0.98,
    (Segment(0.5, 2.0, "Hello\x00 w\udcffrld", "en", 0, -0.25, 0.01, 1.1, 0.0, (Word(0.5, 1.0, " Hello", 0.9),), ("tail", "loop"), 0.97),),
    (CoverageSpan(Span(0.0, 2.0), Coverage.TRANSCRIBED), CoverageSpan(Span(2.0, 12.5), Coverage.FAILED, "unread")),
)  # fmt: skip


def submit(database: Database, name: str, version: str = "1", **options: object) -> int:
    with database.transaction() as tx:
        return submission.submit(tx, MediaObject(f"file:///{name}", version, 10), JobOptions(**options))  # type: ignore[arg-type]


def claim(database: Database) -> Lease:
    with database.transaction() as tx:
        return leases.claim(tx, Step.PREPARE, "w")[0]


def content(database: Database, lease: Lease, sha: str = SHA) -> str:
    with database.transaction() as tx:
        return jobs.claim_content(tx, lease, sha)


def view(database: Database, job: int) -> JobView:
    with database.transaction() as tx:
        return jobs.view(tx, job)


def finish(database: Database, lease: Lease) -> None:
    with database.transaction() as tx:
        plans.store_plan(tx, lease, Plan(12.5, 1, ()), [])
        (last,) = leases.claim(tx, Step.FINISH, "w")
        row = checkpoints.write_transcript(tx, TRANSCRIPT, Made(SHA, "d", "m", "int8", "transcribe"))
        jobs.end_job(tx, last, "done", Verdict(Code.OK), transcript_id=row, language="en")


def test_the_same_recording_and_options_are_one_job(database: Database) -> None:
    a = submit(database, "a.wav")
    assert submit(database, "a.wav") == a
    assert submit(database, "a.wav", version="2") != a
    assert submit(database, "b.wav") != a
    assert submit(database, "a.wav", language="de") != a


def test_equal_bytes_are_decoded_once_and_end_alike(database: Database) -> None:
    a, b, c = submit(database, "a.wav"), submit(database, "b.wav"), submit(database, "c.wav")
    first, second = claim(database), claim(database)
    assert (content(database, first), content(database, second)) == ("lead", "wait")
    assert (view(database, a).state, view(database, b).state) == ("preparing", "waiting")
    decoded = Media(container="wav", channels=2, tracks=1, duration_s=12.5, gain_db=20.0)
    with database.transaction() as tx:
        recordings.describe(tx, [first.id], decoded)
    finish(database, first)
    assert view(database, b).state == "done"
    assert view(database, b).transcript_id == view(database, a).transcript_id is not None
    assert content(database, claim(database)) == "end"  # c, after the fact
    assert view(database, c).transcript_id == view(database, a).transcript_id
    with database.reading() as tx:
        assert recordings.media_of(tx, [a, b, c]) == dict.fromkeys((a, b, c), decoded)


def test_other_options_are_another_content(database: Database) -> None:
    submit(database, "a.wav")
    submit(database, "b.wav", language="de")
    assert content(database, claim(database)) == "lead"
    assert content(database, claim(database)) == "lead"


def test_a_rejection_is_shared_by_equal_bytes(database: Database) -> None:
    submit(database, "a.wav")
    b = submit(database, "b.wav")
    first, second = claim(database), claim(database)
    content(database, first)
    content(database, second)
    with database.transaction() as tx:
        jobs.end_job(tx, first, "rejected", Verdict(Code.NOT_MEDIA, "no media"))
    assert (view(database, b).state, view(database, b).code, view(database, b).error) == (
        "rejected",
        "not_media",
        "no media",
    )


def test_who_waits_ends_with_a_shard_that_cannot_be_read(database: Database) -> None:
    a, b = submit(database, "a.wav"), submit(database, "b.wav")
    first, second = claim(database), claim(database)
    content(database, first)
    content(database, second)
    with database.transaction() as tx:
        plans.store_plan(tx, first, PLAN, ["x", "y"])
        for last, shard in zip((False, True), leases.claim(tx, Step.TRANSCRIBE, "w", limit=2), strict=True):
            assert plans.fail_shard(tx, shard, Rejected("gone", code=Code.GONE)) is last
        (finishing,) = leases.claim(tx, Step.FINISH, "w")
        jobs.end_job(tx, finishing, "failed", Verdict(Code.GONE))
    assert [(view(database, j).state, view(database, j).code) for j in (a, b)] == [("failed", "gone")] * 2


def test_taking_a_waiting_job_takes_whom_it_waits_for(database: Database) -> None:
    a, b = submit(database, "a.wav"), submit(database, "b.wav")
    with database.transaction() as tx:
        jobs.assign(tx, [a, b], "w")
    first, second = claim(database), claim(database)
    content(database, first)
    content(database, second)
    with database.transaction() as tx:
        jobs.assign(tx, [a], "killed")
        assert jobs.assigned(tx, [b]) == {b: "killed"}
        leases.release_worker(tx, "w")
        jobs.assign(tx, [b], "next")
        assert [x.id for x in leases.claim(tx, Step.PREPARE, "next", limit=5)] == [a]


def test_prepared_audio_that_others_must_take_does_not_count(database: Database) -> None:
    job = submit(database, "a.wav")
    lease = claim(database)
    with database.transaction() as tx:
        plans.store_plan(tx, lease, PLAN, ["x", "y"])
        jobs.assign(tx, [job], "killed")
        assert plans.queued_audio_s(tx, "me") == 0.0
        assert plans.queued_audio_s(tx, "killed") > 0.0


def test_force_starts_again_and_leads(database: Database) -> None:
    a = submit(database, "a.wav")
    lease = claim(database)
    content(database, lease)
    finish(database, lease)
    with database.transaction() as tx:
        assert submission.submit(tx, MediaObject("file:///a.wav", "1", 10), JobOptions(), force=True) == a
    assert view(database, a).state == "queued"
    assert content(database, claim(database)) == "lead"


def test_a_failure_is_tried_again_when_submitted_again_but_a_rejection_stands(database: Database) -> None:
    for state, code, then in (("rejected", Code.EMPTY, "rejected"), ("failed", Code.DECODER_TIMEOUT, "queued")):
        job = submit(database, f"{state}.wav")
        with database.transaction() as tx:
            jobs.end_job(tx, leases.claim(tx, Step.PREPARE, "w")[0], state, Verdict(code, "why"))
        assert submit(database, f"{state}.wav") == job
        assert view(database, job).state == then


def test_the_first_language_stands(database: Database) -> None:
    job = submit(database, "a.wav")
    with database.transaction() as tx:
        assert plans.set_language(tx, job, "de", 0.9) == ("de", 0.9)
        assert plans.set_language(tx, job, "nl", 0.5) == ("de", 0.9)


def test_a_transcript_comes_back_as_it_went_in_but_for_what_postgres_refuses(database: Database) -> None:
    with database.transaction() as tx:
        row = checkpoints.write_transcript(tx, TRANSCRIPT, Made(SHA, "d", "m", "int8", "transcribe"))
        found = checkpoints.read_transcript(tx, row)
    assert found.segments[0].text == "Hello wrld"
    assert found.segments[0].words == TRANSCRIPT.segments[0].words
    assert found.segments[0].flags == ("tail", "loop")
    assert found.segments[0].language_probability == 0.97
    assert found.coverage == TRANSCRIPT.coverage
    assert (found.duration, found.language) == (12.5, "en")


def test_a_place_for_a_file_belongs_to_one_recording(database: Database) -> None:
    a, b, newer = submit(database, "a.wav"), submit(database, "b.wav"), submit(database, "a.wav", version="2")
    with database.transaction() as tx:
        assert outputs.want(tx, WantedOutput(a, "txt", "file:///out/x.txt"))
        assert outputs.want(tx, WantedOutput(a, "txt", "file:///out/x.txt"))
        assert not outputs.want(tx, WantedOutput(b, "txt", "file:///out/x.txt"))
        assert outputs.want(tx, WantedOutput(newer, "txt", "file:///out/x.txt"))
        assert outputs.of_jobs(tx, [a]) == []


def test_files_are_due_when_their_job_has_a_transcript(database: Database) -> None:
    job = submit(database, "a.wav")
    wanted = WantedOutput(job, "txt", "file:///x.txt")
    with database.transaction() as tx:
        outputs.want(tx, wanted)
        assert outputs.due(tx, [job]) == []
    lease = claim(database)
    content(database, lease)
    finish(database, lease)
    with database.transaction() as tx:
        assert outputs.due(tx, [job]) == [wanted]
        outputs.written(tx, [(wanted, 3, SHA)])
        assert outputs.due(tx, [job]) == []
        outputs.want(tx, wanted, missing=True)
        assert outputs.due(tx, [job]) == [wanted]


def test_migrations_make_the_tables_of_the_models(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from migrations import HEAD

    assert database.revision() == HEAD
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found = compare_metadata(context, Base.metadata)
        assert "jobs" in inspect(connection).get_table_names()
    # Search and comments are the database's own: published.py and test_analysts.py.
    differences = [d for d in found if not re.search(r"segments_search|'search'|ix_terms_trigram|_comment'", str(d))]
    if database.is_sqlite:  # Alembic cannot read back an index that is descending there
        differences = [d for d in differences if not (d[0].endswith("_index") and d[1].name.endswith("_claim"))]
    assert differences == []
    database.upgrade()


def test_the_database_keeps_utc_and_tells_its_time(database: Database) -> None:
    job = submit(database, "a.wav")
    with database.transaction() as tx:
        stored = tx.execute(text(f"SELECT created_at FROM jobs WHERE id = {job}")).scalar()
    assert str(stored)[:2] == "20"


@pytest.mark.parametrize("url", ["mysql://x/y", "no url at all"])
def test_unknown_databases_are_refused_in_words(url: str) -> None:
    with pytest.raises(UsageError, match=r"mysql|cannot be read"):
        Database(url)


@pytest.mark.parametrize(
    ("code", "follower"), [(Code.GONE, "queued"), (Code.DENIED, "queued"), (Code.NO_AUDIO, "rejected")]
)
def test_that_the_leaders_object_is_gone_says_nothing_of_its_followers(
    database: Database, code: Code, follower: str
) -> None:
    a, b = submit(database, "a.wav"), submit(database, "b.wav")
    first = claim(database)
    assert content(database, first) == "lead"
    assert content(database, claim(database)) == "wait"
    with database.transaction() as tx:
        jobs.end_job(tx, first, "rejected", Verdict(code, "there is no object a.wav"))
    assert (view(database, a).state, view(database, b).state) == ("rejected", follower)
    if follower == "queued":
        assert content(database, claim(database)) == "lead"


def test_a_checkpoint_of_an_older_version_is_read() -> None:
    segment = Segment(0.0, 2.0, "Hello.", "en", language_probability=0.9)
    record = to_record(
        ChunkResult(0, 0, Span(0.0, 2.0), cut_before=False, cut_after=False, language="en", segments=(segment,))
    )
    record["newer"] = record["segments"][0]["newer"] = 1  # and of a newer one
    assert record["segments"][0].pop("language_probability") == 0.9
    (old,) = from_record(ChunkResult, record).segments
    assert (old.text, old.language_probability) == ("Hello.", None)
