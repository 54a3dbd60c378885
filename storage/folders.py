"""Folders of this machine as a bucket is seen: listings, a look at one file, small files whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

from chunking.errors import Code, Rejected, TransientError
from storage.jobs import Listed, MediaObject
from storage.objects import path_of
from storage.urls import version_of


class Place(Protocol):
    """Where recordings appear: a bucket (storage/s3.py) or a folder. Safe to share by threads."""

    def listing(self, url: str, problem: Callable[[str], None] = lambda why: None) -> Iterator[Listed]:
        """Every object below this, in the order of their keys, or nearly so. Raises Rejected, UsageError,
        TransientError. `problem` is told what could not be looked at while the rest could."""
        ...

    def head(self, url: str) -> Listed:
        """The object at this address. Raises Rejected (gone, denied), UsageError, TransientError."""
        ...

    def small(self, url: str, most: int) -> bytes:
        """The first bytes of an object, up to `most`. Raises as `head` does."""
        ...


class LocalFolders:
    """Regular files; links to folders are not followed, and what vanishes meanwhile is not there."""

    def listing(self, url: str, problem: Callable[[str], None] = lambda why: None) -> Iterator[Listed]:
        top = path_of(url)
        if not top.is_dir():
            raise TransientError(f"there is no folder {top}")  # a disk that is not mounted may be again

        def tell(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                problem(f"{error.filename} cannot be looked at: {error.strerror}")

        for root, folders, files in os.walk(top, onerror=tell):
            folders.sort()
            for name in sorted(files):
                try:
                    listed = _listed(Path(root) / name)
                except OSError as e:
                    tell(e)
                    continue
                if listed is not None:
                    yield listed

    def head(self, url: str) -> Listed:
        try:
            found = _listed(path_of(url))
        except PermissionError as e:
            raise Rejected(f"the file may not be looked at: {e.strerror}", code=Code.DENIED) from None
        except OSError as e:
            raise TransientError(f"{e.filename} cannot be looked at: {e.strerror}") from None
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
    """None: there is no such file, or it is something else. Raises OSError."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    if not S_ISREG(stat.st_mode):
        return None
    return Listed(MediaObject(path.as_uri(), version_of(stat), stat.st_size), int(stat.st_mtime))
