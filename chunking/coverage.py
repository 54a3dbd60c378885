"""What became of every second of a recording: transcribed, no speech, or failed with a reason. Pure.

A chunk's text stands for the speech under it, give or take what timestamps are loose by (`holes`): the rule by which
the rest was decoded again (pipeline/unread.py) is the one by which it is accounted for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from chunking.timeline import Chunk, ChunkResult, Coverage, CoverageSpan, Plan, Span, total, within

DAMAGED = "the file is damaged here"
UNREAD = "unread"
UNHEARD = "the VAD saw speech, the model heard none"
INVENTED = "the model made up a text where nobody speaks"
QUIET = frozenset({UNHEARD, INVENTED})
"""Reasons of gaps in which nobody speaks after all."""

TAIL_S = 0.5
"""Speech after the last word that is worth a decoding of its own (in 14 minutes: 86 words lost without, 32 with)."""
GAP_S = 1.0
"""The same before the first word and between words, where timestamps are loose: of 452 pieces of tiny.en and base over
read and spoken English none has so much before it, and the most (0.33 s) was no lost word."""


def holes(read: Sequence[Span], speech: Sequence[Span], whole: Span) -> tuple[Span, ...]:
    """Stretches of `whole` in which nothing was read although somebody speaks for long enough.

    `read`: what text, or a reason, stands for. All in the same seconds.
    """
    found, at = [], whole.start
    for span in (*sorted(read), Span(whole.end, whole.end)):
        hole = Span(at, max(at, span.start))
        if total(within(speech, hole)) > (TAIL_S if read and span.start >= whole.end else GAP_S):
            found.append(hole)
        at = max(at, span.end)
    return tuple(found)


def coverage(plan: Plan, results: Sequence[ChunkResult]) -> tuple[CoverageSpan, ...]:
    """Stretches per channel, without holes or overlaps, from 0 to the duration."""
    out: list[CoverageSpan] = []
    for channel in range(plan.channels):
        marks: list[tuple[Span, Coverage, str]] = []
        read = {r.index: r for r in results if r.channel == channel}
        for shard in plan.shards:
            if shard.channel == channel:
                marks += [m for c in shard.chunks for m in _of_chunk(c, read)]
        marks += [(s, Coverage.FAILED, DAMAGED) for s in plan.lost]
        out.extend(_painted(marks, plan.duration, channel))
    return tuple(out)


def _of_chunk(chunk: Chunk, read: dict[int, ChunkResult]) -> Iterable[tuple[Span, Coverage, str]]:
    result = read.get(chunk.index)
    if result is None:
        return [(s, Coverage.FAILED, "not decoded") for s in chunk.speech]
    if not result.segments and not result.gaps:
        return [(s, Coverage.NO_SPEECH, UNHEARD) for s in chunk.speech]
    marks = [(s, Coverage.TRANSCRIBED, "") for s in chunk.speech]
    marks += [(g.span, Coverage.NO_SPEECH if g.reason in QUIET else Coverage.FAILED, g.reason) for g in result.gaps]
    # Where speech was cut, the neighbours read some of it too.
    near = [r for i in (-1, 0, 1) if (r := read.get(chunk.index + i))]
    stands = [s.span for r in near for s in r.segments] + [g.span for g in result.gaps]
    for hole in holes([s for s in stands if s.overlap(chunk.span) > 0.0], chunk.speech, chunk.span):
        marks += [(s, Coverage.FAILED, UNREAD) for s in within(chunk.speech, hole)]
    return marks


_OVER = {Coverage.TRANSCRIBED: 0, Coverage.NO_SPEECH: 1, Coverage.FAILED: 2}
"""Which kind covers which."""


def _painted(marks: Iterable[tuple[Span, Coverage, str]], duration: float, channel: int) -> list[CoverageSpan]:
    """Marks cover each other by their kind, later ones earlier ones; what no mark reaches is no speech."""
    painted: list[CoverageSpan] = [CoverageSpan(Span(0.0, duration), Coverage.NO_SPEECH, "", channel)]
    if duration <= 0.0:
        return []
    ordered = sorted(marks, key=lambda m: (_OVER[m[1]], m[0]))
    covers: list[CoverageSpan] = []
    for span, kind, reason in ordered:
        inside = span.clip(Span(0.0, duration))
        if inside.duration > 0.0:
            covers.append(CoverageSpan(inside, kind, reason, channel))
    edges = sorted({0.0, duration, *(c.span.start for c in covers), *(c.span.end for c in covers)})
    begin_at: dict[float, list[int]] = {}
    end_at: dict[float, list[int]] = {}
    for i, c in enumerate(covers):
        begin_at.setdefault(c.span.start, []).append(i)
        end_at.setdefault(c.span.end, []).append(i)
    open_now: set[int] = set()
    out: list[CoverageSpan] = []
    for start, end in pairwise(edges):
        open_now.difference_update(end_at.get(start, ()))
        open_now.update(begin_at.get(start, ()))
        top = covers[max(open_now)] if open_now else painted[0]
        piece = CoverageSpan(Span(start, end), top.kind, top.reason, channel)
        if out and (out[-1].kind, out[-1].reason) == (piece.kind, piece.reason):
            out[-1] = CoverageSpan(Span(out[-1].span.start, end), piece.kind, piece.reason, channel)
        else:
            out.append(piece)
    return out
