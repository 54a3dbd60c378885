"""A report's figures: what the database counts is what lies in its rows, on SQLite and Postgres alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update

from chunking.errors import Code
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript
from pipeline.meanings import DOUBTFUL
from storage import checkpoints, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.submission import Request
from storage.summary import DURATIONS_S, LOGPROBS, MOST, SPEEDS, WAITS_S, Count, End, Scope, Summary, summary
from storage.tables import Job

START = datetime(2026, 12, 1, 12, tzinfo=UTC)


def said(start: float, logprob: float, flags: tuple[str, ...] = (), language: str = "en") -> Segment:
    return Segment(start, start + 2.0, "text", language, avg_logprob=logprob, flags=flags)


def transcript(*segments: Segment, failed: float = 0.0, reason: str = "unread") -> Transcript:
    """Twenty seconds, of which the last `failed` could not be read."""
    spans = [CoverageSpan(Span(0.0, 20.0 - failed), Coverage.TRANSCRIBED)]
    spans += [CoverageSpan(Span(20.0 - failed, 20.0), Coverage.FAILED, reason)] if failed else []
    return Transcript(20.0, 1, "en", 1.0, segments, tuple(spans))


def job(
    database: Database,
    name: str,
    made: Transcript | int | None = None,
    *,
    state: str = "done",
    code: Code = Code.OK,
    took_s: float = 10.0,
    created: datetime = START,
    label: str = "l",
    leader: int = 1,
) -> int:
    """An ended job. `made`: its transcript, or the job whose transcript it shares."""
    with database.transaction() as tx:
        media = MediaObject(f"s3://calls/{name}", "1", 10)
        (found,) = submission.submit_all(tx, [media], JobOptions(), Request(label=label))
        row = made if isinstance(made, int) else None
        if isinstance(made, Transcript):
            row = checkpoints.write_transcript(tx, made, Made("ab" * 32, "d", "m", "int8", "transcribe"))
        values = {"state": state, "code": code, "leader": leader, "transcript_id": row, "content_key": name}
        values |= {"created_at": created, "finished_at": created + timedelta(seconds=took_s)}
        values |= {"duration_s": 20.0 if row else None, "error": None if row else f"why {name}"}
        tx.execute(update(Job).where(Job.id == found.job).values(**values))
    return found.job


def figures(database: Database, label: str | None = "l", since: datetime | None = None, most: int = 20) -> Summary:
    with database.reading() as tx:
        return summary(tx, Scope(label, since), doubtful=DOUBTFUL, most=most)


def transcript_of(database: Database, of: int) -> int:
    with database.reading() as tx:
        return int(tx.execute(select(Job.transcript_id).where(Job.id == of)).scalar_one() or 0)


def bins(edges: tuple[float, ...], *values: float) -> tuple[int, ...]:
    """By hand: how many values lie below the first edge, between each two, from the last on."""
    return tuple(sum(sum(v >= e for e in edges) == i for v in values) for i in range(len(edges) + 1))


def test_all_figures(database: Database) -> None:
    a = job(
        database, "a.wav", transcript(said(0, -0.25, ("tail",)), said(2, -1.25, ("loop", "low_confidence"))), took_s=4
    )
    b = job(database, "b.wav", transcript(said(0, -0.15, language="de"), failed=5.0), state="partial", took_s=40)
    shared = transcript_of(database, a)
    c = job(database, "c.wav", shared, leader=0, took_s=0.5)  # the same bytes as a: nothing was decoded for it
    job(database, "d.wav", state="failed", code=Code.INTERNAL)
    first = job(database, "e.wav", state="rejected", code=Code.NOT_MEDIA)
    job(database, "f.wav", state="rejected", code=Code.NOT_MEDIA)
    job(database, "g.wav", transcript(said(0, -3.0)), label="other")
    found = figures(database)
    assert found.states == {"done": 2, "partial": 1, "failed": 1, "rejected": 2}
    assert found.ends[0] == End("rejected", "not_media", 2, first, "why e.wav")
    assert {e.state for e in found.ends} == {"rejected", "failed", "partial"}
    assert found.recorded_s == 60.0
    assert (found.transcripts, found.words) == (2, 5)
    assert found.coverage_s == {"transcribed": 55.0, "no_speech": 0.0, "failed": 5.0}
    assert found.reasons == (Count("unread", 1, 5.0),)
    assert found.languages == (Count("en", 2, 4.0), Count("de", 1, 2.0))
    assert found.durations == bins(DURATIONS_S, 20, 20, 20)
    assert found.waits == bins(WAITS_S, 4, 40)
    assert found.speeds == bins(SPEEDS, 5, 0.5)
    assert found.decoded_s == 40.0
    assert found.logprobs == bins(LOGPROBS, -0.25, -1.25, -0.15)
    assert found.segments == 3
    assert found.flags == (Count("loop", 1), Count("low_confidence", 1), Count("tail", 1))
    assert [d.job for d in found.doubted] == [a, c, b]
    assert (found.doubted[0].flagged, found.doubted[0].segments) == (1, 2)
    assert found.doubted[0].logprob is not None
    assert abs(found.doubted[0].logprob + 0.75) < 1e-6
    assert found.doubted[2].failed_s == 5.0
    assert found.first is not None
    assert found.last is not None


def test_a_scope_is_a_label_and_a_time(database: Database) -> None:
    job(database, "old.wav", transcript(said(0, -0.5)), created=START - timedelta(days=2))
    job(database, "new.wav", transcript(said(0, -0.5)))
    job(database, "other.wav", transcript(said(0, -0.5)), label="other")
    assert sum(figures(database).states.values()) == 2
    assert sum(figures(database, None).states.values()) == 3
    assert figures(database, since=START).states == {"done": 1}
    assert figures(database, since=START + timedelta(milliseconds=1)).states == {}
    assert figures(database, "none").states == {}


def test_nothing_at_all_is_no_error(database: Database) -> None:
    found = figures(database, None)
    assert (found.states, found.ends, found.doubted, found.recorded_s, found.segments) == ({}, (), (), 0.0, 0)
    assert found.first is None


def test_no_answer_has_more_rows_than_a_page_can_show(database: Database) -> None:
    for i in range(MOST + 3):
        job(database, f"{i}.wav", transcript(said(0, -i / 10, language=f"l{i}"), failed=1.0 + i / 100, reason=f"r{i}"))
    found = figures(database, most=5)
    assert [len(found.reasons), len(found.languages), len(found.doubted)] == [MOST, MOST, 5]
    assert found.doubted[0].logprob == -(MOST + 2) / 10
    assert found.reasons[0].name == f"r{MOST + 2}"


def test_a_silent_recording_needs_no_look_before_a_doubtful_one(database: Database) -> None:
    silent = job(database, "silent.wav", transcript())
    doubtful = job(database, "doubtful.wav", transcript(said(0, -1.5)))
    assert [d.job for d in figures(database).doubted] == [doubtful, silent]
    assert figures(database).doubted[1].logprob is None
