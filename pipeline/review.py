"""A label's doubtful segments as clips, each recording fetched and decoded once, and what they are as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from chunking.audio import Pcm
from chunking.errors import PermanentError, TransientError
from chunking.timeline import Span
from pipeline.clips import cut, stretch
from pipeline.sound import Sounds, heard
from storage.jobs import JobView
from storage.review import Doubtful

COLUMNS = ("file", "job", "recording", "segment", "start_s", "end_s", "at_s", "text", "avg_logprob", "flags")
"""Of the index. `at_s`: where in the file the segment begins."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A segment's clip. `rank`: its place among those that were asked for, from 0."""

    rank: int
    segment: Doubtful
    pcm: Pcm
    before_s: float
    """Of sound before the segment."""


@dataclass(frozen=True, slots=True)
class Unheard:
    """Segments whose recording cannot be heard any more, and why."""

    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the index. `at_s`: where in the file the segment begins."""

    file: str
    url: str
    segment: Doubtful
    at_s: float


def cuts(
    sounds: Sounds, found: Sequence[Doubtful], views: dict[int, JobView], around_s: float
) -> Iterator[Cut | Unheard]:
    """The segments' clips, a recording at a time."""
    recordings: dict[object, list[int]] = {}
    for rank, segment in enumerate(found):
        job = views[segment.job]
        recordings.setdefault((job.url, job.version, job.options.track, heard(job)), []).append(rank)
    for ranks in recordings.values():
        try:
            with sounds.of(views[found[ranks[0]].job]) as sound:
                for rank in ranks:
                    s = found[rank]
                    span = stretch(s.span.start, s.span.end, around_s, sound.duration_s)
                    channel = s.channel if sound.channels > 1 else None
                    yield Cut(rank, s, cut(sound, span, channel), max(0.0, s.span.start - span.start))
        except (PermanentError, TransientError) as e:
            yield Unheard(tuple(ranks), str(e))


def longest(found: Sequence[Doubtful], around_s: float) -> float:
    """Seconds that their clips may come to."""
    return sum(stretch(s.span.start, s.span.end, around_s, float("inf")).duration for s in found)


def clip_name(cut: Cut, suffix: str) -> str:
    """In the order of doubt."""
    return f"{cut.rank + 1:04d}-job{cut.segment.job}-{cut.segment.position}{suffix}"


def index_of(entries: Sequence[Entry]) -> str:
    """A CSV table of the clips."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for e in entries:
        s, span = e.segment, _rounded(e.segment.span)
        score = round(s.avg_logprob, 4)
        writer.writerow(
            [e.file, s.job, e.url, s.position, span.start, span.end, round(e.at_s, 3), s.text, score, s.flags]
        )
    return out.getvalue()


def index_name(out: str) -> str:
    """Of the index of clips that are joined in this file: beside it."""
    return out.removesuffix(PurePosixPath(out).suffix) + ".csv"


def _rounded(span: Span) -> Span:
    return Span(round(span.start, 3), round(span.end, 3))
