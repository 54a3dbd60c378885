"""How a transcript is laid out: paragraphs, and between them where nobody spoke or no decoding could read. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chunking.timeline import Coverage, CoverageSpan, Segment, Span, Transcript
from pipeline.exports import PARAGRAPH_GAP, begins_paragraph
from pipeline.typography import clean

WORD_LIMITS = (0.8, 0.5, 0.3)
"""Probabilities of a word from which it is sure, fairly sure, unsure; below, it is very unsure."""
SEGMENT_LIMITS = (0.7, 0.5, 0.37)
"""The same of a segment's tokens in the mean, which vary less. The last is Whisper's threshold for an answer, a mean
log-probability of -1 (openai/whisper, transcribe.py)."""
FINEST = 1 / 2000
"""Share of a recording's length that a strip of it can still show."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is shown as one: a word, or a segment whose words have no times. Times are seconds of the recording."""

    start: float
    end: float
    text: str
    probability: float
    doubt: int
    """0: sure, to 3: very unsure."""
    spaced: bool = True
    """A space comes before it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A segment on the page: its pieces, and what was seen of it."""

    pieces: tuple[Piece, ...]
    flags: tuple[str, ...]
    language: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Segments of one channel, one after the other."""

    start: float
    channel: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch without text. `channel` is None where it is so in all of them."""

    span: Span
    kind: Coverage
    reason: str
    channel: int | None


def layout(transcript: Transcript) -> list[Paragraph | Stretch]:
    """The whole in the order of time. All text is without what no screen can show."""
    items: list[Segment | Stretch] = [*transcript.segments, *stretches(transcript)]
    items.sort(key=lambda i: i.start if isinstance(i, Segment) else i.span.start)
    out: list[Paragraph | Stretch] = []
    part: list[Segment] = []
    for item in items:
        if isinstance(item, Stretch):
            out += [*_paragraph(part), item]
            part = []
        elif clean(item.text):
            if part and begins_paragraph(part[-1], item, sum(len(s.text) for s in part)):
                out += _paragraph(part)
                part = []
            part.append(item)
    return [*out, *_paragraph(part)]


def stretches(transcript: Transcript) -> list[Stretch]:
    """What failed, and silences: those that have a reason, and those of all channels that are no mere pauses."""
    only = 0 if transcript.channels > 1 else None
    found = [
        Stretch(c.span, c.kind, clean(c.reason), c.channel if only is not None else None)
        for c in transcript.coverage
        if c.kind is Coverage.FAILED or (c.kind is Coverage.NO_SPEECH and c.reason)
    ]
    found += [
        Stretch(span, Coverage.NO_SPEECH, "", None)
        for span in _shared(_silences(transcript))
        if span.duration >= PARAGRAPH_GAP
    ]
    return sorted(found, key=lambda s: s.span)


def strip(coverage: Iterable[CoverageSpan], channel: int, kind: Coverage, duration: float) -> list[Span]:
    """One channel's stretches of a kind, as fine as a picture of the whole can show: what is nearer is joined."""
    out: list[Span] = []
    for c in coverage:
        if c.channel == channel and c.kind is kind:
            if out and c.span.start - out[-1].end <= duration * FINEST:
                out[-1] = Span(out[-1].start, max(out[-1].end, c.span.end))
            else:
                out.append(c.span)
    return out


def _paragraph(segments: Sequence[Segment]) -> Iterator[Paragraph]:
    if segments:
        yield Paragraph(segments[0].start, segments[0].channel, tuple(_line(s) for s in segments))


def _line(segment: Segment) -> Line:
    words = [(w, clean(w.text)) for w in segment.words]
    pieces = tuple(
        Piece(w.start, w.end, text, w.probability, _doubt(w.probability, WORD_LIMITS), w.text[:1].isspace() or not i)
        for i, (w, text) in enumerate(words)
        if text
    )
    if not pieces:
        mean = _probability(segment.avg_logprob)
        text = clean(segment.text)
        pieces = (Piece(segment.start, segment.end, text, mean, _doubt(mean, SEGMENT_LIMITS)),)
    return Line(pieces, segment.flags, segment.language)


def _doubt(probability: float, limits: tuple[float, ...]) -> int:
    return sum(not probability >= limit for limit in limits)


def _probability(logprob: float) -> float:
    """Of a token in the (geometric) mean."""
    return math.exp(min(0.0, logprob)) if not math.isnan(logprob) else 0.0


def _silences(transcript: Transcript) -> list[list[Span]]:
    silent = [c for c in transcript.coverage if c.kind is Coverage.NO_SPEECH and not c.reason]
    return [[c.span for c in silent if c.channel == channel] for channel in range(transcript.channels)]


def _shared(channels: Sequence[Sequence[Span]]) -> list[Span]:
    """Where all channels have a span; each channel's are in order and apart."""
    if not channels:
        return []
    common = list(channels[0])
    for other in channels[1:]:
        both, i, j = [], 0, 0
        while i < len(common) and j < len(other):
            part = Span(max(common[i].start, other[j].start), min(common[i].end, other[j].end))
            if part.duration > 0.0:
                both.append(part)
            if common[i].end <= other[j].end:
                i += 1
            else:
                j += 1
        common = both
    return common
