"""Search, the same over both databases: by words, stems, phrases, without, in any script; by label, language and time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from chunking.errors import Code, UsageError
from chunking.timeline import Plan, Segment, Transcript
from storage import checkpoints, jobs, leases, plans, submission
from storage.checkpoints import Made
from storage.database import Database
from storage.jobs import JobOptions, MediaObject, Verdict
from storage.leases import Step
from storage.search import Hit, Search, fts5, know, search
from storage.submission import Request


def told(database: Database, name: str, said: Sequence[str], language: str = "en", label: str | None = None) -> int:
    """A job that has ended with these sentences, ten seconds each."""
    segments = tuple(Segment(10.0 * i, 10.0 * i + 8, s, language, 0) for i, s in enumerate(said))
    made = Transcript(10.0 * len(said), 1, language, 0.9, segments, ())
    with database.transaction() as tx:
        submission.submit_all(tx, [MediaObject(f"s3://calls/{name}", "1", 10)], JobOptions(), Request(label=label))
        (lease,) = leases.claim(tx, Step.PREPARE, "w")
        plans.store_plan(tx, lease, Plan(made.duration, 1, ()), [])
        (last,) = leases.claim(tx, Step.FINISH, "w")
        know(tx, said)
        row = checkpoints.write_transcript(tx, made, Made(name, "d", "m", "int8", "transcribe"))
        jobs.end_job(tx, last, "done", Verdict(Code.OK), transcript_id=row, language=language)
    return lease.id


def found(database: Database, query: str, **more: Any) -> list[Hit]:
    with database.reading() as tx:
        return search(tx, Search(query, **more))


def texts(database: Database, query: str, **more: Any) -> set[str]:
    return {hit.snippet.replace("**", "") for hit in found(database, query, **more)}


FOX = "The quick brown fox jumps over the lazy dog."
CALLS = "She had called the insurance twice."
BROWN = "Mister Brown is a quick reader."


@pytest.fixture
def spoken(database: Database) -> Database:
    told(database, "fox.wav", [FOX, CALLS], label="animals")
    told(database, "brown.wav", [BROWN, "Nothing else was said."], label="people")
    told(database, "katze.wav", ["Die Katzen schliefen auf dem Sofa."], language="de", label="animals")
    told(database, "tian.wav", ["今天天气很好,我们去公园。"], language="zh")
    return database


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("quick brown", {FOX, BROWN}),
        ('"quick brown"', {FOX}),
        ("quick -fox", {BROWN}),
        ("fox OR insurance", {FOX, CALLS}),
        ("calling", {CALLS}),
        ("FOX", {FOX}),
        ("公园", {"今天天气很好,我们去公园。"}),
        ("天气很", {"今天天气很好,我们去公园。"}),
        ("公%园", set()),
        ("zebra", set()),
    ],
)
def test_what_people_write(spoken: Database, query: str, expected: set[str]) -> None:
    assert texts(spoken, query) == expected


def test_a_hit_says_where_it_is_and_what_was_found(spoken: Database) -> None:
    (hit,) = found(spoken, "insurance twice")
    assert (hit.url, hit.position, hit.start_s, hit.end_s, hit.language) == ("s3://calls/fox.wav", 1, 10.0, 18.0, "en")
    assert hit.snippet == "She had called the **insurance** **twice**."
    assert found(spoken, "公园")[0].snippet == "今天天气很好,我们去**公园**。"


def test_stems_are_those_of_each_segments_language(postgres: Database) -> None:
    told(postgres, "a.wav", ["Die Katzen schliefen auf dem Sofa."], language="de")
    told(postgres, "b.wav", ["They were sleeping on the sofas."])
    assert texts(postgres, "Katze") == {"Die Katzen schliefen auf dem Sofa."}
    assert len(texts(postgres, "sofa")) == 2
    assert texts(postgres, "sofa", language="de") == {"Die Katzen schliefen auf dem Sofa."}


def test_only_where_it_is_asked_for(spoken: Database) -> None:
    assert texts(spoken, "quick", label="people") == {BROWN}
    assert texts(spoken, "quick", label="nobody") == set()
    assert texts(spoken, "quick", language="de") == set()
    now = datetime.now(UTC)
    assert texts(spoken, "quick", since=now - timedelta(hours=1)) == {FOX, BROWN}
    assert texts(spoken, "quick", since=now + timedelta(hours=1)) == set()
    assert len(found(spoken, "quick", most=1)) == 1


def test_misspelt_names_are_found(spoken: Database) -> None:
    assert texts(spoken, "inshurance") == set()
    assert CALLS in texts(spoken, "inshurance", fuzzy=True)
    assert FOX not in texts(spoken, "inshurance", fuzzy=True)


def test_two_jobs_over_equal_bytes_are_one_hit_with_the_job_that_is_meant(database: Database) -> None:
    first = told(database, "a.wav", [FOX])
    second = told(database, "b.wav", ["Something else."], label="mine")
    with database.transaction() as tx:
        tx.execute(
            text(
                f"UPDATE jobs SET transcript_id = (SELECT transcript_id FROM jobs WHERE id = {first}) WHERE id = {second}"
            )
        )
    assert [hit.job for hit in found(database, "fox")] == [first]
    assert [hit.job for hit in found(database, "fox", label="mine")] == [second]


def test_what_is_deleted_or_changed_is_not_found_any_more(spoken: Database) -> None:
    with spoken.transaction() as tx:
        tx.execute(text("UPDATE segments SET text = 'The slow red fox.' WHERE text LIKE '%fox%'"))
        tx.execute(text("DELETE FROM segments WHERE text LIKE '%insurance%'"))
    assert texts(spoken, "fox") == {"The slow red fox."}
    assert texts(spoken, "lazy") == set()
    assert texts(spoken, "insurance") == set()


def test_a_query_without_a_word_is_refused(database: Database) -> None:
    for nothing in ("", "  ", "-", '""', "!?"):
        with pytest.raises(UsageError):
            found(database, nothing)


@given(
    query=st.text(max_size=40)
    | st.lists(st.sampled_from(['"', "OR", "-", "(", "NEAR(", "a", "*", ":", "^", "b c"])).map(" ".join)
)
def test_no_query_is_an_error_to_fts5(query: str) -> None:
    import sqlite3

    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
        if made := fts5(query.replace("\0", "")):
            db.execute("SELECT * FROM t WHERE t MATCH ?", (made,)).fetchall()


@pytest.mark.parametrize(
    "query", ['"', "a OR", "OR OR", "-a", "a ((b", "a:b", "%", "a' --", "NEAR(a b)", "a*", "\\", "**a**"]
)
def test_odd_queries_end_well(spoken: Database, query: str) -> None:
    try:
        found(spoken, query)
        found(spoken, query, fuzzy=True)
    except UsageError:
        assert not any(c.isalnum() for c in query)
