"""Where two decodings of one chunk meet: what both of them said is kept once. Pure.

What is decoded again begins a few seconds early, in words that were read already, since a model that hears a word and a
half makes something up. The two texts are lined up by spelling; times only say which repeats are too far apart to be
one, for a model puts its timestamps loosely, and words between them are placed by their letters alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunking.stitcher import of_words, spelling, words_of
from chunking.timeline import Segment, Word

LOOSE_S = 1.5
"""The same word, said once: two decodings leave no more than this between its places."""
SLIP = 1
"""Last words of a decoding that the next one may correct: its end was cut in the middle of a word."""


def without_echo(before: Sequence[Segment], again: Sequence[Segment], at: float) -> tuple[list[Segment], list[Segment]]:
    """What `before` ended with and `again` begins with, kept once. `at`: where `before` ended, in seconds.

    Where they have no words in common, `again` counts from `at` on.
    """
    ours, theirs = _words(before), _words(again)
    dropped, said = _meeting(ours, theirs, SLIP)
    if not said:
        said = next((i for i, w in enumerate(theirs) if (w.start + w.end) / 2 >= at), len(theirs))
    return _kept(before, 0, len(ours) - dropped), _kept(again, said, len(theirs))


def without_end(again: Sequence[Segment], after: Sequence[Segment], at: float) -> list[Segment]:
    """`again` without the words that `after` begins with. `at`: where `after` begins, in seconds."""
    theirs = _words(again)
    _, said = _meeting([_turned(w) for w in reversed(_words(after))], [_turned(w) for w in reversed(theirs)], 0)
    return _kept(again, 0, len(theirs) - said if said else sum((w.start + w.end) / 2 < at for w in theirs))


def _words(segments: Sequence[Segment]) -> list[Word]:
    return [w for s in segments for w in words_of(s)]


def _meeting(ours: Sequence[Word], theirs: Sequence[Word], slip: int) -> tuple[int, int]:
    """(words of `ours` to drop at its end, words of `theirs` that it said), by the longest run that both have there.

    One common word is enough where `theirs` begins with it, else two. (0, 0): none.
    """
    a, b = [spelling(w.text) for w in ours], [spelling(w.text) for w in theirs]
    best = (0, 0.0, 0, 0)
    for dropped in range(min(slip + 1, len(a))):
        i = len(a) - 1 - dropped
        for j in range(len(b) - dropped):
            run = _run(a, b, i, j)
            apart = max(ours[i].start, theirs[j].start) - min(ours[i].end, theirs[j].end)
            if apart <= LOOSE_S and (run > 1 or (run and not j and not dropped)):
                best = max(best, (run - dropped, -apart, dropped, j + 1))
    return best[2:]


def _run(a: Sequence[str], b: Sequence[str], i: int, j: int) -> int:
    """How many words up to a[i] and b[j] are the same; none where these have no letters."""
    run = 0
    while i >= run and j >= run and a[i - run] and a[i - run] == b[j - run]:
        run += 1
    return run


def _turned(word: Word) -> Word:
    """The word in time that runs backwards."""
    return Word(-word.end, -word.start, word.text, word.probability)


def _kept(segments: Sequence[Segment], first: int, last: int) -> list[Segment]:
    """Their words [first, last) alone; a segment that keeps none goes."""
    kept, at = [], 0
    for s in segments:
        words = words_of(s)
        mine = words[max(0, first - at) : max(0, last - at)]
        at += len(words)
        if len(mine) == len(words):
            kept.append(s)
        elif mine:
            kept.append(of_words(s, mine))
    return kept
