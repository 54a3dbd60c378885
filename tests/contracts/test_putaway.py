"""Recordings are put away if they are what was transcribed, and nothing else is ever touched. A real S3, real folders."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, Protocol

import pytest

from chunking.errors import Code, PermanentError, Rejected, TransientError, UsageError
from storage.jobs import MediaObject
from storage.putaway import (
    GONE,
    OVERWRITTEN,
    THERE_ALREADY,
    After,
    LocalShelf,
    PlaceTaken,
    Shelf,
    Shelves,
    after_of,
    places,
)
from storage.s3 import S3Bucket, S3Options, s3_client
from storage.s3_putaway import MARK, S3Shelf
from storage.urls import bucket_and_key, file_version, s3_url

NAME = "Ä b+c %20?.wav"


class Ground(Protocol):
    """Somewhere that recordings lie."""

    shelf: Shelf

    def put(self, name: str, content: bytes) -> MediaObject: ...
    def url(self, name: str) -> str: ...
    def read(self, url: str) -> bytes | None: ...


class Bucket:
    def __init__(self, client: Any) -> None:
        self.client, self.bucket = client, f"away-{uuid.uuid4().hex[:8]}"
        client.create_bucket(Bucket=self.bucket)
        self.shelf = S3Shelf(client)

    def put(self, name: str, content: bytes) -> MediaObject:
        self.client.put_object(
            Bucket=self.bucket, Key=name, Body=content, ContentType="audio/x-own", Metadata={"who": "me"}
        )
        return S3Bucket(self.client).head(self.url(name)).media

    def url(self, name: str) -> str:
        return s3_url(self.bucket, name)

    def read(self, url: str) -> bytes | None:
        bucket, key = bucket_and_key(url)
        try:
            return bytes(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())
        except self.client.exceptions.NoSuchKey:
            return None


class Folder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.shelf = folder, LocalShelf()

    def put(self, name: str, content: bytes) -> MediaObject:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.stat().st_mtime_ns if path.exists() else 0
        path.write_bytes(content)
        if path.stat().st_mtime_ns == there:
            os.utime(path, ns=(there + 1, there + 1))
        return MediaObject(path.as_uri(), file_version(path), len(content))

    def url(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def read(self, url: str) -> bytes | None:
        from storage.objects import path_of

        return path_of(url).read_bytes() if path_of(url).exists() else None


@pytest.fixture
def client(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return s3_client(S3Options(s3_endpoint))


@pytest.fixture(params=["s3", "folder"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Bucket(request.getfixturevalue("client")) if request.param == "s3" else Folder(tmp_path)


class Killed(BaseException):
    """As a SIGKILL: nothing runs after it."""


def test_a_recording_is_moved_with_all_that_it_says_of_itself(ground: Ground) -> None:
    media, place = ground.put(f"in/{NAME}", b"sound"), ground.url(f"done/{NAME}")
    assert ground.shelf.move(media, place) == ""
    assert (ground.read(media.url), ground.read(place)) == (None, b"sound")
    assert ground.shelf.move(media, place) == ""  # told twice
    if isinstance(ground, Bucket):
        head = ground.client.head_object(Bucket=ground.bucket, Key=f"done/{NAME}")
        assert head["ContentType"] == "audio/x-own"
        assert head["Metadata"].pop(MARK)
        assert head["Metadata"] == {"who": "me"}


def test_what_was_overwritten_or_is_gone_is_left_alone(ground: Ground) -> None:
    old = ground.put("in/a.wav", b"sound")
    ground.put("in/a.wav", b"other")
    place = ground.url("done/a.wav")
    assert ground.shelf.move(old, place) == ground.shelf.delete(old) == OVERWRITTEN
    assert (ground.read(old.url), ground.read(place)) == (b"other", None)
    missing = MediaObject(ground.url("in/none.wav"), old.version, 5)
    assert ground.shelf.move(missing, place) == ground.shelf.delete(missing) == GONE
    assert ground.read(place) is None


def test_it_is_deleted_and_deleted_again(ground: Ground) -> None:
    media = ground.put("in/a.wav", b"sound")
    assert ground.shelf.delete(media) == ""
    assert ground.read(media.url) is None
    assert ground.shelf.delete(media) == GONE


def test_another_file_of_that_name_is_never_replaced(ground: Ground) -> None:
    media = ground.put("in/a.wav", b"sound")
    other = ground.put("done/a.wav", b"precious, of another length")
    for _ in range(2):
        with pytest.raises(PlaceTaken):
            ground.shelf.move(media, other.url)
    assert (ground.read(media.url), ground.read(other.url)) == (b"sound", b"precious, of another length")
    same = ground.put("done/b.wav", b"sound")
    assert ground.shelf.move(media, same.url) == ""  # the same bytes
    assert ground.read(media.url) is None


def test_a_move_to_where_it_lies_loses_nothing(ground: Ground) -> None:
    media = ground.put("in/a.wav", b"sound")
    assert ground.shelf.move(media, media.url) == THERE_ALREADY
    assert ground.read(media.url) == b"sound"


def test_a_kill_between_copy_and_delete_is_made_good(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    media, place = ground.put("in/a.wav", b"sound"), ground.url("done/a.wav")

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as m:
        m.setattr("storage.putaway._unlink", die)
        m.setattr("storage.s3_putaway.delete_version", die)
        with pytest.raises(Killed):
            ground.shelf.move(media, place)
    assert (ground.read(media.url), ground.read(place)) == (b"sound", b"sound")
    assert ground.shelf.move(media, place) == ""
    assert (ground.read(media.url), ground.read(place)) == (None, b"sound")


def test_overwritten_between_copy_and_delete_it_stays(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    media, place = ground.put("in/a.wav", b"sound"), ground.url("done/a.wav")

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as m:
        m.setattr("storage.putaway._unlink", die)
        m.setattr("storage.s3_putaway.delete_version", die)
        with pytest.raises(Killed):
            ground.shelf.move(media, place)
    if isinstance(ground, Folder):
        (ground.folder / "in" / "a.wav").unlink()  # as programs replace a file; to write into it writes into both names
    new = ground.put("in/a.wav", b"other")
    assert ground.shelf.move(media, place) == OVERWRITTEN
    assert ground.read(new.url) == b"other"
    with pytest.raises(PlaceTaken):
        ground.shelf.move(new, place)
    first, second = places(new, ground.url("done"), ground.url("in/a.wav").removesuffix("a.wav"))
    assert first == place
    assert ground.shelf.move(new, second) == ""
    assert (ground.read(place), ground.read(second), ground.read(new.url)) == (b"sound", b"other", None)


def test_a_large_object_is_copied_in_parts(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Bucket(client)
    sound = os.urandom(20 << 20)
    media, place = ground.put("in/long.wav", sound), ground.url("done/long.wav")
    monkeypatch.setattr("storage.s3_putaway.ONE_COPY", 1 << 20)
    monkeypatch.setattr("storage.s3_putaway.delete_version", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        ground.shelf.move(media, place)
    monkeypatch.undo()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    head = client.head_object(Bucket=ground.bucket, Key="done/long.wav")
    assert "-" in head["ETag"]  # made in parts: its ETag says nothing of the bytes
    assert (head["ContentType"], head["Metadata"]["who"]) == ("audio/x-own", "me")
    assert ground.shelf.move(media, place) == ""
    assert ground.read(media.url) is None
    assert ground.read(place) == sound


def test_overwritten_while_it_is_copied_or_deleted(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own conditions: no look of ours sees what happens between it and the request."""
    ground = Bucket(client)
    media = ground.put("in/a.wav", b"sound")
    stale = client.head_object(Bucket=ground.bucket, Key="in/a.wav")
    new = ground.put("in/a.wav", b"other")
    real = client.head_object
    looks = iter([stale])

    class Late:
        """Its first look at the recording is of a moment ago."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def head_object(self, **what: Any) -> Any:
            return (what["Key"] == "in/a.wav" and next(looks, None)) or real(**what)

    assert S3Shelf(Late()).move(media, ground.url("done/a.wav")) == OVERWRITTEN
    assert ground.read(ground.url("done/a.wav")) is None
    looks = iter([stale])
    assert S3Shelf(Late()).delete(media) == OVERWRITTEN
    assert ground.read(new.url) == b"other"


def test_a_tag_is_added_to_those_that_are_there(client: Any) -> None:
    ground = Bucket(client)
    media = ground.put("in/a.wav", b"sound")
    client.put_object_tagging(
        Bucket=ground.bucket, Key="in/a.wav", Tagging={"TagSet": [{"Key": "team", "Value": "blue"}]}
    )
    for _ in range(2):
        assert ground.shelf.tag(media) == ""
        tags = client.get_object_tagging(Bucket=ground.bucket, Key="in/a.wav")["TagSet"]
        assert {t["Key"]: t["Value"] for t in tags} == {"team": "blue", "spotscribe": "done"}
    new = ground.put("in/a.wav", b"other")
    assert ground.shelf.tag(media) == OVERWRITTEN
    assert client.get_object_tagging(Bucket=ground.bucket, Key="in/a.wav")["TagSet"] == []
    client.delete_object(Bucket=ground.bucket, Key="in/a.wav")
    assert ground.shelf.tag(new) == GONE
    full = ground.put("in/full.wav", b"x")
    ten = [{"Key": str(n), "Value": "x"} for n in range(10)]
    client.put_object_tagging(Bucket=ground.bucket, Key="in/full.wav", Tagging={"TagSet": ten})
    with pytest.raises(PermanentError, match="tags already"):
        ground.shelf.tag(full)


def test_a_bucket_that_is_not_there_may_be_made(client: Any) -> None:
    ground = Bucket(client)
    media = ground.put("in/a.wav", b"sound")
    with pytest.raises((UsageError, TransientError)):
        ground.shelf.move(media, "s3://no-such-bucket-at-all/a.wav")
    assert ground.read(media.url) == b"sound"


def test_no_right_is_said_and_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Folder(tmp_path)
    media = ground.put("in/a.wav", b"sound")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(Rejected, match="ermission denied") as found:
        ground.shelf.move(media, ground.url("done/a.wav"))
    assert found.value.code is Code.DENIED


@pytest.mark.parametrize("links", [True, False])
def test_across_file_systems_and_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    real = os.link

    def link(source: Any, target: Any, **more: Any) -> None:
        if not links or not str(source).endswith(".part"):
            raise OSError(18 if links else 1, "Invalid cross-device link")
        real(source, target, **more)

    monkeypatch.setattr(os, "link", link)
    ground = Folder(tmp_path)
    media = ground.put("in/a.wav", b"sound")
    other = ground.put("done/a.wav", b"other")
    with pytest.raises(PlaceTaken):
        ground.shelf.move(media, other.url)
    place = ground.url("done/b.wav")
    assert ground.shelf.move(media, place) == ""
    assert (ground.read(media.url), ground.read(place), ground.read(other.url)) == (None, b"sound", b"other")
    assert ground.shelf.move(media, place) == ""  # its time of change went with it
    assert {p.name for p in (tmp_path / "done").iterdir()} == {"a.wav", "b.wav"}


def test_one_file_under_two_ways_is_not_deleted(tmp_path: Path) -> None:
    ground = Folder(tmp_path)
    media = ground.put("in/a.wav", b"sound")
    (tmp_path / "done").symlink_to(tmp_path / "in")
    assert ground.shelf.move(media, ground.url("done/a.wav")) == THERE_ALREADY
    assert ground.read(media.url) == b"sound"


def test_a_link_to_a_recording_is_followed_and_the_recording_stays(tmp_path: Path) -> None:
    ground = Folder(tmp_path)
    real = ground.put("far/real.wav", b"sound")
    (tmp_path / "in").mkdir()
    link = tmp_path / "in" / "a.wav"
    link.symlink_to("../far/real.wav")
    media = MediaObject(link.as_uri(), file_version(link), 5)
    assert ground.shelf.move(media, ground.url("done/a.wav")) == ""
    assert ground.read(real.url) == b"sound"
    assert not os.path.lexists(link)
    assert not (tmp_path / "done" / "a.wav").is_symlink()
    assert ground.read(ground.url("done/a.wav")) == b"sound"


def test_names() -> None:
    media = MediaObject("s3://b/in/emea/a%20b.wav", "1", 5)
    first, second = places(media, "s3://b/done", "s3://b/in/")
    assert first == "s3://b/done/emea/a%20b.wav"
    assert second.startswith("s3://b/done/emea/a%20b-")
    assert second.endswith(".wav")
    assert places(media, "s3://c/", None)[0] == "s3://c/a%20b.wav"
    assert places(media, "s3://b/done", "s3://b/")[0] == "s3://b/done/in/emea/a%20b.wav"
    assert places(media, "s3://b/done", "s3://other/")[0] == "s3://b/done/a%20b.wav"
    assert places(media, "s3://b/done", "s3://b/in/em")[0] == "s3://b/done/emea/a%20b.wav"
    bare = MediaObject("s3://b/in/.wav", "1", 5)
    assert places(bare, "s3://b/done", None)[1].startswith("s3://b/done/.wav-")


@pytest.mark.parametrize(
    ("text", "source", "found"),
    [
        ("move:done/", "s3://b/in/", After("move", "s3://b/done")),
        ("move:/done/old", "s3://b/in/", After("move", "s3://b/done/old")),
        ("move:a b", "s3://b/in/", After("move", "s3://b/a%20b")),
        ("move:s3://c/x/", "s3://b/", After("move", "s3://c/x")),
        ("move:s3://c", "s3://b/", After("move", "s3://c")),
        ("move:/data/done", "file:///data/in/", After("move", "file:///data/done")),
        ("move:file:///data/done/", "file:///data/in/", After("move", "file:///data/done")),
        ("move:in/done", "s3://b/in/", After("move", "s3://b/in/done")),
        ("move:done", "s3://b/", After("move", "s3://b/done")),
        ("tag", "s3://b/in/", After("tag", "")),
        ("delete", "file:///data/in/", After("delete", "")),
    ],
)  # fmt: skip
def test_what_may_be_asked_for(text: str, source: str, found: After) -> None:
    assert after_of(text, source) == found


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("move:in", "s3://b/in/"), ("move:/data/in", "file:///data/in/"), ("move:done", "file:///data/in/"), ("tag", "file:///data/in/"),
        ("move:", "s3://b/in/"), ("move:/", "s3://b/in/"), ("move", "s3://b/in/"), ("drop", "s3://b/in/"), ("", "s3://b/"),
        ("move:s3://c/x", "file:///data/in/"), ("move:file:///x", "s3://b/in/"), ("move:http://x/y", "s3://b/in/"),
        ("delete:all", "s3://b/in/"), ("tag:x", "s3://b/in/"),
    ],
)  # fmt: skip
def test_what_may_not(text: str, source: str) -> None:
    with pytest.raises(UsageError, match="--after"):
        after_of(text, source)


def test_a_scheme_that_nobody_reaches() -> None:
    with pytest.raises(UsageError):
        Shelves().of("s3://b/x")
