"""Reading one chunk to its end: what to ask the model next, given its answers so far. Pure, but for its own state.

A chunk is read in parts: first all of it; then, where the model closed although speech went on, the rest as a part of
its own. A part whose answer is doubtful climbs the ladder of quality.py, and its most believable answer is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from chunking.planner import PlanOptions
from chunking.timeline import Chunk, ChunkResult, Gap, Segment, Span, Word, total, within
from chunking.words import in_speech
from pipeline import echoes, quality
from pipeline.engine import Answer, Piece
from pipeline.quality import Rung

MOST_PARTS = 4
"""Rests that are read in turn; each is shorter than the one before."""


@dataclass(frozen=True, slots=True)
class Request:
    """Decode these seconds of the recording in that window."""

    span: Span
    window: float
    temperature: float
    prompted: bool = True


class Reading:
    """One chunk between its first request and its result."""

    def __init__(
        self, chunk: Chunk, channel: int, language: str, plan: PlanOptions | None = None, *, prompt: str = ""
    ) -> None:
        self.chunk = chunk
        self._channel, self._language, self._prompt = channel, language, prompt
        self._plan = plan or PlanOptions()
        self._part = chunk.span
        self._parts = 1
        self._rungs: tuple[Rung, ...] = quality.ladder(chunk.window)
        self._answers: list[tuple[Answer, Rung]] = []
        self._suspect: tuple[Answer, Rung] | None = None
        """Made of the prompt, and the next answer, without it, says whether that was truly said."""
        self._echoed = False
        self._segments: list[Segment] = []
        self._gaps: list[Gap] = []
        self._decodes = 0

    @property
    def request(self) -> Request | None:
        """What to decode next; None when the chunk is read."""
        if not self._rungs:
            return None
        return self._request(self._part)

    @property
    def first(self) -> Request:
        """The request that begins it."""
        return self._request(self.chunk.span)

    @property
    def begun(self) -> bool:
        return self._decodes > 0

    @property
    def expected_tokens(self) -> float:
        """How long the text will be: 4 tokens a second of speech is what read and spoken English come to."""
        return 4.0 * total(within(self.chunk.speech, self._part))

    def take(self, answer: Answer) -> None:
        """The answer to `request`."""
        self._decodes += 1
        rung, self._rungs = self._rungs[0], self._rungs[1:]
        if self._suspect is None and rung.prompted and echoes.echoing(answer, self._prompt):
            self._suspect = (answer, rung)
            self._rungs = (replace(rung, prompted=False), *self._rungs)
            return
        answer, rung = self._settled(answer, rung)
        self._answers.append((answer, rung))
        if not quality.doubts(answer, self._speech(), self._part.duration):
            self._accept(answer, self._answers[-1][1], ())
        elif not self._rungs:
            chosen = quality.best([a for a, _ in self._answers], self._speech(), self._part.duration)
            rung = next(r for a, r in self._answers if a is chosen)
            self._accept(chosen, rung, quality.doubts(chosen, self._speech(), self._part.duration))

    def _settled(self, answer: Answer, rung: Rung) -> tuple[Answer, Rung]:
        """The suspect, if this answer without the prompt bears it out; else this one, and no prompt any more."""
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return answer, rung
        if echoes.borne_out(echoes.echoing(suspect[0], self._prompt), answer):
            return suspect
        self._echoed = True
        self._rungs = tuple(replace(r, prompted=False) for r in self._rungs)
        return answer, rung

    def fail(self, reason: str) -> None:
        """The engine cannot decode this chunk at all."""
        self._decodes += 1
        self._lose(self._part, reason)
        self._rungs = ()

    def result(self) -> ChunkResult:
        c = self.chunk
        return ChunkResult(
            index=c.index,
            channel=self._channel,
            span=c.span,
            cut_before=c.cut_before,
            cut_after=c.cut_after,
            language=self._language,
            segments=tuple(self._segments),
            gaps=tuple(self._gaps),
            decodes=self._decodes,
        )

    def _accept(self, answer: Answer, rung: Rung, doubts: tuple[str, ...]) -> None:
        part, speech = self._part, self._speech()
        if "loop" in doubts:
            answer = quality.without_loop(answer)
        rest = quality.unread(answer, speech, part.duration)
        if self._parts > 1:
            answer = quality.without_echo(answer, " ".join(s.text for s in self._segments))
        flags = self._flags(rung, doubts)
        answer = _timed(answer, speech)
        if not quality.silent(answer):
            self._segments.extend(
                self._segment(p, answer, flags, i + 1 == len(answer.pieces)) for i, p in enumerate(answer.pieces)
            )
        if "empty" in doubts:
            self._lose(part, "unread")
        self._rungs, self._answers, self._echoed = (), [], False
        if rest is None:
            return
        self._part = Span(part.start + rest.start, part.start + rest.end)
        self._parts += 1
        if self._parts > MOST_PARTS:
            self._lose(self._part, "unread")
        else:
            self._rungs = (Rung(self._plan.window(self._part.duration)),)

    def _request(self, span: Span) -> Request:
        rung = self._rungs[0]
        return Request(span, rung.window, rung.temperature, rung.prompted)

    def _speech(self) -> tuple[Span, ...]:
        """Speech of the part, in seconds of the window."""
        at = self._part.start
        return tuple(Span(s.start - at, s.end - at) for s in within(self.chunk.speech, self._part))

    def _flags(self, rung: Rung, doubts: tuple[str, ...]) -> tuple[str, ...]:
        tail = ("tail",) if self._parts > 1 else ()
        echo = ("prompt_echo",) if self._echoed else ()
        own = rung.window == self.chunk.window or self._parts > 1
        return (*doubts, *echo, *tail, *(() if own else ("window_30s",)))

    def _lose(self, span: Span, reason: str) -> None:
        self._gaps.extend(Gap(s, reason, self._channel) for s in within(self.chunk.speech, span))

    def _segment(self, piece: Piece, answer: Answer, flags: tuple[str, ...], last: bool) -> Segment:
        at, inside = self._part.start, self._part
        span = Span(at + piece.start, at + piece.end).clip(inside)
        if last and not answer.closed:  # the model did not say when it ended: not after the last speech
            heard = within(self.chunk.speech, inside)
            span = Span(span.start, max(span.start, min(span.end, heard[-1].end))) if heard else span
        words = tuple(_shifted(w, at, inside) for w in piece.words)
        if words:
            span = Span(words[0].start, words[-1].end)
        return Segment(
            start=span.start,
            end=span.end,
            text=piece.text,
            language=self._language,
            channel=self._channel,
            avg_logprob=answer.avg_logprob,
            no_speech_prob=answer.no_speech_prob,
            compression_ratio=quality.compression_ratio(piece.text),
            temperature=answer.temperature,
            words=words,
            flags=flags,
        )


def _timed(answer: Answer, speech: Sequence[Span]) -> Answer:
    """The answer with its words, if it has any, where the VAD saw speech."""
    words = iter(in_speech([w for p in answer.pieces for w in p.words], speech))
    return replace(answer, pieces=tuple(replace(p, words=tuple(islice(words, len(p.words)))) for p in answer.pieces))


def _shifted(word: Word, by: float, inside: Span) -> Word:
    span = Span(word.start + by, word.end + by).clip(inside)
    return replace(word, start=span.start, end=span.end)
