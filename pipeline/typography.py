"""How text sits on a screen: what can be shown, how wide it is, and where a line may break, in any script."""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum
from functools import lru_cache

_UNPRINTABLE = re.compile(
    "[\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
_UNSPACED = re.compile(  # scripts written without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff]"
)
_NBSP, _ZWJ, _EMOJI_STYLE = "\u00a0", "\u200d", "\ufe0f"
_NOT_FIRST = frozenset(
    "、。，．・：；？！）］｝」』】〉》〕ー々ゝゞヽヾぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ…‥”’ะาำๅๆฯ,.!?:;)]}"
    + _NBSP
)
"""Characters that no line of Japanese, Chinese or Thai begins with (JIS X 4051, near enough)."""
_NOT_LAST = frozenset("（［｛「『【〈《〔“‘เแโใไ([{" + _NBSP)
_ENDS_SENTENCE = re.compile(r"[.!?…。！？．؟۔।]+[\"'”’»)\]」』）]*$")
_ENDS_CLAUSE = re.compile(r"[,;:،؛、，；：—–][\"'”’»)\]」』）]*$")
_ABBREVIATION = re.compile(r"(?:^|\s)(?:[A-Z]|Mrs?|Ms|Dr|Prof|St|vs)\.$")


class Break(IntEnum):
    """How good a break after a piece of text is, best first."""

    SENTENCE = 0
    CLAUSE = 1
    SPACE = 2
    AFTER_SHORT_WORD = 3
    """Short words (the, of, de, zu, и) mostly belong to what follows, in any language with spaces."""


def clean(text: str) -> str:
    """The text without what no screen can show (controls, lone surrogates, bidi overrides), words one space apart."""
    return " ".join(_UNPRINTABLE.sub("", text).split())


def letters(text: str) -> str:
    """The text without its spaces."""
    return "".join(text.split())


def cells(text: str) -> int:
    """Columns that the text takes in a monospaced font: wide characters two, combining ones none.

    Braces count two, because SRT can only show them as wide look-alikes (pipeline/subtitles.py).
    """
    if text.isascii():
        return len(text) + text.count("{") + text.count("}")
    return sum(_cluster_cells(cluster) for cluster in _clusters(text))


def break_after(text: str) -> Break:
    """How good a break after this piece of text is."""
    if _ENDS_SENTENCE.search(text) and not _ABBREVIATION.search(text):
        return Break.SENTENCE
    if _ENDS_CLAUSE.search(text):
        return Break.CLAUSE
    short = len(text) <= 3 and text.isalpha() and not _UNSPACED.match(text)
    return Break.AFTER_SHORT_WORD if short else Break.SPACE


def tokens(text: str, room: int) -> list[str]:
    """The words of a clean text; punctuation set apart by a space stays with its word, as in French, if it fits."""
    glued = re.sub("« ", f"«{_NBSP}", re.sub(r" (?=[?!:;»]+(?: |$))", _NBSP, text))
    words = ([token] if cells(token) <= room else token.split(_NBSP) for token in glued.split(" ") if token)
    return [token.replace(_NBSP, " ") for group in words for token in group]


def pieces(token: str, room: int) -> list[str]:
    """A token's unbreakable parts: itself, or characters in scripts without spaces, or as much as fits in `room`."""
    if token.isascii() and cells(token) <= room:
        return [token]
    parts, width = [""], 0
    for cluster in _clusters(token.replace(" ", _NBSP)):
        last, added = parts[-1], _cluster_cells(cluster)
        unspaced = last and (_UNSPACED.match(last[-1]) or _UNSPACED.match(cluster))
        apart = unspaced and cluster[0] not in _NOT_FIRST and last[-1] not in _NOT_LAST
        if apart or (last and width + added > room):
            parts.append(cluster)
            width = added
        else:
            parts[-1] += cluster
            width += added
    return [part.replace(_NBSP, " ") for part in parts]


@lru_cache(maxsize=8192)
def _extends(char: str) -> bool:
    """Belongs to the character before it: Extend and SpacingMark of UAX #29, near enough for line breaks."""
    vowel = "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"  # conjoining Hangul after the first consonant
    return vowel or "\U0001f3fb" <= char <= "\U0001f3ff" or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf")


def _clusters(text: str) -> list[str]:
    """What a reader takes for single characters: base and marks, emoji sequences, flags."""
    found: list[str] = []
    for char in text:
        last = found[-1] if found else ""
        joins = last.endswith(_ZWJ) and unicodedata.category(char) == "So"
        flag = len(last) == 1 and all("\U0001f1e6" <= c <= "\U0001f1ff" for c in last + char)
        if last and (joins or flag or _extends(char)):
            found[-1] += char
        else:
            found.append(char)
    return found


@lru_cache(maxsize=8192)
def _cluster_cells(cluster: str) -> int:
    if _EMOJI_STYLE in cluster:
        return 2
    base = cluster.partition(_ZWJ)[0]
    shown = [c for c in base if unicodedata.category(c) == "Mc" or not _extends(c)]
    return sum(2 if c in "{}" or unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)
