"""Which objects lie beside a recording: its sidecars and its done marker, found in one pass over a listing.

Keys that begin alike lie together in a listing, so an object is handed out as soon as the listing has left what begins
like it. What is kept is what begins like the key that the listing is at, however long the listing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pipeline.sidecars import candidates, without_suffix
from storage.jobs import Listed
from storage.urls import quoted


@dataclass(frozen=True, slots=True)
class Found:
    """An object, and the URLs of those others at its side that may matter to it."""

    listed: Listed
    companions: frozenset[str]


@dataclass(slots=True)
class _Alike:
    """Objects whose companions begin with the same characters, as long as the listing is among those."""

    prefix: str
    members: list[Listed] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)


def paired(listing: Iterable[Listed], done_marker: str | None = None) -> Iterator[Found]:
    """Every object of a listing with its companions. The listing: by key, or folder by folder, each by name."""
    open_: list[_Alike] = []
    for listed in listing:
        url = listed.media.url
        if left := [a for a in open_ if not url.startswith(a.prefix)]:
            open_ = [a for a in open_ if url.startswith(a.prefix)]
            yield from (found for a in reversed(left) for found in _found(a, done_marker))
        prefix = companions_prefix(url)
        if not any(a.prefix == prefix for a in open_):
            open_.append(_Alike(prefix))
        for alike in open_:
            if alike.prefix == prefix:
                alike.members.append(listed)
                alike.awaited.update(companions_of(url, done_marker))
            if url in alike.awaited:
                alike.seen.add(url)
    yield from (found for a in reversed(open_) for found in _found(a, done_marker))


def companions_of(url: str, done_marker: str | None) -> frozenset[str]:
    """Where an object's companions are, if there are any."""
    return frozenset(candidates(url)) | ({url + quoted(done_marker)} if done_marker else set())


def companions_prefix(url: str) -> str:
    """What the URLs of an object's companions begin with, and its own: all but its suffix."""
    stem = without_suffix(url)
    return url if stem == url else stem + "."


def _found(alike: _Alike, done_marker: str | None) -> Iterator[Found]:
    for listed in alike.members:
        url = listed.media.url
        beside = {u for u in companions_of(url, done_marker) if u in alike.seen}
        yield Found(listed, frozenset(beside - {url}))
