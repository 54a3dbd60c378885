"""What an event is worth: a look at the object that it names. What lies there decides, and not what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chunking.errors import Code, Rejected
from pipeline.companions import Found, companions_of
from pipeline.events import Event
from storage import sources
from storage.folders import Place
from storage.jobs import Listed, MediaObject
from storage.sources import Source
from storage.urls import bucket_and_key, s3_url


@dataclass(frozen=True, slots=True)
class Hint:
    """An object at a source."""

    source: Source
    found: Found
    overtaken: bool = False
    """It is known from the event alone: something else, or nothing, lies there by now."""


def look(event: Event, known: Sequence[Source], place: Place) -> list[Hint]:
    """The object that an event names, if it lies at one of the sources; and, if that is another one by now, both.

    An object's removal needs no look: whoever is to read it finds that it is gone. Raises TransientError, UsageError.
    """
    if event.kind != "created":
        return []
    own = [s3_url(event.bucket, key) for key in event.keys]
    urls = [_recording(known, url) for url in own]
    for url in urls:
        source = sources.owner(known, url)
        if source is None:
            continue
        told = _told(event, url) if url in own else None  # else the event is about its done marker
        try:
            listed = _head(place, url)
        except Rejected:  # it may not be looked at; whoever is to read it finds that out, for all to see
            return [Hint(source, Found(Listed(told, 0), frozenset()))] if told else []
        if listed is not None:
            hints = [Hint(source, _beside(source, listed, place))]
            if told is not None and url == own[0] and told.version != listed.media.version:
                hints.insert(0, Hint(source, Found(Listed(told, 0), hints[0].found.companions), overtaken=True))
            return hints
    source, told = sources.owner(known, urls[0]), _told(event, urls[0]) if urls[0] in own else None
    if source is None or told is None:
        return []
    return [Hint(source, _beside(source, Listed(told, 0), place), overtaken=True)]


def _recording(known: Sequence[Source], url: str) -> str:
    """What a done marker stands for, or the object itself."""
    source = sources.owner(known, url)
    marker = source.settings.done_marker if source is not None else None
    bucket, key = bucket_and_key(url)
    return s3_url(bucket, key.removesuffix(marker)) if marker and key.endswith(marker) else url


def _told(event: Event, url: str) -> MediaObject | None:
    """The object as the event describes it, where it does."""
    if event.etag is None or event.size is None:
        return None
    return MediaObject(url, f"{event.etag}-{event.size}", event.size)


def _head(place: Place, url: str) -> Listed | None:
    try:
        return place.head(url)
    except Rejected as e:
        if e.code is not Code.GONE:
            raise
        return None


def _beside(source: Source, listed: Listed, place: Place) -> Found:
    """The object with those of its companions that matter."""
    s = source.settings
    asked = companions_of(listed.media.url, s.done_marker) if s.sidecars or s.done_marker else frozenset()
    return Found(listed, frozenset(u for u in asked if _there(place, u)))


def _there(place: Place, url: str) -> bool:
    try:
        return _head(place, url) is not None
    except Rejected:
        return False
