"""Whatever characters are in a key, that object is meant and no other: listed, looked at, read and written.

A client or a server that tidies a path up (`..`, `//`) would read another object than the one that was listed. The
client here puts each key on the wire as it is, and the ETag that goes with it refuses other bytes. The server (SeaweedFS)
keeps keys as files: it takes no `.`, `..`, NUL and no names of more than 255 bytes, and makes one key of those that
differ by `//`, `\\` or a slash in front.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunking.errors import Code, Rejected
from storage.s3 import S3Bucket, S3Options, S3Reader, S3Writer, s3_client
from storage.urls import bucket_and_key, s3_url
from tests.faults.proxy import S3Proxy

ASCII_LONG = "/".join(["x" * 254] * 4) + "/yyy"
MULTI_BYTE_LONG = "/".join(["\u00e9" * 127] * 4) + "/yyy"
PLAIN = (
    "d/with space.wav", "d/a+b.wav", "d/a%2Fb.wav", "d/%2F.wav", "d/%2e%2e/e.wav", "d/100%.wav", "d/what?.wav",
    "d/?versionId=null", "d/a#b.wav", "d/a&b=c.wav", "d/'q\"uo`te.wav", "d/caf\u00e9.wav", "d/cafe\u0301.wav",
    "d/\U0001f399.wav", "d/..wav", "d/...", "d/trailing.", "d/trailing ", "d/ leading", "d/new\nline.wav", "d/cr\rx.wav",
    "d/crlf\r\nx: y.wav", "d/tab\t.wav", "d/c\x01trl.wav", "d/del\x7f.wav", "d/a:b;c,d@e$f!g*(h)[i]{j}|k^~<l>.wav",
    "d/a\u2028b.wav", "d/\ufffe.wav", "d/\uffff.wav", "d/rtl\u202e.wav", "d/Case.wav", "d/case.wav", "d/.wav",
    ASCII_LONG, MULTI_BYTE_LONG,
)  # fmt: skip
"""What every server can have. Of some of them a twin is there as well: other case, other form of Unicode, decoded."""
TWINS = (
    "d/a/b.wav", "e.wav", "d/e.wav", "b.wav", "x.wav", "a/b.wav", "d/what", "d/with%20space.wav", "d/a b.wav",
)  # fmt: skip
TIDIED = (
    ("a/../b.wav", "b.wav"), ("../x.wav", "x.wav"), ("./x.wav", "x.wav"), ("a/./b.wav", "a/b.wav"), ("a/..", "x.wav"),
    ("..", "x.wav"), ("//double//slash.wav", "double/slash.wav"), ("/leading.wav", "leading.wav"), ("a//b.wav", "a/b.wav"),
    ("d/back\\slash.wav", "d/back/slash.wav"), ("d/nul\0.wav", "d/nul"), ("y" * 1024, "y" * 255), ("y" * 1025, "y"),
    ("../" * 3 + "x.wav", "x.wav"), ("../other/x.wav", "x.wav"),
)  # fmt: skip
"""Keys that somebody on the way may tidy up, and what would become of them."""


@dataclass(frozen=True)
class Place:
    """A bucket on the real server, seen through a proxy that knows what was asked for."""

    name: str
    client: Any
    proxy: S3Proxy

    def put(self, key: str, content: bytes) -> None:
        S3Writer(self.client).write(s3_url(self.name, key), content, "audio/wav")

    def listing(self) -> dict[str, Any]:
        found = S3Bucket(self.client).listing(f"s3://{self.name}/")
        return {bucket_and_key(x.media.url)[1]: x for x in found}

    def read(self, key: str, version: str, folder: Path) -> bytes:
        return S3Reader(self.client).fetch(s3_url(self.name, key), version, folder).path.read_bytes()

    def asked(self) -> set[str]:
        """The paths of the requests for objects since the last look. boto3 asks for the bucket's region by itself."""
        seen = {call.partition(" ")[2] for call in self.proxy.calls}
        self.proxy.calls.clear()
        return seen - {f"/{self.name}"}

    def wire(self, key: str) -> str:
        return f"/{self.name}/{quote(key, safe='/~')}"


@pytest.fixture(scope="module")
def name() -> str:
    """Of one bucket for all: a bucket takes a fifth of a second to make."""
    return f"odd-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def place(name: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with S3Proxy(int(s3_endpoint.rpartition(":")[2])) as proxy:
        made = Place(name, s3_client(S3Options(endpoint=proxy.endpoint, attempts=1)), proxy)
        with suppress(made.client.exceptions.BucketAlreadyExists, made.client.exceptions.BucketAlreadyOwnedByYou):
            made.client.create_bucket(Bucket=name)
        for key in made.listing():
            made.client.delete_object(Bucket=name, Key=key)
        yield made


def content(key: str) -> bytes:
    return f"{uuid.uuid5(uuid.NAMESPACE_URL, key)}".encode()


def test_each_key_is_listed_looked_at_read_and_written_as_itself(place: Place, tmp_path: Path) -> None:
    keys = (*PLAIN, *TWINS)
    assert len(ASCII_LONG.encode()) == len(MULTI_BYTE_LONG.encode()) == 1023
    place.proxy.calls.clear()
    for key in keys:
        place.put(key, content(key))
        assert place.asked() == {place.wire(key)}
    listed = place.listing()
    assert set(listed) == set(keys)
    for key in keys:
        place.proxy.calls.clear()
        found = S3Bucket(place.client).head(s3_url(place.name, key))
        assert found == listed[key]
        assert place.read(key, found.media.version, tmp_path) == content(key)
        assert place.asked() == {place.wire(key)}


@pytest.mark.parametrize(("key", "tidied"), TIDIED, ids=[ascii(k)[:20] for k, _ in TIDIED])
def test_no_key_reads_or_overwrites_what_lies_where_it_may_be_tidied_to(
    place: Place, tmp_path: Path, key: str, tidied: str
) -> None:
    """What the client asks for is the key itself; what the server makes of it is either that or a clear end."""
    place.put(tidied, b"another")
    there = place.listing()[tidied]
    place.proxy.calls.clear()
    if refuses(place, key):
        for version in (there.media.version, f"{'0' * 32}-7"):
            gone(lambda version=version: place.read(key, version, tmp_path))
        gone(lambda: S3Bucket(place.client).head(s3_url(place.name, key)))
        assert place.read(tidied, there.media.version, tmp_path) == b"another"
        assert place.asked() == {place.wire(key), place.wire(tidied)}
        assert set(place.listing()) == {tidied}
        return
    assert place.wire(key).lstrip("/") in {p.lstrip("/") for p in place.asked()}
    gone(lambda: place.read(key, there.media.version, tmp_path))  # never the bytes that were there before
    for name, listed in place.listing().items():
        assert place.read(name, listed.media.version, tmp_path) == content(key)


def refuses(place: Place, key: str) -> bool:
    """Whether the server does not take this key. If it does, the object is there now."""
    try:
        place.put(key, content(key))
    except Rejected:
        return True
    return False


def gone(read: Callable[[], object]) -> None:
    with pytest.raises(Rejected) as caught:
        read()
    assert caught.value.code is Code.GONE


ANY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
KEYS = ANY | st.text("./%+?#&\\ \0\n\u00e9", min_size=1)


@given(KEYS)
def test_a_key_comes_back_from_its_url_whatever_it_is(key: str) -> None:
    url = s3_url("bucket", key)
    assert bucket_and_key(url) == ("bucket", key)
    assert url.isascii()
    assert url.isprintable()
    assert not set(url.removeprefix("s3://")) & set("+?#& \\")


@given(KEYS, KEYS)
def test_no_two_keys_have_one_url(one: str, other: str) -> None:
    assert (s3_url("b", one) == s3_url("b", other)) is (one == other)


@pytest.mark.parametrize("key", ["x" * 1024, "\u00e9" * 512, "\U0001f399" * 256, "/" * 1024, "\0" * 1024])
def test_the_longest_keys_come_back_from_their_urls(key: str) -> None:
    assert len(key.encode()) == 1024
    assert bucket_and_key(s3_url("bucket", key)) == ("bucket", key)
