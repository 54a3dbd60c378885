"""What every object store must do; the local folder is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunking.errors import Code, Rejected
from storage.objects import LocalStore, ObjectStore, write_atomically


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path / "store")


def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "given"
    path.write_bytes(content)
    return path


def test_an_object_comes_back_and_is_replaced_and_goes(store: ObjectStore, tmp_path: Path) -> None:
    store.put_file("shards/1/0-1.flac", file(tmp_path, b"one"))
    store.put_file("shards/1/0-1.flac", file(tmp_path, b"two"))
    store.put_file("shards/2/0-1.flac", file(tmp_path, b"three"))
    with store.open("shards/1/0-1.flac") as f:
        assert f.read() == b"two"
    assert list(store.keys("shards/1/")) == ["shards/1/0-1.flac"]
    store.delete("shards/1/0-1.flac")
    store.delete("shards/1/0-1.flac")
    assert list(store.keys()) == ["shards/2/0-1.flac"]


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
