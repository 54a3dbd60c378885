"""Does an answer only say its prompt back? Pure.

Over noise the model may repeat what it was given to read. An answer that is made of the prompt may be such an echo, or
somebody truly said it: a decoding without the prompt tells which.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import lru_cache

from chunking.stitcher import spelling
from pipeline.engine import Answer, Piece

MADE_OF = 0.8
"""Share of an answer's trigrams of letters that are the prompt's, from which on it may be an echo."""
BORNE_OUT = 0.4
"""Likeness of letters from which on two decodings heard the same: `Merneptah` and `Mer Neptune` come to 0.8, words that
have nothing to do with each other to 0.3."""
ABOUT_S = 1.0
"""Seconds by which the times of two decodings may differ."""


def echoing(answer: Answer, prompt: str) -> tuple[Piece, ...]:
    """The pieces of an answer that are made of the prompt, in whatever order and however often."""
    ours, letters = _known(prompt), spelling(prompt)

    def made_of(piece: Piece) -> bool:
        grams = _grams(piece.text)
        if not grams:
            return bool(mine := spelling(piece.text)) and mine in letters
        return sum(g in ours for g in grams) >= MADE_OF * len(grams)

    return tuple(p for p in answer.pieces if made_of(p))


def borne_out(suspects: tuple[Piece, ...], without: Answer) -> bool:
    """Whether a decoding without the prompt heard, at the same time, what these pieces say; in its own spelling."""
    said = spelling("".join(p.text for p in suspects))
    heard = spelling("".join(w for w, at in _timed(without) if any(_about(p, at) for p in suspects)))
    return SequenceMatcher(None, said, heard, autojunk=False).ratio() >= BORNE_OUT


def _about(piece: Piece, at: float) -> bool:
    return piece.start - ABOUT_S <= at <= piece.end + ABOUT_S


def _timed(answer: Answer) -> list[tuple[str, float]]:
    """Its words, each with the time of its middle as if they were spoken evenly; a text without spaces, its letters."""
    found: list[tuple[str, float]] = []
    for piece in answer.pieces:
        words = piece.text.split()
        words = words if len(words) > 1 else list(piece.text)
        step = (piece.end - piece.start) / max(1, len(words))
        found += [(w, piece.start + (i + 0.5) * step) for i, w in enumerate(words)]
    return found


@lru_cache(maxsize=64)
def _known(prompt: str) -> frozenset[str]:
    return frozenset(_grams(prompt))


def _grams(text: str) -> list[str]:
    """Three letters in a row, of each word: whatever stands beside it."""
    return [word[i : i + 3] for word in map(spelling, text.split()) for i in range(len(word) - 2)]
