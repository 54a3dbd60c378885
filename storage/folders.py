"""Folders of this machine as a bucket is seen: listings, a look at one file, small files whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from chunking.errors import Code, Rejected, TransientError
from storage.jobs import Listed, MediaObject
from storage.objects import path_of
from storage.urls import file_version


class Place(Protocol):
    """Where recordings appear: a bucket (storage/s3.py) or a folder. Safe to share by threads."""

    def listing(self, url: str) -> Iterator[Listed]:
        """Every object below this, in the order of their keys, or nearly so. Raises Rejected, UsageError,
        TransientError."""
        ...

    def head(self, url: str) -> Listed:
        """The object at this address. Raises Rejected (gone, denied), UsageError, TransientError."""
        ...

    def small(self, url: str, most: int) -> bytes:
        """The first bytes of an object, up to `most`. Raises as `head` does."""
        ...


class LocalFolders:
    """Regular files; links to folders are not followed, and what vanishes meanwhile is not there."""

    def listing(self, url: str) -> Iterator[Listed]:
        top = path_of(url)
        if not top.is_dir():
            raise TransientError(f"there is no folder {top}")  # a disk that is not mounted may be again
        for root, folders, files in os.walk(top, onerror=_raise):
            folders.sort()
            for name in sorted(files):
                listed = _listed(Path(root) / name)
                if listed is not None:
                    yield listed

    def head(self, url: str) -> Listed:
        found = _listed(path_of(url))
        if found is None:
            raise Rejected("the file is gone", code=Code.GONE)
        return found

    def small(self, url: str, most: int) -> bytes:
        try:
            with path_of(url).open("rb") as f:
                return f.read(most)
        except FileNotFoundError:
            raise Rejected("the file is gone", code=Code.GONE) from None
        except OSError as e:
            raise Rejected(f"the file may not be read: {e.strerror}", code=Code.DENIED) from None


def _listed(path: Path) -> Listed | None:
    try:
        stat = path.stat()
        if not path.is_file():
            return None
        return Listed(MediaObject(path.as_uri(), file_version(path), stat.st_size), int(stat.st_mtime))
    except OSError:
        return None


def _raise(error: OSError) -> None:
    """A folder that may not be read is told: else its recordings would be passed over without a word."""
    raise TransientError(f"{error.filename} cannot be listed: {error.strerror}")
