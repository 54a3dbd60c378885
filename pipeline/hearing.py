"""What a shard's chunks are in: which of them must be listened to, and when the language of each is known. Pure state.

What is decided hangs on the plan, the sound and what has been checkpointed, and not on the order in which windows come
back: a resumed run decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from chunking.timeline import Chunk, Span, total, within
from pipeline.languages import Evidence, Probabilities, Spoken, joined, path, pieces, vote, voters


class Hearing(Protocol):
    """Asked with the numbers of chunks (`Chunk.index`)."""

    verdict: tuple[str, float] | None
    """A language for the whole job, and its probability, that has been voted for here and not been written yet."""

    def wanted(self, chunk: int) -> Span | None:
        """What to listen to now for the sake of that chunk; None: nothing, and it is known or waits for others."""
        ...

    def take(self, chunk: int, span: Span, languages: Probabilities) -> None:
        """What was heard in `wanted`. Without any probabilities: it could not be listened to."""
        ...

    def spoken(self, chunk: int) -> tuple[Spoken, ...]:
        """The chunk's stretches of one language, together all of it; none while they are not known."""
        ...

    def settle(self, language: str, probability: float) -> None:
        """The job's language has been decided, here or by another shard."""
        ...


class OneLanguage:
    """All of the job is in one language: told, known by now, or voted for by a few chunks."""

    def __init__(self, chunks: Sequence[Chunk], language: str = "", probability: float = 0.0) -> None:
        self.verdict: tuple[str, float] | None = None
        self._spans = {c.index: c.span for c in chunks}
        self._language, self._probability = language, probability
        self._voters = {} if language else {c.index: c for c in voters(chunks)}
        self._heard: dict[int, Evidence] = {}

    def wanted(self, chunk: int) -> Span | None:
        return self._spans[chunk] if not self._language and chunk in self._voters.keys() - self._heard.keys() else None

    def take(self, chunk: int, span: Span, languages: Probabilities) -> None:
        self._heard[chunk] = _evidence(self._voters[chunk], span, languages)
        if len(self._heard) == len(self._voters) and not self._language:
            self.verdict = vote([self._heard[i] for i in sorted(self._heard)])

    def spoken(self, chunk: int) -> tuple[Spoken, ...]:
        return (Spoken(self._spans[chunk], self._language, self._probability),) if self._language else ()

    def settle(self, language: str, probability: float) -> None:
        self.verdict, self._language, self._probability = None, language, probability


@dataclass(slots=True)
class _Piece:
    """What is listened to at once: a chunk, or what lies between two of its pauses."""

    chunk: Chunk
    span: Span
    heard: Evidence | None = None
    language: str = ""


class EachChunk:
    """Each chunk is in a language of its own (`--language multi`), or in several, one after the other; with hysteresis.

    A piece whose language is clear has it. Others, between two such, are decided together, by their own evidence and
    what changes cost. Beyond the shard's ends nothing is known.
    """

    def __init__(self, chunks: Sequence[Chunk], done: Mapping[int, tuple[str, str]]) -> None:
        """`done`: of the chunks that have been checkpointed, the languages that they begin and end with."""
        self.verdict: tuple[str, float] | None = None
        self._of = {c.index: [_Piece(c, span) for span in pieces(c)] for c in chunks}
        self._pieces = [p for mine in self._of.values() for p in mine]
        for index, (first, last) in done.items():
            for piece in self._of[index]:
                piece.language = first
            self._of[index][-1].language = last

    def wanted(self, chunk: int) -> Span | None:
        return next((p.span for p in self._of[chunk] if p.heard is None and not p.language), None)

    def take(self, chunk: int, span: Span, languages: Probabilities) -> None:
        piece = next(p for p in self._of[chunk] if p.span == span)
        piece.heard = _evidence(piece.chunk, span, languages)
        if piece.heard.clear and piece.heard.likeliest:
            piece.language = piece.heard.likeliest
        self._decide()

    def spoken(self, chunk: int) -> tuple[Spoken, ...]:
        mine = self._of[chunk]
        if not all(p.language for p in mine):
            return ()
        return joined([(Spoken(p.span, p.language, p.heard.of(p.language)), p.heard.seconds) for p in mine if p.heard])

    def settle(self, language: str, probability: float) -> None:
        """The job has no one language."""

    def _decide(self) -> None:
        """Decide each run of unclear pieces, once all of it and what is clear at its ends has been heard."""
        at = 0
        while at < len(self._pieces):
            run = list(takewhile(lambda p: not p.language, self._pieces[at:]))
            heard = [p.heard for p in run if p.heard]
            if run and len(heard) == len(run):
                end = at + len(run)
                before = self._pieces[at - 1].language if at else None
                after = self._pieces[end].language if end < len(self._pieces) else None
                for piece, language in zip(run, path(heard, before, after), strict=True):
                    piece.language = language
            at += len(run) + 1


def _evidence(chunk: Chunk, span: Span, languages: Probabilities) -> Evidence:
    return Evidence(total(within(chunk.speech, span)), languages)
