"""Reading one chunk to its end: what to ask the model next, given its answers so far. Pure, but for its own state.

A chunk is read in parts: first all of it; then each stretch that the model left out although somebody speaks in it, at
the end, in the middle or at the beginning. The first part climbs the ladder of quality.py where its answer is doubtful,
and its most believable answer is kept. In the end text or a reason stands for all speech (unread.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from chunking.coverage import INVENTED, UNHEARD, UNREAD, holes
from chunking.planner import PlanOptions
from chunking.timeline import Chunk, ChunkResult, Gap, Segment, Span, Word, total, within
from chunking.words import in_speech
from pipeline import echoes, inventions, quality, seams, unread
from pipeline.engine import Answer, Piece
from pipeline.quality import Rung

MOST_PARTS = 4
"""Parts of a chunk that are decoded, all of it included."""
NEAR_S = 0.5
"""A hole that begins so close to one that was decoded is the same one."""


@dataclass(frozen=True, slots=True)
class Request:
    """Decode these seconds of the recording in that window."""

    span: Span
    window: float
    temperature: float
    prompted: bool = True
    language: str = ""


class Reading:
    """One chunk between its first request and its result."""

    def __init__(
        self,
        chunk: Chunk,
        channel: int,
        language: str,
        plan: PlanOptions | None = None,
        *,
        prompt: str = "",
        probability: float | None = None,
    ) -> None:
        """`probability`: of the language."""
        self.chunk = chunk
        self._channel, self._language, self._probability, self._prompt = channel, language, probability, prompt
        self._plan = plan or PlanOptions()
        self._part = chunk.span
        self._hole = chunk.span
        """What of the part is to be read; the rest of it is there to understand that."""
        self._tried: list[float] = []
        """Where the holes begin that were decoded."""
        self._another_way = False
        """Whether the hole may be decoded in one more way."""
        self._rungs: tuple[Rung, ...] = quality.ladder(chunk.window, self._plan.windows)
        self._answers: list[tuple[Answer, Rung]] = []
        self._suspect: tuple[Answer, Rung] | None = None
        """Made of the prompt, and the next answer, without it, says whether that was truly said."""
        self._echoed = False
        self._segments: list[Segment] = []
        self._gaps: list[Gap] = []
        self._decodes = 0
        self.why = ""
        """What speaks for the next request: a doubt, the prompt in the answer, or speech that is not read yet."""

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
            self.why = "prompt_echo"
            return
        answer, rung = self._settled(answer, rung)
        self._answers.append((answer, rung))
        doubts = quality.doubts(answer, self._speech(), self._part.duration)
        if not doubts:
            self._accept(answer, rung, ())
        elif self._rungs:
            self.why = doubts[0]
        else:
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
        self._note(self._hole, reason)
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
        if self._another_way and quality.WORTHLESS.intersection(doubts):
            self._go_on()
            return
        if "loop" in doubts:
            answer = quality.without_loop(answer)
        answer = _timed(quality.ended(answer, self._speech()), self._speech())
        invented = inventions.invented(answer.pieces, self._speech(), self._part.duration)
        if quality.silent(answer) or not (answer.pieces or doubts):
            self._note(self._hole, UNHEARD)
        elif answer.pieces:
            said = [p for p in answer.pieces if p not in invented]
            self._insert([self._segment(p, answer, self._flags(p, answer, rung, doubts)) for p in said])
            self._gaps.extend(Gap(self._placed(p), INVENTED, self._channel) for p in invented)
        else:
            self._note(self._hole, UNREAD)
        self._go_on()

    def _go_on(self) -> None:
        """The next part: the first hole that is left. One that was decoded in every way is given up."""
        self._rungs, self._answers, self._echoed = (), [], False
        chunk = self.chunk
        read = [s.span for s in self._segments] + [g.span for g in self._gaps]
        for hole in holes(read, chunk.speech, chunk.span):
            ways = unread.attempts(hole, chunk.speech, chunk.span)
            tried = sum(abs(hole.start - at) < NEAR_S for at in self._tried)
            if tried >= len(ways) or len(self._tried) + 1 >= MOST_PARTS:
                self._note(hole, UNREAD)
                continue
            self._tried.append(hole.start)
            self._hole, self._part = hole, ways[tried]
            self._another_way = tried + 1 < len(ways)
            self._rungs = (Rung(self._plan.window(self._part.duration)),)
            self.why = UNREAD
            return

    def _insert(self, said: list[Segment]) -> None:
        """Put what was said in the hole between what was said around it."""
        hole = self._hole
        before = [s for s in self._segments if s.start < hole.start]
        after = [s for s in self._segments if s.start >= hole.start]
        echoed = said
        if before:
            before, said = seams.without_echo(before, said, hole.start)
        if after:
            said = seams.without_end(said, after, hole.end)
        if echoed and not said:  # the model hears no more in the hole than the words beside it
            if before:
                before[-1] = replace(before[-1], end=max(before[-1].end, min(echoed[-1].end, hole.end)))
            else:
                after[0] = replace(after[0], start=min(after[0].start, max(echoed[0].start, hole.start)))
        self._segments = [*before, *said, *after]

    def _request(self, span: Span) -> Request:
        rung = self._rungs[0]
        return Request(span, rung.window, rung.temperature, rung.prompted, self._language)

    def _speech(self) -> tuple[Span, ...]:
        """Speech of the part, in seconds of the window."""
        at = self._part.start
        return tuple(Span(s.start - at, s.end - at) for s in within(self.chunk.speech, self._part))

    def _flags(self, piece: Piece, answer: Answer, rung: Rung, doubts: tuple[str, ...]) -> tuple[str, ...]:
        found = [*doubts, *(["prompt_echo"] if self._echoed else [])]
        if self._tried:
            found.append("tail" if self._hole.end >= self.chunk.span.end else "gap")
        elif rung.window != self.chunk.window:
            found.append("wider_window")
        if inventions.unheard(piece, self._speech()):
            found.append("unheard")
        if answer.no_speech_prob > quality.NO_SPEECH and inventions.stock(piece.text):
            found.append("stock_phrase")
        return tuple(found)

    def _note(self, span: Span, reason: str) -> None:
        self._gaps.extend(Gap(s, reason, self._channel) for s in within(self.chunk.speech, span))

    def _placed(self, piece: Piece) -> Span:
        """Seconds of the recording."""
        return Span(self._part.start + piece.start, self._part.start + piece.end).clip(self._part)

    def _segment(self, piece: Piece, answer: Answer, flags: tuple[str, ...]) -> Segment:
        span = self._placed(piece)
        words = tuple(_shifted(w, self._part.start, self._part) for w in piece.words)
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
            language_probability=self._probability,
        )


def _timed(answer: Answer, speech: Sequence[Span]) -> Answer:
    """The answer with its words, if it has any, where the VAD saw speech."""
    words = iter(in_speech([w for p in answer.pieces for w in p.words], speech))
    return replace(answer, pieces=tuple(replace(p, words=tuple(islice(words, len(p.words)))) for p in answer.pieces))


def _shifted(word: Word, by: float, inside: Span) -> Word:
    span = Span(word.start + by, word.end + by).clip(inside)
    return replace(word, start=span.start, end=span.end)
