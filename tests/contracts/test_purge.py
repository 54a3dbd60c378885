"""Purging on both databases: everything of a recording, whatever its state and whoever is at it; and what is old."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, delete, func, insert, select, update

from chunking.errors import Code, LeaseLost, UsageError
from chunking.timeline import Coverage, CoverageSpan, Plan, Segment, Span, Transcript
from pipeline import admission, retention
from pipeline.finish import Finisher, sweep
from pipeline.retention import Purger, carry_out
from pipeline.telemetry import Tally
from storage import arrivals, checkpoints, errands, jobs, leases, outputs, plans, sources, submission
from storage import search as search_module
from storage.checkpoints import Made
from storage.database import Database
from storage.destinations import Destinations
from storage.errands import Wanted
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.moments import now_plus
from storage.objects import LocalStore
from storage.outputs import WantedOutput
from storage.purge import Old, What
from storage.s3 import S3Options, S3Store, S3Writer, s3_client
from storage.search import Search, know, search
from storage.sources import Source
from storage.submission import Request
from storage.tables import Arrival, Errand, Job, Output, Recording, SegmentRow, ShardRow, Term, TranscriptRow
from tests.contracts.test_arrivals import OPTIONS, S3, record, seen
from tests.contracts.test_leases import PLAN, result

URL = f"{S3}secret.wav"
DAY_S = 86_400.0


class Killed(BaseException):
    """The process ends there."""


class Desk:
    """A database with its work store and a folder for files."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.db, self.folder = database, folder
        self.store, self.places = LocalStore(folder / "work"), Destinations()
        self.purger = Purger(database, self.store, self.places)

    def told(self, url: str = URL, said: str = "Kovacs spoke", version: str = "1", sha: str = "ab" * 32) -> int:
        """A job that has ended with a file, a label and an errand, over these bytes. Its audio in work stayed."""
        with self.db.transaction() as tx:
            media = MediaObject(url, version, 10)
            (done,) = submission.submit_all(tx, [media], JobOptions(), Request(label="l", metadata={"who": url}))
            if done.state in jobs.ENDED:
                return done.job
            outputs.want(tx, WantedOutput(done.job, "txt", self.file(done.job).as_uri()))
            errands.want_all(tx, [Wanted(done.job, "webhook", "https://example.org/")])
            (lease,) = (x for x in leases.claim(tx, Step.PREPARE, "w", limit=9) if x.id == done.job)
            if jobs.claim_content(tx, lease, sha) == "lead":
                self.put(done.job)
                plans.store_plan(tx, lease, Plan(10.0, 1, ()), [])
                tx.execute(ShardRow.__table__.insert().values(
                    job_id=done.job, position=0, channel=0, start_s=0.0, end_s=10.0, chunks=1, state="done",
                    object_key=self.key(done.job), plan={"url": url},
                ))  # fmt: skip
                (last,) = leases.claim(tx, Step.FINISH, "w")
                spoken = (Segment(0.0, 8.0, said, "en"),)
                made = Transcript(10.0, 1, "en", 0.9, spoken, (CoverageSpan(Span(0.0, 10.0), Coverage.TRANSCRIBED),))
                know(tx, [x.text for x in made.segments])
                row = checkpoints.write_transcript(tx, made, Made(sha, "d", "m", "int8", "transcribe"))
                jobs.end_job(tx, last, "done", Verdict(Code.OK), transcript_id=row, language="en")
        finisher = Finisher(self.db, self.store, Tally())
        with self.db.reading() as tx:
            due = outputs.due(tx, [done.job])
        assert finisher.deliver(due) == {}
        with self.db.transaction() as tx:
            tx.execute(update(Errand).where(Errand.job_id == done.job).values(state="done"))
        return done.job

    def key(self, job: int) -> str:
        return f"shards/{job}/00000-1.flac"

    def put(self, job: int) -> None:
        source = self.folder / "x"
        source.write_bytes(b"sound")
        self.store.put_file(self.key(job), source)

    def file(self, job: int) -> Path:
        return self.folder / "out" / f"{job}.txt"

    def age(self, *ids: int, days: float) -> None:
        with self.db.transaction() as tx:
            tx.execute(update(Job).where(Job.id.in_(ids)).values(finished_at=now_plus(-days * DAY_S)))

    def rows(self, table: type) -> int:
        with self.db.reading() as tx:
            return int(tx.execute(select(func.count()).select_from(table)).scalar_one())

    def terms(self) -> set[str]:
        with self.db.reading() as tx:
            return set(tx.execute(select(Term.term)).scalars())

    def everything(self) -> str:
        """Every value of every table."""
        found, tables = [], MetaData()
        with self.db.reading() as tx:
            tables.reflect(tx)
            for table in tables.sorted_tables:
                found += [repr(tuple(row)) for row in tx.execute(table.select())]
        return "\n".join(found)


@pytest.fixture
def desk(database: Database, tmp_path: Path) -> Desk:
    return Desk(database, tmp_path)


def test_nothing_of_a_recording_is_left(desk: Desk) -> None:
    job, newer = desk.told(), desk.told(version="2", said="Kovacs again", sha="cd" * 32)
    other = desk.told(f"{S3}secret.wav.other.wav", "spoke twice", sha="ef" * 32)
    found = desk.purger.find(URL, None, equal=True)
    assert (found.jobs, found.counts["transcripts"], len(found.files)) == ([job, newer], 2, 2)
    assert "secret.wav'" in desk.everything()
    done = desk.purger.recording(URL, None, equal=True)
    assert (done.jobs, done.files, done.left, done.stayed) == (2, 2, {}, {})
    left = desk.everything()
    assert "Kovacs" not in left
    assert "secret.wav'" not in left
    assert "secret.wav#" not in left
    assert desk.terms() == {"spoke", "twice"}
    assert list(desk.store.keys()) == [desk.key(other)]
    assert not desk.file(job).exists()
    assert desk.file(other).exists()
    with desk.db.reading() as tx:
        assert search(tx, Search("again")) == []
        assert len(search(tx, Search("twice"))) == 1


def test_sqlite_keeps_no_word_of_it_in_its_file(sqlite: Database, tmp_path: Path) -> None:
    desk = Desk(sqlite, tmp_path)
    desk.told(said="Kovacsovics spoke")
    desk.told(f"{S3}b.wav", sha="cd" * 32)
    desk.purger.recording(URL, None, equal=True)
    files = b"".join(f.read_bytes() for f in tmp_path.glob("test.db*"))
    for gone in (b"kovacsovics", b"Kovacsovics", b"secret.wav"):
        assert gone not in files


def test_equal_bytes_elsewhere_go_too_or_keep_their_transcript(desk: Desk) -> None:
    desk.told()
    copy = desk.told(f"{S3}copy.wav")
    assert desk.rows(TranscriptRow) == 1
    assert desk.purger.find(URL, None, equal=True).equal == [f"{S3}copy.wav"]
    desk.purger.recording(URL, None, equal=False)
    with desk.db.reading() as tx:
        assert jobs.view(tx, copy).transcript_id is not None
        assert tx.execute(select(Job.leader)).scalars().all() == [1]
    third = desk.told(f"{S3}third.wav")  # nothing is decoded again
    assert (desk.rows(TranscriptRow), desk.rows(Job)) == (1, 2)
    desk.purger.recording(f"{S3}copy.wav", None, equal=True)
    assert (desk.rows(Job), desk.rows(TranscriptRow), desk.rows(SegmentRow), desk.terms()) == (0, 0, 0, set())
    assert not desk.file(third).exists()


def test_by_its_bytes_other_versions_at_their_urls_stay(desk: Desk) -> None:
    first = desk.told()
    desk.told(version="2", sha="cd" * 32)
    done = desk.purger.recording(None, "cd" * 32, equal=True)
    assert (done.jobs, done.left) == (1, {})
    with desk.db.reading() as tx:
        assert jobs.view(tx, first).superseded  # though nobody knows by what any more


STEPS: dict[str, Callable[[Any, Any], None]] = {
    "preparing": lambda tx, lease: plans.store_plan(tx, lease, PLAN, ["a", "b"]),
    "claiming": lambda tx, lease: jobs.claim_content(tx, lease, "ab" * 32) and None,
    "ending": lambda tx, lease: jobs.end_job(tx, lease, "failed", Verdict(Code.INTERNAL)),
}


@pytest.mark.parametrize("step", STEPS)
def test_who_prepares_it_meanwhile_writes_nothing(desk: Desk, step: str) -> None:
    with desk.db.transaction() as tx:
        job = submission.submit(tx, MediaObject(URL, "1", 10), JobOptions())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
    desk.purger.recording(URL, None, equal=True)
    desk.put(job)  # the worker does not know yet
    with pytest.raises(LeaseLost), desk.db.transaction() as tx:
        STEPS[step](tx, lease)
    assert sweep(desk.db, desk.store) == 1
    with desk.db.transaction() as tx:  # and its number is nobody else's, nor its lease
        again = submission.submit(tx, MediaObject(f"{S3}b.wav", "1", 10), JobOptions())
        (mine,) = leases.claim(tx, Step.PREPARE, "v")
    assert (again > job, mine.id) == (True, again)
    with pytest.raises(LeaseLost), desk.db.transaction() as tx:
        STEPS[step](tx, lease)


def test_who_transcribes_it_meanwhile_writes_nothing(desk: Desk) -> None:
    with desk.db.transaction() as tx:
        job = submission.submit(tx, MediaObject(URL, "1", 10), JobOptions())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, PLAN, ["a", "b"])
        shard, _ = leases.claim(tx, Step.TRANSCRIBE, "w", limit=2)
        checkpoints.write(tx, shard, job, "w", [result(0)])
    desk.purger.recording(URL, None, equal=True)
    with desk.db.transaction() as tx:
        assert leases.renew(tx, [shard]) == set()
        assert plans.set_language(tx, job, "en", 0.5) == ("en", 0.5)
        for write in (
            lambda: checkpoints.write(tx, shard, job, "w", [result(1)]),
            lambda: plans.shard_of(tx, shard),
            lambda: leases.end(tx, shard, "done"),
        ):
            with pytest.raises(LeaseLost):
                write()
    assert desk.rows(ShardRow) == 0


def test_a_file_that_is_written_meanwhile_is_taken_back(desk: Desk) -> None:
    job = desk.told()
    with desk.db.transaction() as tx:
        assert outputs.again(tx, [job]) == 1
        (lease,) = leases.claim(tx, Step.DELIVER, "w")

    class Slow(Destinations):
        def write(self, url: str, content: bytes, content_type: str) -> None:
            desk.purger.recording(URL, None, equal=True)
            super().write(url, content, content_type)

    with pytest.raises(LeaseLost):
        Finisher(desk.db, desk.store, Tally(), Slow()).deliver_leased(lease)
    assert not desk.file(job).exists()
    job = desk.told()
    with desk.db.transaction() as tx:
        outputs.again(tx, [job])
        due = outputs.due(tx, [job])
    Finisher(desk.db, desk.store, Tally(), Slow()).deliver(due)
    assert not desk.file(job).exists()


def test_who_waited_for_it_goes_on(desk: Desk) -> None:
    with desk.db.transaction() as tx:
        for name in ("secret.wav", "b.wav"):
            submission.submit(tx, MediaObject(f"{S3}{name}", "1", 10), JobOptions())
        first, second = leases.claim(tx, Step.PREPARE, "w", limit=2)
        assert jobs.claim_content(tx, first, "ab" * 32) == "lead"
        assert jobs.claim_content(tx, second, "ab" * 32) == "wait"
    desk.purger.recording(URL, None, equal=False)
    with desk.db.reading() as tx:
        assert [(v.id, v.state) for v in jobs.views(tx, [second.id])] == [(second.id, "queued")]


@pytest.mark.parametrize("where", ["remove", "delete", "erase", "forget_unsaid", "retire"])
def test_killed_anywhere_the_same_command_ends_it(desk: Desk, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.told()
    copy = desk.told(f"{S3}copy.wav")
    desk.told(version="2", said="Kovacs again", sha="cd" * 32)
    at: Any = {"remove": desk.places, "delete": desk.store, "forget_unsaid": retention.search}.get(
        where, retention.purge
    )
    real, left = getattr(at, where), [1]

    def kill(*args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return real(*args, **kwargs)

    for calls in (0, 1):
        left[0] = calls
        monkeypatch.setattr(at, where, kill)
        with suppress(Killed):
            desk.purger.recording(URL, None, equal=True)
        monkeypatch.setattr(at, where, real)
    assert desk.purger.recording(URL, None, equal=True).left == {}
    assert (desk.rows(Job), desk.rows(Recording), desk.rows(TranscriptRow), desk.rows(Output)) == (0, 0, 0, 0)
    assert (list(desk.store.keys()), desk.terms()) == ([], set())
    assert [f for f in (desk.folder / "out").rglob("*") if f.is_file()] == []
    assert not desk.file(copy).exists()


def test_a_file_that_cannot_go_keeps_its_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = desk.told()
    monkeypatch.setattr(desk.places, "remove", lambda url: (_ for _ in ()).throw(PermissionError(13, "no right")))
    done = desk.purger.recording(URL, None, equal=True)
    assert (done.jobs, list(done.stayed), desk.rows(Job)) == (0, [desk.file(job).as_uri()], 1)


def dropped(desk: Desk, **changes: Any) -> Source:
    with desk.db.transaction() as tx:
        return sources.put(tx, "calls", S3, replace(OPTIONS, out="", **changes))


def test_the_drop_folder_does_not_take_it_again(desk: Desk) -> None:
    calls = dropped(desk)
    record(desk.db, calls, seen("secret.wav", sidecar={"metadata": {"who": "Kovacs"}}), seen("b.wav"))
    record(desk.db, calls, seen("secret.wav", "2"))
    admission.admit(desk.db)
    record(desk.db, calls, seen("secret.wav", "3"))  # held
    desk.purger.recording(URL, None, equal=True)
    left = desk.everything()
    assert "secret" not in left
    assert "Kovacs" not in left
    later = [seen("secret.wav", v, 10**9) for v in ("1", "2", "3")]
    with desk.db.reading() as tx:
        assert arrivals.news(tx, later) == []
    assert record(desk.db, calls, *later) == 0
    assert record(desk.db, calls, seen("secret.wav", "4")) == 1  # other bytes
    assert len(admission.admit(desk.db)) == 1
    assert desk.rows(Arrival) == 5


def test_what_was_moved_is_not_taken_where_it_lies_now(desk: Desk) -> None:
    calls = dropped(desk)
    record(desk.db, calls, seen("secret.wav"))
    [done] = admission.admit(desk.db)
    with desk.db.transaction() as tx:
        errands.want_all(tx, [Wanted(done.job, "move", f"{S3}done")])
        tx.execute(update(Errand).values(state="done", place=f"{S3}done/secret.wav"))
    desk.purger.recording(URL, None, equal=True)
    assert "secret" not in desk.everything()
    assert record(desk.db, calls, seen("done/secret.wav", at=10**9)) == 0


def test_by_age_work_then_results_then_all(desk: Desk) -> None:
    old, young = desk.told(), desk.told(f"{S3}b.wav", "said later", sha="cd" * 32)
    desk.age(old, days=40)
    for what, counts in ((What.WORK, (2, 2, 1)), (What.RESULTS, (2, 1, 1)), (What.RECORDINGS, (1, 1, 1))):
        asked = Old(what, 30 * DAY_S)
        assert desk.purger.counts(asked, files=False)[0]["jobs"] == 1
        desk.purger.old(asked)
        desk.purger.forget_words()
        assert (desk.rows(Job), desk.rows(TranscriptRow), desk.rows(ShardRow)) == counts
        if what is What.RESULTS:
            with desk.db.reading() as tx:
                view = jobs.view(tx, old)
            assert (view.state, view.transcript_id, view.purged_at is not None) == ("done", None, True)
        if what is not What.RECORDINGS:
            assert desk.purger.old(asked).jobs == 0
    assert desk.terms() == {"said", "later"}
    assert list(desk.store.keys()) == [desk.key(young)]
    assert desk.file(old).exists()  # not asked for


def test_what_was_purged_and_is_asked_for_again_starts_again(desk: Desk) -> None:
    job = desk.told()
    desk.age(job, days=2)
    desk.purger.old(Old(What.RESULTS, DAY_S), files=True)
    assert (desk.rows(Output), desk.file(job).exists()) == (0, False)
    copy = desk.told(f"{S3}copy.wav")  # equal bytes must not end with the transcript that is gone
    with desk.db.transaction() as tx:
        assert jobs.view(tx, copy).transcript_id is not None
        assert submission.submit(tx, MediaObject(URL, "1", 10), JobOptions()) == job
        view = jobs.view(tx, job)
    assert (view.state, view.purged_at) == ("queued", None)


def test_what_is_still_to_be_delivered_or_at_work_stays(desk: Desk) -> None:
    job, told, fine = (desk.told(f"{S3}{i}.wav", sha=f"{i}" * 64) for i in range(3))
    desk.age(job, told, fine, days=2)
    with desk.db.transaction() as tx:
        outputs.again(tx, [job])
        tx.execute(update(Errand).where(Errand.job_id == told).values(state="due"))
    asked = Old(What.RECORDINGS, DAY_S)
    assert desk.purger.counts(asked, files=True)[1] == 2
    assert desk.purger.old(asked, files=True).jobs == 1
    with desk.db.transaction() as tx:
        assert submission.existing(tx, [job, told, fine]) == {job, told}


def test_a_job_that_begins_again_meanwhile_is_left_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = desk.told()
    desk.age(job, days=2)
    real = retention.purge.object_keys

    def restart(tx: Any, ids: Any) -> Any:
        found = real(tx, ids)
        with desk.db.transaction() as other:
            submission.submit(other, MediaObject(URL, "1", 10), JobOptions(), force=True)
        return found

    monkeypatch.setattr(retention.purge, "object_keys", restart)
    assert desk.purger.old(Old(What.RECORDINGS, DAY_S)).jobs == 0
    with desk.db.reading() as tx:
        assert jobs.view(tx, job).state == "queued"
    monkeypatch.setattr(retention.purge, "retire", lambda tx, jobs: [])
    with pytest.raises(UsageError, match="started again as fast"):
        desk.purger.recording(URL, None, equal=True)


def test_a_transcript_that_a_retry_left_behind_goes_by_age(desk: Desk) -> None:
    job = desk.told()
    with desk.db.transaction() as tx:
        submission.submit(tx, MediaObject(URL, "1", 10), JobOptions(), force=True)
        tx.execute(update(TranscriptRow).values(created_at=now_plus(-2 * DAY_S)))
    desk.purger.old(Old(What.RESULTS, 3 * DAY_S))
    assert desk.rows(TranscriptRow) == 1
    desk.purger.old(Old(What.RESULTS, DAY_S))
    assert (desk.rows(TranscriptRow), desk.rows(Job), job > 0) == (0, 1, True)


def test_a_source_keeps_what_it_is_told_to_and_looks_once_an_hour(desk: Desk) -> None:
    calls = dropped(desk, keep_work_s=DAY_S, keep_results_s=3 * DAY_S)
    ids = [desk.told(f"{S3}{i}.wav", sha=f"{i}" * 64) for i in range(3)]
    with desk.db.transaction() as tx:
        for job in ids[:2]:
            view = jobs.view(tx, job)
            arrivals.record(tx, calls, [arrivals.Seen(MediaObject(view.url, view.version, 10), 1)])
            tx.execute(update(Arrival).where(Arrival.url == view.url).values(state="ended", job_id=job))
    desk.age(ids[0], ids[2], days=4)
    desk.age(ids[1], days=2)
    carry_out(desk.db, desk.store)
    assert list(desk.store.keys()) == [desk.key(ids[2])]
    with desk.db.reading() as tx:
        assert [v.transcript_id is None for v in jobs.views(tx, ids)] == [True, False, False]
    desk.age(ids[1], days=5)
    carry_out(desk.db, desk.store)
    with desk.db.reading() as tx:
        assert jobs.view(tx, ids[1]).transcript_id is not None
    with desk.db.transaction() as tx:
        tx.execute(update(sources.SourceRow).values(purged_at=now_plus(-3700)))
    carry_out(desk.db, desk.store)
    with desk.db.reading() as tx:
        assert jobs.view(tx, ids[1]).transcript_id is None


def test_in_buckets_too(sqlite: Database, tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client, bucket = s3_client(S3Options(endpoint=s3_endpoint)), f"b{uuid.uuid4().hex}"
    client.create_bucket(Bucket=bucket)
    desk = Desk(sqlite, tmp_path)
    job = desk.told()
    with sqlite.transaction() as tx:
        tx.execute(update(Output).values(url=f"s3://{bucket}/out/secret.txt"))
    for key in (f"work/shards/{job}/9-9.flac", f"work/shards/{job}9/9-9.flac", "out/secret.txt"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    places = Destinations({"s3": S3Writer(client)})
    Purger(sqlite, S3Store(f"s3://{bucket}/work", client), places).recording(URL, None, equal=True)
    left = [o["Key"] for o in client.list_objects_v2(Bucket=bucket)["Contents"]]
    assert left == [f"work/shards/{job}9/9-9.flac"]


def test_words_of_a_recording_that_is_purged_while_it_is_finished_do_not_come_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.db.transaction() as tx:
        submission.submit_all(tx, [MediaObject(URL, "1", 10)], JobOptions(), Request())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        assert jobs.claim_content(tx, lease, "ab" * 32) == "lead"
        plans.store_plan(tx, lease, Plan(10.0, 1, ()), [])
        (last,) = leases.claim(tx, Step.FINISH, "w")

    def purged_meanwhile(*_: Any) -> Transcript:
        desk.purger.recording(URL, None, equal=True)
        spoken = (Segment(0.0, 8.0, "Kovacs spoke", "en"),)
        return Transcript(10.0, 1, "en", 0.9, spoken, (CoverageSpan(Span(0.0, 10.0), Coverage.TRANSCRIBED),))

    monkeypatch.setattr("pipeline.finish.assemble", purged_meanwhile)
    Finisher(desk.db, desk.store, Tally()).finish(last)
    assert desk.terms() == set()
    assert desk.rows(TranscriptRow) == 0


def test_words_that_a_purge_forgets_while_another_recording_is_finished_are_known_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk.db.transaction() as tx:
        submission.submit_all(tx, [MediaObject(URL, "1", 10)], JobOptions(), Request())
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        assert jobs.claim_content(tx, lease, "ab" * 32) == "lead"
        plans.store_plan(tx, lease, Plan(10.0, 1, ()), [])
        (last,) = leases.claim(tx, Step.FINISH, "w")
    spoken = (Segment(0.0, 8.0, "Kovacs spoke", "en"),)
    made = Transcript(10.0, 1, "en", 0.9, spoken, (CoverageSpan(Span(0.0, 10.0), Coverage.TRANSCRIBED),))
    monkeypatch.setattr("pipeline.finish.assemble", lambda *_: made)
    real = leases.hold
    held = []

    def forgotten_meanwhile(tx: Any, lease: Any) -> None:
        """The end of another recording's purge comes between the words' transaction and the transcript's."""
        held.append(lease)
        if len(held) == 2 and not desk.db.is_sqlite:  # whose one writer would wait for itself
            assert search_module.forget_unsaid(desk.db) == 2
        real(tx, lease)

    monkeypatch.setattr(leases, "hold", forgotten_meanwhile)
    Finisher(desk.db, desk.store, Tally()).finish(last)
    assert len(held) == 2
    assert desk.terms() == {"kovacs", "spoke"}
    assert desk.rows(SegmentRow) == 1


def test_a_recording_that_another_submitter_inserts_and_a_purge_deletes_is_submitted_all_the_same(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = submission._ids, []
    media = MediaObject("s3://b/1.wav", "1", 10)

    def ids(tx: Any, identities: Any) -> dict[str, int]:
        calls.append(1)
        wanted = list(identities)
        if len(calls) == 2:
            with postgres.transaction() as other:
                other.execute(delete(Recording))
        found = real(tx, wanted)
        if len(calls) == 1:
            with postgres.transaction() as other:
                row = {"identity": media.identity, "url": media.url, "version": "1", "size_bytes": 10}
                other.execute(insert(Recording).values(row))
        return found

    monkeypatch.setattr(submission, "_ids", ids)
    (done,) = postgres.again(lambda tx: submission.submit_all(tx, [media], JobOptions(), Request()))
    assert done.job > 0
    assert len(calls) > 2
