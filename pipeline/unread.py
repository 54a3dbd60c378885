"""What to decode so that a stretch is read that the model left out. Pure.

Where such stretches lie: `holes` in chunking/coverage.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunking.timeline import Span, total, within

EARLY_S = 2.0, 5.0
"""What is decoded again begins with a pause that lies so long before it, in words that were read already. A model that
hears a word and a half makes something up: `for tag.`, and with its sentence `fatigue.`"""
CONTEXT_S = 3.0
"""… or so long before it, where there is no pause; and it ends as long after it."""
ALONE_S = 2.0
"""Speech that is understood alone …"""
PAUSE_S = 0.3
"""… after such a pause: what was read did not end in the middle of a word."""
EDGE_S = 0.1
"""Silence kept before speech."""


def attempts(hole: Span, speech: Sequence[Span], whole: Span) -> tuple[Span, ...]:
    """What to decode, best first: with some of what was said around the hole, then without."""
    heard = within(speech, hole)
    alone = Span(max(hole.start, heard[0].start - EDGE_S), hole.end)
    before = [s.end for s in speech if s.start < heard[0].start]
    apart = heard[0].start - max(before, default=whole.start - PAUSE_S) >= PAUSE_S
    if apart and hole.end >= whole.end and total(heard) >= ALONE_S:
        return (alone,)
    starts = [s.start - EDGE_S for s in speech if EARLY_S[0] <= hole.start - s.start <= EARLY_S[1]]
    start = max(whole.start, max(starts, default=hole.start - CONTEXT_S))
    around = Span(start, min(whole.end, hole.end + CONTEXT_S))
    return (around, alone) if around != alone else (alone,)
