"""What became of every second of a recording: transcribed, no speech, or failed with a reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from chunking.timeline import ChunkResult, Coverage, CoverageSpan, Plan, Span

DAMAGED = "the file is damaged here"
UNHEARD = "the VAD saw speech, the model heard none"


def coverage(plan: Plan, results: Sequence[ChunkResult]) -> tuple[CoverageSpan, ...]:
    """Stretches per channel, without holes or overlaps, from 0 to the duration."""
    out: list[CoverageSpan] = []
    for channel in range(plan.channels):
        marks: list[tuple[Span, Coverage, str]] = []
        read = {r.index: r for r in results if r.channel == channel}
        for shard in plan.shards:
            if shard.channel != channel:
                continue
            for chunk in shard.chunks:
                result = read.get(chunk.index)
                if result is None:
                    marks += [(s, Coverage.FAILED, "not decoded") for s in chunk.speech]
                elif result.segments or result.gaps:
                    marks += [(s, Coverage.TRANSCRIBED, "") for s in chunk.speech]
                else:
                    marks += [(s, Coverage.NO_SPEECH, UNHEARD) for s in chunk.speech]
        marks += [(g.span, Coverage.FAILED, g.reason) for r in read.values() for g in r.gaps]
        marks += [(s, Coverage.FAILED, DAMAGED) for s in plan.lost]
        out.extend(_painted(marks, plan.duration, channel))
    return tuple(out)


def _painted(marks: Iterable[tuple[Span, Coverage, str]], duration: float, channel: int) -> list[CoverageSpan]:
    """Later marks cover earlier ones, as paint does; what no mark reaches is no speech."""
    painted: list[CoverageSpan] = [CoverageSpan(Span(0.0, duration), Coverage.NO_SPEECH, "", channel)]
    if duration <= 0.0:
        return []
    ordered = sorted(marks, key=lambda m: (m[1] is Coverage.FAILED, m[0]))
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
