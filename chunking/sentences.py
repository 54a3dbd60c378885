"""Segments that read like sentences: not 30 s paragraphs, not fragments. Pure.

Whisper's own segments end where it put a timestamp: sometimes in mid sentence, sometimes after four of them. Here they
are taken apart at the ends of sentences and put together again up to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from chunking.stitcher import of_words, stands_alone, words_of
from chunking.timeline import Segment, Word

LONGEST_S = 15.0
"""A sentence that goes on for longer is broken at a comma or a pause, so that times stay useful."""
LONGEST_PAUSE_S = 1.5
"""After a longer pause the speaker has begun anew, full stop or not."""
ENDS = ".?!…。?!।؟۔"
CLAUSES = ",;:–—、,;:،"
QUOTES = "\"'”’»)]」』"
ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "mt", "vs", "bzw", "usw", "z.b", "d.h", "e.g", "i.e", "sra", "dra", "mme")
)


def sentences(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """One channel's segments in order → the same words in the same order, a sentence a segment."""
    pieces = [p for s in segments for p in _apart(s)]
    joined: list[Segment] = []
    for piece in pieces:
        if joined and _continues(joined[-1], piece):
            joined[-1] = _merge(joined[-1], piece)
        else:
            joined.append(piece)
    return tuple(joined)


def ends_sentence(word: str, following: str = "") -> bool:
    """A word that closes a sentence, given the word after it: `Mr.`, `3.` and `e.g.` do not."""
    bare = word.strip().rstrip(QUOTES)
    if not bare or bare[-1] not in ENDS:
        return False
    stem = bare.rstrip(ENDS).lower()
    if bare[-1] == "." and (stem in ABBREVIATIONS or (len(stem) == 1 and stem.isalpha())):
        return False
    after = following.strip().lstrip("\"'“‘«([¿¡")
    return not (bare[-1] == "." and after[:1].islower())


def _apart(segment: Segment) -> Iterable[Segment]:
    words = words_of(segment)
    if not words:
        return
    begin = 0
    for i, word in enumerate(words):
        last = i + 1 == len(words)
        if last or ends_sentence(word.text, words[i + 1].text):
            yield from _shorter(segment, words[begin : i + 1])
            begin = i + 1


def _shorter(segment: Segment, words: Sequence[Word]) -> Iterable[Segment]:
    """A sentence in parts of at most LONGEST_S, each cut at the best place near its middle."""
    duration = words[-1].end - words[0].start
    if duration <= LONGEST_S or len(words) < 2:
        yield of_words(segment, words)
        return
    middle = (words[0].start + words[-1].end) / 2

    def worth(i: int) -> float:
        pause = words[i + 1].start - words[i].end
        clause = 0.4 if words[i].text.strip()[-1:] in CLAUSES else 0.0
        return min(pause, 1.0) + clause - abs(words[i].end - middle) / duration

    at = max(range(len(words) - 1), key=worth) + 1
    yield from _shorter(segment, words[:at])
    yield from _shorter(segment, words[at:])


def _continues(before: Segment, piece: Segment) -> bool:
    words = piece.text.split()
    return (
        before.channel == piece.channel
        and before.language == piece.language
        and bool(before.text)
        and not ends_sentence(before.text.split()[-1], words[0] if words else "")
        and piece.start - before.end <= LONGEST_PAUSE_S
        and piece.end - before.start <= LONGEST_S
    )


def _merge(a: Segment, b: Segment) -> Segment:
    share = (a.end - a.start) / max(1e-9, (a.end - a.start) + (b.end - b.start))
    return replace(
        a,
        end=b.end,
        text=_glue(a, b),
        words=(*a.words, *b.words),
        avg_logprob=share * a.avg_logprob + (1 - share) * b.avg_logprob,
        no_speech_prob=share * a.no_speech_prob + (1 - share) * b.no_speech_prob,
        compression_ratio=max(a.compression_ratio, b.compression_ratio),
        temperature=max(a.temperature, b.temperature),
        language_probability=_mean(a.language_probability, b.language_probability, share),
        flags=tuple(dict.fromkeys((*a.flags, *b.flags))),
    )


def _mean(a: float | None, b: float | None, share: float) -> float | None:
    return None if a is None or b is None else share * a + (1 - share) * b


def _glue(a: Segment, b: Segment) -> str:
    spaceless = a.language in {"zh", "ja", "th", "lo", "my", "km", "yue"} and any(map(stands_alone, a.text))
    return a.text + b.text if spaceless else f"{a.text} {b.text}"
