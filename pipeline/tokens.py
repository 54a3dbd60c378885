"""A window's tokens → text between timestamps, and words with their times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from faster_whisper.tokenizer import Tokenizer

from chunking.timeline import Word
from pipeline.engine import Piece

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


def words_of(tokenizer: Tokenizer, tokens: list[int], result: Any) -> tuple[Word, ...]:
    """One window's alignment → words, punctuation joined to its word. Seconds of the window."""
    texts, parts = tokenizer.split_to_word_tokens([*tokens, tokenizer.eot])
    if len(parts) <= 1 or not result.alignments:
        return ()
    pairs = np.array(result.alignments)
    jumps = np.concatenate(([True], np.diff(pairs[:, 0]) > 0))
    times = pairs[jumps, 1] * TIMESTAMP_S
    edges = np.concatenate(([0], np.cumsum([len(p) for p in parts[:-1]])))
    words: list[Word] = []
    for text, first, last in zip(texts[:-1], edges[:-1], edges[1:], strict=True):
        probability = float(np.mean(result.text_token_probs[first:last]))
        word = Word(float(times[first]), float(times[last]), text, probability)
        if words and not any(ch.isalnum() for ch in text):
            words[-1] = Word(words[-1].start, words[-1].end, words[-1].text + text, words[-1].probability)
        else:
            words.append(word)
    return tuple(words)


def with_words(pieces: tuple[Piece, ...], words: Sequence[Word]) -> tuple[Piece, ...]:
    """Share the words of a window out to its pieces: by their letters, since both are the same text."""
    out, at = [], 0
    for piece in pieces:
        letters, mine = _letters(piece.text), list[Word]()
        while at < len(words) and letters > 0:
            mine.append(words[at])
            letters -= _letters(words[at].text)
            at += 1
        out.append(Piece(piece.start, piece.end, piece.text, tuple(mine)))
    return tuple(out)


def _letters(text: str) -> int:
    return sum(not ch.isspace() for ch in text)
