"""Where audio in work and finished files lie: one interface, a local folder here, S3 in s3.py."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from chunking.errors import Code, Rejected


class ObjectStore(Protocol):
    """Objects by key, written whole or not at all."""

    def put_file(self, key: str, source: Path) -> None:
        """Store the file's bytes under `key`; an object that is there already is replaced. `source` may be moved."""
        ...

    def open(self, key: str) -> BinaryIO:
        """The object, for reading. Raises Rejected(gone) where there is none."""
        ...

    def delete(self, key: str) -> None:
        """Gone afterwards, whether it was there or not."""
        ...

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Keys that begin with `prefix`, in order."""
        ...


class LocalStore:
    """A folder. Keys are ours (never a user's), so each part is a plain name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put_file(self, key: str, source: Path) -> None:
        target = self._path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(source, target)
        except OSError:  # another file system
            write_atomically(target, source)

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except FileNotFoundError:
            raise Rejected(f"the stored object {key} is gone", code=Code.GONE) from None

    def delete(self, key: str) -> None:
        path = self._path(key)
        path.unlink(missing_ok=True)
        if path.parent != self.root and path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def keys(self, prefix: str = "") -> Iterator[str]:
        folder = self.root / prefix.rpartition("/")[0]
        for path in sorted(folder.rglob("*")):
            key = path.relative_to(self.root).as_posix()
            if path.is_file() and key.startswith(prefix):
                yield key

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or any(p in {"", ".", ".."} for p in parts):
            raise ValueError(f"no key of ours: {key!r}")
        return self.root.joinpath(*parts)


def path_of(url: str) -> Path:
    """The path that a file:// URL means, whatever bytes are in its name."""
    return Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path)))


def write_atomically(target: Path, content: bytes | Path) -> None:
    """A file that is there whole or not at all, and on disk before its name is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with temporary.open("wb") as out:
            if isinstance(content, bytes):
                out.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, out, 1 << 20)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
