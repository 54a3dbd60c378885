"""Is this answer to be believed, and what next? Pure.

Batched Whisper fails in known ways: it says one phrase for ever, closes before the last words, invents text over
silence, or hears nothing. Each has a sign that costs nothing to look for, and only the chunk that shows it is decoded
again: in the full 30 s window, then with some temperature (Whisper's own fallback, openai/whisper transcribe.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chunking.timeline import LONGEST_WINDOW_S, Span, total, within
from pipeline.engine import Answer, Piece

LOW_LOGPROB = -1.0
"""Whisper's logprob_threshold (transcribe.py)."""
HIGH_COMPRESSION = 2.4
"""Whisper's compression_ratio_threshold (transcribe.py)."""
NO_SPEECH = 0.6
"""Whisper's no_speech_threshold (transcribe.py)."""
UNREAD_S = 0.5
"""Speech after the last word that is worth a decoding of its own (in 14 minutes: 86 words lost without, 32 with)."""
EMPTY_S = 0.5
"""Speech that deserves some text."""
REPEATS = 4
"""The same words so often in a row look like a loop."""
SPARSE_S = 4.0
"""Speech in one piece from which on too little text is a sign …"""
SPARSE_BYTES = 4.0
"""… and how little, in bytes of UTF-8 a second: people speak at 12 to 16, in Latin script and in Chinese alike."""
TEMPERATURES = (0.0, 0.4)
"""Of the last rungs, in the full window."""
FASTEST_WORDS = 7.0
"""Words a second that nobody speaks; a loop does."""


@dataclass(frozen=True, slots=True)
class Rung:
    """How a chunk is decoded: the window of its own, then more and more patient ways."""

    window: float
    temperature: float = 0.0
    prompted: bool = True
    """With the user's prompt, where there is one. Not with temperature, as in Whisper."""


def ladder(window: float) -> tuple[Rung, ...]:
    """The ways to decode a chunk of that window, in order."""
    first = () if window >= LONGEST_WINDOW_S else (Rung(window),)
    return (*first, *(Rung(LONGEST_WINDOW_S, t, prompted=not t) for t in TEMPERATURES))


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
    if any(_sparse(p, speech) for p in answer.pieces):
        found.append("sparse")
    if answer.avg_logprob < LOW_LOGPROB:
        found.append("low_confidence")
    return tuple(found)


def best(answers: Sequence[Answer], speech: Sequence[Span], duration: float) -> Answer:
    """The most believable of a chunk's answers: with text over all speech, without a loop, then by log-probability."""

    def worth(a: Answer) -> tuple[bool, bool, bool, float]:
        names = doubts(a, speech, duration)
        return ("loop" not in names, "empty" not in names, "sparse" not in names, a.avg_logprob)

    return max(answers, key=worth)


def silent(answer: Answer) -> bool:
    """Text over no speech, by Whisper's own rule: sure of silence and unsure of the words."""
    return answer.no_speech_prob > NO_SPEECH and answer.avg_logprob < LOW_LOGPROB


def unread(answer: Answer, speech: Sequence[Span], duration: float) -> Span | None:
    """The rest of the window, where the model closed although speech went on for longer than UNREAD_S."""
    if not answer.pieces or not answer.closed:
        return None
    last = answer.pieces[-1].end
    rest = within(speech, Span(last, duration))
    if total(rest) <= UNREAD_S:
        return None
    return Span(max(last, rest[0].start - 0.1), duration)


def without_loop(answer: Answer) -> Answer:
    """The answer with a periodic tail cut down to its first period: a loop is the right text said again."""
    words = answer.text.split()
    period, repeats = periodic_tail(words)
    if repeats < REPEATS:
        return answer
    keep = len(words) - period * (repeats - 1)
    pieces: list[Piece] = []
    for piece in answer.pieces:
        mine = piece.text.split()[:keep]
        keep -= len(mine)
        if not mine:
            break
        share = len(mine) / len(piece.text.split())
        end = piece.start + (piece.end - piece.start) * share
        pieces.append(replace(piece, text=" ".join(mine), end=end, words=piece.words[: len(mine)]))
    return replace(answer, pieces=tuple(pieces), closed=True)


def without_echo(answer: Answer, before: str) -> Answer:
    """The answer for a rest, without words that the text before it ended with: the last timestamp came a little early.

    The rest then begins in a word that was read already, and that word is read again.
    """
    said, again = _plain(before.split()), _plain(answer.text.split())
    for count in range(min(LONGEST_ECHO, len(said), len(again)), 0, -1):
        if said[-count:] == again[:count]:
            return _without_first(answer, count)
    return answer


def _without_first(answer: Answer, count: int) -> Answer:
    pieces: list[Piece] = []
    for piece in answer.pieces:
        words = piece.text.split()
        drop = min(count, len(words))
        count -= drop
        if drop < len(words):
            start = piece.start + (piece.end - piece.start) * drop / len(words)
            pieces.append(replace(piece, text=" ".join(words[drop:]), start=start, words=piece.words[drop:]))
    return replace(answer, pieces=tuple(pieces))


LONGEST_ECHO = 4
"""Words. More at once were truly said again."""


def _plain(words: Sequence[str]) -> list[str]:
    """Words by their letters and digits alone, so that `better.` and `Better` are one."""
    return ["".join(ch for ch in w.casefold() if ch.isalnum()) for w in words]


def periodic_tail(words: Sequence[str], longest: int = 24) -> tuple[int, int]:
    """(period, repeats) of the repetition that the words end with; the one that covers most. (0, 0): none."""
    plain = _plain(words)
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


def _looping(answer: Answer, heard: float, duration: float) -> bool:
    """Repeats that nobody can have said in that time. Words truly said ten times over take their time."""
    words = answer.text.split()
    if len(words) / max(1.0, min(duration, heard + 1.0)) > FASTEST_WORDS:
        return True
    period, repeats = periodic_tail(words)
    if repeats < REPEATS:
        return False
    tail = words[len(words) - period * repeats :]
    letters = sum(len(w) for w in tail)
    spoken = _seconds_of_tail(answer, period * repeats)
    return letters / max(0.3, spoken) > 25.0


def _seconds_of_tail(answer: Answer, words: int) -> float:
    """Seconds of the window that its last words take up, by their pieces' times."""
    seconds = 0.0
    for piece in reversed(answer.pieces):
        if words <= 0:
            break
        mine = len(piece.text.split())
        seconds += (piece.end - piece.start) * min(1.0, words / max(1, mine))
        words -= mine
    return seconds
