"""Where recordings are read from: files of this machine, and objects in S3. One interface, chosen by the URL's scheme.

A source is asked for the bytes that were submitted. What has changed since is another recording, and is refused here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

from chunking.errors import Code, PermanentError, Rejected, UsageError
from storage.objects import path_of


@dataclass(frozen=True, slots=True)
class Fetched:
    """A recording's bytes on this machine, as long as the folder that was given lasts."""

    path: Path
    sha256: str


class SourceReader(Protocol):
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
                return Fetched(path, hashlib.file_digest(f, "sha256").hexdigest())
        except FileNotFoundError:
            raise Rejected("the file is gone", code=Code.GONE) from None
        except PermissionError:
            raise Rejected("the file may not be read: permission denied", code=Code.DENIED) from None


class Sources:
    """Readers by scheme. Safe to share by threads if they are."""

    def __init__(self, readers: Mapping[str, SourceReader] | None = None) -> None:
        self._readers: dict[str, SourceReader] = {"file": LocalReader(), **(readers or {})}

    def fetch(self, url: str, version: str, folder: Path) -> Fetched:
        """As the reader of this scheme does it. Raises PermanentError for a scheme that nobody here reads."""
        scheme = urlsplit(url).scheme
        reader = self._readers.get(scheme)
        if reader is None:
            raise PermanentError(f"{scheme}:// is no place that recordings can be read from here")
        return reader.fetch(url, version, folder)


def file_version(path: Path) -> str:
    """What changes when a local file's bytes do."""
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def s3_url(bucket: str, key: str) -> str:
    """The URL of an object, whatever characters are in its key."""
    return f"s3://{bucket}/{quote(key, safe='/-_.~')}"


def bucket_and_key(url: str) -> tuple[str, str]:
    """The other way round. Raises UsageError for what is no S3 address."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise UsageError(f"{url} is no S3 address; it looks like s3://bucket/prefix")
    return parts.netloc, unquote(parts.path.removeprefix("/"))


def join_url(prefix: str, path: str) -> str:
    """A place below a prefix, for an output; `path` is a relative path of any characters."""
    return f"{prefix.rstrip('/')}/{quote(os.fsencode(path), safe='/-_.~')}"
