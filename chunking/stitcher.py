"""Overlapping chunk results → one run of segments. Pure.

Where the planner had to cut speech, two chunks heard the same seconds. Both say the words there; the stitcher lines
them up by spelling and time and passes from the one to the other at a word that both heard, near the middle of what
they share, where each of them still has sound on both sides.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chunking.timeline import ChunkResult, Segment, Span, Word

SAME_WORD_S = 0.8
"""Two chunks put the same word within this of each other: 0.04 s typical, more where times are interpolated."""


def stitch(results: Sequence[ChunkResult], duration: float) -> tuple[Segment, ...]:
    """Results of one job, any order → its segments by time: no word of an overlap twice, none lost.

    Times come out monotonic per channel and inside [0, duration].
    """
    segments: list[Segment] = []
    for channel in sorted({r.channel for r in results}):
        mine = sorted((r for r in results if r.channel == channel), key=lambda r: r.index)
        segments.extend(_monotonic(_joined(mine), duration))
    return tuple(sorted(segments, key=lambda s: (s.start, s.end, s.channel)))


def words_of(segment: Segment) -> tuple[Word, ...]:
    """The segment's words; where it has no word times, its text shared out by length over its seconds."""
    if segment.words:
        return segment.words
    parts = split_words(segment.text)
    letters = sum(len(p) for p in parts) or 1
    rate = (segment.end - segment.start) / letters
    words, at = [], segment.start
    for part in parts:
        words.append(Word(at, at + len(part) * rate, part, 0.0))
        at += len(part) * rate
    return tuple(words)


def split_words(text: str) -> list[str]:
    """Words with the space before them, as Whisper writes them; each character of a script without spaces is one."""
    words: list[str] = []
    text = text.strip()
    for ch in text if not text or stands_alone(text[0]) else " " + text:
        if ch.isspace():
            if not words or words[-1] != " ":
                words.append(" ")
        elif not words or (stands_alone(ch) and words[-1] != " ") or (stands_alone(words[-1][-1]) and not _mark(ch)):
            words.append(ch)
        else:
            words[-1] += ch
    return words


def stands_alone(ch: str) -> bool:
    """A letter of a script that is written without spaces: kana, han, Thai and their neighbours."""
    return ch > "\u0e00" and ch.isalpha() and unicodedata.name(ch, "").split(" ")[0] in {
        "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR",
    }  # fmt: skip


def _mark(ch: str) -> bool:
    return unicodedata.category(ch)[0] in "MP"


@dataclass(frozen=True, slots=True)
class _Placed:
    """A word and the segment that it came from."""

    word: Word
    segment: int
    spelling: str


def _joined(results: Sequence[ChunkResult]) -> list[Segment]:
    segments: list[Segment] = []
    before: ChunkResult | None = None
    for result in results:
        mine = list(result.segments)
        if before is not None and before.cut_after and result.cut_before:
            shared = Span(result.span.start, before.span.end)
            if shared.duration > 0.0:
                segments, mine = _join(segments, mine, shared)
        segments.extend(mine)
        before = result
    return segments


def _join(left: list[Segment], right: list[Segment], shared: Span) -> tuple[list[Segment], list[Segment]]:
    """Cut both sides at the same word, or at the middle of `shared` where no word was heard by both."""
    ours = [w for w in _placed(left) if w.word.end > shared.start - SAME_WORD_S]
    theirs = [w for w in _placed(right) if w.word.start < shared.end + SAME_WORD_S]
    middle = (shared.start + shared.end) / 2
    pairs = _pairs(ours, theirs)
    if pairs:
        i, j = min(pairs, key=lambda p: abs(_centre(ours[p[0]].word) - middle))
        drop_left, drop_right = ours[i + 1 :], theirs[: j + 1]
    else:
        drop_left = [w for w in ours if _centre(w.word) >= middle]
        drop_right = [w for w in theirs if _centre(w.word) < middle]
    return _without(left, drop_left), _without(right, drop_right)


def _placed(segments: Iterable[Segment]) -> list[_Placed]:
    return [_Placed(w, i, spelling(w.text)) for i, s in enumerate(segments) for w in words_of(s)]


def spelling(text: str) -> str:
    """Letters and digits alone, so that `better.` and `Better` are one."""
    return "".join(ch for ch in unicodedata.normalize("NFKC", text).casefold() if ch.isalnum())


def _centre(word: Word) -> float:
    return (word.start + word.end) / 2


def _pairs(ours: Sequence[_Placed], theirs: Sequence[_Placed]) -> list[tuple[int, int]]:
    """The best in-order pairing of equal words that lie close in time (longest common subsequence, weighted)."""
    score = [[0.0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            paired = score[i + 1][j + 1] + _likeness(ours[i], theirs[j])
            score[i][j] = max(score[i + 1][j], score[i][j + 1], paired)
    pairs, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        likeness = _likeness(ours[i], theirs[j])
        if likeness > 0.0 and score[i][j] == score[i + 1][j + 1] + likeness:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif score[i][j] == score[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _likeness(a: _Placed, b: _Placed) -> float:
    if a.spelling != b.spelling or not a.spelling:
        return 0.0
    return max(0.0, 1.0 - abs(_centre(a.word) - _centre(b.word)) / SAME_WORD_S)


def _without(segments: Sequence[Segment], drop: Sequence[_Placed]) -> list[Segment]:
    """The segments without those words; a segment that loses all of them goes."""
    gone = {(d.segment, d.word) for d in drop}
    kept = []
    for i, s in enumerate(segments):
        words = words_of(s)
        rest = tuple(w for w in words if (i, w) not in gone)
        if len(rest) == len(words):
            kept.append(s)
        elif rest:
            kept.append(of_words(s, rest))
    return kept


def of_words(segment: Segment, words: Sequence[Word]) -> Segment:
    """The segment, narrowed to some of its words."""
    text = "".join(w.text for w in words).strip()
    timed = tuple(words) if segment.words else ()
    return replace(segment, start=words[0].start, end=words[-1].end, text=text, words=timed)


def _monotonic(segments: Iterable[Segment], duration: float) -> Iterable[Segment]:
    """Each segment begins no earlier than the one before it ended, and ends inside the recording."""
    at = 0.0
    for s in segments:
        start = min(max(s.start, at), duration)
        end = min(max(s.end, start), duration)
        words, after = [], start
        for w in s.words:
            begin = min(max(w.start, after), end)
            after = min(max(w.end, begin), end)
            words.append(replace(w, start=begin, end=after))
        yield replace(s, start=start, end=end, words=tuple(words))
        at = end
