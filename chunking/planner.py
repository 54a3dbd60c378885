"""How a recording is cut: spans of speech → shards of chunks. Pure.

Chunks end in pauses. Only where somebody speaks on for longer than a chunk may last is speech cut, at the weakest
moment there is, and then both neighbours hold the seconds around the cut so that no word is halved (stitcher.py joins
them again). Which pauses are used is the cheapest way through the recording (`_pack`): few seconds of window to
compute, few cuts in short pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from chunking.timeline import LONGEST_WINDOW_S, Chunk, Plan, Shard, Span, within


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Lengths in seconds. What was measured about them: ARCHITECTURE.md."""

    chunk_s: float = 19.0
    """Longest chunk: 20 s windows are cheaper than 30 s by more than a third and lose fewer words."""
    windows: tuple[float, ...] = (10.0, 15.0, 20.0, 25.0, 30.0)
    """Lengths that the model's input is padded to. Under 10 s the decoder begins to loop."""
    margin_s: float = 1.0
    """Silence that the model needs after the last word, else it closes early."""
    edge_s: float = 0.4
    """Silence kept at both ends of a chunk, where there is that much. Words read wrong with 0.25 s, and with 0.4: of
    1601 in clips tiny.en 181 for 179, base 158 for 153; of 1286 in long recordings 179 for 170, 160 for 145."""
    overlap_s: float = 2.0
    """What two chunks share where speech had to be cut: longer than a long word on either side."""
    longest_pause_s: float = 4.0
    """Chunks never reach across a longer pause: a model fills silence with inventions."""
    shard_s: float = 600.0

    def window(self, duration: float) -> float:
        """The window for a chunk of that many seconds."""
        return next((w for w in self.windows if duration + self.margin_s <= w), LONGEST_WINDOW_S)


@dataclass(frozen=True, slots=True)
class Track:
    """What the VAD found on one channel."""

    channel: int
    speech: tuple[Span, ...]
    probabilities: Sequence[float]
    """Speech probability per frame; where to cut speech that has no pause."""
    frame_s: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """Speech that fits one chunk: a span, or a part of a span that had to be cut."""

    span: Span
    cut_before: bool = False
    cut_after: bool = False


def plan(tracks: Sequence[Track], duration: float, options: PlanOptions | None = None) -> Plan:
    """Cut all channels of a recording of `duration` seconds. The same input gives the same plan."""
    o = options or PlanOptions()
    shards: list[Shard] = []
    chunks = 0
    for track in tracks:
        for group in _shards(_chunks(track, duration, o), o.shard_s):
            numbered = tuple(replace(c, index=chunks + i) for i, c in enumerate(group))
            chunks += len(numbered)
            shards.append(Shard(len(shards), track.channel, Span(group[0].span.start, group[-1].span.end), numbered))
    return Plan(duration, len(tracks), tuple(shards))


def _chunks(track: Track, duration: float, o: PlanOptions) -> list[Chunk]:
    pieces = [p for s in track.speech for p in _cut(s, track, o)]
    groups = _pack(pieces, o)
    chunks = []
    for i, group in enumerate(groups):
        start, end = group[0].span.start, group[-1].span.end
        if not group[0].cut_before:
            before = groups[i - 1][-1].span.end if i else 0.0
            start -= min(o.edge_s, (start - before) / (2 if i else 1))
        if not group[-1].cut_after:
            after = groups[i + 1][0].span.start if i + 1 < len(groups) else duration
            end += min(o.edge_s, (after - end) / (2 if i + 1 < len(groups) else 1))
        span = Span(max(0.0, start), min(duration, end))
        speech = within(track.speech, span)
        chunks.append(Chunk(i, span, speech, o.window(span.duration), group[0].cut_before, group[-1].cut_after))
    return chunks


def _cut(span: Span, track: Track, o: PlanOptions) -> Iterable[_Piece]:
    """A span that is too long for one chunk, in overlapping pieces; others whole."""
    longest = o.chunk_s - 2 * o.edge_s
    start, cut_before = span.start, False
    while span.end - start > longest:
        reach = Span(start + longest / 2, min(start + longest, span.end) - o.overlap_s / 2)
        at = _weakest(reach, track)
        yield _Piece(Span(start, at + o.overlap_s / 2), cut_before, True)
        start, cut_before = at - o.overlap_s / 2, True
    yield _Piece(Span(start, span.end), cut_before)


def _weakest(reach: Span, track: Track) -> float:
    """The moment in `reach` where the VAD was least sure of speech; the latest of equals."""
    first, last = round(reach.start / track.frame_s), round(reach.end / track.frame_s)
    frames = list(track.probabilities[first:last])
    if not frames:
        return reach.end
    least = min(frames)
    latest = len(frames) - 1 - frames[::-1].index(least)
    return (first + latest + 0.5) * track.frame_s


def _pack(pieces: Sequence[_Piece], o: PlanOptions) -> list[Sequence[_Piece]]:
    """Group neighbours into chunks at the least cost: shortest path over the places where a chunk may begin."""
    longest = o.chunk_s - 2 * o.edge_s
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(pieces) + 1):
        options: list[tuple[float, int]] = []
        for begin in range(end - 1, -1, -1):
            if begin < end - 1 and not _together(pieces[begin], pieces[begin + 1], o):
                break
            duration = pieces[end - 1].span.end - pieces[begin].span.start
            if duration > longest and begin < end - 1:
                break
            cost = best[begin][0] + o.window(duration + 2 * o.edge_s) + CHUNK_COST
            if begin:
                cost += _cut_cost(pieces[begin].span.start - pieces[begin - 1].span.end)
            options.append((cost, begin))
        best.append(min(options))
    groups = []
    end = len(pieces)
    while end:
        begin = best[end][1]
        groups.append(pieces[begin:end])
        end = begin
    return groups[::-1]


def _together(piece: _Piece, following: _Piece, o: PlanOptions) -> bool:
    return not piece.cut_after and following.span.start - piece.span.end <= o.longest_pause_s


CHUNK_COST = 2.0
"""What a chunk costs beside its window, in seconds of window: prompt, first tokens, bookkeeping."""
SHORT_PAUSE_COST = 6.0
"""What a cut in no pause at all would cost; it falls to nothing at a pause of GOOD_PAUSE_S."""
GOOD_PAUSE_S = 0.6
"""Pauses between sentences of read speech are longer than this; pauses inside them are shorter."""


def _cut_cost(pause: float) -> float:
    return SHORT_PAUSE_COST * max(0.0, 1.0 - max(pause, 0.0) / GOOD_PAUSE_S)


def _shards(chunks: Sequence[Chunk], longest: float) -> Iterable[Sequence[Chunk]]:
    """Runs of chunks of at most `longest` seconds, ended at the widest pause in the second half of that reach."""
    begin = 0
    while begin < len(chunks):
        limit = chunks[begin].span.start + longest
        end = begin + 1
        while end < len(chunks) and chunks[end].span.end <= limit:
            end += 1
        if end < len(chunks):
            late = [i for i in range(begin + 1, end + 1) if chunks[i - 1].span.end >= limit - longest / 2]
            end = max(late, key=lambda i: (chunks[i].span.start - chunks[i - 1].span.end, i), default=end)
        yield chunks[begin:end]
        begin = end
