"""Reading a chunk in which the language changes: each stretch of one language on its own, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chunking.planner import PlanOptions
from chunking.timeline import Chunk, ChunkResult, within
from pipeline.engine import Answer
from pipeline.languages import Spoken
from pipeline.reading import Reading, Request


class MixedReading:
    """To those who ask the model, like a Reading."""

    def __init__(self, chunk: Chunk, channel: int, spoken: Sequence[Spoken], prompt: str = "") -> None:
        """`spoken`: spans that together are the chunk's."""
        self.chunk = chunk
        self._language = max(spoken, key=lambda s: s.span.duration).language
        self._readings = [
            Reading(_part(chunk, s), channel, s.language, prompt=prompt, probability=s.probability) for s in spoken
        ]

    @property
    def request(self) -> Request | None:
        """What to decode next; None when the chunk is read."""
        return next((r.request for r in self._readings if r.request is not None), None)

    @property
    def first(self) -> Request:
        """The request that begins it."""
        return self._readings[0].first

    @property
    def begun(self) -> bool:
        return self._readings[0].begun

    @property
    def expected_tokens(self) -> float:
        """How long the text of `request` will be."""
        return self._now.expected_tokens

    def take(self, answer: Answer) -> None:
        """The answer to `request`."""
        self._now.take(answer)

    def fail(self, reason: str) -> None:
        """The engine cannot decode what was asked: that stretch is lost, and the others are read."""
        self._now.fail(reason)

    @property
    def why(self) -> str:
        """What speaks for the next request; empty where that begins a stretch."""
        return self._now.why

    def result(self) -> ChunkResult:
        results = [r.result() for r in self._readings]
        return replace(
            results[0],
            span=self.chunk.span,
            cut_after=self.chunk.cut_after,
            language=self._language,
            segments=tuple(s for r in results for s in r.segments),
            gaps=tuple(g for r in results for g in r.gaps),
            decodes=sum(r.decodes for r in results),
        )

    @property
    def _now(self) -> Reading:
        return next((r for r in self._readings if r.request is not None), self._readings[-1])


def reading_of(chunk: Chunk, channel: int, spoken: Sequence[Spoken], prompt: str = "") -> Reading | MixedReading:
    """A reading of the chunk in those languages."""
    if len(spoken) > 1:
        return MixedReading(chunk, channel, spoken, prompt)
    return Reading(chunk, channel, spoken[0].language, prompt=prompt, probability=spoken[0].probability)


def _part(chunk: Chunk, spoken: Spoken) -> Chunk:
    """That stretch as a chunk of its own."""
    return replace(
        chunk,
        span=spoken.span,
        speech=within(chunk.speech, spoken.span),
        window=PlanOptions().window(spoken.span.duration),
        cut_before=chunk.cut_before and spoken.span.start == chunk.span.start,
        cut_after=chunk.cut_after and spoken.span.end == chunk.span.end,
    )
