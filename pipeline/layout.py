"""Where the files of a source's transcripts go, and by which label its jobs are known: templates with fields in braces.

Whatever is in a recording's key, a place is below `out`: parts that a path could be led astray by are dropped.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from string import Formatter
from urllib.parse import unquote_to_bytes

from sqlalchemy import Connection

from chunking.errors import UsageError
from storage import outputs
from storage.outputs import WantedOutput
from storage.urls import bucket_and_key, join_url

KEY_FIELDS = ("dir", "name", "ext", "format", "date", "source")
"""`dir`: the folders between the source and the recording; `name`, `ext`: of its file; `date`: when it was written."""
NEEDED = ("name", "format")
"""Without them a template would give one place to many files."""
LABEL_FIELDS = ("source", "date", "dir", "name")
LONGEST_PART = 255
"""Bytes of a name, on every common file system."""
LONGEST_KEY = 1024
"""Bytes of a key of S3."""
LONGEST_URL = 1000
"""Characters; the database's unique index takes no more."""
LONGEST_LABEL = 255
LAST_SECOND = 253402300799
"""Of the year 9999: a date has no later one."""


def check_key(template: str) -> str:
    """A template for places. Raises UsageError that says what is wrong with it."""
    used = _fields(template, KEY_FIELDS)
    if missing := [f"{{{f}}}" for f in NEEDED if f not in used]:
        raise UsageError(f"{template!r} lacks {' and '.join(missing)}: many files would get one name")
    return template


def check_label(template: str) -> str:
    """A template for labels. Raises UsageError that says what is wrong with it."""
    _fields(template, LABEL_FIELDS)
    return template


def label(template: str, source_url: str, source_name: str, url: str, modified_s: int) -> str:
    """The label of a recording; empty: none. One too long for the index ends in a digest."""
    folders, name, _ = _parts_of(url, source_url)
    values = {"source": source_name, "date": _date(modified_s), "dir": "/".join(folders), "name": name}
    made = _storable(_filled(template, values)).strip()
    if len(made) <= LONGEST_LABEL:
        return made
    return f"{made[: LONGEST_LABEL - 17]}-{_digest(made, 16)}"


def places(
    url: str, source_url: str, source_name: str, template: str, out: str, fmt: str, modified_s: int
) -> Iterator[str]:
    """Where a file made of the recording at `url` may go, below `out`, best first; the last is nobody else's."""
    folders, name, ext = _parts_of(url, source_url)
    values = {
        "dir": "/".join(folders), "ext": ext, "format": fmt, "date": _date(modified_s), "source": source_name,
    }  # fmt: skip
    names = dict.fromkeys((name, f"{name}.{ext}" if ext else name, f"{name}-{_digest(url, 8)}"))
    for one in names:
        path = "/".join(_clean(_filled(template, values | {"name": one})))
        if path and _fits(path, place := join_url(out, path)):
            yield place
    yield join_url(out, f"{_digest(url, 32)}.{fmt}")


def job_file(url: str, job: int, fmt: str) -> str:
    """A name that is no other job's: the recording's own, without its suffix, and the job's number."""
    _, name, _ = _parts_of(url, "")
    tail = f".{job}.{fmt}"
    return _storable(name).encode()[: LONGEST_PART - len(tail)].decode("utf-8", "ignore") + tail


def want_files(tx: Connection, files: Iterable[tuple[int, str, Iterator[str]]], *, missing: bool = False) -> None:
    """Note each file (job, format, its places) as wanted at the first of its places that is not another recording's.

    `missing`: a file that was written once is wanted once more. Raises UsageError where a file has no place left.
    """
    left = {(job, kind): urls for job, kind, urls in files}
    while left:
        wanted = [WantedOutput(job, kind, _next(urls)) for (job, kind), urls in left.items()]
        taken = outputs.want_all(tx, wanted, missing=missing)
        left = {(o.job, o.format): left[o.job, o.format] for o in taken}


def _next(urls: Iterator[str]) -> str:
    found = next(urls, None)
    if found is None:
        raise UsageError("a file has no place: all its names are other recordings'")
    return found


def _fields(template: str, possible: Sequence[str]) -> set[str]:
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as e:
        raise UsageError(f"{template!r} is no template: {e}; a brace itself is written twice") from None
    used = {field for _, field, _, _ in pieces if field is not None}
    plain = not any(spec or conversion for _, _, spec, conversion in pieces)
    unknown = sorted(used - set(possible))
    if unknown or not plain:
        what = f"{{{unknown[0]}}}" if unknown else "what follows a field's name"
        fields = ", ".join(f"{{{f}}}" for f in possible)
        raise UsageError(f"{template!r}: {what} is not possible; possible: {fields}")
    return used


def _filled(template: str, values: dict[str, str]) -> str:
    return "".join(text + (values.get(field, "") if field else "") for text, field, _, _ in Formatter().parse(template))


def _parts_of(url: str, source_url: str) -> tuple[list[str], str, str]:
    """The folders between source and recording, its file's name, and its suffix without the dot."""
    below = url.removeprefix(source_url) if url.startswith(source_url) else url.partition("://")[2].partition("/")[2]
    path = unquote_to_bytes(below).decode("utf-8", "surrogateescape")
    *folders, file = _clean(path) or ["recording"]
    stem, dot, ext = file.rpartition(".")
    return (folders, stem, ext) if dot and stem else (folders, file, "")


def _clean(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", ".", ".."}]


def _fits(path: str, place: str) -> bool:
    """Whether a store takes it: names as long as that, and for S3 nothing but text."""
    if len(place) > LONGEST_URL or "\0" in path:
        return False
    if any(len(os.fsencode(part)) > LONGEST_PART for part in path.split("/")):
        return False
    if not place.startswith("s3://"):
        return True
    return _storable(path) == path and len(bucket_and_key(place)[1].encode()) <= LONGEST_KEY


def _storable(text: str) -> str:
    """Without what UTF-8 and Postgres have no place for."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def _date(modified_s: int) -> str:
    return datetime.fromtimestamp(min(max(modified_s, 0), LAST_SECOND), UTC).strftime("%Y-%m-%d")


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
