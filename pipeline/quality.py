"""Is this answer to be believed, and what next? Pure.

Batched Whisper fails in known ways: it says one phrase for ever, closes before the last words, invents text over
silence, or hears nothing. Each has a sign that costs nothing to look for, and only the chunk that shows it is decoded
again: in a wider window, then in the full one with some temperature (Whisper's own fallback, transcribe.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chunking.planner import PlanOptions
from chunking.stitcher import spelling, split_words, stands_alone
from chunking.timeline import LONGEST_WINDOW_S, Span, total, within
from pipeline import inventions
from pipeline.engine import Answer, Piece

LOW_LOGPROB = -1.0
"""Whisper's logprob_threshold (transcribe.py)."""
HIGH_COMPRESSION = 2.4
"""Whisper's compression_ratio_threshold (transcribe.py)."""
NO_SPEECH = 0.6
"""Whisper's no_speech_threshold (transcribe.py)."""
EMPTY_S = 0.5
"""Speech that deserves some text."""
REPEATS = 4
"""The same words so often in a row look like a loop."""
SPARSE_S = 4.0
"""Speech in one piece from which on too little text is a sign …"""
SPARSE_BYTES = 4.0
"""… and how little, in bytes of UTF-8 a second: people speak at 12 to 16, in Latin script and in Chinese alike."""
TEMPERATURE = 0.4
"""Of the last rung."""
SLOW_BYTES = 6.0
"""The same where the model ended without a timestamp, and the text alone says how far it came."""
FASTEST_WORDS = 7.0
"""Words a second that nobody speaks; a loop does."""
LOOPING_LETTERS = 25.0
"""Letters a second that nobody speaks when saying the same words again."""
LETTERS_OF_A_SIGN = 3
"""A Chinese or Japanese sign takes as long to say as so many letters."""
WORTHLESS = frozenset({"loop", "empty", "beyond", "crowded"})
"""Doubts about an answer for which any other is better."""
FASTEST_LETTERS = 32.0
"""The same for the letters and spaces of one piece: of 452 (tiny.en, base) the fastest has 26, but for two loops with
37 and 54."""


@dataclass(frozen=True, slots=True)
class Rung:
    """How a chunk is decoded: the window of its own, then more and more patient ways."""

    window: float
    temperature: float = 0.0
    prompted: bool = True
    """With the user's prompt, where there is one. Not with temperature, as in Whisper."""


def ladder(window: float, windows: Sequence[float] = PlanOptions().windows) -> tuple[Rung, ...]:
    """The ways to decode a chunk of that window, in order: as it is, in the next of `windows`, then by chance in 30 s.

    The next window is as good a second attempt as the full one: on 104 clips the words in error are the same with
    tiny.en and one more of 1601 with base. And it costs a quarter: tiny.en encodes 15 s in 0.19 s and 30 s in 0.84.
    """
    wider = next((w for w in windows if w > window), LONGEST_WINDOW_S)
    second = (Rung(wider),) if wider > window else ()
    return (Rung(window), *second, Rung(LONGEST_WINDOW_S, TEMPERATURE, prompted=False))


def doubts(answer: Answer, speech: Sequence[Span], duration: float) -> tuple[str, ...]:
    """What speaks against the answer: names of flags, none for an answer that is believed.

    `speech` in seconds of the window.
    """
    found = []
    heard = total(speech)
    if not answer.text:
        silent = answer.no_speech_prob > NO_SPEECH
        return ("empty",) if heard >= EMPTY_S and not silent else ()
    if answer.hit_limit or _looping(answer, heard, duration):
        found.append("loop")
    elif compression_ratio(answer.text) > HIGH_COMPRESSION:
        found.append("repetitive")
    if any(inventions.beyond(p, duration) for p in answer.pieces):
        found.append("beyond")
    elif any(_crowded(p, speech) for p in answer.pieces) and not found:
        found.append("crowded")
    if any(_sparse(p, speech) for p in answer.pieces):
        found.append("sparse")
    if answer.avg_logprob < LOW_LOGPROB:
        found.append("low_confidence")
    return tuple(found)


def best(answers: Sequence[Answer], speech: Sequence[Span], duration: float) -> Answer:
    """The most believable of a chunk's answers: with text over all speech, without a loop, then by log-probability."""

    def worth(a: Answer) -> tuple[tuple[bool, ...], float]:
        names = doubts(a, speech, duration)
        return tuple(n not in names for n in ("loop", "empty", "beyond", "crowded", "sparse")), a.avg_logprob

    return max(answers, key=worth)


def silent(answer: Answer) -> bool:
    """Text over no speech, by Whisper's own rule: sure of silence and unsure of the words."""
    return answer.no_speech_prob > NO_SPEECH and answer.avg_logprob < LOW_LOGPROB


def ended(answer: Answer, speech: Sequence[Span]) -> Answer:
    """The answer, with an end for a last piece that no timestamp closed: when so much text has been said at the latest.

    The piece's own end is only the end of the sound, and the model may have stopped long before it.
    """
    if answer.closed or not answer.pieces:
        return answer
    last = answer.pieces[-1]
    heard = within(speech, Span(last.start, last.end))
    if not heard:
        return answer
    left, end = len(last.text.encode("utf-8", "ignore")) / SLOW_BYTES, last.start
    for span in heard:
        if left > 0.0:
            end = min(span.end, span.start + left)
        left -= span.duration
    if last.words:
        end = min(last.words[-1].end, heard[-1].end)
    return replace(answer, pieces=(*answer.pieces[:-1], replace(last, end=max(last.start, end))))


def without_loop(answer: Answer) -> Answer:
    """The answer with a periodic tail cut down to its first period: a loop is the right text said again.

    Its timestamps mean nothing, so the last piece is not closed.
    """
    words = _words(answer)
    period, repeats = periodic_tail(words)
    if repeats < REPEATS:
        return answer
    keep = len(words) - period * (repeats - 1)
    pieces: list[Piece] = []
    for piece in answer.pieces:
        mine = split_words(piece.text)[:keep]
        keep -= len(mine)
        if not mine:
            break
        pieces.append(replace(piece, text="".join(mine).strip(), words=piece.words[: len(mine)]))
    return replace(answer, pieces=tuple(pieces), closed=False)


def _words(answer: Answer) -> list[str]:
    """Where a script has no spaces, each character."""
    return [w for p in answer.pieces for w in split_words(p.text)]


def periodic_tail(words: Sequence[str], longest: int = 24) -> tuple[int, int]:
    """(period, repeats) of the repetition that the words end with; the one that covers most. (0, 0): none."""
    plain = [spelling(w) for w in words]
    found = (0, 0)
    for period in range(1, min(longest, len(plain) // 2) + 1):
        end, repeats = len(plain), 1
        tail = plain[end - period :]
        while (
            end - period * (repeats + 1) >= 0 and plain[end - period * (repeats + 1) : end - period * repeats] == tail
        ):
            repeats += 1
        if repeats > 1 and period * repeats > found[0] * found[1]:
            found = (period, repeats)
    return found


def compression_ratio(text: str) -> float:
    """How much zlib makes of the text (openai/whisper, utils.py): repetition compresses well."""
    raw = text.encode("utf-8", "ignore")
    return len(raw) / len(zlib.compress(raw)) if raw else 1.0


def _sparse(piece: Piece, speech: Sequence[Span]) -> bool:
    """Seconds of speech between two timestamps with next to no text: the model skipped what was said there."""
    heard = total(within(speech, Span(piece.start, piece.end)))
    return heard >= SPARSE_S and len(piece.text.encode("utf-8", "ignore")) < SPARSE_BYTES * heard


def _crowded(piece: Piece, speech: Sequence[Span]) -> bool:
    """More text than can be said in the piece's speech. Timestamps are loose by half a second at both ends."""
    heard = total(within(speech, Span(piece.start - 0.5, piece.end + 0.5)))
    return len(piece.text) > FASTEST_LETTERS * max(1.0, heard)


def _looping(answer: Answer, heard: float, duration: float) -> bool:
    """Repeats that nobody can have said in that time. Words truly said ten times over take their time."""
    if len(answer.text.split()) / max(1.0, min(duration, heard + 1.0)) > FASTEST_WORDS:
        return True
    words = _words(answer)
    period, repeats = periodic_tail(words)
    if repeats < REPEATS:
        return False
    tail = words[len(words) - period * repeats :]
    letters = sum(LETTERS_OF_A_SIGN if stands_alone(ch) else 1 for w in tail for ch in w.strip())
    spoken = _seconds_of_tail(answer, period * repeats)
    return letters / max(0.3, spoken) > LOOPING_LETTERS


def _seconds_of_tail(answer: Answer, words: int) -> float:
    """Seconds of the window that its last words take up, by their pieces' times."""
    seconds = 0.0
    for piece in reversed(answer.pieces):
        if words <= 0:
            break
        mine = len(split_words(piece.text))
        seconds += (piece.end - piece.start) * min(1.0, words / max(1, mine))
        words -= mine
    return seconds
