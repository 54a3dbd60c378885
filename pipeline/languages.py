"""Which language is spoken where, given how probable each is for windows that the model has listened to. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from chunking.planner import PlanOptions
from chunking.timeline import Chunk, Span, total

MULTI = "multi"
"""In place of a language's code: several are spoken, and each chunk is in its own."""
SHORT_CHUNK_S = 9.0
"""Longest chunk where several languages are spoken: what a window of 10 s takes."""
VOTERS = 5
"""Chunks of a shard that vote for the recording's language."""
CLEAR = 0.8
"""How probable a piece's language must be to be taken without a look at its neighbours. With base 43 of 44 chunks of
up to 9 s, in seven languages, were above 0.9, all of them rightly; the one below, 1.8 s long, was wrong."""
CLEAR_S = 2.0
"""Seconds of speech under which a language is never clear, and counts in proportion: "OK" is said in all of them."""
SWITCH = 2.5
"""What a change of language costs, in nats: two changes, there and back, need odds of 150 to 1."""
FLOOR = 0.001
"""No window speaks more strongly against a language than with this probability: alone it may change it, for less than
2 s of speech it hardly can."""
PAUSE_S = 0.25
"""Where several languages are spoken, the pauses at which a chunk is divided, to listen to it …"""
PIECE_S = 1.5
"""… in pieces of at least so many seconds of speech. A chunk as a whole would not tell: 4 s of English after 4 s of
German are German with a probability of 0.99."""
LISTENING_S = 5.0
"""A shorter window than those for decoding, for pieces that fit it."""
UNHEARD = "en"
"""Where nothing could be listened to."""

Probabilities = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A stretch of the recording in one language, and how sure the model is of it."""

    span: Span
    language: str
    probability: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What listening to some speech said of its language."""

    seconds: float
    """Of speech."""
    languages: Probabilities

    @property
    def likeliest(self) -> str | None:
        return max(self.languages, key=lambda x: (self.languages[x], x), default=None)

    @property
    def clear(self) -> bool:
        """There is no need to ask the neighbours."""
        return self.seconds >= CLEAR_S and max(self.languages.values(), default=0.0) >= CLEAR

    def of(self, language: str) -> float:
        """The language's probability."""
        return self.languages.get(language, 0.0)

    def worth(self, language: str) -> float:
        """How much speaks for that language, in nats, at most 0."""
        return min(1.0, self.seconds / CLEAR_S) * math.log(max(FLOOR, self.of(language)))


def listening_window(span: Span) -> float:
    """Seconds that a piece is padded to, to be listened to and not decoded."""
    return LISTENING_S if span.duration <= LISTENING_S else PlanOptions().window(span.duration)


def voters(chunks: Sequence[Chunk]) -> tuple[Chunk, ...]:
    """The chunks that vote: of as many equal runs as there are votes, the one with the most speech of each.

    So they lie all over the shard, and a jingle or a greeting in another language is one vote of five.
    """
    runs = min(VOTERS, len(chunks))
    edges = [round(i * len(chunks) / runs) for i in range(runs + 1)] if runs else []
    return tuple(max(chunks[a:b], key=lambda c: (total(c.speech), -c.index)) for a, b in pairwise(edges))


def vote(heard: Sequence[Evidence]) -> tuple[str, float]:
    """The language of all of it together and its probability: the mean, weighted by seconds of speech.

    The mean of probabilities, not of their logarithms: in those one window that is wrong and sure outweighs the rest.
    """
    seconds = sum(e.seconds for e in heard if e.languages)
    if not seconds:
        return UNHEARD, 0.0
    found: dict[str, float] = {}
    for e in heard:
        for language, probability in e.languages.items():
            found[language] = found.get(language, 0.0) + probability * e.seconds / seconds
    language = max(found, key=lambda x: (found[x], x))
    return language, found[language]


def path(heard: Sequence[Evidence], before: str | None, after: str | None) -> list[str]:
    """The likeliest language of each in a row of pieces, where changes cost SWITCH (Viterbi).

    `before`, `after`: the languages on both sides, where there are any.
    """
    possible = sorted({x for x in (before, after, *(e.likeliest for e in heard)) if x}) or [UNHEARD]
    worth = {x: heard[0].worth(x) - _change(before, x) for x in possible}
    came: list[dict[str, str]] = []
    for e in heard[1:]:
        top = max(possible, key=lambda x: worth[x])
        came.append({x: x if worth[x] >= worth[top] - SWITCH else top for x in possible})
        worth = {x: worth[y] - _change(y, x) + e.worth(x) for x, y in came[-1].items()}
    found = [max(possible, key=lambda x: worth[x] - _change(x, after))]
    for best in reversed(came):
        found.append(best[found[-1]])
    return found[::-1]


def _change(a: str | None, b: str | None) -> float:
    return 0.0 if a is None or b is None or a == b else SWITCH


def pieces(chunk: Chunk) -> tuple[Span, ...]:
    """The chunk divided at its pauses: spans that together are the chunk's, each with PIECE_S of speech if may be."""
    groups: list[list[Span]] = []
    for speech in chunk.speech:
        if groups and speech.start - groups[-1][-1].end < PAUSE_S:
            groups[-1].append(speech)
        else:
            groups.append([speech])
    while len(groups) > 1:
        k = min(range(len(groups)), key=lambda i: total(groups[i]))
        if total(groups[k]) >= PIECE_S:
            break
        at = k - 1 if k and (k + 1 == len(groups) or _pause(groups, k - 1) <= _pause(groups, k)) else k
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    cuts = [(a[-1].end + b[0].start) / 2 for a, b in pairwise(groups)]
    return tuple(Span(a, b) for a, b in zip([chunk.span.start, *cuts], [*cuts, chunk.span.end], strict=True))


def _pause(groups: Sequence[Sequence[Span]], k: int) -> float:
    """Seconds between a group and the next."""
    return groups[k + 1][0].start - groups[k][-1].end


def joined(spoken: Sequence[tuple[Spoken, float]]) -> tuple[Spoken, ...]:
    """A chunk's pieces, each with its seconds of speech → its stretches of one language, in order."""
    found: list[Spoken] = []
    for language, group in groupby(spoken, key=lambda x: x[0].language):
        mine = list(group)
        sure = sum(s.probability * seconds for s, seconds in mine) / (sum(seconds for _, seconds in mine) or 1.0)
        found.append(Spoken(Span(mine[0][0].span.start, mine[-1][0].span.end), language, sure))
    return tuple(found)
