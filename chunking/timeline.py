"""The records that cross stages, and the one unit of time: seconds of the recording, as floats.

A recording becomes a `Plan` of shards and chunks; each chunk becomes a `ChunkResult`; a job's results become one
`Transcript`. All are frozen dataclasses, so a stage can only hand on a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

SAMPLE_RATE = 16_000
"""Whisper's and Silero's rate in samples per second (openai/whisper, audio.py). Only audio code may need it."""
LONGEST_WINDOW_S = 30.0
"""Whisper's encoder has positions for 30 s and no more (openai/whisper, audio.py CHUNK_LENGTH)."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """From `start` to `end`, in seconds of the recording."""

    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start

    def overlap(self, other: Span) -> float:
        """Seconds that both spans cover; 0 when they are apart."""
        return max(0.0, min(self.end, other.end) - max(self.start, other.start))

    def clip(self, outer: Span) -> Span:
        """The part of this span inside `outer` (empty, at an edge of `outer`, when they are apart)."""
        start = min(max(self.start, outer.start), outer.end)
        return Span(start, max(start, min(self.end, outer.end)))


def within(spans: Iterable[Span], outer: Span) -> tuple[Span, ...]:
    """The parts of `spans` that lie inside `outer`, without empty ones."""
    return tuple(s.clip(outer) for s in spans if s.overlap(outer) > 0.0)


def total(spans: Iterable[Span]) -> float:
    """Seconds in all."""
    return sum(s.duration for s in spans)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One decoding window of at most 30 s inside a shard: the unit of inference and of checkpointing."""

    index: int
    """Position among all chunks of the job, shards and channels included."""
    span: Span
    speech: tuple[Span, ...]
    """Where the VAD saw speech inside the span."""
    window: float
    """Seconds that the model's input is padded to. It belongs to the chunk, so a resumed run decodes alike."""
    cut_before: bool = False
    """Speech had to be cut at the start: this chunk overlaps the one before it."""
    cut_after: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """About ten minutes of one channel: what a GPU worker leases. Its audio covers exactly `span`."""

    index: int
    channel: int
    """0 is the mix, or the first channel when channels are split."""
    span: Span
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a recording is cut. Stored before the first chunk is decoded, and never made anew for a resumed job."""

    duration: float
    channels: int
    shards: tuple[Shard, ...]
    lost: tuple[Span, ...] = ()
    """Seconds that the file could not give: damage."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(c for s in self.shards for c in s.chunks)


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its times; `text` keeps the space before it, as Whisper writes it."""

    start: float
    end: float
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the transcript: a sentence where the text allows it."""

    start: float
    end: float
    text: str
    language: str
    channel: int = 0
    avg_logprob: float = 0.0
    no_speech_prob: float = 0.0
    compression_ratio: float = 1.0
    temperature: float = 0.0
    words: tuple[Word, ...] = ()
    flags: tuple[str, ...] = ()
    """What the quality checks saw: `loop`, `low_confidence`, `wider_window`, `tail`, … (docs/quality.md)."""
    language_probability: float | None = None
    """Of the language: by the recording's vote, or in a recording of several by this chunk's own sound."""

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


def seconds_by_language(segments: Iterable[Segment]) -> dict[str, float]:
    """Seconds of the segments in each language, the one that is spoken longest first."""
    found: dict[str, float] = {}
    for s in segments:
        found[s.language] = found.get(s.language, 0.0) + s.end - s.start
    return dict(sorted(found.items(), key=lambda x: (-x[1], x[0])))


@dataclass(frozen=True, slots=True)
class Gap:
    """Speech that no decoding could read, and why."""

    span: Span
    reason: str
    channel: int = 0


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What the model made of one chunk: the content of a checkpoint. Times are seconds of the recording."""

    index: int
    channel: int
    span: Span
    cut_before: bool
    cut_after: bool
    language: str
    segments: tuple[Segment, ...]
    gaps: tuple[Gap, ...] = ()
    decodes: int = 1
    """How many times the model was asked, first decoding included."""
    compute_type: str = ""
    """What the model computed in. Empty: not noted."""


class Coverage(StrEnum):
    """What became of a second of the recording."""

    TRANSCRIBED = "transcribed"
    NO_SPEECH = "no_speech"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CoverageSpan:
    """A stretch of one channel with one end. All of a channel's stretches together are the recording's duration."""

    span: Span
    kind: Coverage
    reason: str = ""
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Transcript:
    """The finished result of a job."""

    duration: float
    channels: int
    language: str
    language_probability: float
    segments: tuple[Segment, ...]
    coverage: tuple[CoverageSpan, ...]

    @property
    def text(self) -> str:
        return " ".join(s.text for s in self.segments)

    def seconds(self, kind: Coverage) -> float:
        """Seconds with that end, averaged over the channels, so that the three kinds add up to the duration."""
        return total(c.span for c in self.coverage if c.kind is kind) / max(1, self.channels)
