"""What every object store must do: a local folder, and a bucket on a real S3 server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from chunking.errors import Code, Rejected, TransientError, UsageError
from storage.objects import LocalStore, ObjectStore, write_atomically
from storage.s3 import S3Options, S3Store, s3_client


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return s3_client(S3Options(endpoint=s3_endpoint))


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    client = request.getfixturevalue("s3")
    bucket = f"b{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    return S3Store(f"s3://{bucket}/work", client)


def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / f"given{uuid.uuid4().hex[:6]}"
    path.write_bytes(content)
    return path


def test_an_object_comes_back_and_is_replaced_and_goes(store: ObjectStore, tmp_path: Path) -> None:
    store.put_file("shards/1/0-1.flac", file(tmp_path, b"one"))
    store.put_file("shards/1/0-1.flac", file(tmp_path, b"two"))
    store.put_file("shards/2/0-1.flac", file(tmp_path, b"three"))
    with store.open("shards/1/0-1.flac") as f:
        assert f.read() == b"two"
        f.seek(1)
        assert f.read() == b"wo"
    assert list(store.keys("shards/1/")) == ["shards/1/0-1.flac"]
    store.delete("shards/1/0-1.flac")
    store.delete("shards/1/0-1.flac")
    assert list(store.keys()) == ["shards/2/0-1.flac"]


def test_a_large_object_comes_back_whole(store: ObjectStore, tmp_path: Path) -> None:
    content = bytes(range(256)) * 80_000  # more than one part of an upload
    store.put_file("big", file(tmp_path, content))
    with store.open("big") as f:
        assert f.read() == content


def test_an_object_that_is_gone_says_so(store: ObjectStore) -> None:
    with pytest.raises(Rejected) as caught:
        store.open("shards/9/0-1.flac")
    assert caught.value.code is Code.GONE


@pytest.mark.parametrize("key", ["", "../x", "a/../../x", "/etc/passwd", "a//b", "."])
def test_keys_that_are_none_of_ours_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="no key of ours"):
        LocalStore(tmp_path).put_file(key, file(tmp_path, b"x"))


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    write_atomically(target, b"one")
    with pytest.raises(FileNotFoundError):
        write_atomically(target, tmp_path / "missing")
    assert target.read_bytes() == b"one"
    assert [p.name for p in target.parent.iterdir()] == ["file.txt"]


def test_wrong_addresses_rights_and_silence_are_told_apart(
    s3_endpoint: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no such bucket"):
        S3Store("s3://nowhere-at-all", s3).open("x")
    for url in ("file:///x", "s3://", "bucket/x"):
        with pytest.raises(UsageError, match="is no S3 address"):
            S3Store(url, s3)
    s3.create_bucket(Bucket="ours")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    stranger = s3_client(S3Options(endpoint=s3_endpoint))
    with pytest.raises(UsageError, match="this machine's credentials") as caught:
        S3Store("s3://ours", stranger).open("x")
    assert "wrong" not in str(caught.value)
    silent = s3_client(S3Options(endpoint="http://127.0.0.1:9", attempts=1))
    with pytest.raises(TransientError, match="does not answer"):
        S3Store("s3://bucket", silent).open("x")
