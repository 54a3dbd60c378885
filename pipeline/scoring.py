"""How a text is judged beside what was truly said: Whisper's normalisers, then words and letters in error. Pure."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that are written without spaces: each letter counts as a word."""


@dataclass(frozen=True, slots=True)
class Score:
    """What is wrong in a text, or in several together."""

    words: int = 0
    """In the references."""
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    letters: int = 0
    """In the references, spaces between words included."""
    letter_errors: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def wer(self) -> float:
        """Words in error, of each word in the references; above 1 where more was invented than said."""
        return self.errors / max(1, self.words)

    @property
    def cer(self) -> float:
        return self.letter_errors / max(1, self.letters)


def score(reference: str, heard: str, language: str) -> Score:
    """One recording's."""
    import jiwer

    said, found = normalised(reference, language), normalised(heard, language)
    words = jiwer.process_words(said, found)
    if language in UNSPACED:
        said, found = said.replace(" ", ""), found.replace(" ", "")
    letters = jiwer.process_characters(said, found)
    return Score(
        words=words.hits + words.substitutions + words.deletions,
        substitutions=words.substitutions,
        deletions=words.deletions,
        insertions=words.insertions,
        letters=letters.hits + letters.substitutions + letters.deletions,
        letter_errors=letters.substitutions + letters.deletions + letters.insertions,
    )


def normalised(text: str, language: str) -> str:
    """As WER is taken of it: Whisper's English normaliser for English, its basic one for others (openai/whisper,
    normalizers/), with each letter on its own for languages without spaces."""
    kind = "en" if language == "en" else "letters" if language in UNSPACED else "basic"
    return re.sub(r"\s+", " ", _normaliser(kind)(re.sub(r"\s+", " ", text))).strip()


@cache
def _normaliser(kind: str) -> Any:
    if kind == "en":
        from whisper_normalizer.english import EnglishTextNormalizer

        return EnglishTextNormalizer()
    from whisper_normalizer.basic import BasicTextNormalizer

    return BasicTextNormalizer(split_letters=kind == "letters")
