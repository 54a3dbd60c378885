"""Where finished files are written to: folders of this machine, and S3. One interface, chosen by the URL's scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from chunking.errors import UsageError
from storage.objects import path_of, write_atomically


class Writer(Protocol):
    """Writes files of one scheme, each whole or not at all."""

    def write(self, url: str, content: bytes, content_type: str) -> None:
        """Replaces what is there. Raises OSError, TransientError (later, perhaps), PermanentError (never)."""
        ...

    def remove(self, url: str) -> None:
        """Gone afterwards, whether it was there or not. Raises as `write` does."""
        ...


class LocalWriter:
    """Folders of this machine; they are made as needed."""

    def write(self, url: str, content: bytes, content_type: str) -> None:
        write_atomically(path_of(url), content)

    def remove(self, url: str) -> None:
        path_of(url).unlink(missing_ok=True)


class Destinations:
    """Writers by scheme. Safe to share by threads if they are."""

    def __init__(self, writers: Mapping[str, Writer] | None = None) -> None:
        self._writers: dict[str, Writer] = {"file": LocalWriter(), **(writers or {})}

    def write(self, url: str, content: bytes, content_type: str) -> None:
        """As the writer of this scheme does it. Raises UsageError for a scheme that nobody here writes."""
        self._writer(url).write(url, content, content_type)

    def remove(self, url: str) -> None:
        """The same for a file that is not wanted any more."""
        self._writer(url).remove(url)

    def _writer(self, url: str) -> Writer:
        scheme = urlsplit(url).scheme
        writer = self._writers.get(scheme)
        if writer is None:
            raise UsageError(f"{scheme}:// is no place that transcripts can be written to from here")
        return writer
