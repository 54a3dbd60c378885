"""Intake on a real S3 server: one object that cannot be looked at keeps back no other, and no event makes one up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chunking.errors import TransientError
from pipeline.events import Event
from pipeline.intake import Intake
from storage import sources
from storage.database import Database
from storage.folders import LocalFolders
from storage.jobs import JobOptions
from storage.s3 import S3Bucket, S3Options, s3_client
from storage.sources import Source, SourceSettings
from storage.tables import Arrival
from tests.faults.proxy import Call, S3Proxy


class Dropped:
    """A bucket behind a proxy, a source above it, and what the ledger has of it."""

    def __init__(self, database: Database, proxy: S3Proxy) -> None:
        self.db, self.proxy, self.bucket = database, proxy, f"in-{uuid.uuid4().hex[:8]}"
        self.client: Any = s3_client(S3Options(endpoint=proxy.endpoint, attempts=1))
        self.client.create_bucket(Bucket=self.bucket)
        self.intake = Intake(database, lambda: S3Bucket(self.client))

    def source(self, **settings: Any) -> Source:
        with self.db.transaction() as tx:
            return sources.put(tx, "in", f"s3://{self.bucket}/", SourceSettings(JobOptions(), **settings))

    def put(self, *keys: str) -> None:
        for key in keys:
            self.client.put_object(Bucket=self.bucket, Key=key, Body=key.encode())

    def told(self, key: str, etag: str | None = None, size: int | None = None) -> Event:
        return Event("created", self.bucket, (key,), etag, size)

    @property
    def taken(self) -> list[str]:
        with self.db.reading() as tx:
            rows = tx.execute(select(Arrival.url, Arrival.overtaken).order_by(Arrival.url)).all()
        return sorted(r.url.rpartition("/")[2] + "!" * r.overtaken for r in rows)


@pytest.fixture
def dropped(sqlite: Database, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dropped]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with S3Proxy(int(s3_endpoint.rpartition(":")[2])) as proxy:
        yield Dropped(sqlite, proxy)


def failing(part: str, method: str) -> Any:
    def fault(call: Call) -> bool:
        if call.method == method and part in call.path:
            call.refuse(500, "InternalError")
            return True
        return False

    return fault


def test_a_sidecar_that_cannot_be_read_holds_back_its_own_recording_alone(dropped: Dropped) -> None:
    source = dropped.source()
    dropped.put("a.wav", "b.wav", "b.json", "c.wav")
    dropped.proxy.faults.append(failing("b.json", "GET"))
    taken = dropped.intake.listing(source)
    assert (taken.new, len(taken.problems)) == (2, 1)
    assert dropped.taken == ["a.wav", "c.wav"]
    dropped.proxy.faults.clear()
    assert dropped.intake.listing(source).problems == ()
    assert dropped.taken == ["a.wav", "b.wav", "c.wav"]


def test_an_event_whose_object_cannot_be_looked_at_holds_back_no_other_and_is_to_be_told_again(
    dropped: Dropped,
) -> None:
    dropped.source()
    dropped.put("a.wav", "b.wav")
    dropped.proxy.faults.append(failing("a.wav", "HEAD"))
    with pytest.raises(TransientError):
        dropped.intake.events([dropped.told("a.wav"), dropped.told("b.wav")])
    assert dropped.taken == ["b.wav"]


def test_an_event_of_a_done_marker_is_about_its_recording_and_makes_none_up(dropped: Dropped) -> None:
    source = dropped.source(done_marker=".done")
    dropped.put("a.wav.done")
    marker = dropped.told("a.wav.done", "d41d8cd98f00b204e9800998ecf8427e", 7)
    assert dropped.intake.events([marker]).new == 0
    dropped.put("a.wav")
    assert dropped.intake.events([marker, marker]).new == 1
    assert dropped.intake.listing(source).new == 0
    assert dropped.taken == ["a.wav"]


def test_what_was_overwritten_before_anybody_looked_is_recorded_unless_it_was_too_young(dropped: Dropped) -> None:
    dropped.put("a.wav")
    events = [dropped.told("a.wav", "0" * 32, 99), dropped.told("gone.wav", "1" * 32, 5), dropped.told("no-media.pdf")]
    dropped.source(min_age_s=3600.0)
    assert dropped.intake.events(events).new == 0
    dropped.source()
    assert dropped.intake.events(events).new == 3
    assert dropped.intake.events(events).new == 0
    assert dropped.taken == ["a.wav", "a.wav!", "gone.wav!"]


def test_what_cannot_be_looked_at_in_a_folder_is_told_and_the_rest_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so who refuses is made up."""
    from os import scandir

    top = tmp_path / "in"
    for name in ("a/1.wav", "locked/2.wav", "z/3.wav"):
        (top / name).parent.mkdir(parents=True)
        (top / name).write_bytes(b"x")
    (top / "z" / "link.wav").symlink_to(tmp_path / "nowhere")

    def refusing(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refusing)
    problems: list[str] = []
    found = LocalFolders().listing(top.as_uri() + "/", problems.append)
    assert [o.media.url.rpartition("/")[2] for o in found] == ["1.wav", "3.wav"]
    assert len(problems) == 1
    assert "locked" in problems[0]
