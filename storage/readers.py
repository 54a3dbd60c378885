"""Where recordings are read from: files of this machine, and objects in S3. One interface, chosen by the URL's scheme.

A reader is asked for the bytes that were submitted. What has changed since is another recording, and is refused here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from chunking.errors import Code, PermanentError, Rejected
from storage.objects import path_of
from storage.urls import file_version


@dataclass(frozen=True, slots=True)
class Fetched:
    """A recording's bytes on this machine, as long as the folder that was given lasts."""

    path: Path
    sha256: str


class Reader(Protocol):
    """Reads recordings of one scheme."""

    def fetch(self, url: str, version: str, folder: Path) -> Fetched:
        """The bytes of that version. `folder` is there for a copy. Raises Rejected (gone, denied), TransientError."""
        ...


class LocalReader:
    """Files of this machine, read where they lie."""

    def fetch(self, url: str, version: str, folder: Path) -> Fetched:
        path = path_of(url)
        try:
            with path.open("rb") as f:
                digest = hashlib.file_digest(f, "sha256").hexdigest()
            if version and file_version(path) != version:
                raise Rejected("the file was changed since it was submitted; submit it again", code=Code.GONE)
            return Fetched(path, digest)
        except FileNotFoundError:
            raise Rejected("the file is gone", code=Code.GONE) from None
        except PermissionError:
            raise Rejected("the file may not be read: permission denied", code=Code.DENIED) from None


class Readers:
    """Readers by scheme. Safe to share by threads if they are."""

    def __init__(self, readers: Mapping[str, Reader] | None = None) -> None:
        self._readers: dict[str, Reader] = {"file": LocalReader(), **(readers or {})}

    def fetch(self, url: str, version: str, folder: Path) -> Fetched:
        """As the reader of this scheme does it. Raises PermanentError for a scheme that nobody here reads."""
        scheme = urlsplit(url).scheme
        reader = self._readers.get(scheme)
        if reader is None:
            raise PermanentError(f"{scheme}:// is no place that recordings can be read from here")
        return reader.fetch(url, version, folder)
