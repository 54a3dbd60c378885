"""Exports: each end of a job once under a name, whatever is killed, retried, or committed late."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlalchemy import text, update

from chunking.audio import DecodeOptions, DecoderPool
from chunking.errors import Code, UsageError
from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript, Word
from pipeline.exporter import Exported, Exporter, ExportRequest, portions
from pipeline.finish import Finisher
from pipeline.sound import Sounds
from pipeline.telemetry import Tally
from storage import checkpoints, exporting, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.destinations import Destinations
from storage.exporting import PartJob, Selection
from storage.jobs import JobOptions, MediaObject
from storage.objects import LocalStore
from storage.readers import Readers
from storage.submission import Request
from storage.tables import Job

DAY = datetime(2026, 12, 1, 12, tzinfo=UTC)


def transcript(count: int, *, words: bool = True) -> Transcript:
    """Of `count` segments of two words."""
    said = [
        Segment(
            i * 2.0, i * 2 + 1.5, f"Wort, \"{i}\"\nü", "de", avg_logprob=-0.5, flags=("tail", "loop") if i else (),
            words=(Word(i * 2.0, i * 2 + 1.0, " Wort,", 0.9), Word(i * 2 + 1.0, i * 2 + 1.5, f" {i}", 0.5)) if words else (),
        )
        for i in range(count)
    ]  # fmt: skip
    end = count * 2.0
    return Transcript(end, 1, "de", 1.0, tuple(said), (CoverageSpan(Span(0.0, end), Coverage.TRANSCRIBED),))


def ended(
    database: Database, name: str, count: int = 2, *, at: datetime = DAY, state: str = "done", label: str = "l"
) -> int:
    """A job that has ended with so many segments; with another state than done or partial it has none."""
    with database.transaction() as tx:
        media = MediaObject(f"s3://calls/{name}", "1", 10)
        (found,) = submission.submit_all(tx, [media], JobOptions(), Request(label=label, metadata={"team": "blau"}))
        end_again(tx, found.job, count, at, state)
    return found.job


def end_again(tx: Any, job: int, count: int, at: datetime, state: str = "done") -> None:
    row = None
    if state in {"done", "partial"}:
        row = checkpoints.write_transcript(tx, transcript(count), Made("ab" * 32, "d", "m", "int8", "transcribe"))
    code = Code.OK if state == "done" else Code.DAMAGED
    tx.execute(update(Job).where(Job.id == job).values(state=state, code=code, transcript_id=row, finished_at=at))


class Killed(BaseException):
    """The process ends there."""


class Place(Destinations):
    """A folder that may be killed before or after a write."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.after = False
        self.during: Callable[[], None] = lambda: None

    def write(self, url: str, content: bytes, content_type: str) -> None:
        self.during()
        if self.left == 0 and not self.after:
            raise Killed
        super().write(url, content, content_type)
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1


class Desk:
    """Exports of one database into one folder, in parts of ten words or so."""

    def __init__(self, database: Database, folder: Path, part_words: int = 110) -> None:
        self.out, self.place = folder / "out", Place()
        finisher = Finisher(database, LocalStore(folder), Tally())
        sounds = Sounds(Readers, DecoderPool(), folder, DecodeOptions())
        self._exporter = Exporter(database, self.place, finisher, sounds, part_words=part_words)

    def export(self, kind: str = "jsonl", cursor: str | None = None, **chosen: Any) -> Exported:
        out = self.out.as_uri()
        return self._exporter.export(ExportRequest(Selection(**chosen), kind, out, f"{kind} {chosen}", cursor))

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for f in sorted(self.out.rglob("*.jsonl")) for line in f.read_text().splitlines()]

    def segments(self) -> Counter[tuple[int, int]]:
        return Counter((r["job_id"], r["segment"]) for r in self.rows())


@pytest.fixture
def desk(database: Database, tmp_path: Path) -> Desk:
    return Desk(database, tmp_path)


def once(jobs: list[int], count: int = 2) -> Counter[tuple[int, int]]:
    return Counter({(job, i): 1 for job in jobs for i in range(count)})


def test_each_segment_is_a_row_and_what_has_no_transcript_is_counted(database: Database, desk: Desk) -> None:
    jobs = [ended(database, f"{i}.wav") for i in range(5)]
    cut = ended(database, "cut.wav", state="partial")
    ended(database, "no.wav", state="rejected")
    with database.transaction() as tx:
        submission.submit_all(tx, [MediaObject("s3://calls/w", "1", 1)], JobOptions(), Request(label="l"))
    made = desk.export(label="l")
    assert (made.states, made.without, made.at_work, made.segments) == (
        {"done": 5, "partial": 1},
        {"rejected": 1},
        1,
        12,
    )
    assert desk.segments() == once([*jobs, cut])
    assert made.files == len(list(desk.out.iterdir())) == 3
    assert made.bytes == sum(f.stat().st_size for f in desk.out.iterdir())
    row = next(r for r in desk.rows() if r["job_id"] == cut and r["segment"] == 1)
    assert (row["state"], row["code"], row["labels"], row["metadata"]) == (
        "partial",
        "damaged",
        ["l"],
        {"team": "blau"},
    )
    assert (row["recording"], row["finished_at"]) == ("s3://calls/cut.wav", "2026-12-01T12:00:00+00:00")
    assert (row["text"], row["flags"], row["start_s"]) == ('Wort, "1"\nü', ["tail", "loop"], 2.0)
    assert row["words"][1] == {"start_s": 3.0, "end_s": 3.5, "text": " 1", "probability": 0.5}


def test_csv_says_the_same(database: Database, desk: Desk) -> None:
    job = ended(database, "a.wav", 3)
    desk.export("csv", ids=(job,))
    (file,) = desk.out.iterdir()
    with file.open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert [(r["job_id"], r["segment"], r["text"]) for r in rows] == [
        (str(job), str(i), f'Wort, "{i}"\nü') for i in range(3)
    ]
    assert (rows[1]["flags"], rows[1]["language_probability"]) == ('["tail", "loop"]', "")
    assert "words" not in rows[0]


def test_times_select_by_the_moment_in_utc(database: Database, desk: Desk) -> None:
    with database.transaction() as tx:  # as the database itself writes it: SQLite with three decimals
        now = tx.execute(
            text("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')" if database.is_sqlite else "SELECT now()")
        ).scalar()
    before, at, after = (ended(database, f"{i}", at=DAY + timedelta(seconds=i)) for i in (-1, 0, 1))
    native = ended(database, "now")
    with database.transaction() as tx:
        tx.execute(text("UPDATE jobs SET finished_at = :now WHERE id = :job"), {"now": now, "job": native})
        moment = tx.execute(Job.__table__.select().where(Job.id == native)).one().finished_at  # type: ignore[attr-defined]
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    assert desk.export(since=DAY, until=DAY + timedelta(seconds=1)).states == {"done": 1}
    assert desk.segments() == once([at])
    zone = (DAY + timedelta(seconds=1)).astimezone(datetime.now().astimezone().tzinfo)
    assert desk.export(since=DAY - timedelta(seconds=1), until=zone).states == {"done": 2}
    del before, after
    for begin, end, count in ((0, 1, 1), (1, 2, 0), (-1, 0, 0)):
        second = timedelta(milliseconds=1) if database.is_sqlite else timedelta(microseconds=1)
        chosen = {"ids": (native,), "since": moment + begin * second, "until": moment + end * second}
        assert sum(desk.export(**chosen).states.values()) == count


def test_a_cursor_takes_what_has_ended_since_and_what_ended_again(database: Database, desk: Desk) -> None:
    a, b = ended(database, "a"), ended(database, "b", state="rejected")
    assert desk.export(cursor="lake").states == {"done": 1}
    assert desk.export(cursor="lake").states == {}
    with database.transaction() as tx:
        submission.retry(tx, [b])
    c = ended(database, "c")
    assert desk.export(cursor="lake").states == {"done": 1}
    assert desk.segments() == once([a, c])
    with database.transaction() as tx:
        end_again(tx, b, 2, DAY + timedelta(hours=1))
        end_again(tx, a, 2, DAY + timedelta(hours=1))
    made = desk.export(cursor="lake")
    assert (made.states, made.without) == ({"done": 2}, {})
    assert desk.segments() == once([a, b, c]) + once([a])  # both ends of it, told apart by finished_at
    assert desk.export(cursor="other").states == {"done": 3}


def test_a_job_that_commits_late_with_an_early_end_is_not_missed(postgres: Database, tmp_path: Path) -> None:
    desk = Desk(postgres, tmp_path)
    late = ended(postgres, "late", state="rejected", at=DAY - timedelta(days=1))
    with postgres.transaction() as tx:
        submission.retry(tx, [late])
    with postgres.transaction() as open_one:
        open_one.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # a busy machine takes its time
        end_again(open_one, late, 2, DAY - timedelta(seconds=5))
        early = ended(postgres, "early", at=DAY)
        assert desk.export(cursor="lake").states == {"done": 1}
        assert desk.segments() == once([early])
    assert desk.export(cursor="lake").states == {"done": 1}
    assert desk.segments() == once([early, late])


def test_two_at_one_name_do_not_share_a_job(postgres: Database, tmp_path: Path) -> None:
    """Even where the lock is lost, as when the database was restarted: plans wait for each other."""
    job = ended(postgres, "a")
    with postgres.transaction() as tx:
        export = exporting.open_export(tx, "cursor x", "")
        exporting.plan(tx, export, Selection(), part_words=100, by_day=False)
    with postgres.transaction() as tx:
        exporting.plan(tx, export, Selection(), part_words=100, by_day=False)
        parts = exporting.unwritten(tx, export)
        assert [j.id for p in parts for j in exporting.jobs_of(tx, p)] == [job]


def test_a_second_process_is_told_that_there_is_one(database: Database, desk: Desk) -> None:
    ended(database, "a")
    with exporting.alone(database, "cursor lake"), pytest.raises(UsageError, match="another process"):
        desk.export(cursor="lake")
    with exporting.alone(database, "cursor other"):
        assert desk.export(cursor="lake").files == 1


def test_an_export_outlives_the_connection_of_its_lock(postgres: Database) -> None:
    broken = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'")

    def ends(how: Callable[[], None]) -> None:
        with exporting.alone(postgres, "cursor lake"):
            with postgres.reading() as tx:
                assert tx.execute(broken).scalars().all() == [True]
            how()

    def badly() -> None:
        raise UsageError("its own end")

    ends(lambda: None)
    with pytest.raises(UsageError, match="its own"):
        ends(badly)
    with exporting.alone(postgres, "cursor lake"):
        pass


def test_a_name_stands_for_one_export(database: Database, desk: Desk) -> None:
    ended(database, "a")
    desk.export(cursor="lake")
    with pytest.raises(UsageError, match="take another name"):
        desk.export("csv", cursor="lake")


@pytest.mark.parametrize(
    ("kind", "cursor", "after"),
    [("jsonl", "lake", False), ("jsonl", "lake", True), ("jsonl", None, True), ("parquet", "lake", True)],
)
def test_what_is_killed_goes_on_and_each_segment_is_there_once(
    database: Database, desk: Desk, cursor: str | None, after: bool, kind: str
) -> None:
    jobs = [ended(database, f"{i}.wav") for i in range(6)]
    desk.place.left, desk.place.after = 1, after
    with pytest.raises(Killed):
        desk.export(kind, cursor=cursor, label="l")
    desk.place.left = None
    if cursor:
        jobs.append(ended(database, "new.wav"))
    made = desk.export(kind, cursor=cursor, label="l")
    assert made.resumed
    assert (made.states, made.segments) == ({"done": len(jobs)}, 2 * len(jobs))
    assert made.files == (2 if cursor is None else 3)  # the first of three was written; the new job has one of its own
    if kind == "jsonl":
        assert desk.segments() == once(jobs)
    else:
        found = duckdb.sql(f"SELECT job_id, segment FROM '{desk.out}/*/*.parquet'").fetchall()
        assert Counter(found) == once(jobs)


def test_an_export_without_a_cursor_is_what_stands_now(database: Database, desk: Desk) -> None:
    """Killed and begun again when jobs have ended, or ended again, or been made anew: as one that was not killed."""
    jobs = [ended(database, f"{i}.wav") for i in range(6)]
    desk.place.left = 2
    with pytest.raises(Killed):
        desk.export(label="l")
    desk.place.left = None
    with database.transaction() as tx:
        end_again(tx, jobs[0], 1, DAY + timedelta(hours=1))
    new = ended(database, "new.wav")
    assert not desk.export(label="l").resumed
    assert desk.segments() == once([*jobs[1:], new]) + once([jobs[0]], 1)
    with database.transaction() as tx:  # now there are fewer, and the parts that are too many go
        tx.execute(text("DELETE FROM labels WHERE job_id <> :job"), {"job": new})
    assert desk.export(label="l").segments == 2
    assert desk.segments() == once([new])
    other = ended(database, "other", label="m")
    desk.export(label="m")
    assert desk.segments() == once([new, other])


def test_a_job_that_begins_again_meanwhile_comes_with_its_next_end(database: Database, desk: Desk) -> None:
    jobs = [ended(database, f"{i}.wav", state="partial") for i in range(3)]

    def retried() -> None:
        desk.place.during = lambda: None
        with database.transaction() as tx:
            submission.retry(tx, [jobs[2]])

    desk.place.during = retried
    desk.export(cursor="lake")
    assert desk.segments() == once(jobs[:2])
    with database.transaction() as tx:
        end_again(tx, jobs[2], 2, DAY)  # at the very moment that was planned: in practice there is a later one
    with database.transaction() as tx:
        tx.execute(update(Job).where(Job.id == jobs[2]).values(finished_at=DAY + timedelta(minutes=1)))
    desk.export(cursor="lake")
    assert desk.segments() == once(jobs)


def test_a_file_for_each_job_has_a_name_of_its_own(database: Database, desk: Desk) -> None:
    names = ("a/x.wav", "b/x.mp3", "%2E%2E/.wav", "l" * 300 + ".wav")
    jobs = [ended(database, n) for n in names]
    for kind in ("txt", "srt", "vtt", "json"):
        assert desk.export(kind, label="l").files == 4
    found = sorted(p.name for p in desk.out.iterdir())
    assert len(found) == 16
    assert f"x.{jobs[0]}.srt" in found
    assert f"x.{jobs[1]}.txt" in found
    assert all(len(n) <= 255 for n in found)
    assert json.loads((desk.out / f"x.{jobs[0]}.json").read_text())["job"]["id"] == str(jobs[0])


def test_parquet_is_parted_by_the_day_that_jobs_ended(database: Database, desk: Desk) -> None:
    for i, days in enumerate((0, 0, 1)):
        ended(database, f"{i}", at=DAY + timedelta(days=days))
    silent = ended(database, "silent", 0, at=DAY + timedelta(days=9))
    made = desk.export("parquet", cursor="lake")
    assert made.states == {"done": 4}
    assert [p.relative_to(desk.out).as_posix() for p in sorted(desk.out.rglob("*.parquet"))] == [
        "day=2026-12-01/part-lake-00001-00001.parquet", "day=2026-12-02/part-lake-00001-00002.parquet",
    ]  # fmt: skip
    assert silent


def test_a_portion_is_so_many_words_or_jobs_or_one_job() -> None:
    assert list(portions([PartJob(1, 60_000), PartJob(2, 30_000), PartJob(3, 30_000), PartJob(4, 1)])) == [
        [1],
        [2],
        [3, 4],
    ]
    assert [len(p) for p in portions([PartJob(i, 50) for i in range(450)])] == [200, 200, 50]
    assert list(portions([])) == []
