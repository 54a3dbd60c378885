"""Writes a finished transcript as the text of a file: plain text, SRT, WebVTT or JSON.

The JSON is described by transcript.schema.json beside this file; the records below are that schema in Python.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated

from pydantic import PlainSerializer, TypeAdapter

from chunking.timeline import Coverage, CoverageSpan, Segment, Transcript, Word, seconds_by_language
from pipeline.subtitles import to_srt, to_vtt
from pipeline.typography import clean
from storage.recordings import Media

SCHEMA_VERSION = "1.2"
PARAGRAPH_GAP = 2.0
"""Seconds of silence that begin a new paragraph."""
PARAGRAPH_LENGTH = 600
"""Characters after which a paragraph ends with its sentence, so that an hour's lecture is not one block."""


class Format(StrEnum):
    """What a transcript can be written as; the value is the file's extension."""

    TXT = "txt"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


CONTENT_TYPES = {
    Format.TXT: "text/plain; charset=utf-8",
    Format.SRT: "application/x-subrip; charset=utf-8",
    Format.VTT: "text/vtt; charset=utf-8",
    Format.JSON: "application/json",
}
"""For object stores and whoever serves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a file says of its transcript's origin. `created_at` is an ISO 8601 time with its zone."""

    source_url: str
    sha256: str
    model: str
    compute_type: str
    task: str
    """`transcribe`, or `translate` into English."""
    state: str
    """`done` or `partial`."""
    code: str
    """A `chunking.errors.Code`: why the job ended so."""
    job_id: str
    created_at: str
    media: Media
    """What the decoder found."""


def render(transcript: Transcript, about: About, fmt: Format) -> str:
    """The whole file as text, to be stored as UTF-8. An empty transcript gives a valid file without text."""
    match fmt:
        case Format.TXT:
            return _txt(transcript)
        case Format.SRT:
            return to_srt(transcript)
        case Format.VTT:
            return to_vtt(transcript)
        case Format.JSON:
            return _json(transcript, about)


# Plain text


def _txt(transcript: Transcript) -> str:
    """A paragraph per speaker's turn, long silence, or so many sentences, with an empty line between them."""
    paragraphs: list[list[str]] = []
    last: Segment | None = None
    for segment in (
        sorted(transcript.segments, key=lambda s: s.start) if transcript.channels > 1 else transcript.segments
    ):
        if not (text := clean(segment.text)):
            continue
        if last is None or begins_paragraph(last, segment, sum(map(len, paragraphs[-1]))):
            paragraphs.append([f"[channel {segment.channel + 1}]"] if transcript.channels > 1 else [])
        paragraphs[-1].append(text)
        last = segment
    return "".join(" ".join(paragraph) + "\n\n" for paragraph in paragraphs).removesuffix("\n")


def begins_paragraph(last: Segment, segment: Segment, length: int) -> bool:
    """Whether a segment begins another paragraph than the one before it, whose paragraph has `length` characters."""
    long = length > PARAGRAPH_LENGTH and clean(last.text).endswith((".", "!", "?", "。", "！", "？", "…"))
    return segment.channel != last.channel or segment.start - last.end > PARAGRAPH_GAP or long


# JSON


def _seconds(value: float) -> float:
    return max(0.0, round(value, 3)) if math.isfinite(value) else 0.0


def _score(value: float) -> float | None:
    return round(value, 3) + 0.0 if math.isfinite(value) else None  # + 0.0 makes -0.0 zero


def _probability(value: float) -> float | None:
    return round(value, 4) + 0.0 if math.isfinite(value) else None


def _valid(text: str) -> str:
    """The text with what UTF-8 or a database column cannot hold replaced: lone surrogates and NUL."""
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


_Seconds = Annotated[float, PlainSerializer(_seconds)]
_Score = Annotated[float, PlainSerializer(_score)]
_Probability = Annotated[float, PlainSerializer(_probability)]
_Text = Annotated[str, PlainSerializer(_valid)]


@dataclass(frozen=True, slots=True)
class _Media:
    container: str | None
    codec: str | None
    sample_rate: int | None
    channels: int | None
    tracks: int | None
    expected_s: _Seconds | None
    decoded_s: _Seconds | None
    decode_errors: int | None
    loudest_db: float | None
    clipped: float | None
    dc_offset: float | None
    gain_db: float | None
    highpass_hz: float | None

    @classmethod
    def of(cls, media: Media) -> _Media:
        return cls(**{f.name: getattr(media, f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class _Source:
    url: _Text
    sha256: str
    media: _Media


@dataclass(frozen=True, slots=True)
class _Job:
    id: str
    state: str
    code: str
    task: str
    created_at: str


@dataclass(frozen=True, slots=True)
class _Model:
    name: _Text
    compute_type: str


@dataclass(frozen=True, slots=True)
class _Word:
    start: _Seconds
    end: _Seconds
    text: _Text
    probability: _Probability

    @classmethod
    def of(cls, word: Word) -> _Word:
        return cls(word.start, word.end, word.text, word.probability)


@dataclass(frozen=True, slots=True)
class _Segment:
    id: int
    start: _Seconds
    end: _Seconds
    text: _Text
    channel: int
    language: str
    language_probability: _Probability | None
    avg_logprob: _Score
    no_speech_prob: _Probability
    compression_ratio: _Score
    temperature: _Score
    flags: tuple[str, ...]
    words: tuple[_Word, ...]

    @classmethod
    def of(cls, index: int, s: Segment) -> _Segment:
        scores = (s.avg_logprob, s.no_speech_prob, s.compression_ratio, s.temperature)
        words = tuple(_Word.of(word) for word in s.words)
        return cls(
            index, s.start, s.end, s.text, s.channel, s.language, s.language_probability, *scores, s.flags, words
        )


@dataclass(frozen=True, slots=True)
class _Language:
    language: str
    seconds: _Seconds


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: _Seconds
    end: _Seconds
    kind: Coverage
    reason: _Text
    channel: int

    @classmethod
    def of(cls, c: CoverageSpan) -> _Stretch:
        return cls(c.span.start, c.span.end, c.kind, c.reason, c.channel)


@dataclass(frozen=True, slots=True)
class _Coverage:
    transcribed_s: _Seconds
    no_speech_s: _Seconds
    failed_s: _Seconds
    spans: tuple[_Stretch, ...]


@dataclass(frozen=True, slots=True)
class _Document:
    schema_version: str
    source: _Source
    job: _Job
    model: _Model
    language: str
    language_probability: _Probability
    languages: tuple[_Language, ...]
    duration: _Seconds
    text: _Text
    segments: tuple[_Segment, ...]
    coverage: _Coverage


_DOCUMENT = TypeAdapter(_Document)


def _json(transcript: Transcript, about: About) -> str:
    document = _Document(
        schema_version=SCHEMA_VERSION,
        source=_Source(about.source_url, about.sha256, _Media.of(about.media)),
        job=_Job(about.job_id, about.state, about.code, about.task, about.created_at),
        model=_Model(about.model, about.compute_type),
        language=transcript.language,
        language_probability=transcript.language_probability,
        languages=tuple(_Language(x, seconds) for x, seconds in seconds_by_language(transcript.segments).items()),
        duration=transcript.duration,
        text=transcript.text,
        segments=tuple(_Segment.of(index, segment) for index, segment in enumerate(transcript.segments)),
        coverage=_Coverage(
            transcribed_s=transcript.seconds(Coverage.TRANSCRIBED),
            no_speech_s=transcript.seconds(Coverage.NO_SPEECH),
            failed_s=transcript.seconds(Coverage.FAILED),
            spans=tuple(_Stretch.of(stretch) for stretch in transcript.coverage),
        ),
    )
    return _DOCUMENT.dump_json(document, indent=2).decode() + "\n"
