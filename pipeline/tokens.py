"""A window's tokens → text between timestamps, and words with their times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from faster_whisper.tokenizer import Tokenizer

from chunking.stitcher import split_words
from chunking.timeline import Word
from pipeline.engine import Floats, Piece

TIMESTAMP_S = 0.02
"""What one timestamp token counts (openai/whisper, tokenizer.py); also one step of the encoder's output."""


def pieces_of(tokens: Sequence[int], tokenizer: Tokenizer, duration: float) -> tuple[tuple[Piece, ...], bool]:
    """Tokens → text between timestamps, clipped to the sound; and whether the last piece was closed by one."""
    pieces: list[Piece] = []
    start, text = 0.0, list[int]()
    for token in tokens:
        if token < tokenizer.timestamp_begin:
            text.append(token)
            continue
        at = (token - tokenizer.timestamp_begin) * TIMESTAMP_S
        if text:
            pieces.append(_piece(start, at, tokenizer.decode(text), duration))
            text = []
        start = at
    if text:
        pieces.append(_piece(start, duration, tokenizer.decode(text), duration))
    return tuple(p for p in pieces if p.text), not text


def _piece(start: float, end: float, text: str, duration: float) -> Piece:
    start = min(start, duration)
    return Piece(start, min(max(end, start), duration), text.strip())


@dataclass(frozen=True, slots=True)
class _Letter:
    """A character that is no space: the tokens that it came from, and which part of them it is."""

    char: str
    first: int
    last: int
    part: float
    """0 to 1: characters before it in the same tokens; a token of Chinese may hold two words."""
    share: float


def with_words(
    pieces: Sequence[Piece], tokenizer: Tokenizer, tokens: Sequence[int], alignment: Any
) -> tuple[Piece, ...]:
    """Pieces → the same with their words, timed by the alignment of the window's text tokens. Seconds of the window.

    Words are those of `split_words`. Marks at a word's ends belong to it but not to its time: the alignment gives
    them the pause.
    """
    jumps = np.array(alignment.alignments)
    times = jumps[np.concatenate(([True], np.diff(jumps[:, 0]) > 0)), 1] * TIMESTAMP_S
    letters = iter(_letters(tokenizer, tokens))
    return tuple(
        replace(p, words=tuple(_word(w, letters, times, alignment.text_token_probs) for w in split_words(p.text)))
        for p in pieces
    )


def _letters(tokenizer: Tokenizer, tokens: Sequence[int]) -> Iterable[_Letter]:
    at = 0
    for text, part in zip(*tokenizer.split_tokens_on_unicode(list(tokens)), strict=True):
        chars = "".join(text.split())
        for i, char in enumerate(chars):
            yield _Letter(char, at, at + len(part), i / len(chars), 1 / len(chars))
        at += len(part)


def _word(text: str, letters: Iterator[_Letter], times: Floats, probabilities: Sequence[float]) -> Word:
    mine = list(islice(letters, len(text.strip())))
    if not mine:  # half a character in two pieces decodes to more of them than it is
        return Word(float(times[-1]), float(times[-1]), text, 0.0)
    spoken = [x for x in mine if x.char.isalnum()] or mine
    a, b = spoken[0], spoken[-1]
    start = times[a.first] + a.part * (times[a.last] - times[a.first])
    end = times[b.first] + (b.part + b.share) * (times[b.last] - times[b.first])
    return Word(float(start), float(end), text, float(np.mean(probabilities[a.first : b.last])))
