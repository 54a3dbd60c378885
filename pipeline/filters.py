"""Which objects at a source are to be taken, and why the others are not. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import PurePosixPath
from urllib.parse import unquote

from chunking.errors import UsageError
from pipeline.companions import Found
from pipeline.exports import Format
from pipeline.ingestion import MEDIA_SUFFIXES
from storage.putaway import after_of
from storage.sources import SourceSettings
from storage.urls import quoted

TEXTS = frozenset(f".{f}" for f in Format)
"""What we write ourselves, and sidecars: no recording has such a name, whatever is included."""
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Verdict(StrEnum):
    """What becomes of an object that a listing found; the value is for users."""

    TAKE = "taken"
    NOT_MEDIA = "no media by their name"
    EXCLUDED = "excluded"
    TOO_LARGE = "too large"
    TOO_YOUNG = "too young yet"
    UNMARKED = "not marked as done yet"
    OWN = "put away after their transcription"


class Filter:
    """A source's rules. Globs see the path below the source's URL, and upper and lower case are different.

    As for `aws s3 --exclude`, `*` and `?` stand for `/` as well; `**/` also stands for no folder at all. Of several
    globs one is enough; what is excluded stays so whatever is included.
    """

    def __init__(self, settings: SourceSettings, source_url: str) -> None:
        self._settings, self._url = settings, source_url
        self._include, self._exclude = _globs(settings.include), _globs(settings.exclude)
        self._marker = quoted(settings.done_marker) if settings.done_marker else ""
        away = after_of(settings.after, source_url) if settings.after else None
        self._away = f"{away.target}/" if away is not None and away.kind == "move" else None
        self._hides = source_url.startswith("file:")
        """Whether names that begin with a dot are hidden: a folder's are, a bucket's are names like any other."""

    def verdict(self, found: Found, now_s: float) -> Verdict:
        """What becomes of the object now. What is too young, or not marked yet, may be taken later."""
        by_name = self._by_name(found.listed.media.url)
        return self._as_it_is(found, now_s) if by_name is Verdict.TAKE else by_name

    def _by_name(self, url: str) -> Verdict:
        if self._away and url.startswith(self._away):
            return Verdict.OWN
        path = unquote(url.removeprefix(self._url), errors="surrogateescape").lstrip("/")
        suffix = PurePosixPath(path).suffix.lower()
        if suffix in TEXTS or (self._marker and url.endswith(self._marker)):
            return Verdict.NOT_MEDIA
        if self._excluded(path):
            return Verdict.EXCLUDED
        return Verdict.TAKE if self._include is not None or suffix in MEDIA_SUFFIXES else Verdict.NOT_MEDIA

    def _as_it_is(self, found: Found, now_s: float) -> Verdict:
        media, s = found.listed.media, self._settings
        if s.max_bytes is not None and media.size_bytes > s.max_bytes:
            return Verdict.TOO_LARGE
        if self._marker and media.url + self._marker not in found.companions:
            return Verdict.UNMARKED
        young = s.min_age_s > 0 and now_s - found.listed.modified_s < s.min_age_s
        return Verdict.TOO_YOUNG if young else Verdict.TAKE

    def _excluded(self, path: str) -> bool:
        if self._hides and any(part.startswith(".") for part in path.split("/")):
            return True
        if self._exclude is not None and self._exclude.match(path):
            return True
        return self._include is not None and not self._include.match(path)


def parse_duration(text: str) -> float:
    """`30s`, `5m`, `2h`, `1d`, `4w`, `1y` (365 days), `45` → seconds. Raises UsageError."""
    number, unit = _measure(text)
    if number is None or unit not in SECONDS:
        raise UsageError(f"{text!r} is no duration: 30s, 5m, 2h, 1d, or seconds")
    return number * SECONDS[unit]


def parse_moment(text: str, now: datetime) -> datetime:
    """`2026-12-01`, `2026-12-01T12:00:00+01:00`, or `7d`: so long before `now`. Raises UsageError. No zone: UTC."""
    try:
        if _measure(text)[1]:
            return now - timedelta(seconds=parse_duration(text))
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, UsageError):
        raise UsageError(f"{text!r} is no time: 2026-12-01, 2026-12-01T12:00:00+01:00, or 7d, 12h ago") from None


def parse_size(text: str) -> int:
    """`16G`, `500M`, `64K`, `1_000` → bytes, by powers of 1024. Raises UsageError."""
    number, unit = _measure(text)
    unit = unit.removesuffix("b").removesuffix("i") if unit != "i" else unit
    if number is None or unit not in SIZES:
        raise UsageError(f"{text!r} is no size: 16G, 500M, 64K, or bytes")
    return int(number * SIZES[unit])


def _measure(text: str) -> tuple[float | None, str]:
    found = re.fullmatch(r"\s*([0-9][0-9_]{0,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{0,3})\s*", text)
    return (float(found[1].replace("_", "")), found[2].lower()) if found else (None, "")


def _globs(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for all of them; None where there are none."""
    return re.compile("|".join(fnmatch.translate(v) for p in patterns for v in _variants(p))) if patterns else None


def _variants(pattern: str) -> Iterator[str]:
    """The pattern with and without a folder at each `**/`."""
    head, deep, tail = pattern.lstrip("/").partition("**/")
    if not deep:
        yield head
        return
    for rest in _variants(tail):
        yield head + rest
        yield f"{head}*/{rest}"
