"""What an export writes: for each job a file, or for many jobs a table. Another format is another entry here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from chunking.errors import PermanentError
from pipeline import pages
from pipeline.exports import CONTENT_TYPES, Format
from pipeline.finish import Finished
from pipeline.parquet import ParquetPart
from pipeline.rows import Row, csv_of, jsonl_of
from pipeline.sound import Sounds


class TablePart(Protocol):
    """A table's file in memory."""

    def add(self, rows: Sequence[Row]) -> None:
        """These rows as well; at least one."""
        ...

    def content(self) -> bytes:
        """The whole file."""
        ...


class CsvPart:
    """With the columns' names in its first line."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def add(self, rows: Sequence[Row]) -> None:
        self._texts.append(csv_of(rows, header=not self._texts).encode())

    def content(self) -> bytes:
        return b"".join(self._texts)


class JsonlPart:
    """An object a line."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def add(self, rows: Sequence[Row]) -> None:
        self._texts.append(jsonl_of(rows).encode())

    def content(self) -> bytes:
        return b"".join(self._texts)


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A row for each segment of many jobs. `by_day`: a folder for each day on which jobs ended."""

    content_type: str
    part: Callable[[], TablePart]
    """Raises UsageError where a package is missing."""
    by_day: bool = False
    words: bool = True
    """Whether it has the words as well."""


@dataclass(frozen=True, slots=True)
class JobFormat:
    """A file for each job; its name ends in the format's."""

    content_type: str
    write: Callable[[Finished, Sounds], bytes]
    """The file's content. The sound is there for who wants it, and costs decoding the recording."""


def _rendered(kind: Format, finished: Finished, _sounds: Sounds) -> bytes:
    return finished.render(kind)


def _page(finished: Finished, sounds: Sounds) -> bytes:
    """With the sound, or a word why it is not in there: one recording that is gone must not end an export."""
    played, trouble = None, ""
    try:
        with sounds.of(finished.job) as sound:
            played = pages.embedded(sound)
    except PermanentError as e:
        trouble = f"Without the sound: {e}"
    return pages.transcript_page(finished.transcript, finished.about, played, trouble=trouble).encode()


JOB_FORMATS = {f.value: JobFormat(CONTENT_TYPES[f], partial(_rendered, f)) for f in Format}
JOB_FORMATS["html"] = JobFormat(pages.CONTENT_TYPE, _page)
TABLE_FORMATS = {
    "jsonl": TableFormat("application/x-ndjson", JsonlPart),
    "csv": TableFormat("text/csv; charset=utf-8", CsvPart, words=False),
    "parquet": TableFormat("application/vnd.apache.parquet", ParquetPart, by_day=True),
}
FORMATS = (*JOB_FORMATS, *TABLE_FORMATS)
