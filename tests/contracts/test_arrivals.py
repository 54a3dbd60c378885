"""The ledger of the drop folders and admission, on both databases: each object once, whatever is told and by whom."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, func, select, text, update

from chunking.errors import Code
from pipeline import admission
from storage import arrivals, errands, jobs, outputs, sources
from storage.arrivals import Seen
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step, claim
from storage.sources import Source, SourceSettings, owner
from storage.submission import Submitted
from storage.tables import Arrival, Errand, Job, Output, Recording, SourceRow

S3 = "s3://bucket/"
OPTIONS = SourceSettings(JobOptions(language="en"), out="s3://bucket/out", formats=("txt",), label="")


def source(db: Database, name: str = "calls", url: str = S3, **changes: object) -> Source:
    with db.transaction() as tx:
        return sources.put(tx, name, url, replace(OPTIONS, **changes))  # type: ignore[arg-type]


def seen(key: object, version: str = "1", at: int = 100, **more: object) -> Seen:
    return Seen(MediaObject(f"{S3}{key}", version, 16_000), at, **more)  # type: ignore[arg-type]


def record(db: Database, at: Source, *what: Seen) -> int:
    with db.transaction() as tx:
        return arrivals.record(tx, at, what)


def end(db: Database, job: int, state: str = "done", code: Code = Code.OK, **values: object) -> None:
    """As a worker would."""
    with db.transaction() as tx:
        [lease] = [x for x in claim(tx, Step.PREPARE, "w", limit=1000) if x.id == job]
        jobs.end_job(tx, lease, state, Verdict(code), **values)


def states(db: Database) -> dict[str, str]:
    with db.transaction() as tx:
        for at in sources.everything(tx):
            arrivals.note_ends(tx, at.id)
        rows = tx.execute(select(Arrival.url, Arrival.version, Arrival.state))
        return {f"{r.url.removeprefix(S3)}#{r.version}": r.state for r in rows}


def queued(db: Database, at: Source) -> int:
    with db.transaction() as tx:
        arrivals.note_ends(tx, at.id)
        return arrivals.in_queue(tx, at.id)


def test_an_object_is_news_once(database: Database) -> None:
    calls, others = source(database), source(database, "others", "s3://bucket/x/")
    assert record(database, calls, seen("a"), seen("b")) == 2
    assert record(database, calls, seen("b"), seen("c"), seen("c")) == 1
    assert record(database, others, seen("a")) == 0
    with database.reading() as tx:
        assert [s.media.url for s in arrivals.news(tx, [seen("a"), seen("d"), seen("a", "2")])] == [S3 + "d", S3 + "a"]


def test_what_we_delivered_is_no_news(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav"))
    admission.admit(database)
    with database.reading() as tx:
        assert arrivals.news(tx, [seen("out/a.txt"), seen("out/b.txt")]) == [seen("out/b.txt")]


def test_it_becomes_one_job_with_its_files(database: Database) -> None:
    calls = source(database, label="{source}-{date}", priority=3, formats=("txt", "srt"))
    record(database, calls, seen("d/a.wav", at=86_400 * 365))
    [done] = admission.admit(database)
    assert admission.admit(database) == []
    with database.reading() as tx:
        view = jobs.view(tx, done.job)
        labels = tx.execute(text("SELECT label FROM labels")).scalars().all()
        files = [o.url for o in outputs.of_jobs(tx, [done.job])]
    assert (view.url, view.priority, view.options.language) == (S3 + "d/a.wav", 3, "en")
    assert labels == ["calls-1971-01-01"]
    assert sorted(files) == ["s3://bucket/out/d/a.srt", "s3://bucket/out/d/a.txt"]
    assert states(database) == {"d/a.wav#1": "submitted"}
    end(database, done.job)
    assert states(database) == {"d/a.wav#1": "ended"}


def test_a_sidecar_has_the_last_word(database: Database) -> None:
    said = {
        "label": "mine",
        "priority": 9,
        "metadata": {"team": "blue"},
        "options": {"language": "de"},
        "formats": ["vtt"],
    }
    calls = source(database)
    record(database, calls, seen("a.wav", sidecar=said), seen("b.wav", note="no JSON"))
    made = {jobs_url: d for d in admission.admit(database) for jobs_url in [_url(database, d.job)]}
    with database.reading() as tx:
        view = jobs.view(tx, made[S3 + "a.wav"].job)
        assert (view.priority, view.meta, view.options.language) == (9, {"team": "blue"}, "de")
        assert [o.format for o in outputs.of_jobs(tx, [view.id])] == ["vtt"]
        other = jobs.view(tx, made[S3 + "b.wav"].job)
        assert (other.options.language, arrivals.of_job(tx, other.id)[0].note) == ("en", "no JSON")


def _url(db: Database, job: int) -> str:
    with db.reading() as tx:
        return jobs.view(tx, job).url


def test_written_again_with_the_same_bytes_it_is_delivered_again_and_not_decoded(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav", at=100))
    [first] = admission.admit(database)
    end(database, first.job)
    with database.transaction() as tx:
        tx.execute(update(Output).values(state="written"))
    assert record(database, calls, seen("a.wav", at=100), seen("a.wav", at=99)) == 0
    assert record(database, calls, seen("a.wav", at=200)) == 1
    [again] = admission.admit(database)
    assert (again.job, again.state, again.known) == (first.job, "done", True)
    with database.reading() as tx:
        assert tx.execute(select(Output.state)).scalars().all() == ["due"]
    assert states(database) == {"a.wav#1": "ended"}


def test_one_that_was_gone_and_came_back_is_tried_again(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav", at=100))
    [first] = admission.admit(database)
    end(database, first.job, "rejected", Code.GONE)
    record(database, calls, seen("a.wav", at=200))
    [again] = admission.admit(database)
    assert (again.job, again.state) == (first.job, "queued")
    assert states(database) == {"a.wav#1": "submitted"}


def current(db: Database) -> dict[str, list[str]]:
    """By URL the versions that are not superseded."""
    found: dict[str, list[str]] = {}
    with db.reading() as tx:
        for r in tx.execute(select(Recording.url, Recording.version).where(Recording.superseded_by.is_(None))):
            found.setdefault(r.url.removeprefix(S3), []).append(r.version)
    return found


def place_of(db: Database, url: str = "s3://bucket/out/a.txt") -> int:
    with db.reading() as tx:
        return tx.execute(select(Output.job_id).where(Output.url == url)).scalar_one()


def test_overwritten_it_is_another_recording_and_the_old_transcript_stays(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav", "1", 100))
    [old] = admission.admit(database)
    end(database, old.job)
    record(database, calls, seen("a.wav", "2", 200))
    [new] = admission.admit(database)
    assert new.job != old.job
    assert (current(database), place_of(database)) == ({"a.wav": ["2"]}, new.job)
    with database.reading() as tx:
        assert [jobs.view(tx, d.job).superseded for d in (old, new)] == [True, False]
        assert jobs.view(tx, old.job).state == "done"
    record(database, calls, seen("a.wav", "1", 300))  # and back
    [back] = admission.admit(database)
    assert (back.job, current(database), place_of(database)) == (old.job, {"a.wav": ["1"]}, old.job)


def test_both_versions_admitted_together_leave_the_later_one_current(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav", "1", 100))
    record(database, calls, seen("a.wav", "2", 200))
    done = admission.admit(database)
    assert len(done) == 2
    assert (current(database), place_of(database)) == ({"a.wav": ["2"]}, done[1].job)


def test_what_was_overtaken_before_anybody_saw_it_is_a_job_and_takes_nobodys_place(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a.wav", "2", 200))
    [new] = admission.admit(database)
    record(database, calls, seen("a.wav", "1", 0, overtaken=True))
    [late] = admission.admit(database)
    assert late.job != new.job
    assert (current(database), place_of(database)) == ({"a.wav": ["2"]}, new.job)


def test_a_million_of_one_do_not_starve_another(database: Database) -> None:
    big, small = source(database, at_once=40), source(database, "small", "s3://bucket/small/", at_once=40)
    record(database, big, *(seen(i) for i in range(2000)))
    assert len(admission.admit(database)) == 40
    record(database, small, *(seen(f"small/{i}") for i in range(5)))
    assert len(admission.admit(database)) == 5
    assert (queued(database, big), queued(database, small)) == (40, 5)
    with database.reading() as tx:
        first = tx.execute(select(Job.id).order_by(Job.id).limit(1)).scalar_one()
    end(database, first)
    assert [d.known for d in admission.admit(database)] == [False]
    assert queued(database, big) == 40


def test_a_cancelled_job_makes_room(database: Database) -> None:
    from storage import submission

    calls = source(database, at_once=1)
    record(database, calls, seen("a"), seen("b"))
    [first] = admission.admit(database)
    assert admission.admit(database) == []
    with database.transaction() as tx:
        submission.cancel(tx, [first.job])
    assert len(admission.admit(database)) == 1


def test_the_budget_of_a_day(database: Database) -> None:
    """16 000 bytes are taken for a second until it is known better."""
    calls = source(database, daily_hours=3 / 3600)
    record(database, calls, *(seen(i) for i in range(10)))
    done = admission.admit(database)
    assert len(done) == 3
    end(database, done[0].job, "rejected", Code.EMPTY)  # costs nothing
    [one] = admission.admit(database)
    end(database, one.job, duration_s=2.5)  # three estimated, this one known: no room for more
    assert admission.admit(database) == []
    with database.transaction() as tx:  # the next day
        day = "datetime(admitted_at, '-1 day')" if database.is_sqlite else "admitted_at - interval '1 day'"
        tx.execute(text(f"UPDATE arrivals SET admitted_at = {day} WHERE admitted_at IS NOT NULL"))
    assert len(admission.admit(database)) == 1  # 2.5 s are what 16 000 bytes are by now


def test_the_first_of_a_day_is_taken_whatever_its_length(database: Database) -> None:
    calls = source(database, daily_hours=0.5 / 3600)
    record(database, calls, seen("a"), seen("b"))
    assert len(admission.admit(database)) == 1
    assert admission.admit(database) == []


def test_a_paused_source_holds_and_a_removed_one_too(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a"))
    with database.transaction() as tx:
        assert sources.set_state(tx, "calls", "paused")
    assert admission.admit(database) == []
    with database.transaction() as tx:
        assert sources.set_state(tx, "calls", "active")
    assert len(admission.admit(database)) == 1
    with database.transaction() as tx:
        assert sources.set_state(tx, "calls", "removed")
        assert not sources.set_state(tx, "calls", "active")
        assert sources.at(tx, S3) is None


def test_one_lists_at_a_time_and_a_refusal_rests_longer_each_time(database: Database) -> None:
    calls = source(database)
    with database.transaction() as tx:
        assert sources.claim_listing(tx, calls, 30)
        assert not sources.claim_listing(tx, calls, 30)
        assert sources.claim_listing(tx, calls, 0)
        assert [sources.refused(tx, calls, "no") for _ in range(3)] == [5, 10, 20]
        assert not sources.claim_listing(tx, calls, 0)
        [stands] = sources.named(tx, ["calls"])
        assert stands.problem == "no"
        sources.listed(tx, calls)
        assert sources.claim_listing(tx, calls, 0)
        assert sources.refused(tx, calls, "no") == 5
    assert sources.rest_s(1000) == sources.LONGEST_REST_S


def test_an_object_belongs_to_the_most_particular_source() -> None:
    a, b = (Source(i, n, u, "active", OPTIONS) for i, n, u in ((1, "a", S3), (2, "b", S3 + "b/")))
    assert owner([a, b], S3 + "b/x") == owner([b, a], S3 + "b/x") == b
    assert owner([a, b], S3 + "bx") == a
    assert owner([b], S3 + "x") is None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_told_in_whatever_order_each_identity_is_one_job(database: Database, data: st.DataObject) -> None:
    """Writes to a bucket, told of late, twice, shuffled, by stale listings, with admission in between."""
    with database.transaction() as tx:
        for table in ("labels", "outputs", "arrivals", "jobs", "recordings", "sources"):
            tx.execute(
                text("UPDATE recordings SET superseded_by = NULL") if table == "recordings" else text("SELECT 1")
            )
            tx.execute(text(f"DELETE FROM {table}"))
    calls = source(database, at_once=data.draw(st.integers(1, 5)))
    writes = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123")), min_size=1, max_size=12))
    told = [seen(f"{k}.wav", v, 100 + n) for n, (k, v) in enumerate(writes)]
    last = {k: (v, n) for n, (k, v) in enumerate(writes)}
    for _ in range(data.draw(st.integers(1, 6))):
        some = data.draw(st.lists(st.sampled_from(told), max_size=8))
        news = [
            s
            if last[s.media.url[len(S3)]] == (s.media.version, s.modified_s - 100)
            else replace(s, modified_s=0, overtaken=True)
            for s in some
        ]
        record(database, calls, *news)
        if data.draw(st.booleans()):
            admission.admit(database, rounds=1)
            _end_some(database, data.draw(st.integers(0, 3)))
    now = [seen(f"{k}.wav", v, 100 + n) for k, (v, n) in last.items()]
    record(database, calls, *now)  # a listing, in the end
    _end_all(database)
    while admission.admit(database):
        _end_all(database)
    with database.reading() as tx:
        rows = tx.execute(select(Arrival.identity, Arrival.job_id)).all()
        count = tx.execute(select(func.count()).select_from(Job)).scalar_one()
    assert len({r.job_id for r in rows}) == len(rows) == count
    assert {s.media.identity for s in now} <= {r.identity for r in rows}
    assert current(database) == {f"{k}.wav": [v] for k, (v, _) in last.items()}


def _end_some(db: Database, count: int) -> None:
    with db.transaction() as tx:
        for lease in claim(tx, Step.PREPARE, "w", limit=count) if count else ():
            jobs.end_job(tx, lease, "done", Verdict(Code.OK), duration_s=1.0)


def _end_all(db: Database) -> None:
    _end_some(db, 1000)


def test_ingesters_that_race_record_and_admit_each_object_once(postgres: Database) -> None:
    calls = source(postgres, at_once=150)
    everything = [seen(f"{i}.wav") for i in range(600)]
    wrong: list[BaseException] = []

    def ingester(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(6):
                some = chance.sample(everything, 200)
                postgres.again(lambda tx: arrivals.record(tx, calls, some))  # noqa: B023
                admission.admit(postgres)
                assert queued(postgres, calls) <= 150
                _end_some(postgres, 40)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=ingester, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert wrong == []
    record(postgres, calls, *everything)
    while admission.admit(postgres):
        _end_all(postgres)
    with postgres.reading() as tx:
        assert tx.execute(select(func.count()).select_from(Arrival)).scalar_one() == 600
        assert tx.execute(select(func.count(Job.id.distinct())).select_from(Job)).scalar_one() == 600
        assert tx.execute(select(func.count(Arrival.job_id.distinct()))).scalar_one() == 600


def test_a_key_of_1024_bytes_of_text_that_no_index_takes_whole(postgres: Database) -> None:
    from storage.urls import s3_url

    chance = random.Random(1)
    key = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(341))
    calls = source(postgres, url="s3://bucket/")
    media = MediaObject(s3_url("bucket", key), "e" * 32 + "-16000", 16_000)
    assert len(media.url) > 2704
    assert record(postgres, calls, Seen(media, 1)) == 1
    [done] = admission.admit(postgres)
    assert _url(postgres, done.job) == media.url
    assert record(postgres, calls, Seen(media, 1)) == 0


def test_one_round_takes_a_transactions_worth(postgres: Database) -> None:
    """As a reconciler does, which has other things to do."""
    calls = source(postgres, at_once=10_000)
    record(postgres, calls, *(seen(i) for i in range(1200)))
    assert len(admission.admit(postgres, rounds=1)) == admission.AT_ONCE
    assert len(admission.admit(postgres)) == 700


def test_of_two_versions_that_are_held_the_later_one_is_current_whichever_was_seen_first(database: Database) -> None:
    """A, B, A again, while the source holds them: A lies there, its number is the lower one."""
    calls = source(database)
    record(database, calls, seen("a.wav", "A", 100))
    record(database, calls, seen("a.wav", "B", 200))
    record(database, calls, seen("a.wav", "A", 300))
    done = admission.admit(database)
    assert current(database) == {"a.wav": ["A"]}
    assert place_of(database) == done[1].job


def make_older(db: Database) -> None:
    """As if ten minutes had gone by since jobs ended and recordings came."""
    for table, column in (("jobs", "finished_at"), ("recordings", "created_at")):
        ago = f"datetime({column}, '-10 minutes')" if db.is_sqlite else f"{column} - interval '10 minutes'"
        with db.transaction() as tx:
            tx.execute(text(f"UPDATE {table} SET {column} = {ago}"))


def test_one_that_was_gone_and_lies_there_again_with_its_old_time_is_tried_again(database: Database) -> None:
    """A version undeleted, a file moved away and back. But a listing may be older than the end of the job."""
    calls = source(database)
    record(database, calls, seen("a.wav", "1", 100))
    [first] = admission.admit(database)
    end(database, first.job, "rejected", Code.GONE)
    assert record(database, calls, seen("a.wav", "1", 100)) == 0
    make_older(database)
    assert record(database, calls, seen("a.wav", "1", 100, overtaken=True)) == 0  # an event alone
    assert record(database, calls, seen("a.wav", "1", 100)) == 1
    assert [(d.job, d.state) for d in admission.admit(database)] == [(first.job, "queued")]


def test_an_older_version_that_lies_there_again_is_current_again(database: Database) -> None:
    calls = source(database)
    for version, at in (("1", 100), ("2", 200)):
        record(database, calls, seen("a.wav", version, at))
        end(database, admission.admit(database)[0].job)
    assert record(database, calls, seen("a.wav", "1", 100)) == 0
    make_older(database)
    assert record(database, calls, seen("a.wav", "1", 100)) == 1
    admission.admit(database)
    assert current(database) == {"a.wav": ["1"]}
    assert record(database, calls, seen("a.wav", "1", 100)) == 0


def test_what_is_held_at_a_removed_source_goes_to_whom_it_belongs_now(database: Database) -> None:
    old = source(database, "old")
    record(database, old, seen("a"))
    with database.transaction() as tx:
        sources.set_state(tx, "old", "removed")
    assert admission.admit(database) == []
    new = source(database, "new")
    assert record(database, new, seen("a")) == 1
    [done] = admission.admit(database)
    with database.transaction() as tx:
        assert [o.source for o in arrivals.of_job(tx, done.job)] == ["new"]
        sources.set_state(tx, "new", "removed")
    third = source(database, "third")
    assert record(database, third, seen("a", at=101)) == 1  # written again: whoever lists it has it
    assert len(admission.admit(database)) == 1


def test_one_that_could_not_be_looked_at_is_taken_once(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a", at=0))
    assert len(admission.admit(database)) == 1
    assert record(database, calls, seen("a", at=100)) == 0
    assert record(database, calls, seen("a", at=101)) == 1


def test_what_was_put_away_is_no_news_whatever_the_source_says_by_now(database: Database) -> None:
    calls = source(database)
    record(database, calls, seen("a"))
    [done] = admission.admit(database)
    with database.transaction() as tx:
        errands.want_all(tx, [errands.Wanted(done.job, "move", "s3://bucket/away")])
        tx.execute(update(Errand).values(place=S3 + "away/a"))
        assert arrivals.news(tx, [seen("away/a"), seen("away/b")]) == [seen("away/b")]


def test_a_source_that_cannot_be_admitted_stands_in_nobodys_way(database: Database) -> None:
    bad, good = source(database, "a-bad"), source(database, "good", "s3://bucket/good/")
    record(database, bad, seen("x"))
    record(database, good, seen("good/x"))
    with database.transaction() as tx:
        tx.execute(update(SourceRow).where(SourceRow.name == "a-bad").values(settings={"job": {}, "key": "{nonsense}"}))
        tx.execute(update(Arrival).where(Arrival.url == S3 + "x").values(sidecar={"options": {"colour": "blue"}}))
    assert [_url(database, d.job) for d in admission.admit(database)] == [S3 + "good/x"]
    with database.reading() as tx:
        assert "cannot be admitted" in (sources.by_id(tx, [bad.id])[0].problem or "")


def test_the_users_sidecar_is_never_written_over(database: Database) -> None:
    calls = source(database, out="s3://bucket", formats=("json",))
    record(database, calls, seen("a.wav", sidecar={"label": "x"}), seen("b.wav"), seen("c.wav", note="no JSON"))
    admission.admit(database)
    with database.reading() as tx:
        files = sorted(tx.execute(select(Output.url)).scalars())
    assert S3 + "b.json" in files
    assert not {S3 + "a.json", S3 + "a.wav.json", S3 + "c.json", S3 + "c.wav.json"} & set(files)
    assert len(files) == 3


def test_what_was_taken_today_stays_in_the_budget_when_it_is_written_again(database: Database) -> None:
    calls = source(database, daily_hours=2 / 3600)
    record(database, calls, seen("a"), seen("b"), seen("c"))
    done = admission.admit(database)
    assert len(done) == 2
    _end_all(database)  # each had a second
    record(database, calls, seen("a", at=200), seen("b", at=200))
    admission.admit(database)
    assert states(database)["c#1"] == "held"


def test_admission_ends_while_jobs_end_as_fast_as_they_come(database: Database) -> None:
    calls = source(database, at_once=10)
    record(database, calls, *(seen(i) for i in range(100)))
    real = admission.admit_some

    def ending(tx: Connection, at: int) -> list[Submitted]:
        tx.execute(update(Job).values(state="done"))
        return real(tx, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "admit_some", ending)
        assert len(admission.admit(database)) == 10


def test_noting_ends_reads_the_ledger_once(postgres: Database) -> None:
    """With itself joined to itself, and statistics of before a burst, Postgres took seconds for some thousands."""
    calls = source(postgres)
    said: list[tuple[str, object]] = []

    def hear(_c: object, _k: object, statement: str, parameters: object, *_: object) -> None:
        said.append((statement, parameters))

    event.listen(postgres.engine, "before_cursor_execute", hear)
    with postgres.transaction() as tx:
        arrivals.note_ends(tx, calls.id)
        [(statement, parameters)] = said
        plan = "\n".join(tx.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())  # type: ignore[arg-type]
    assert len(re.findall(r"(?:Scan|Scan using \S+) on arrivals", plan)) == 1, plan
