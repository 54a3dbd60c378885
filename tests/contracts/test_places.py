"""Each file gets the first of its places that is not another recording's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import select

from chunking.errors import UsageError
from pipeline.layout import want_files
from storage import submission
from storage.database import Database
from storage.jobs import JobOptions, MediaObject
from storage.submission import Request
from storage.tables import Output


def jobs(database: Database, *names: str) -> list[int]:
    media = [MediaObject(f"s3://b/{n}", "1", 1) for n in names]
    with database.transaction() as tx:
        return [s.job for s in submission.submit_all(tx, media, JobOptions(), Request())]


def want(database: Database, *files: tuple[int, str, Sequence[str]]) -> dict[int, str]:
    with database.transaction() as tx:
        want_files(tx, [(job, kind, iter(urls)) for job, kind, urls in files])
    with database.reading() as tx:
        return {r.job_id: r.url for r in tx.execute(select(Output.job_id, Output.url))}


def test_who_comes_first_has_it_and_asked_again_all_keep_what_they_have(database: Database) -> None:
    a, b, c = jobs(database, "x.wav", "x.mp3", "x.ogg")
    files = [(j, "txt", ("s3://o/x", f"s3://o/x{i % 2}", f"s3://o/x-{i}")) for i, j in enumerate((a, b, c))]
    expected = {a: "s3://o/x", b: "s3://o/x1", c: "s3://o/x0"}
    assert want(database, *files) == expected
    assert want(database, *reversed(files)) == expected
    assert want(database) == expected


def test_another_version_of_a_recording_takes_its_place_over(database: Database) -> None:
    [a] = jobs(database, "x.wav")
    want(database, (a, "txt", ["s3://o/x"]))
    with database.transaction() as tx:
        b = submission.submit(tx, MediaObject("s3://b/x.wav", "2", 1), JobOptions())
    assert want(database, (b, "txt", ["s3://o/x", "s3://o/y"])) == {b: "s3://o/x"}


def test_no_more_places_are_made_up_than_are_needed(database: Database) -> None:
    [a] = jobs(database, "x.wav")

    def places() -> Iterator[str]:
        yield "s3://o/x"
        raise AssertionError

    with database.transaction() as tx:
        want_files(tx, [(a, "txt", places())])


def test_a_file_without_a_place_is_said(database: Database) -> None:
    a, b = jobs(database, "x.wav", "x.mp3")
    with pytest.raises(UsageError, match="has no place"):
        want(database, (a, "txt", ["s3://o/x"]), (b, "txt", ["s3://o/x"]))
